//! The role of `nearmetal generate ansible`, by Ansible itself, on two hosts that share one
//! machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::hosts::Hosts;
use crate::support::{BINARY, Run, finish, run};

fn plan(hosts: &Hosts, name: &str, limit: &str) -> String {
    let path = hosts.path(name);
    let text = format!(
        "name = \"short\"\nrounds = 5\n[[trials]]\nenvironments = [\"loopback\"]\n\
         stacks = [\"tcp-blocking\"]\nprobe = \"pingpong\"\nsizes = [64]\nmax_ms = 20\n\
         warmup_ms = 2\nmin_iterations = 20\n[[targets]]\nrequire = \"{limit}\"\n"
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

/// A program of Ansible beside the bridge, in the folder of the role.
struct Ansible<'a> {
    hosts: &'a Hosts,
    programs: PathBuf,
    role: PathBuf,
}

impl Ansible<'_> {
    fn run(&self, program: &str, words: &[&str]) -> Run {
        let mut command: Command = self.hosts.bridge(self.programs.join(program));
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(words)
            .current_dir(&self.role)
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env("HOME", self.hosts.path("home"))
            .env("ANSIBLE_NOCOLOR", "1")
            .env("ANSIBLE_INVENTORY", "inventory.yml")
            .env("ANSIBLE_PIPELINING", "1")
            .env("ANSIBLE_LOCALHOST_WARNING", "false")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        finish(&mut command)
    }

    /// Tasks that changed something.
    fn changed(said: &str) -> Vec<&str> {
        let mut task = "";
        let mut changed = vec![];
        for line in said.lines() {
            if let Some(name) = line.strip_prefix("TASK [") {
                task = name.split(']').next().unwrap();
            } else if line.starts_with("changed: ") && changed.last() != Some(&task) {
                changed.push(task);
            }
        }
        changed
    }
}

/// Folders of nearmetal on the hosts.
fn left(hosts: &Hosts) -> Vec<String> {
    let folders = (1..=hosts.count()).map(|number| hosts.path(&format!("tmp{number}")));
    let names = folders.flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("nearmetal")).collect()
}

/// `NM_ANSIBLE` names the folder of Ansible's programs. One test for all: each run takes seconds.
#[test]
#[ignore = "needs the packages ansible-core and ansible-lint"]
fn the_role_measures_fetches_judges_and_leaves_nothing() {
    let programs = std::env::var_os("NM_ANSIBLE").expect("the folder of ansible-playbook");
    let hosts = Hosts::new(2);
    let (good, bad) =
        (plan(&hosts, "good.toml", "p99 < 10s"), plan(&hosts, "bad.toml", "median < 1ns"));
    let role = hosts.path("role {{ x }}");
    // The program itself is large, and would be copied as often as there are hosts and runs.
    let program = hosts.path("program");
    fs::write(&program, format!("#!/bin/sh\nexec '{BINARY}' \"$@\"\n")).unwrap();
    let program = program.to_str().unwrap();
    let done = run(&[
        "generate",
        "ansible",
        "--program",
        program,
        "--plan",
        &good,
        "--name",
        "site",
        "--out",
        role.to_str().unwrap(),
    ]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let ssh = hosts.path("bin/ssh");
    let inventory = format!(
        "all:\n  vars:\n    ansible_python_interpreter: /usr/bin/python3\n    \
         ansible_ssh_executable: {}\n    ansible_ssh_transfer_method: piped\n    \
         ansible_remote_tmp: $TMPDIR/remote\n    nearmetal_results: {}\n    \
         nearmetal_accept_inconclusive: true\n  hosts:\n    h1:\n    \
         h2:\n      nearmetal_plan_file: {bad}\n      \
         nearmetal_accept_inconclusive: false\n    \
         other:\n      ansible_host: h1\n      nearmetal_sha256: '00'\n",
        ssh.display(),
        hosts.path("results").display(),
    );
    fs::write(role.join("inventory.yml"), inventory).unwrap();
    let ansible = Ansible { hosts: &hosts, programs: Path::new(&programs).into(), role };

    let lint = ansible.run("ansible-lint", &["--offline", "-q", "--profile", "production"]);
    assert_eq!(lint.code, 0, "{}{}", lint.stdout, lint.stderr);

    let first = ansible.run("ansible-playbook", &["site.yml"]);
    let said = &first.stdout;
    assert_eq!(first.code, 2, "{said}{}", first.stderr);
    assert!(said.contains("FAIL: median ") && said.contains("(limit 1 ns)"), "{said}");
    // Another program than the wanted one is copied nowhere.
    assert!(said.contains("its SHA-256 is not nearmetal_sha256"), "{said}");
    let recap = said.lines().find(|line| line.starts_with("other ")).unwrap();
    assert!(recap.contains("changed=0") && recap.contains("failed=1"), "{recap}");
    let results = |host: &str| hosts.path(&format!("results/{host}"));
    for host in ["h1", "h2"] {
        let report = run(&["report", results(host).to_str().unwrap()]);
        assert_eq!(report.code, 0, "{}{said}", report.stderr);
        assert!(results(host).join("report.html").exists(), "{said}");
    }
    assert_eq!(left(&hosts), Vec::<String>::new(), "{said}");

    // Only the new result is a change, and a check makes none.
    let again = ansible.run("ansible-playbook", &["site.yml", "--limit", "h1"]);
    assert_eq!(again.code, 0, "{}{}", again.stdout, again.stderr);
    assert_eq!(Ansible::changed(&again.stdout), ["nearmetal : Fetch the result"]);
    let check = ansible.run("ansible-playbook", &["site.yml", "--check"]);
    assert_eq!(check.code, 0, "{}{}", check.stdout, check.stderr);
    assert!(check.stdout.contains("changed=0"), "{}", check.stdout);

    a_fleet_reads_the_inventory(&ansible);
}

fn a_fleet_reads_the_inventory(ansible: &Ansible<'_>) {
    let hosts = ansible.hosts;
    let list = ansible.run("ansible-inventory", &["--list"]);
    fs::write(hosts.path("list.json"), &list.stdout).unwrap();
    let list = hosts.path("list.json");
    let fleet = ["fleet", "run", "--dry-run", "--hosts", list.to_str().unwrap()];
    let fleet = finish(&mut hosts.nearmetal(&fleet));
    assert_eq!(fleet.code, 0, "{}", fleet.stderr);
    assert!(fleet.stdout.contains("h1") && fleet.stdout.contains("h2"), "{}", fleet.stdout);
}
