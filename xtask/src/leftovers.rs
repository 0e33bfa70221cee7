//! What a benchmark leaves behind if it is killed: temporary folders and network namespaces. Their
//! names have the number of its process, so the next one removes them, and those of benchmarks that
//! still run stay.

use std::path::Path;

use crate::shell;

/// A name of this process that begins with `prefix`.
pub fn own_name(prefix: &str) -> String {
    format!("{prefix}{}", std::process::id())
}

/// Whether `name` begins with `prefix` and the number of a process that is gone.
fn is_left(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix).map(|rest| rest.split('-').next().unwrap_or(rest));
    let pid: Option<u32> = number.and_then(|number| number.parse().ok());
    pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

/// Removes the folders in `within` that killed benchmarks left.
pub fn remove_folders(within: &Path, prefix: &str) {
    for entry in std::fs::read_dir(within).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| is_left(name, prefix)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes the namespaces that killed benchmarks left, and ends the servers in them.
pub fn remove_namespaces(prefix: &str) {
    let Ok((list, true)) = shell::output("ip netns list") else { return };
    let names = list.lines().filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| is_left(name, prefix)) {
        remove_namespace(name);
    }
}

/// Ends what runs in a namespace and removes it.
pub fn remove_namespace(name: &str) {
    if let Ok((pids, true)) = shell::output(&format!("ip netns pids {name}")) {
        for pid in pids.split_whitespace() {
            let _ = shell::output(&format!("kill -KILL {pid}"));
        }
    }
    let _ = shell::output(&format!("ip netns del {name}"));
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// The number of a process that has ended and was waited for.
    fn dead_pid() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn folders_of_dead_processes_are_removed_and_others_stay() {
        let within = std::env::temp_dir().join(own_name("leftovers-test-"));
        std::fs::create_dir(&within).unwrap();
        let dead = within.join(format!("bench-{}", dead_pid()));
        let stay = [own_name("bench-"), "bench-notes".to_string(), "other-1".to_string()];
        std::fs::create_dir(&dead).unwrap();
        for name in &stay {
            std::fs::create_dir(within.join(name)).unwrap();
        }
        remove_folders(&within, "bench-");
        let are_there = stay.each_ref().map(|name| within.join(name).exists());
        let is_dead_there = dead.exists();
        std::fs::remove_dir_all(&within).unwrap();
        assert_eq!((is_dead_there, are_there), (false, [true; 3]));
    }

    /// Needs root.
    #[test]
    fn namespaces_of_dead_processes_are_removed_with_their_servers() {
        let prefix = "nmleft-";
        let (dead, own) = (format!("{prefix}{}-a", dead_pid()), format!("{}-a", own_name(prefix)));
        for name in [&dead, &own] {
            shell::output(&format!("ip netns add {name}")).unwrap();
        }
        let mut server = Command::new("ip")
            .args(["netns", "exec", &dead, "sleep", "1000"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let is_inside = || {
            let (pids, _) = shell::output(&format!("ip netns pids {dead}")).unwrap();
            pids.split_whitespace().any(|pid| pid == server.id().to_string())
        };
        while !is_inside() {
            std::thread::yield_now();
        }
        remove_namespaces(prefix);
        let (left, _) = shell::output("ip netns list").unwrap();
        remove_namespace(&own);
        // It would run for longer than any test.
        assert!(!server.wait().unwrap().success());
        assert!(!left.contains(&dead), "{left}");
        assert!(left.contains(&own), "{left}");
    }
}
