//! What all objects and all jobs have.

use serde_json::{Map, Value, json};

use super::request::{KubernetesRequest, PodRequest};
use super::words::Node;

/// Stands for the name of the node, which Kubernetes puts there.
pub(super) const NODE_NAME: &str = "$(NODE_NAME)";

/// A user without any right, for pods that need no capability.
const USER: u32 = 65_532;

/// Results stay in the cluster's logs for a day.
const KEPT_S: u32 = 86_400;

/// What an object is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Part {
    /// Accounts and rights.
    Access,
    /// Says what can be measured.
    Doctor,
    /// Measures; its log is collected.
    #[default]
    Measure,
    /// The other end.
    Server,
    /// Waits for work of a controller.
    Agent,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Access => "access",
            Part::Doctor => "doctor",
            Part::Measure => "measure",
            Part::Server => "server",
            Part::Agent => "agent",
        }
    }
}

/// A job with one pod, or what each pod of a set does.
#[derive(Debug, Default)]
pub(super) struct Job<'a> {
    pub name: String,
    pub part: Part,
    /// Words for nearmetal.
    pub words: Vec<String>,
    /// The node on which it runs.
    pub node: Option<&'a Node>,
    /// The ConfigMap with its plan.
    pub plan: Option<&'a str>,
    /// The Secret with its token.
    pub secret: Option<&'a str>,
    /// It runs on another node than this part.
    pub server: Option<Part>,
    /// It has failed if it has not ended after this time, s.
    pub time_s: u64,
}

/// Labels of objects of a part.
pub(super) fn labels(request: &KubernetesRequest, part: Part) -> Value {
    json!({
        "app.kubernetes.io/name": "nearmetal",
        "app.kubernetes.io/instance": request.name.to_string(),
        "app.kubernetes.io/component": part.name(),
    })
}

/// How kubectl selects objects of a part.
pub(super) fn selector(request: &KubernetesRequest, part: Part) -> String {
    format!(
        "app.kubernetes.io/instance={},app.kubernetes.io/component={}",
        request.name,
        part.name()
    )
}

/// Metadata of an object.
pub(super) fn about(request: &KubernetesRequest, name: &str, part: Part) -> Value {
    json!({
        "name": name,
        "namespace": request.namespace.to_string(),
        "labels": labels(request, part),
    })
}

/// What a pod is made from.
fn template(request: &KubernetesRequest, job: &Job<'_>) -> Value {
    let mut metadata = json!({ "labels": labels(request, job.part) });
    if !request.pod.networks.is_empty() {
        let networks: Vec<String> = request.pod.networks.iter().map(ToString::to_string).collect();
        metadata["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": networks.join(",") });
    }
    json!({ "metadata": metadata, "spec": pod(request, job) })
}

/// A pod on each node that the selector and the taints allow, which is started again when it ends.
pub(super) fn daemon_set(request: &KubernetesRequest, job: &Job<'_>) -> Value {
    let mut template = template(request, job);
    template["spec"]["restartPolicy"] = json!("Always");
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": about(request, &job.name, job.part),
        "spec": {
            "selector": { "matchLabels": labels(request, job.part) },
            // A controller takes agents of its own version alone, so all change at once.
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": { "maxUnavailable": "100%" },
            },
            "template": template,
        },
    })
}

/// A job whose pod is tried again only where nearmetal has measured nothing.
pub(super) fn job(request: &KubernetesRequest, job: &Job<'_>) -> Value {
    let is_client = job.server.is_some();
    let mut spec = json!({
        "backoffLimit": if is_client { 6 } else { 0 },
        "activeDeadlineSeconds": job.time_s,
        "ttlSecondsAfterFinished": KEPT_S,
        "template": template(request, job),
    });
    if is_client {
        // Only 4 may be the server that has no address yet: a verdict is one, and stays.
        spec["podFailurePolicy"] = json!({ "rules": [{
            "action": "FailJob",
            "onExitCodes": { "operator": "NotIn", "values": [4] },
        }]});
    }
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": about(request, &job.name, job.part),
        "spec": spec,
    })
}

fn pod(request: &KubernetesRequest, job: &Job<'_>) -> Value {
    let wanted = &request.pod;
    let mut volumes = vec![json!({ "name": "tmp", "emptyDir": {} })];
    if let Some(plan) = job.plan {
        volumes.push(json!({ "name": "plan", "configMap": { "name": plan } }));
    }
    if let Some(secret) = job.secret {
        // With a group of the volume, Kubernetes lets that group read it too.
        let secret = json!({ "secretName": secret, "defaultMode": 0o400 });
        volumes.push(json!({ "name": "token", "secret": secret }));
    }
    if wanted.huge_pages.is_some() {
        volumes.push(json!({ "name": "huge-pages", "emptyDir": { "medium": "HugePages" } }));
    }
    let mut spec = json!({
        "serviceAccountName": request.name.to_string(),
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [container(wanted, job)],
        "volumes": volumes,
    });
    if job.secret.is_some() && wanted.capabilities.is_empty() {
        spec["securityContext"] = json!({ "fsGroup": USER });
    }
    if wanted.host_network {
        spec["hostNetwork"] = json!(true);
        spec["dnsPolicy"] = json!("ClusterFirstWithHostNet");
    }
    if !wanted.node_selector.is_empty() {
        let labels = wanted.node_selector.iter();
        spec["nodeSelector"] = labels.map(|it| (it.key.clone(), json!(it.value))).collect();
    }
    if !wanted.tolerations.is_empty() {
        spec["tolerations"] = tolerations(wanted);
    }
    let mut affinity = Map::new();
    if let Some(node) = job.node {
        let is_it =
            json!({ "key": "metadata.name", "operator": "In", "values": [node.to_string()] });
        affinity.insert(
            "nodeAffinity".into(),
            json!({
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{ "matchFields": [is_it] }],
                },
            }),
        );
    }
    if let Some(server) = job.server {
        affinity.insert(
            "podAntiAffinity".into(),
            json!({
                "requiredDuringSchedulingIgnoredDuringExecution": [{
                    "labelSelector": { "matchLabels": labels(request, server) },
                    "topologyKey": "kubernetes.io/hostname",
                }],
            }),
        );
    }
    if !affinity.is_empty() {
        spec["affinity"] = Value::Object(affinity);
    }
    spec
}

fn tolerations(wanted: &PodRequest) -> Value {
    let tolerations = wanted.tolerations.iter().map(|it| {
        let mut one = json!({ "key": it.key });
        one["operator"] = json!(if it.value.is_some() { "Equal" } else { "Exists" });
        if let Some(value) = &it.value {
            one["value"] = json!(value);
        }
        if let Some(effect) = &it.effect {
            one["effect"] = json!(effect);
        }
        one
    });
    tolerations.collect()
}

/// Requests equal limits in all resources, with whole CPUs: the pod is of the class Guaranteed, and
/// a static CPU manager gives it CPUs of its own.
fn container(wanted: &PodRequest, job: &Job<'_>) -> Value {
    let mut mounts = vec![json!({ "name": "tmp", "mountPath": "/tmp" })];
    if job.plan.is_some() {
        mounts.push(json!({ "name": "plan", "mountPath": "/plan", "readOnly": true }));
    }
    if job.secret.is_some() {
        mounts.push(json!({ "name": "token", "mountPath": "/token", "readOnly": true }));
    }
    if wanted.huge_pages.is_some() {
        mounts.push(json!({ "name": "huge-pages", "mountPath": "/dev/hugepages" }));
    }
    let resources = resources(wanted);
    // Kubernetes takes $(NAME) in a word for a variable, and $$ for a dollar.
    let word = |word: &String| match word == NODE_NAME {
        true => word.clone(),
        false => word.replace('$', "$$"),
    };
    json!({
        "name": "nearmetal",
        "image": wanted.image.to_string(),
        "args": job.words.iter().map(word).collect::<Vec<_>>(),
        "workingDir": "/tmp",
        "env": [
            { "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
            { "name": "COLUMNS", "value": "1000" },
        ],
        "resources": { "limits": resources, "requests": resources },
        "securityContext": security(wanted),
        "volumeMounts": mounts,
    })
}

fn resources(wanted: &PodRequest) -> Value {
    let mut all = json!({
        "cpu": wanted.cpus.to_string(),
        "memory": wanted.memory_bytes.to_string(),
    });
    if let Some((size, bytes)) = wanted.huge_pages {
        let name = match size {
            crate::PageSize::Mib2 => "hugepages-2Mi",
            crate::PageSize::Gib1 => "hugepages-1Gi",
        };
        all[name] = json!(bytes.to_string());
    }
    for device in &wanted.devices {
        all[device.to_string()] = json!("1");
    }
    all
}

/// Without capabilities, what the profile `restricted` of Kubernetes allows.
fn security(wanted: &PodRequest) -> Value {
    let names: Vec<String> = wanted.capabilities.iter().map(ToString::to_string).collect();
    let mut all = json!({
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "seccompProfile": { "type": "RuntimeDefault" },
        "capabilities": { "drop": ["ALL"] },
    });
    match names.is_empty() {
        true => {
            all["runAsNonRoot"] = json!(true);
            all["runAsUser"] = json!(USER);
        }
        // Capabilities of a container are in force for root alone.
        false => {
            all["capabilities"]["add"] = json!(names);
            all["runAsUser"] = json!(0);
        }
    }
    all
}
