//! What the checks say of constructed trees: the same bytes each time, and as expected.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use nm_audit::audit;
use nm_host::snapshot;
use nm_model::finding::{Audit, Evidence};
use nm_model::snapshot::Workload;
use nm_model::{FindingStatus, Snapshot};

use crate::foreign;
use crate::tree::{Tree, folder, names, read_again, snapshot_of};

/// A snapshot as the text of a tree.
fn text_of(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for (path, content) in &snapshot.files {
        match content.contains('\n') {
            false => writeln!(text, "{path}: {content}").unwrap(),
            true => {
                writeln!(text, "{path}:").unwrap();
                content.lines().for_each(|line| writeln!(text, "| {line}").unwrap());
            }
        }
    }
    for (path, name) in &snapshot.symlinks {
        writeln!(text, "@ {path} -> {name}").unwrap();
    }
    let names = snapshot.folders.iter().flat_map(|(path, names)| {
        let path = path.trim_end_matches('/');
        names.iter().map(move |name| format!("{path}/{name}"))
    });
    let is_known = |path: &String| {
        let below = format!("{path}/");
        snapshot.symlinks.contains_key(path)
            || snapshot.files.keys().any(|file| file == path || file.starts_with(&below))
    };
    for path in snapshot.present.iter().cloned().chain(names).filter(|path| !is_known(path)) {
        writeln!(text, "+ {path}/").unwrap();
    }
    for (part, json) in [
        ("workload", serde_json::to_string(&snapshot.workload)),
        ("calls", serde_json::to_string(&snapshot.calls)),
        ("second", serde_json::to_string(&snapshot.second)),
        ("unreadable", serde_json::to_string(&snapshot.unreadable)),
    ] {
        writeln!(text, "{part}: {}", json.unwrap()).unwrap();
    }
    text
}

/// What changes between machines, a finding a line.
fn lines(audit: &Audit) -> String {
    let machine = &audit.machine;
    let mut text = format!(
        "{} · {} · CPUs {} · {}\n{}\n",
        machine.name,
        machine.layer,
        machine.workload_cpus,
        machine.workload_links.join(","),
        audit.counts()
    );
    for finding in &audit.findings {
        let severity = match finding.status {
            FindingStatus::Fail => format!(" {}", finding.severity),
            _ => String::new(),
        };
        writeln!(text, "{}{severity} {}: {}", finding.status, finding.id, finding.summary).unwrap();
        if finding.status == FindingStatus::Fail {
            writeln!(text, "  fix: {}", finding.fix).unwrap();
            for Evidence { path, raw, parsed } in &finding.evidence {
                writeln!(text, "  {path}: {} -> {parsed}", raw.as_deref().unwrap_or("-")).unwrap();
            }
        }
    }
    text
}

/// A recording is anonymous, and the findings are those of the machine. With `RECORDED=NAME=DIR` a
/// recording of `nearmetal audit --record DIR` becomes the tree NAME.
#[test]
fn a_recording_has_the_findings_of_its_machine_and_becomes_a_tree() {
    let findings = |snapshot: &Snapshot| {
        let found = audit(snapshot).findings.into_iter();
        found.map(|one| (one.id, one.status, one.severity)).collect::<Vec<_>>()
    };
    for name in names() {
        let taken = snapshot_of(&name);
        let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        nm_host::record::write(&taken, folder.path()).unwrap();
        let mut recorded = snapshot::of_root(folder.path(), &taken.workload);
        assert_eq!(findings(&recorded), findings(&taken), "{name}");
        recorded.workload = taken.workload.clone();
        let mut tree = Tree::default();
        tree.add_text(&text_of(&recorded));
        assert_eq!(findings(&tree.snapshot(root.path())), findings(&taken), "{name} as a tree");
    }
    if let Some(given) = std::env::var_os("RECORDED") {
        let (name, path) = given.to_str().unwrap().split_once('=').unwrap();
        let recorded = snapshot::of_root(Path::new(path), &Workload::default());
        std::fs::write(folder().join(format!("{name}.tree")), text_of(&recorded)).unwrap();
    }
}

#[test]
fn findings_are_as_expected_and_the_same_bytes_each_time() {
    let update = std::env::var_os("UPDATE").is_some();
    let all = names();
    assert!(all.len() >= 20, "{} trees", all.len());
    for name in all {
        let taken = snapshot_of(&name);
        let json = |snapshot: &Snapshot| serde_json::to_string(&audit(snapshot)).unwrap();
        let first = json(&taken);
        assert_eq!(first, json(&read_again(&name)), "{name}: from another folder");
        let text = serde_json::to_string(&taken).unwrap();
        let again: Snapshot = serde_json::from_str(&text).unwrap();
        assert_eq!(first, json(&again), "{name}: from the snapshot's file");
        assert_eq!(again.check(), Ok(()), "{name}");

        let found = lines(&audit(&taken));
        let path = folder().join(format!("expected/{name}.txt"));
        if update {
            std::fs::create_dir_all(folder().join("expected")).unwrap();
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == expected, "{name} differs; UPDATE=1 writes:\n{found}");
    }
}

#[test]
fn every_finding_has_evidence_or_a_reason_for_having_none() {
    let mut faults = vec![];
    for name in names() {
        for finding in audit(&snapshot_of(&name)).findings {
            let id = &finding.id;
            let is_about_nothing = finding.status == FindingStatus::NotApplicable;
            if finding.summary.is_empty() || !is_about_nothing && finding.evidence.is_empty() {
                faults.push(format!("{name}: {id} has no evidence"));
            }
            // A pass rests on something that was read.
            let is_read = finding.evidence.iter().any(|one| one.raw.is_some());
            let needs = matches!(finding.status, FindingStatus::Pass | FindingStatus::Fail);
            if needs && !is_read && id != "nic.bypass" {
                faults.push(format!("{name}: {id} rests on nothing that was read"));
            }
            let fix = finding.fix.to_string();
            let words = ["CPUS", "CPULIST", "LINK", "HOUSEKEEPING", "MASK", "LOCAL"];
            let open = words.iter().find(|word| fix.split([' ', '/']).any(|one| one == **word));
            if finding.status == FindingStatus::Fail && open.is_some() {
                faults.push(format!("{name}: {id}: {fix}"));
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn nothing_passes_where_nothing_can_be_read() {
    let found = audit(&snapshot_of("empty"));
    let passed: Vec<&str> =
        found.of(FindingStatus::Pass).map(|finding| finding.id.as_str()).collect();
    assert_eq!(passed, Vec::<&str>::new());
    assert_eq!(found.of(FindingStatus::Fail).count(), 0);
}

/// Of a tree with one file, what passes does so by that file, and not because nothing speaks
/// against it.
#[test]
fn what_passes_by_one_file_has_that_file_as_evidence() {
    let mut wrong = vec![];
    for name in ["metal-two-sockets", "kvm-guest", "container-quota"] {
        let complete = snapshot_of(name);
        for (path, text) in &complete.files {
            let mut one = Snapshot { version: complete.version, ..Snapshot::default() };
            one.files.insert(path.clone(), text.clone());
            for finding in audit(&one).of(FindingStatus::Pass) {
                let is_of_it = |seen: &Evidence| seen.raw.is_some() && path.starts_with(&seen.path);
                if !finding.evidence.iter().any(is_of_it) {
                    wrong.push(format!("{path}: {}: {}", finding.id, finding.summary));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// The command line is known, and no CPU is.
#[test]
fn what_holds_for_all_of_no_cpu_is_unknown() {
    let mut snapshot = Snapshot::default();
    for (path, text) in [
        ("/proc/cmdline", "quiet nohz_full=1-3"),
        ("/sys/devices/system/cpu/isolated", ""),
        ("/sys/devices/virtual/workqueue/cpumask", "ff"),
    ] {
        snapshot.files.insert(path.to_string(), text.to_string());
    }
    let found = audit(&snapshot);
    let of_cpus = |id: &str| id.starts_with("iso.") || id.starts_with("irq.");
    let passed: Vec<&str> =
        found.of(FindingStatus::Pass).map(|one| one.id.as_str()).filter(|id| of_cpus(id)).collect();
    assert_eq!(passed, Vec::<&str>::new());
}

#[test]
fn every_check_fails_and_passes_in_some_tree() {
    let mut statuses: BTreeMap<String, Vec<FindingStatus>> = BTreeMap::new();
    let foreign = foreign::snapshots().iter().map(|(_, snapshot)| snapshot.clone());
    for snapshot in names().iter().map(|name| snapshot_of(name)).chain(foreign) {
        for finding in audit(&snapshot).findings {
            statuses.entry(finding.id).or_default().push(finding.status);
        }
    }
    let without = |status| -> Vec<&str> {
        let all = statuses.iter().filter(|(_, all)| !all.contains(&status));
        all.map(|(id, _)| id.as_str()).collect()
    };
    // They record something, or software cannot know it.
    let records = ["cpu.bios", "cpu.smi", "nic.driver", "nic.sfc_firmware", "virt.layer"];
    let never_fail = without(FindingStatus::Fail);
    let silent: Vec<&&str> = never_fail.iter().filter(|id| !records.contains(*id)).collect();
    assert_eq!(silent, Vec::<&&str>::new(), "never fail");
    let never_pass = without(FindingStatus::Pass);
    let silent: Vec<&&str> = never_pass.iter().filter(|id| !records.contains(*id)).collect();
    assert_eq!(silent, Vec::<&&str>::new(), "never pass");
}

#[test]
fn host_and_guest_are_joined_by_their_identity() {
    let mut guest = snapshot_of("kvm-guest");
    guest.workload.cpus.clear();
    let loose = lines(&nm_audit::join(&snapshot_of("kvm-host"), &guest));
    assert!(loose.contains("pass pair.identity: the guest is /run/libvirt/qemu/instance-1.xml"));
    assert!(loose.contains("fail critical pair.hot_pin: vCPU 0 may run on CPUs 0-7"), "{loose}");
    assert!(loose.contains("unknown pair.sibling"), "{loose}");
    let host = snapshot_of("kvm-host-pinned");
    let pinned = lines(&nm_audit::join(&host, &guest));
    assert!(pinned.contains("pass pair.hot_pin"), "{pinned}");
    let siblings = "share a core of the host: vCPU 0 on CPU 2 and vCPU 2 on CPU 6";
    assert!(pinned.contains(siblings), "{pinned}");
    let stranger = snapshot_of("vmware-guest");
    let apart = lines(&nm_audit::join(&host, &stranger));
    assert!(apart.contains("unknown pair.identity"), "{apart}");
}

#[test]
fn large_machine_is_read_within_the_limits() {
    const CPUS: u32 = 256;
    let mut tree = Tree::read("metal-two-sockets");
    let folder = "/sys/devices/system/cpu";
    tree.files.insert(format!("{folder}/online"), format!("0-{}", CPUS - 1));
    let columns: String = (0..CPUS).map(|cpu| format!(" CPU{cpu}")).collect();
    let row =
        |name: u32| format!("\n{name}:{} IR-PCI-MSI eno1-{name}", " 100".repeat(CPUS as usize));
    let rows: String = (100..600).map(row).collect();
    tree.files.insert("/proc/interrupts".to_string(), columns + &rows);
    for cpu in 0..CPUS {
        let mut add = |file: &str, text: &str| {
            tree.files.insert(format!("{folder}/cpu{cpu}/{file}"), text.to_string());
        };
        add("topology/thread_siblings_list", &format!("{},{}", cpu % 128, cpu % 128 + 128));
        add("cpufreq/scaling_governor", "powersave");
        for state in 0..4 {
            add(&format!("cpuidle/state{state}/name"), "C");
            add(&format!("cpuidle/state{state}/latency"), &(state * 100).to_string());
            add(&format!("cpuidle/state{state}/disable"), "0");
            add(&format!("cpuidle/state{state}/usage"), "1");
        }
    }
    for process in 10_000..13_000 {
        tree.files.insert(format!("/proc/{process}/comm"), "worker".to_string());
        tree.files.insert(format!("/proc/{process}/status"), "Name: worker".to_string());
    }
    let root = tempfile::tempdir().unwrap();
    let taken = tree.snapshot(root.path());
    assert_eq!(taken.left_out, Vec::<String>::new());
    let n_files = taken.files.len();
    assert!((10_000..20_000).contains(&n_files), "{n_files} files");
    let found = audit(&taken);
    assert!(found.findings.iter().any(|f| f.id == "cpu.cstate" && f.status == FindingStatus::Fail));
    assert_eq!(found.machine.cpus, CPUS);
    if let Some(path) = std::env::var_os("SAVE_LARGE_TREE") {
        std::fs::rename(root.keep(), path).unwrap();
    }
}

/// A check that does not concern a machine is a claim about it, which needs evidence: of a tree
/// that shows nothing, only what the caller did not ask for is no finding.
#[test]
fn of_a_tree_that_shows_nothing_every_check_is_unknown() {
    let files = [("/proc/loadavg".to_string(), "0.00 0.00 0.00 1/1 1\n".to_string())];
    let snapshot = Snapshot { files: files.into(), ..Snapshot::default() };
    for finding in audit(&snapshot).findings {
        let is_asked =
            !finding.summary.contains("`--pid`") && !finding.summary.contains("`--cpus`");
        let expected = if is_asked { FindingStatus::Unknown } else { FindingStatus::NotApplicable };
        assert_eq!(finding.status, expected, "{}: {}", finding.id, finding.summary);
    }
}
