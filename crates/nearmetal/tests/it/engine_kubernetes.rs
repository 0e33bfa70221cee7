//! The files of `nearmetal generate kubernetes`: manifests by the published schemas, and the words
//! and the script of a job, run here.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use nm_controller::tls;
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::{BINARY, Running, command, finish, free_port, run, wait_for};

/// Versions of Kubernetes whose schemas are compared: the oldest that is still served by
/// distributors, one between, and the newest of the package.
const VERSIONS: [&str; 3] = ["1.30.0", "1.34.0", "1.37.0"];

fn generate(folder: &Path, words: &[&str]) {
    let usual = ["generate", "kubernetes", "--image", "registry.example:5000/a/nearmetal:0.1.0"];
    let out = ["--out", folder.to_str().unwrap()];
    let done = run(&[&usual[..], words, &out].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
}

/// Whether these manifests are valid by the schemas of a version. The program only warns of a kind
/// that it does not know.
fn is_valid(programs: &Path, version: &str, files: &[&Path]) -> (bool, String) {
    let mut command = Command::new(programs.join("kubernetes-validate"));
    let run = finish(command.args(["--strict", "-k", version]).args(files));
    let said = format!("{}{}", run.stdout, run.stderr);
    (run.code == 0 && said.contains(" passed ") && !said.contains("WARN"), said)
}

const EVERYTHING: &[&str] = &[
    "--namespace",
    "lab-7",
    "--name",
    "rack",
    "--limit",
    "p99 < 50us at size<=64",
    "--node",
    "n1,n2.example",
    "--node-selector",
    "rack=on",
    "--node-selector",
    "example.com/row=1_000",
    "--toleration",
    "latency=only:NoSchedule",
    "--toleration",
    "example.com/own",
    "--pod-cpus",
    "4",
    "--memory",
    "2GiB",
    "--huge-pages",
    "512MiB",
    "--device",
    "intel.com/sriov_net",
    "--network",
    "lab/fast@net1",
    "--capability",
    "IPC_LOCK",
    "--host-network",
];

/// `NM_KUBERNETES` names the folder of `kubernetes-validate`.
#[test]
#[ignore = "needs the package kubernetes-validate"]
fn manifests_are_valid_by_the_schemas_of_three_versions_and_faults_are_not() {
    let programs = std::env::var_os("NM_KUBERNETES").expect("the folder of kubernetes-validate");
    let programs = Path::new(&programs);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    generate(&path("all"), EVERYTHING);
    generate(&path("least"), &["--plan", "quick"]);
    generate(&path("pair"), &["--pair", "tcp-spin", "--limit", "p99 < 1ms"]);
    let pin = "5f".repeat(32);
    generate(&path("agents"), &["--connect", "control.example", "--pin", &pin]);
    let mut files = vec![];
    for folder in ["all", "least", "pair", "agents"] {
        let entries = fs::read_dir(path(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "yaml")));
    }
    let files: Vec<&Path> = files.iter().map(AsRef::as_ref).collect();
    assert_eq!(files.len(), 12, "{files:?}");
    for version in VERSIONS {
        let (is_valid, said) = is_valid(programs, version, &files);
        assert!(is_valid, "{version}: {said}");
    }
    let text = fs::read_to_string(path("all/nodes.yaml")).unwrap();
    for (from, to) in [
        ("kind: \"Job\"", "kind: \"Jobs\""),
        ("batch/v1", "batch/v1beta1"),
        ("restartPolicy:", "restartPolice:"),
        ("hostNetwork: true", "hostNetwork: \"true\""),
        ("backoffLimit: 0", "backoffLimit: \"0\""),
    ] {
        assert!(text.contains(from), "{from}");
        fs::write(path("fault.yaml"), text.replace(from, to)).unwrap();
        let (is_valid, said) = is_valid(programs, VERSIONS[2], &[&path("fault.yaml")]);
        assert!(!is_valid, "{to}: {said}");
    }
}

fn documents(path: &Path) -> Vec<Yaml> {
    YamlLoader::load_from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A cluster of one node, by a program in place of kubectl: job `rack-1` has run, and `rack-2` has
/// ended with a message.
const KUBECTL: &str = r#"#!/bin/sh
case "$*" in
*' get jobs '*) printf 'job.batch/rack-1\njob.batch/rack-2\n' ;;
*' get job.batch/'*)
  # At first it has not ended.
  [ -e @/asked ] && echo 'FailureTarget Failed'
  : > @/asked ;;
*' get pods '*'=rack-1 '*) printf 'pod/rack-1-old\npod/rack-1-new\n' ;;
*' get pods '*'=rack-2 '*) echo pod/rack-2-new ;;
*' logs pod/rack-1-new') cat @/log ;;
*' logs pod/rack-2-new') echo 'nearmetal: there is no such file' ;;
*' get pod/rack-1-new '*) cat @/code ;;
*' get pod/rack-2-new '*) echo 2 ;;
*) echo "not expected: $*" >&2; exit 9 ;;
esac
"#;

#[test]
fn the_words_of_a_job_write_a_log_that_is_collected_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    generate(&path("all"), EVERYTHING);
    let all = documents(&path("all/nodes.yaml"));
    let kinds: Vec<_> = all.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ConfigMap", "Job", "Job"]);
    let pod = &all[2]["spec"]["template"]["spec"];
    let node = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let node = &node["nodeSelectorTerms"][0]["matchFields"][0]["values"][0];
    assert_eq!(node.as_str(), Some("n2.example"));
    let container = &pod["containers"][0];
    assert_eq!(container["resources"]["limits"], container["resources"]["requests"]);

    fs::write(path("plan.toml"), all[0]["data"]["plan.toml"].as_str().unwrap()).unwrap();
    let here = folder.path().to_str().unwrap();
    let words = container["args"].as_vec().unwrap().iter().map(|word| {
        let word = word.as_str().unwrap().replace("$(NODE_NAME)", "n1");
        // The folder itself may begin with /tmp.
        match word.strip_prefix("/tmp/").or(word.strip_prefix("/plan/")) {
            Some(name) => format!("{here}/{name}"),
            None => word,
        }
    });
    let script = format!(
        "\"$0\" \"$@\" > {here}/log 2>&1; echo $? > {here}/code; \
         echo 'nearmetal: a message' >> {here}/log"
    );
    let ran = finish(Command::new("sh").args(["-c", &script, BINARY]).args(words));
    assert_eq!(ran.code, 0, "{}", ran.stderr);

    fs::create_dir(path("bin")).unwrap();
    fs::write(path("bin/kubectl"), KUBECTL.replace('@', here)).unwrap();
    fs::set_permissions(path("bin/kubectl"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut collect = Command::new("sh");
    let way = format!("{here}/bin:{}", std::env::var("PATH").unwrap());
    collect.arg(path("all/collect.sh")).arg(path("out")).env("PATH", way);
    let ran = finish(&mut collect);
    let code = fs::read_to_string(path("code")).unwrap();
    // A failed target is worse than a node without a result, and that than an undecided one.
    let expected = if code.trim() == "1" { 1 } else { 2 };
    assert!(["0", "1", "3"].contains(&code.trim()), "{code}");
    assert!([expected, 3].contains(&ran.code), "{code}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("rack-2: ended with 2\n"), "{}{}", ran.stdout, ran.stderr);
    let report = run(&["report", path("out/rack-1").to_str().unwrap()]);
    assert_eq!(report.code, 0, "{}", report.stderr);
    assert!(report.stdout.contains("loopback/tcp-spin"), "{}", report.stdout);
    let result = fs::read_to_string(path("out/rack-1/result.json")).unwrap();
    assert!(result.contains("\"n1\""), "the label is the node");
    let said = fs::read_to_string(path("out/rack-2/messages.txt")).unwrap();
    assert_eq!(said, "nearmetal: there is no such file\n");
    assert!(!path("out/rack-2/result.json").exists());
}

/// The words of both pods, with the name that the service would have.
#[test]
fn the_words_of_a_pair_reach_each_other() {
    let folder = tempfile::tempdir().unwrap();
    generate(folder.path(), &["--pair", "tcp-blocking", "--limit", "p99 < 10s"]);
    let all = documents(&folder.path().join("pair.yaml"));
    let words = |at: usize| -> Vec<String> {
        let words = &all[at]["spec"]["template"]["spec"]["containers"][0]["args"];
        words.as_vec().unwrap().iter().map(|word| word.as_str().unwrap().to_string()).collect()
    };
    assert_eq!(words(1), ["pingpong", "server", "--once"]);
    let selector = &all[0]["spec"]["selector"];
    let labels = |at: usize| &all[at]["spec"]["template"]["metadata"]["labels"];
    assert_eq!(selector, labels(1));
    let client = &all[2]["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"];
    let apart = &client["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(&apart["labelSelector"]["matchLabels"], labels(1));

    let client = words(2).join(" ").replace("nearmetal-server", "localhost");
    let script = format!(
        "ip link set lo up; \"$0\" {} & i=0; while :; do \"$0\" $1 --target 'p99 < 10s' \
         --sizes 64 --maxms 20 > \"$2\"; code=$?; i=$((i + 1)); \
         [ $code -eq 4 ] && [ $i -lt 50 ] || break; sleep 0.1; done; wait; exit $code",
        words(1).join(" "),
    );
    let client = client.split(" --target").next().unwrap();
    let log = folder.path().join("result.json");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script, BINARY, client]).arg(&log);
    let ran = finish(&mut command);
    let text = fs::read_to_string(&log).unwrap();
    assert!([0, 3].contains(&ran.code), "{}: {}{text}", ran.code, ran.stderr);
    let report = run(&["report", folder.path().to_str().unwrap()]);
    assert_eq!(report.code, 0, "{}{text}", report.stderr);
}

/// The words of an agent's pod, with the token where the Secret would be.
#[test]
fn the_words_of_an_agent_reach_their_controller() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().to_str().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("token"), "0123456789abcdef\n").unwrap();
    fs::set_permissions(path("token"), fs::Permissions::from_mode(0o400)).unwrap();
    let start = |words: &[&str]| {
        let mut command = command(words);
        command.current_dir(here).stdin(Stdio::null());
        Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    };
    let at = format!("127.0.0.1:{}", free_port());
    let words = ["controller", "--listen", &at, "--token-file", "token", "--key", "key"];
    let _controller = start(&[&words[..], &["--socket", "socket"]].concat());
    let key = wait_for("the key", || fs::read_to_string(path("key")).ok());
    let pin = tls::server(&key, None).unwrap().1.unwrap().to_string();

    generate(&path("agents"), &["--connect", &at, "--pin", &pin]);
    assert!(!path("agents/collect.sh").exists());
    let set = &documents(&path("agents/agents.yaml"))[0];
    let words = &set["spec"]["template"]["spec"]["containers"][0]["args"];
    let words = words.as_vec().unwrap().iter().map(|word| match word.as_str().unwrap() {
        "$(NODE_NAME)" => "n1",
        "/token/token" => "token",
        word => word,
    });
    let _agent = start(&words.collect::<Vec<_>>());
    let socket = path("socket");
    let list = ["fleet", "agents", "--controller", socket.to_str().unwrap(), "--format", "json"];
    wait_for("the agent", || run(&list).stdout.contains("\"n1\"").then_some(()));
}
