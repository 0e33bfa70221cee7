//! What only a host and its guests together show: each finding, by what was read of a QEMU.

use std::collections::BTreeSet;

use nm_model::finding::{Confidence, Finding, UndoClass};
use nm_model::{FindingStatus, Severity, Side};
use nm_sys::hostfiles::{HostFiles, RecordedFiles};
use nm_vm::join::{self, GuestFacts, GuestThread, HostFacts, MemoryUse};

fn thread(name: &str, virtual_cpu: Option<u32>, cpus: &[u32]) -> GuestThread {
    GuestThread { name: name.into(), virtual_cpu, cpus: cpus.to_vec() }
}

fn guest(side: Side, cpu: u32) -> GuestFacts {
    GuestFacts {
        guest: side.into(),
        threads: vec![
            thread("qemu-system-x86", None, &[0]),
            thread("CPU 0/KVM", Some(0), &[cpu]),
            thread("vhost-77", None, &[0]),
        ],
        memory: Some(MemoryUse {
            resident_kib: 30_000,
            huge_kib: 0,
            locked_kib: 0,
            reserved_kib: 512 << 10,
        }),
        size_kib: 512 << 10,
        pages_of_nodes: vec![(0, 140_000)],
        clock_source: Some("tsc".into()),
    }
}

/// Four cores with two threads each on two nodes.
fn host() -> HostFacts {
    HostFacts {
        siblings: (0..4).map(|core| vec![core, core + 4]).collect(),
        nodes: (0..8).map(|cpu| (cpu, u32::from(cpu % 4 == 3))).collect(),
        deepest_idle: Some(("C1".into(), 2)),
        halt_poll_ns: Some(200_000),
    }
}

fn pair() -> Vec<GuestFacts> {
    vec![guest(Side::Client, 1), guest(Side::Server, 2)]
}

fn of(findings: &[Finding], id: &str) -> Finding {
    findings.iter().find(|finding| finding.id == id).unwrap().clone()
}

/// The finding `id` after `change`, which must not touch the others' status.
fn failing(id: &str, change: impl FnOnce(&mut HostFacts, &mut Vec<GuestFacts>)) -> Finding {
    let (mut host, mut guests) = (host(), pair());
    change(&mut host, &mut guests);
    let finding = of(&join::findings(&host, &guests), id);
    assert_eq!(finding.status, FindingStatus::Fail, "{}", finding.summary);
    finding
}

#[test]
fn a_pair_on_cores_of_its_own_passes_every_check() {
    let findings = join::findings(&host(), &pair());
    assert_eq!(findings.len(), join::checks().len());
    for finding in findings {
        assert_eq!(finding.status, FindingStatus::Pass, "{}: {}", finding.id, finding.summary);
        assert!(!finding.evidence.is_empty(), "{}", finding.id);
    }
}

#[test]
fn each_fault_is_found_and_named() {
    let pin = failing("guests.pin", |_, guests| guests[1].threads[1].cpus = vec![2, 3]);
    assert_eq!(pin.summary, "vCPU 0 of server may run on CPUs 2-3");
    let same = failing("guests.core", |_, guests| guests[1].threads[1].cpus = vec![1]);
    assert!(same.summary.contains("vCPU 0 of client and vCPU 0 of server on CPU 1"));
    assert_eq!(same.severity, Severity::Critical);
    let sibling = failing("guests.core", |_, guests| guests[1].threads[1].cpus = vec![5]);
    assert!(sibling.summary.contains("vCPU 0 of client on CPU 1 and vCPU 0 of server on CPU 5"));
    assert_eq!(sibling.severity, Severity::High);
    let emulator = failing("guests.emulator", |_, guests| guests[0].threads[2].cpus = vec![0, 2]);
    assert!(emulator.summary.contains("vhost-77 of client on CPUs 2"), "{}", emulator.summary);
    let small = MemoryUse { resident_kib: 500_000, ..MemoryUse::default() };
    let memory = failing("guests.memory", |_, guests| guests[0].memory = Some(small));
    assert!(memory.summary.contains("of client is not of huge pages"), "{}", memory.summary);
    assert!(memory.summary.contains("of client is not locked"), "{}", memory.summary);
    let node = failing("guests.node", |_, guests| guests[0].pages_of_nodes.push((1, 20_000)));
    assert!(node.summary.starts_with("12 % of the memory of client"), "{}", node.summary);
    let clock = failing("guests.clock", |_, guests| guests[1].clock_source = Some("hpet".into()));
    assert_eq!(clock.summary, "server reads hpet");
    let halt = failing("guests.halt", |host, _| {
        (host.halt_poll_ns, host.deepest_idle) = (Some(0), Some(("C6".into(), 133)));
    });
    assert!(halt.summary.contains("C6 (133 µs)"), "{}", halt.summary);
}

#[test]
fn transparent_huge_pages_and_locked_memory_count() {
    let (host, mut guests) = (host(), pair());
    guests[0].memory = Some(MemoryUse {
        resident_kib: 540_000,
        huge_kib: 520_000,
        locked_kib: 530_000,
        reserved_kib: 0,
    });
    let finding = of(&join::findings(&host, &guests), "guests.memory");
    assert_eq!(finding.status, FindingStatus::Pass, "{}", finding.summary);
}

#[test]
fn what_could_not_be_read_is_unknown() {
    let blind = |side| GuestFacts {
        threads: vec![],
        memory: None,
        pages_of_nodes: vec![],
        clock_source: None,
        ..guest(side, 1)
    };
    let guests = [blind(Side::Client), blind(Side::Server)];
    for finding in join::findings(&HostFacts::default(), &guests) {
        let expected = match finding.id.as_str() {
            "guests.halt" => FindingStatus::NotApplicable,
            _ => FindingStatus::Unknown,
        };
        assert_eq!(finding.status, expected, "{}", finding.id);
    }
    for finding in join::findings(&HostFacts::default(), &[]) {
        assert_ne!(finding.status, FindingStatus::Pass, "{}", finding.id);
    }
    // Virtual CPUs that are not pinned may meet.
    let mut guests = pair();
    for guest in &mut guests {
        guest.threads[1].cpus = vec![1, 2];
    }
    let core = of(&join::findings(&host(), &guests), "guests.core");
    assert_eq!(core.status, FindingStatus::Unknown);
}

#[test]
fn every_check_is_declared_completely() {
    let mut ids = BTreeSet::new();
    for check in join::checks() {
        assert!(ids.insert(check.id) && check.id.starts_with("guests."), "{}", check.id);
        let reasons = check.reasons(&[]);
        assert!(!check.title.is_empty() && !reasons.why.is_empty(), "{}", check.id);
        assert!(!reasons.sources.is_empty() && !reasons.fix.text.is_empty(), "{}", check.id);
        assert!(!check.threatens.is_empty() && reasons.undo != UndoClass::Nothing, "{}", check.id);
        assert_eq!(check.confidence == Confidence::Measured, check.effect.is_some());
    }
}

fn recorded(files: &[(&str, &str)], folders: &[(&str, &[&str])]) -> HostFiles {
    let text = |text: &&str| text.to_string();
    HostFiles::recorded(RecordedFiles {
        files: files.iter().map(|(path, content)| (text(path), text(content))).collect(),
        folders: folders
            .iter()
            .map(|(path, names)| (text(path), names.iter().map(text).collect()))
            .collect(),
        ..RecordedFiles::default()
    })
}

#[test]
fn threads_and_memory_are_read_from_a_recorded_qemu() {
    let files = recorded(
        &[
            ("/proc/7/task/7/comm", "qemu-system-x86"),
            ("/proc/7/task/7/status", "Name:\tx\nCpus_allowed_list:\t0-1\n"),
            ("/proc/7/task/12/comm", "CPU 1/TCG"),
            ("/proc/7/task/12/status", "Cpus_allowed_list:\t3\n"),
            (
                "/proc/7/smaps_rollup",
                "Rss: 9000 kB\nAnonHugePages: 4096 kB\nShmemPmdMapped: 2048 kB\nLocked: 100 kB\n\
                 Private_Hugetlb: 10 kB\nShared_Hugetlb: 20480 kB\n",
            ),
            (
                "/proc/7/numa_maps",
                "7f00 default file=/memfd huge N0=10 kernelpagesize_kB=2048\n\
                 7f01 default anon=3 N0=1 N1=2 kernelpagesize_kB=4\n",
            ),
        ],
        &[("/proc/7/task", &["12", "7"])],
    );
    let threads = join::read_threads(&files, 7);
    let expected = [thread("qemu-system-x86", None, &[0, 1]), thread("CPU 1/TCG", Some(1), &[3])];
    assert_eq!(threads, expected);
    let memory = join::read_memory(&files, 7).unwrap();
    let MemoryUse { resident_kib, huge_kib, locked_kib, reserved_kib } = memory;
    assert_eq!([resident_kib, huge_kib, locked_kib, reserved_kib], [9000, 6144, 100, 20_490]);
    assert_eq!(join::read_nodes(&files, 7), [(0, 5_121), (1, 2)]);
    assert_eq!((join::read_threads(&files, 8), join::read_memory(&files, 8)), (vec![], None));
}

#[test]
fn this_process_and_host_are_read() {
    let files = HostFiles::default();
    let threads = join::read_threads(&files, std::process::id());
    assert!(!threads.is_empty() && threads.iter().all(|thread| !thread.cpus.is_empty()));
    assert!(join::read_memory(&files, std::process::id()).unwrap().resident_kib > 100);
    let host = join::read_host(&files);
    assert!(host.siblings.len() + host.nodes.len() < 100_000);
}
