//! Memory: huge pages, merging, swapping, writeback, errors.

use nm_model::Severity;
use nm_model::finding::Confidence::{Judgement, Measured};
use nm_model::finding::FixKind::{Command, Hardware};
use nm_model::finding::{Threat, UndoClass};

use super::common::{chosen, judge, of_setting, path_of, unread};
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::Observed;
use nm_settings::setting::Action;
use nm_settings::target::{DirtyLimit, Place, Target};
use nm_settings::wanted::Wanted;
use nm_settings::{SettingId, setting, source};

const TAIL: &[Threat] = &[Threat::Tail, Threat::Maximum];

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "mem.thp",
        title: "transparent huge pages and compaction",
        severity: Severity::Medium,
        settings: &[SettingId::MemThp, SettingId::MemThpDefrag, SettingId::MemCompaction],
        confidence: Measured,
        effect: Some("stalls of 100 µs to 1 ms (AWS)"),
        threatens: TAIL,
        run: thp,
        ..Check::UNDECLARED
    },
    Check {
        id: "mem.ksm",
        title: "merging of equal pages (KSM)",
        severity: Severity::Medium,
        settings: &[SettingId::MemKsm],
        threatens: TAIL,
        run: ksm,
        ..Check::UNDECLARED
    },
    Check {
        id: "mem.swap",
        title: "swapping",
        severity: Severity::High,
        why: "a page that was swapped out is read from the disk when it is needed",
        sources: &[source::RIGTORP_MEMORY],
        fix: (Command, "swapoff -a   # or mlockall in the application"),
        undo: UndoClass::Live,
        threatens: TAIL,
        run: swap,
        ..Check::UNDECLARED
    },
    Check {
        id: "mem.hugepages",
        title: "huge pages reserved",
        severity: Severity::Low,
        why: "pages of 4 KiB miss the processor's translation cache more often; pages are reserved \
              most surely at boot",
        sources: &[source::RIGTORP_MEMORY],
        fix: (
            Command,
            "echo 512 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
        ),
        undo: UndoClass::Live,
        threatens: &[Threat::Median, Threat::Tail],
        run: hugepages,
        ..Check::UNDECLARED
    },
    Check {
        id: "mem.dirty",
        title: "writeback of dirty pages",
        severity: Severity::Low,
        settings: &[SettingId::MemDirty],
        confidence: Judgement,
        threatens: TAIL,
        run: dirty,
        ..Check::UNDECLARED
    },
    Check {
        id: "mem.edac",
        title: "memory errors",
        severity: Severity::High,
        why: "each corrected error raises an interrupt of the machine or its firmware",
        sources: &[source::JUDGEMENT],
        fix: (Hardware, "replace the memory module"),
        confidence: Judgement,
        threatens: TAIL,
        run: edac,
        ..Check::UNDECLARED
    },
];

fn thp(m: &Machine<'_>) -> Observed {
    let path = path_of(SettingId::MemThp);
    let Some(enabled) = m.text(&path).map(chosen) else {
        return unread(m, "transparent huge pages", &[&path]);
    };
    let mut bad = vec![];
    let mut at_fault = vec![];
    for (id, fault) in [
        (SettingId::MemThp, "transparent huge pages are always used"),
        (SettingId::MemThpDefrag, "page faults wait for compaction"),
        (SettingId::MemCompaction, "memory is compacted in the background (=)"),
    ] {
        if let Some(judged) = judge(m, id).filter(|judged| !judged.is_good) {
            bad.push(fault.replace('=', judged.text));
            at_fault.push(id);
        }
    }
    Observed::bad_if(
        !bad.is_empty(),
        bad.join("; "),
        format!("transparent huge pages: {enabled}, no compaction in the background"),
    )
    .at_fault(at_fault)
    .with([
        m.evidence(&path, enabled),
        m.evidence(&path_of(SettingId::MemThpDefrag), ""),
        m.evidence(&path_of(SettingId::MemCompaction), ""),
    ])
}

fn ksm(m: &Machine<'_>) -> Observed {
    of_setting(m, SettingId::MemKsm, "equal pages are merged", "pages are not merged (=)")
}

fn swap(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/proc/swaps";
    const SWAPPINESS: &str = "/proc/sys/vm/swappiness";
    let Some(text) = m.text(PATH) else {
        return unread(m, "the swap areas", &[PATH]);
    };
    let areas: Vec<&str> =
        text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    Observed::bad_if(
        !areas.is_empty(),
        format!("memory may be swapped out to {}", areas.join(", ")),
        "there is no swap area",
    )
    .with([m.evidence(PATH, format!("{} areas", areas.len())), m.evidence(SWAPPINESS, "")])
}

fn hugepages(m: &Machine<'_>) -> Observed {
    let nodes = m.names("/sys/devices/system/node").iter();
    let mut seen = vec![];
    let mut total = 0;
    for node in nodes {
        let folder = format!("/sys/devices/system/node/{node}/hugepages");
        for size in m.names(&folder) {
            let path = format!("{folder}/{size}/nr_hugepages");
            if let Some(pages) = m.number(&path) {
                total += pages;
                seen.push(m.evidence(&path, format!("{pages} pages of {size}")));
            }
        }
    }
    if seen.is_empty() {
        const PATH: &str = "/proc/sys/vm/nr_hugepages";
        let Some(pages) = m.number(PATH) else { return unread(m, "vm.nr_hugepages", &[PATH]) };
        total = pages;
        seen.push(m.evidence(PATH, pages.to_string()));
    }
    Observed::bad_if(total == 0, "no huge page is reserved", format!("{total} huge pages"))
        .with(seen)
}

fn dirty(m: &Machine<'_>) -> Observed {
    let (Place::Twins([bytes, ratio]), Action::DirtyBackgroundBytes(most)) = (
        Target::DirtyLimit { limit: DirtyLimit::Background }.place(),
        &setting(SettingId::MemDirty).action,
    ) else {
        unreachable!("the limit is two files");
    };
    let (Some(of_bytes), Some(of_ratio)) = (m.text(&bytes), m.text(&ratio)) else {
        return unread(m, "the limits of dirty pages", &[&bytes, &ratio]);
    };
    let is_good = Wanted::DirtyBytes(*most).accepts(&format!("{of_bytes}\n{of_ratio}\n"));
    let limit = match of_bytes {
        "0" => format!("{of_ratio} % of the memory"),
        bytes => format!("{bytes} bytes"),
    };
    let text = format!("the kernel writes back when {limit} are dirty");
    Observed::bad_if(is_good != Some(true), text.clone(), text)
        .with([m.evidence(&bytes, "bytes"), m.evidence(&ratio, "% of memory")])
}

fn edac(m: &Machine<'_>) -> Observed {
    let controllers = m.names("/sys/devices/system/edac/mc");
    if controllers.is_empty() {
        let what = "the count of memory errors";
        return match m.is_guest() {
            true => Observed::not_applicable("a guest sees no memory errors"),
            false => unread(m, what, &["/sys/devices/system/edac/mc/mc0/ce_count"]),
        };
    }
    let (mut total, mut risen) = (0, 0);
    let mut seen = vec![];
    for name in controllers {
        let path = format!("/sys/devices/system/edac/mc/{name}/ce_count");
        let Some(count) = m.number(&path) else { continue };
        total += count;
        let later = m.second(&path).and_then(|text| text.trim().parse::<i64>().ok());
        risen += later.map_or(0, |later| later - count).max(0);
        seen.push(m.evidence(&path, "corrected errors since boot"));
    }
    // A single one in months is normal.
    Observed::bad_if(
        risen > 0 || total > 10,
        format!("{total} corrected memory errors since boot, {risen} during the snapshot"),
        format!("{total} corrected memory errors since boot"),
    )
    .with(seen)
}
