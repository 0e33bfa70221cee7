//! The files of `nearmetal generate slurm` on a real cluster: slurmctld and three slurmd on this
//! machine. They run in namespaces of their own, whose end kills all that runs in them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nm_test_support::skip;

use crate::support::{BINARY, Run, finish, json, run, wait_for};

const NODES: [&str; 3] = ["e1", "e2", "e3"];

/// A pair of a second.
const PLAN: &str = "name = \"pair\"\nrounds = 2\n[[trials]]\nenvironments = [\"ssh\"]\n\
    stacks = [\"tcp-blocking\"]\nprobe = \"pingpong\"\nsizes = [64]\nmax_ms = 20\nwarmup_ms = 2\n\
    min_iterations = 20\ntimeout_ms = 10000\n[[targets]]\nrequire = \"median < 1s\"\n";

/// Three nodes that are idle.
struct Cluster {
    folder: PathBuf,
    /// Keeps the namespaces; all in them ends with it.
    unshare: Child,
    /// The first process in them.
    init: u32,
    _temporary: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().to_path_buf();
        // munged wants a path that others can search.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let unshare = Command::new("unshare")
            .args(["--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
            .args(["cat"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let init = wait_for("the namespaces", || {
            let child: u32 = fs::read_to_string(&children).ok()?.trim().parse().ok()?;
            let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
            (name.trim() == "cat").then_some(child)
        });
        let cluster = Cluster { folder, unshare, init, _temporary: temporary };
        cluster.write("slurm.conf", &configuration(&cluster.folder));
        cluster.write("hosts", "10.97.0.10 ctl\n10.97.0.1 e1 e2 e3\n");
        cluster.write(
            "check.sh",
            "#!/bin/sh\n[ -e @/on ] || exit 0\nexec @/$SLURMD_NODENAME/health-check.sh\n",
        );
        fs::set_permissions(cluster.path("check.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        cluster.write("begin.sh", BEGIN);
        let begun = cluster.shell("sh -e @/begin.sh");
        assert_eq!(begun.code, 0, "{begun:?}");
        wait_for("three idle nodes", || {
            (cluster.shell("timeout 3 sinfo -h -o '%T %D'").stdout == "idle 3\n").then_some(())
        });
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Writes a file, with the folder for each `@`.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text.replace('@', self.folder.to_str().unwrap())).unwrap();
    }

    /// Runs commands on the controller, with the folder for each `@`.
    fn shell(&self, commands: &str) -> Run {
        let mut command = Command::new("nsenter");
        command
            .args(["--net", "--uts", "--mount", "--pid", "--target", &self.init.to_string()])
            .args(["sh", "-c", &commands.replace('@', self.folder.to_str().unwrap())])
            .env("SLURM_CONF", self.path("slurm.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        finish(&mut command)
    }

    /// Writes the scripts for nodes with a limit into a folder.
    fn generate(&self, folder: &str, limit: &str) {
        let (plan, conf) = (self.path("pair.toml"), self.path("slurm.conf"));
        let (plan, conf) = (plan.to_str().unwrap(), conf.to_str().unwrap());
        let out = self.path(folder);
        let done = run(&[
            "generate",
            "slurm",
            "--nodes",
            "3",
            "--partition",
            "all",
            "--pairs",
            "star",
            "--limit",
            limit,
            "--plan",
            plan,
            "--slurm-conf",
            conf,
            "--program",
            BINARY,
            "--out",
            out.to_str().unwrap(),
        ]);
        assert_eq!(done.code, 0, "{}", done.stderr);
    }

    /// State and reason of a node.
    fn node(&self, name: &str) -> String {
        self.shell(&format!("timeout 5 sinfo -h -N -n {name} -o '%T %E'")).stdout
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        // The file system is free when the last process has gone.
        wait_for("the end of the namespaces", || {
            (!Path::new(&format!("/proc/{}", self.init)).exists()).then_some(())
        });
    }
}

const BEGIN: &str = "hostname ctl
ip link set lo up
for last in 10 1; do ip address add 10.97.0.$last/32 dev lo; done
mount --bind @/hosts /etc/hosts
mount -t tmpfs tmpfs /run
mkdir @/state @/munge
# Older ones do not know the word, and need none.
case $(slurmd -V) in
*' 22.'*) ;;
*) echo CgroupPlugin=disabled > @/cgroup.conf ;;
esac
for node in e1 e2 e3; do mkdir -p @/$node @/spool/$node; done
head -c 128 /dev/urandom > @/munge/key
chmod 400 @/munge/key
munged --key-file=@/munge/key --socket=@/munge/socket --pid-file=@/munge/pid \
  --log-file=@/munge/log --seed-file=@/munge/seed
slurmctld -f @/slurm.conf
for node in e1 e2 e3; do slurmd -f @/slurm.conf -N $node; done
";

fn configuration(folder: &Path) -> String {
    let mut text = "ClusterName=test
SlurmctldHost=ctl(10.97.0.10)
SlurmUser=root
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=@/munge/socket
CredType=cred/munge
StateSaveLocation=@/state
SlurmctldPidFile=@/ctl.pid
SlurmctldLogFile=@/ctl.log
SlurmdSpoolDir=@/spool/%n
SlurmdPidFile=@/%n.pid
SlurmdLogFile=@/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
HealthCheckProgram=@/check.sh
HealthCheckInterval=5
HealthCheckNodeState=ANY
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
"
    .to_string();
    for (number, node) in (1..).zip(NODES) {
        text += &format!(
            "NodeName={node} NodeHostname=ctl NodeAddr=10.97.0.1 Port=1700{number} CPUs=2 \
             RealMemory=500 State=UNKNOWN\n"
        );
    }
    text.replace('@', folder.to_str().unwrap())
}

fn can_run() -> bool {
    let has = |name: &&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(name).exists())
    };
    skip::can_run(
        ["slurmctld", "slurmd", "sbatch", "munged"].iter().all(has),
        "it needs the packages slurmctld, slurmd, slurm-client and munge",
    )
}

/// One cluster for all, as its start takes some seconds.
#[test]
fn a_job_measures_nodes_and_pairs_and_a_bad_node_is_drained_with_the_whole_reason() {
    if !can_run() {
        return;
    }
    let cluster = Cluster::start();
    cluster.write("pair.toml", PLAN);
    cluster.generate("good", "p99 < 10s");
    a_job_measures_nodes_and_pairs(&cluster);

    // No round trip takes so little time.
    cluster.generate("bad", "p99 < 1ns at size<=64");
    for (node, from) in [("e1", "good"), ("e2", "bad"), ("e3", "good")] {
        fs::rename(cluster.path(node), cluster.path(&format!("{node}.empty"))).unwrap();
        std::os::unix::fs::symlink(cluster.path(from), cluster.path(node)).unwrap();
    }
    a_check_that_runs_is_not_begun_again(&cluster);
    cluster.write("on", "");
    let said = wait_for("the drained node", || {
        Some(cluster.node("e2")).filter(|said| said.starts_with("drained "))
    });
    let whole = said.contains("nearmetal: FAIL: p99 ") && said.contains("(limit 1 ns).");
    assert!(whole && said.contains(" on loopback/tcp-spin at 64 B "), "{said}");
    for node in ["e1", "e3"] {
        assert!(cluster.node(node).starts_with("idle "), "{}", cluster.node(node));
    }
    fs::remove_file(cluster.path("on")).unwrap();
    wait_for("the end of the checks", || {
        let left = cluster.shell("ls -d /run/nearmetal-health-check-e[123] 2> /dev/null");
        left.stdout.is_empty().then_some(())
    });
}

fn a_job_measures_nodes_and_pairs(cluster: &Cluster) {
    let job = cluster.shell("cd @ && timeout 10 sbatch --parsable -o @/job.out good/job.sh @/job");
    assert_eq!(job.code, 0, "{job:?}");
    let show = format!("timeout 5 scontrol --oneliner show job {}", job.stdout.trim());
    let state = wait_for("the end of the job", || {
        let text = cluster.shell(&show).stdout;
        let state = text.split("JobState=").nth(1)?.split(' ').next()?.to_string();
        (!["PENDING", "RUNNING", "COMPLETING"].contains(&state.as_str())).then_some(text)
    });
    let said = fs::read_to_string(cluster.path("job.out")).unwrap();
    // A busy machine may decide nothing; that is no failure of the job's work.
    let has_ended = ["ExitCode=0:0", "ExitCode=3:0"].iter().any(|code| state.contains(code));
    assert!(has_ended, "{state}\n{said}");

    let fleet = json(&cluster.path("job/fleet/fleet.json"));
    assert_ne!(fleet["outcome"], "fail", "{said}");
    assert!(said.contains("2 of 2 trials measured"), "{said}");
    assert_eq!(fleet["pairs"].as_array().map(Vec::len), Some(2), "{fleet}");
    for node in NODES {
        let folder = cluster.path(&format!("job/hosts/{node}"));
        let report = run(&["report", folder.to_str().unwrap()]);
        assert_eq!(report.code, 0, "{}", report.stderr);
        assert!(report.stdout.contains("loopback/tcp-spin"), "{}", report.stdout);
    }
    let left = cluster.shell("ps -eo args | grep '[n]earmetal agent'");
    assert_eq!(left.stdout, "", "agents end with their job");
}

fn a_check_that_runs_is_not_begun_again(cluster: &Cluster) {
    let lock = "/run/nearmetal-health-check-e2.lock";
    let again = cluster.shell(&format!(
        "SLURMD_NODENAME=e2 flock {lock} timeout 3 @/bad/health-check.sh; echo $?"
    ));
    assert_eq!(again.stdout, "0\n", "{again:?}");
    assert!(cluster.node("e2").starts_with("idle "), "{}", cluster.node("e2"));
}
