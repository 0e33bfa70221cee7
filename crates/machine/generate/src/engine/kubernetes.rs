//! Kubernetes: jobs that qualify nodes, or measure between two pods, and a script that collects;
//! or agents on all nodes, between which a controller measures.
//!
//! The image has nearmetal and no shell. A pod writes its result as JSON to its log, where
//! `collect.sh` reads it. So pods need no volume of the cluster, and no right in it.

mod manifest;
mod request;
mod words;

use serde_json::{Value, json};

use super::words::WORSE;
use super::{EngineFile, yaml};
use manifest::{Job, Part};
pub(super) use request::PLAN_BYTES_MAX;
pub use request::{AgentWork, CPUS_MAX, KubernetesRequest, NodeWork, PairWork, PodRequest, Work};
pub use words::{Capability, Device, Image, Label, Network, Node, Object, Toleration, WordError};

/// How long a job may wait for its pod and for the network, beside the time of its plan, s.
const WAIT_S: u64 = 1_800;

/// The manifests and the script.
pub fn files(request: &KubernetesRequest) -> Vec<EngineFile> {
    let file = |name: &str, documents: &[Value]| EngineFile {
        name: name.to_string(),
        text: yaml::documents(documents),
        is_program: false,
    };
    let (name, work) = match &request.work {
        Work::Nodes(work) => ("nodes.yaml", nodes(request, work)),
        Work::Pair(work) => ("pair.yaml", pair(request, work)),
        Work::Agents(work) => ("agents.yaml", vec![agents(request, work)]),
    };
    let mut files = vec![
        file("access.yaml", &access(request)),
        file("doctor.yaml", &[doctor(request)]),
        file(name, &work),
    ];
    if has_logs(request) {
        let (name, text) = ("collect.sh".into(), collect(request));
        files.push(EngineFile { name, text, is_program: true });
    }
    files
}

/// An account without rights for the pods, and a reader of their logs where these have the results.
fn access(request: &KubernetesRequest) -> Vec<Value> {
    let mut all = vec![account(request, &request.name.to_string())];
    if has_logs(request) {
        all.extend(reader(request));
    }
    all
}

/// Whether the logs of pods have the results; those of agents are at their controller.
fn has_logs(request: &KubernetesRequest) -> bool {
    !matches!(request.work, Work::Agents(_))
}

fn account(request: &KubernetesRequest, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": manifest::about(request, name, Part::Access),
        "automountServiceAccountToken": false,
    })
}

/// An account that may read jobs, pods and their logs.
fn reader(request: &KubernetesRequest) -> [Value; 3] {
    let reader = format!("{}-reader", request.name);
    let about = |name: &str| manifest::about(request, name, Part::Access);
    let group = "rbac.authorization.k8s.io";
    [
        account(request, &reader),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": about(&reader),
            "rules": [
                { "apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"] },
                { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"] },
                { "apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"] },
            ],
        }),
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding",
            "metadata": about(&reader),
            "roleRef": { "apiGroup": group, "kind": "Role", "name": reader },
            "subjects": [{
                "kind": "ServiceAccount", "name": reader,
                "namespace": request.namespace.to_string(),
            }],
        }),
    ]
}

/// A job that says what these pods can measure.
fn doctor(request: &KubernetesRequest) -> Value {
    manifest::job(
        request,
        &Job {
            name: format!("{}-doctor", request.name),
            part: Part::Doctor,
            words: vec!["doctor".into()],
            time_s: WAIT_S,
            ..Job::default()
        },
    )
}

/// The plan, and a job for each node.
fn nodes(request: &KubernetesRequest, work: &NodeWork) -> Vec<Value> {
    let plan = format!("{}-plan", request.name);
    let part = work.part.as_ref().map_or(String::new(), |part| format!(":{part}"));
    let words = [
        "qualify",
        "--quiet",
        "--format",
        "json",
        "--plan",
        &format!("/plan/plan.toml{part}"),
        "--label",
        manifest::NODE_NAME,
        "--out",
        "/tmp/result",
    ];
    let job = |name: String, node: Option<&Node>| {
        manifest::job(
            request,
            &Job {
                name,
                part: Part::Measure,
                words: words.map(String::from).to_vec(),
                node,
                plan: Some(&plan),
                time_s: WAIT_S + 3 * work.duration_s,
                ..Job::default()
            },
        )
    };
    let mut all = vec![json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": manifest::about(request, &plan, Part::Measure),
        "data": { "plan.toml": work.plan },
        "immutable": true,
    })];
    match work.nodes.is_empty() {
        true => all.push(job(request.name.to_string(), None)),
        false => all.extend(
            (1..)
                .zip(&work.nodes)
                .map(|(number, node)| job(format!("{}-{number}", request.name), Some(node))),
        ),
    }
    all
}

/// A name for the server, the server, and the client on another node.
fn pair(request: &KubernetesRequest, work: &PairWork) -> Vec<Value> {
    let server = format!("{}-server", request.name);
    let mut words = vec![
        "pingpong".to_string(),
        work.stack.to_string(),
        server.clone(),
        "--quiet".to_string(),
        "--rounds".to_string(),
        "5".to_string(),
        "--format".to_string(),
        "json".to_string(),
    ];
    for limit in &work.limits {
        words.extend(["--target".to_string(), limit.to_string()]);
    }
    let job = |name: &str, part, words, server| {
        let time_s = 2 * WAIT_S;
        manifest::job(
            request,
            &Job { name: name.to_string(), part, words, server, time_s, ..Job::default() },
        )
    };
    let serve = ["pingpong", "server", "--once"].map(String::from).to_vec();
    vec![
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": manifest::about(request, &server, Part::Server),
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": true,
                "selector": manifest::labels(request, Part::Server),
            },
        }),
        job(&server, Part::Server, serve, None),
        job(&format!("{}-client", request.name), Part::Measure, words, Some(Part::Server)),
    ]
}

/// An agent on each node, with the name of the node.
fn agents(request: &KubernetesRequest, work: &AgentWork) -> Value {
    let secret = format!("{}-token", request.name);
    let words = [
        "agent",
        "--connect",
        &work.controller,
        "--pin",
        &work.pin,
        "--token-file",
        "/token/token",
        "--name",
        manifest::NODE_NAME,
    ];
    manifest::daemon_set(
        request,
        &Job {
            name: format!("{}-agent", request.name),
            part: Part::Agent,
            words: words.map(String::from).to_vec(),
            secret: Some(&secret),
            ..Job::default()
        },
    )
}

fn collect(request: &KubernetesRequest) -> String {
    COLLECT
        .replace("@WORSE@\n", WORSE)
        .replace("@NAMESPACE@", &request.namespace.to_string())
        .replace("@SELECTOR@", &manifest::selector(request, Part::Measure))
}

/// Names have letters that no shell knows, so that they need no quotes.
const COLLECT: &str = r#"#!/bin/sh
# Waits for the jobs, and writes the result of each into a folder for `nearmetal report`.
#
#   sh collect.sh FOLDER
#
# FOLDER must be new; it gets JOB/result.json. Where a job has no result, JOB/messages.txt says why.
# Exit codes are those of nearmetal: 0 pass, 1 a target failed, 3 inconclusive, 4 no measurement.
set -eu
folder=${1:?usage: collect.sh FOLDER}
mkdir -- "$folder"
@WORSE@
ask() { kubectl --namespace=@NAMESPACE@ get "$@"; }

for job in $(ask jobs --selector=@SELECTOR@ --output=name); do
  name=${job##*/}
  while
    conditions=$(ask "$job" '--output=jsonpath={.status.conditions[?(@.status=="True")].type}')
    case " $conditions " in *' Complete '* | *' Failed '*) false ;; esac
  do sleep 2; done
  mkdir -- "$folder/$name"
  # The last pod: those before it found no server.
  pod=$(ask pods --selector="job-name=$name" --sort-by=.metadata.creationTimestamp --output=name |
    tail -n 1)
  ended=4
  if [ -n "$pod" ]; then
    kubectl --namespace=@NAMESPACE@ logs "$pod" > "$folder/$name/messages.txt" || :
    ended=$(ask "$pod" \
      '--output=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}')
  else
    echo 'no pod has run: see kubectl describe job' > "$folder/$name/messages.txt"
  fi
  case ${ended:=4} in
  0 | 1 | 3)
    # A log has the messages too, before and after the result.
    sed -n '/^{$/,/^}$/p' "$folder/$name/messages.txt" > "$folder/$name/result.json"
    rm -- "$folder/$name/messages.txt"
    ;;
  esac
  echo "$name: ended with $ended"
  worse "$ended"
done
exit "$code"
"#;

#[cfg(test)]
mod tests {
    use super::request::tests::request;
    use super::*;

    #[test]
    fn pods_have_least_rights_and_whole_cpus_of_their_own() {
        let mut request = request();
        let Work::Nodes(work) = &request.work else { unreachable!() };
        let pod = &nodes(&request, work)[1]["spec"]["template"]["spec"];
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod.get("hostNetwork"), None);
        let container = &pod["containers"][0];
        let security = &container["securityContext"];
        assert_eq!(security["runAsNonRoot"], true);
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }));
        assert_eq!(container["resources"]["limits"]["cpu"], "3");
        assert_eq!(container["resources"]["limits"], container["resources"]["requests"]);
        assert_eq!(container["args"][5], "/plan/plan.toml:a$$(b)");
        assert_eq!(container["args"][7], "$(NODE_NAME)");

        request.pod.capabilities = vec!["IPC_LOCK".parse().unwrap()];
        let security = &doctor(&request)["spec"]["template"]["spec"]["containers"][0];
        let security = &security["securityContext"];
        assert_eq!(security["capabilities"], json!({ "add": ["IPC_LOCK"], "drop": ["ALL"] }));
        assert_eq!((&security["runAsUser"], security.get("runAsNonRoot")), (&json!(0), None));

        let access = access(&request);
        let verbs: Vec<&Value> = access[2]["rules"].as_array().unwrap().iter().collect();
        assert!(verbs.iter().all(|rule| rule["verbs"] != json!(["*"])), "{verbs:?}");
        assert_eq!(access[3]["subjects"][0]["name"], "rack-reader");
    }

    #[test]
    fn agents_read_the_token_without_a_right_and_are_started_again() {
        let mut request = request();
        let work = AgentWork::new(&"control.example:4850", &"5f".repeat(32));
        request.work = Work::Agents(work.clone());
        assert_eq!(access(&request).len(), 1, "nobody reads a log");
        let set = agents(&request, &work);
        let spec = &set["spec"];
        assert_eq!(spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]);
        let pod = &spec["template"]["spec"];
        assert_eq!(pod["restartPolicy"], "Always");
        assert_eq!(pod["automountServiceAccountToken"], false);
        let container = &pod["containers"][0];
        // The group of the volume is that of the user, who reads what root owns.
        let user = &container["securityContext"]["runAsUser"];
        assert_eq!(&pod["securityContext"]["fsGroup"], user);
        let secret = json!({ "secretName": "rack-token", "defaultMode": 0o400 });
        assert_eq!(pod["volumes"][1], json!({ "name": "token", "secret": secret }));
        assert_eq!(container["args"][8], "$(NODE_NAME)");

        request.pod.capabilities = vec!["IPC_LOCK".parse().unwrap()];
        let pod = &agents(&request, &work)["spec"]["template"]["spec"];
        assert_eq!(pod.get("securityContext"), None);
    }
}
