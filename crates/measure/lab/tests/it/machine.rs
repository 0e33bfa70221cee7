//! Processes, namespaces and links of the machine before and after a test.

use std::collections::BTreeSet;
use std::time::Duration;

use nm_sys::clock::Deadline;

/// Everything of an environment that could remain.
#[derive(Debug, PartialEq, Eq)]
pub struct Machine {
    /// Network namespaces that a process holds.
    pub namespaces: BTreeSet<String>,
    /// Names that `ip netns` knows.
    pub named: BTreeSet<String>,
    /// Links of this namespace.
    pub links: BTreeSet<String>,
    /// Processes of this program other than this one.
    pub processes: BTreeSet<String>,
}

fn names(folder: &str) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok())
}

pub fn now() -> Machine {
    let own = std::env::current_exe().unwrap();
    let pids: Vec<String> =
        names("/proc").filter(|name| name.bytes().all(|b| b.is_ascii_digit())).collect();
    let link = |pid: &str, what: &str| std::fs::read_link(format!("/proc/{pid}/{what}")).ok();
    Machine {
        namespaces: pids
            .iter()
            .filter_map(|pid| link(pid, "ns/net"))
            .map(|path| path.display().to_string())
            .collect(),
        named: names("/run/netns").collect(),
        links: names("/sys/class/net").collect(),
        processes: pids
            .iter()
            .filter(|pid| **pid != std::process::id().to_string())
            .filter(|pid| link(pid, "exe").is_some_and(|exe| exe == own))
            .cloned()
            .collect(),
    }
}

/// Waits until everything of `during` that was not in `before` is gone, for which the kernel takes
/// some time. What other programs created in the meantime is ignored.
pub fn assert_removed(before: &Machine, during: &Machine) {
    let limit = Deadline::after(Duration::from_secs(60));
    loop {
        let after = now();
        let left = |before: &BTreeSet<String>, during: &BTreeSet<String>, after| -> Vec<String> {
            let made: BTreeSet<String> = during.difference(before).cloned().collect();
            made.intersection(after).cloned().collect()
        };
        let left = [
            left(&before.namespaces, &during.namespaces, &after.namespaces),
            left(&before.named, &during.named, &after.named),
            left(&before.links, &during.links, &after.links),
            left(&before.processes, &during.processes, &after.processes),
        ]
        .concat();
        if left.is_empty() {
            return;
        }
        assert!(!limit.passed(), "still there: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
