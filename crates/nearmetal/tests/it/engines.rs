//! `nearmetal generate` for engines: what is refused, and what other programs say of the files.

use std::fs;
use std::process::Command;

use nm_test_support::skip;

use crate::support::run;

#[test]
fn hostile_words_are_refused_with_one_sentence_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let long = "a".repeat(300);
    let pin = "5f".repeat(32);
    fn pod<'a>(words: &[&'a str]) -> Vec<&'a str> {
        [&["kubernetes", "--image", "nearmetal", "--limit", "p99 < 1s"], words].concat()
    }
    let cases: [(&[&str], &str); 32] = [
        (&["slurm", "--nodes", "2"], "nothing would be judged"),
        (&["slurm", "--nodes", "0", "--limit", "p99 < 1s"], "0"),
        (&["slurm", "--nodes", "2", "--limit", "throughput >= 1 Gb/s"], "--limit: "),
        (&["slurm", "--nodes", "2", "--partition", "a\n#SBATCH -w b"], "the partition `a\n"),
        (&["systemd", "--name", "a/../b"], "the name `a/../b`"),
        (&["systemd", "--program", "nearmetal"], "must be absolute"),
        (&["systemd", "--baseline", "/a\nExecStart=/bin/sh"], "without control characters"),
        (&["ansible", "--name", "Site"], "the name `Site`"),
        (&["ansible", "--plan", "x.toml"], "or an absolute path"),
        (&["kubernetes", "--image", "nearmetal"], "nothing would be judged"),
        (&["kubernetes", "--image", "Nearmetal", "--limit", "p99 < 1s"], "the image `Nearmetal`"),
        (&["kubernetes", "--image", &long, "--limit", "p99 < 1s"], "the image `aaa"),
        (&["kubernetes", "--image", "a", "--plan", "two-hosts"], "pods have no ssh"),
        (&pod(&["--namespace", "Lab"]), "the name `Lab`"),
        (&pod(&["--name", "7node"]), "begins with a letter"),
        (&pod(&["--node", "n1,N2"]), "the node `N2`"),
        (&pod(&["--node", "n1,n1"]), "--node: `n1` is given twice"),
        (&pod(&["--node-selector", "a/b/c=d"]), "the label `a/b/c=d`"),
        (&pod(&["--node-selector", "a=b", "--node-selector", "a=c"]), "`a` is given twice"),
        (&pod(&["--toleration", "a:Never"]), "the toleration `a:Never`"),
        (&pod(&["--capability", "ALL"]), "the capability `ALL`"),
        (&pod(&["--device", "sriov"]), "the device `sriov`"),
        (&pod(&["--network", "a,b"]), "the network `a,b`"),
        (&pod(&["--huge-pages", "3MiB"]), "not a whole number of pages of 2 MiB"),
        (&pod(&["--pod-cpus", "0"]), "0"),
        (&pod(&["--pair", "shm-spin"]), "does not reach another pod"),
        (&pod(&["--pair", "tcp-spin", "--network", "fast"]), "cannot be used with"),
        (&pod(&["--connect", "c", "--pin", &pin]), "cannot be used with"),
        (&["kubernetes", "--image", "a", "--connect", "c"], "--pin <SHA256>"),
        (
            &["kubernetes", "--image", "a", "--connect", "c", "--pin", &pin, "--network", "fast"],
            "cannot be used with",
        ),
        (&["kubernetes", "--image", "a", "--connect", "c", "--pin", "5f"], "64 hexadecimal digits"),
        (&["kubernetes", "--image", "a", "--connect", "a b", "--pin", &pin], "as host names do"),
    ];
    for (options, text) in cases {
        let refused = run(&[&["generate"], options, &["--out", out]].concat());
        assert_eq!(refused.code, 2, "{options:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(text), "{options:?}: {}", refused.stderr);
        assert!(!folder.path().join("out").exists(), "{options:?}");
    }
}

#[test]
fn files_are_never_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    assert_eq!(run(&["generate", "systemd", "--out", out]).code, 0);
    let again = run(&["generate", "systemd", "--every", "hour", "--out", out]);
    assert_eq!(again.code, 5, "{}", again.stderr);
    let timer = fs::read_to_string(folder.path().join("nearmetal.timer")).unwrap();
    assert!(timer.contains("OnCalendar=daily\n"), "{timer}");
}

#[test]
fn systemd_accepts_the_units() {
    let can_start = Command::new("systemd-analyze").arg("--version").output().is_ok();
    if !skip::can_run(can_start, "it needs systemd-analyze of the package systemd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let options = ["--baseline", "/var/lib/a b/$(c)'%h\"", "--program", "/bin/true"];
    assert_eq!(run(&[&["generate", "systemd", "--out", out], &options[..]].concat()).code, 0);
    let verify = |name: &str| {
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(folder.path().join(name));
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for name in ["nearmetal.service", "nearmetal.timer"] {
        let (is_ok, said) = verify(name);
        assert!(is_ok && !said.contains("nearmetal."), "{name}: {said}");
    }
    let service = folder.path().join("nearmetal.service");
    let text = fs::read_to_string(&service).unwrap().replace("Type=oneshot", "Type=onshot");
    fs::write(&service, text).unwrap();
    let (_, said) = verify("nearmetal.service");
    assert!(said.contains("nearmetal.service"), "a misspelt word must be noticed: {said}");
}
