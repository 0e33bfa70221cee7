//! Files for engines: whole texts, and scripts that a shell can read.

use std::fs;
use std::path::Path;
use std::process::Command;

use nm_generate::engine::ansible::{self, AnsibleRequest};
use nm_generate::engine::kubernetes::{
    self, AgentWork, KubernetesRequest, NodeWork, PairWork, PodRequest, Work,
};
use nm_generate::engine::slurm::{self, SlurmRequest};
use nm_generate::engine::systemd::{self, Every, SystemdRequest};
use nm_generate::engine::{EngineFile, NodePlan, PairsName};

fn slurm_files(path: &str) -> Vec<EngineFile> {
    let limits = ["p99 < 50us at size<=64", "time-lost < 1%"];
    let limits = limits.iter().map(|limit| limit.parse().unwrap()).collect();
    slurm::files(&SlurmRequest {
        name: "rack-7".parse().unwrap(),
        nodes: 16,
        partition: Some("Low_Latency".parse().unwrap()),
        program: path.parse().unwrap(),
        plan: "two-hosts:latency".parse().unwrap(),
        pairs: PairsName::of(&"sample:4"),
        node: NodePlan::new(limits, Some(path.parse().unwrap())).unwrap(),
        configuration: Some("/srv/slurm/slurm.conf".parse().unwrap()),
    })
}

fn systemd_files() -> Vec<EngineFile> {
    systemd::files(&SystemdRequest {
        name: "nightly".parse().unwrap(),
        every: Every::Week,
        program: "/opt/a b/nearmetal".parse().unwrap(),
        plan: "/etc/nearmetal/100%.toml:latency".parse().unwrap(),
        baseline: Some("/etc/nearmetal/accepted".parse().unwrap()),
    })
}

fn kubernetes_files(work: Work) -> Vec<EngineFile> {
    kubernetes::files(&KubernetesRequest {
        name: "rack-7".parse().unwrap(),
        namespace: "latency".parse().unwrap(),
        pod: PodRequest {
            image: "registry.example/nearmetal:0.1.0".parse().unwrap(),
            node_selector: vec!["rack=7".parse().unwrap()],
            tolerations: vec!["latency=only:NoSchedule".parse().unwrap()],
            host_network: false,
            cpus: 2,
            memory_bytes: 1 << 30,
            huge_pages: None,
            devices: vec![],
            networks: vec![],
            capabilities: vec![],
        },
        work,
    })
}

fn node_work() -> Work {
    let node = NodePlan::new(vec!["p99 < 50us at size<=64".parse().unwrap()], None).unwrap();
    let nodes = vec!["n1".parse().unwrap()];
    Work::Nodes(NodeWork { plan: node.text().into(), part: None, duration_s: 4, nodes })
}

fn pair_work() -> Work {
    let limits = vec!["p99 < 1ms".parse().unwrap()];
    Work::Pair(PairWork::new("tcp-spin".parse().unwrap(), limits).unwrap())
}

fn agent_work() -> Work {
    Work::Agents(AgentWork::new(&"control.example:4850", &"5f".repeat(32)))
}

fn ansible_files() -> Vec<EngineFile> {
    ansible::files(&AnsibleRequest {
        name: "qualify".parse().unwrap(),
        program: "/opt/a {{ b }}/nearmetal".parse().unwrap(),
        plan: "/etc/nearmetal/v1.2.toml:latency".parse().unwrap(),
        baseline: None,
    })
}

#[test]
fn whole_files_are_as_recorded() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let slurm = slurm_files("/opt/it's here/nearmetal");
    let mut all: Vec<EngineFile> = slurm.into_iter().chain(systemd_files()).collect();
    let pair = kubernetes_files(pair_work()).into_iter().filter(|it| it.name == "pair.yaml");
    let agents = kubernetes_files(agent_work()).into_iter().filter(|it| it.name == "agents.yaml");
    all.extend(kubernetes_files(node_work()).into_iter().chain(pair).chain(agents));
    all.extend(ansible_files());
    for file in &all {
        let path = golden.join(&file.name);
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &file.text).unwrap();
        }
        assert_eq!(file.text, fs::read_to_string(path).unwrap(), "{}", file.name);
    }
}

/// A path that a shell would run, were it not quoted, and a template's word.
#[test]
fn scripts_with_hostile_paths_are_read_by_a_shell_and_run_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let trap = folder.path().join("trap");
    for path in [format!("/x'$(touch {0})`touch {0}`", trap.display()), "/@PLAN@/END".into()] {
        for file in slurm_files(&path) {
            let script = folder.path().join(&file.name);
            fs::write(&script, &file.text).unwrap();
            let read = Command::new("sh").arg("-n").arg(&script).output().unwrap();
            assert!(read.status.success(), "{read:?}");
            assert!(file.text.contains(&path.replace('\'', "'\\''")), "{}", file.text);
            // Commands of Slurm are not there; the words are expanded nevertheless.
            let mut command = Command::new("sh");
            command.arg(&script).arg(folder.path().join(format!("{}.out", file.name)));
            command.env("PATH", "/usr/bin:/bin").env("SLURM_JOB_ID", "1");
            command.env("SLURM_JOB_NUM_NODES", "1").env("SLURM_JOB_NODELIST", "none");
            command.env("SLURMD_NODENAME", "nearmetal-test").output().unwrap();
            assert!(!trap.exists(), "{}", file.text);
        }
        let _ = fs::remove_dir_all(folder.path().join("job.sh.out"));
    }
}
