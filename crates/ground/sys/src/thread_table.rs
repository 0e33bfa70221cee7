//! All threads of the machine that `/proc` shows, with what the kernel counted of each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Threads beyond which the table is given up: reading a row takes some 20 µs.
pub const THREADS_MAX: usize = 20_000;

/// One thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadRow {
    /// Its name; a worker of the kernel has what it last worked for behind it.
    pub name: String,
    /// The CPU on which it ran last.
    pub cpu: u32,
    /// Time that it ran, ns; absent on kernels without `schedstat`.
    pub ran_ns: Option<u64>,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
}

/// The threads by their numbers; none if there are more than [`THREADS_MAX`] or `/proc` shows none.
pub fn now() -> Option<BTreeMap<u32, ThreadRow>> {
    let mut rows = BTreeMap::new();
    for process in numbered(Path::new("/proc")) {
        for thread in numbered(&Path::new("/proc").join(process.to_string()).join("task")) {
            if rows.len() == THREADS_MAX {
                return None;
            }
            // One that has ended meanwhile has no row.
            let folder = format!("/proc/{process}/task/{thread}");
            let Ok(stat) = fs::read(format!("{folder}/stat")) else { continue };
            let Some(row) = row(&String::from_utf8_lossy(&stat)) else { continue };
            let schedstat = fs::read_to_string(format!("{folder}/schedstat")).ok();
            let ran_ns = schedstat.and_then(|text| text.split(' ').next()?.parse().ok());
            rows.insert(thread, ThreadRow { ran_ns, ..row });
        }
    }
    (!rows.is_empty()).then_some(rows)
}

/// `gettid`—The number of the current thread.
pub fn own_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

fn numbered(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A thread's `stat`: its name is in brackets and may have any character.
fn row(stat: &str) -> Option<ThreadRow> {
    let (begin, end) = (stat.find('(')?, stat.rfind(')')?);
    let name = stat.get(begin + 1..end)?.to_string();
    let words: Vec<&str> = stat.get(end + 1..)?.split_ascii_whitespace().collect();
    let number = |at: usize| words.get(at - 3)?.parse::<u64>().ok();
    let cpu = u32::try_from(number(39)?).ok()?;
    Some(ThreadRow { name, cpu, minor_faults: number(10)?, ran_ns: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_brackets_and_spaces() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let stat = format!("7 (a) (b) c) S {}", numbers.join(" "));
        let row = row(&stat).unwrap();
        assert_eq!((row.name.as_str(), row.cpu, row.minor_faults), ("a) (b) c", 39, 10));
        assert_eq!(super::row("7 ) ("), None);
        assert_eq!(super::row("7 (a) S 1 2"), None);
    }

    #[test]
    fn this_thread_is_in_the_table() {
        let rows = std::thread::Builder::new().name("in-table".into()).spawn(now).unwrap();
        let rows = rows.join().unwrap().unwrap();
        let row = rows.values().find(|row| row.name == "in-table").unwrap();
        assert!(row.cpu <= 4_096, "{row:?}");
    }
}
