//! What several checks do alike.

use std::collections::BTreeMap;

use nm_model::finding::Evidence;
use nm_settings::setting::Goal;
use nm_settings::{SettingId, setting};

use crate::machine::{Layer, Machine};
use crate::observed::{Observed, evidence};
use nm_sys::cpu_list;

/// Unknown, because none of `paths` could be read.
pub fn unread(machine: &Machine<'_>, what: &str, paths: &[&str]) -> Observed {
    let evidence = paths.iter().map(|path| machine.evidence(path, ""));
    Observed::unknown(format!("{what} could not be read")).with(evidence)
}

/// Unknown, because no CPU of the machine is known: what holds for all of none says nothing.
pub fn no_cpu(machine: &Machine<'_>) -> Observed {
    unread(machine, "the CPUs of the machine", &["/sys/devices/system/cpu/online"])
}

/// The finding of a check of network devices where none is known to be in use.
pub fn no_link(machine: &Machine<'_>) -> Observed {
    match machine.knows_links() {
        true => Observed::not_applicable("no network device is in use"),
        false => unread(machine, "the network devices", &["/sys/class/net"]),
    }
}

/// Why a check of guests says nothing here: there is no hypervisor below, or nothing tells whether
/// there is one.
pub fn not_a_guest(machine: &Machine<'_>) -> Option<Observed> {
    const SIGNS: [&str; 3] =
        ["/proc/cpuinfo", "/sys/class/dmi/id/sys_vendor", "/sys/firmware/devicetree/base/model"];
    match machine.layer {
        Layer::Guest => None,
        Layer::Metal => Some(Observed::not_applicable("there is no hypervisor below")),
        Layer::Unknown => Some(unread(machine, "whether there is a hypervisor below", &SIGNS)),
    }
}

/// A setting of the catalogue as the machine has it.
pub struct Judged<'a> {
    /// Its file.
    pub path: String,
    /// The text in it.
    pub text: &'a str,
    /// Whether the catalogue accepts that.
    pub is_good: bool,
    /// What it should be.
    pub goal: Goal,
}

/// Judges a setting that is one file of the machine; absent if it could not be read.
pub fn judge<'a>(machine: &Machine<'a>, id: SettingId) -> Option<Judged<'a>> {
    let mut files = setting(id).files().into_iter();
    let (path, goal) = files.find(|(path, _)| machine.text(path).is_some())?;
    let text = machine.text(&path)?;
    Some(Judged { is_good: goal.accepts(text)?, path, text, goal })
}

/// The file of a setting, the first one if it may be in several.
pub fn path_of(id: SettingId) -> String {
    setting(id).files().into_iter().next().map(|(path, _)| path).unwrap_or_default()
}

/// A check of one such setting: it fails with one sentence or passes with the other. In them `=`
/// stands for the value.
pub fn of_setting(machine: &Machine<'_>, id: SettingId, bad: &str, good: &str) -> Observed {
    let Some(Judged { path, text, is_good, .. }) = judge(machine, id) else {
        let path = path_of(id);
        let name = path.strip_prefix("/proc/sys/").unwrap_or(&path).replace('/', ".");
        return unread(machine, name.trim_start_matches('.'), &[&path]);
    };
    let short: String = text.chars().take(80).collect();
    let (bad, good) = (bad.replace('=', &short), good.replace('=', &short));
    Observed::bad_if(!is_good, bad, good).with([machine.evidence(&path, short)])
}

/// The word in brackets: `always [madvise] never`.
pub fn chosen(text: &str) -> &str {
    let inner = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or(text, |(word, _)| word)
}

/// A file that each CPU has, grouped by content: content, first path, CPUs.
pub fn by_content<'a>(
    machine: &Machine<'a>,
    cpus: &[u32],
    path: impl Fn(u32) -> String,
) -> Vec<(&'a str, String, Vec<u32>)> {
    let mut groups: BTreeMap<&str, (String, Vec<u32>)> = BTreeMap::new();
    for &cpu in cpus {
        let path = path(cpu);
        if let Some(text) = machine.text(&path) {
            groups.entry(text).or_insert_with(|| (path, vec![])).1.push(cpu);
        }
    }
    groups.into_iter().map(|(text, (path, cpus))| (text, path, cpus)).collect()
}

/// The evidence of such groups.
pub fn group_evidence(groups: &[(&str, String, Vec<u32>)]) -> Vec<Evidence> {
    let one = |(text, path, cpus): &(&str, String, Vec<u32>)| {
        evidence(path.clone(), text, format!("CPUs {}", cpu_list::list(cpus)))
    };
    groups.iter().map(one).collect()
}

/// A field of a table with one name and one number a line, such as `cpu.stat`.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (one, value) = line.split_once([' ', ':'])?;
        (one == name).then(|| value.trim().parse().ok())?
    })
}

/// `n`, and the right word.
pub fn plural(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Whether two lists have a CPU in common.
pub fn overlap(a: &[u32], b: &[u32]) -> Vec<u32> {
    a.iter().filter(|cpu| b.contains(cpu)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_fields_are_found() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("performance"), "performance");
        assert_eq!(field("nr_periods 5\nnr_throttled 2", "nr_throttled"), Some(2));
        assert_eq!(field("nr_periods 5", "nr_throttled"), None);
        assert_eq!(plural(1, "CPU", "CPUs"), "1 CPU");
    }
}
