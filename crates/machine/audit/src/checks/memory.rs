//! Memory: huge pages, merging, swapping, writeback, errors.

use nm_model::Severity;
use nm_model::finding::Confidence::{Judgement, Measured};
use nm_model::finding::FixKind::{Command, Hardware};
use nm_model::finding::{Threat, UndoClass};

use super::common::{chosen, setting, unread};
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::Observed;
use crate::sources as source;

const TAIL: &[Threat] = &[Threat::Tail, Threat::Maximum];

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "mem.thp",
        title: "transparent huge pages and compaction",
        severity: Severity::Medium,
        why: "the kernel compacts memory and merges pages in the background, and a process waits \
              for it at a page fault",
        sources: &[
            source::K_VM,
            source::RIGTORP,
            source::RIGTORP_MEMORY,
            source::TUNED,
            source::AWS,
        ],
        fix: (
            Command,
            "echo never > /sys/kernel/mm/transparent_hugepage/enabled; \
             sysctl -w vm.compaction_proactiveness=0",
        ),
        undo: UndoClass::Live,
        confidence: Measured,
        effect: Some("stalls of 100 µs to 1 ms (AWS)"),
        conflict: Some("guides for x86 say never; AWS found madvise better on Graviton"),
        threatens: TAIL,
        run: thp,
    },
    Check {
        id: "mem.ksm",
        title: "merging of equal pages (KSM)",
        severity: Severity::Medium,
        why: "its thread scans memory, and a write to a merged page faults",
        sources: &[source::RIGTORP, source::TUNED],
        fix: (Command, "echo 2 > /sys/kernel/mm/ksm/run"),
        undo: UndoClass::Live,
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
        why: "a process that writes to a mapped file or a log stalls while the kernel writes back",
        sources: &[source::JUDGEMENT],
        fix: (Command, "sysctl -w vm.dirty_background_bytes=67108864 vm.dirty_bytes=268435456"),
        undo: UndoClass::Live,
        confidence: Judgement,
        conflict: Some(
            "vm.dirty_bytes and vm.dirty_ratio replace each other: to undo, write the ratio, since \
             the kernel refuses 0 bytes",
        ),
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
    const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    const DEFRAG: &str = "/sys/kernel/mm/transparent_hugepage/defrag";
    const PROACTIVE: &str = "/proc/sys/vm/compaction_proactiveness";
    let Some(enabled) = m.text(ENABLED).map(chosen) else {
        return unread(m, "transparent huge pages", &[ENABLED]);
    };
    let mut bad = vec![];
    if enabled == "always" {
        bad.push("transparent huge pages are always used".to_string());
    }
    if enabled != "never" && m.text(DEFRAG).map(chosen) == Some("always") {
        bad.push("page faults wait for compaction".to_string());
    }
    if let Some(value) = m.number(PROACTIVE).filter(|value| *value > 0) {
        bad.push(format!("memory is compacted in the background ({value})"));
    }
    Observed::bad_if(
        !bad.is_empty(),
        bad.join("; "),
        format!("transparent huge pages: {enabled}, no compaction in the background"),
    )
    .with([m.evidence(ENABLED, enabled), m.evidence(DEFRAG, ""), m.evidence(PROACTIVE, "")])
}

fn ksm(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/sys/kernel/mm/ksm/run";
    setting(m, PATH, |text| text == "1", "equal pages are merged", "pages are not merged (=)")
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
        return setting(m, PATH, |text| text == "0", "no huge page is reserved", "= huge pages");
    }
    Observed::bad_if(total == 0, "no huge page is reserved", format!("{total} huge pages"))
        .with(seen)
}

fn dirty(m: &Machine<'_>) -> Observed {
    const BYTES: &str = "/proc/sys/vm/dirty_bytes";
    const RATIO: &str = "/proc/sys/vm/dirty_ratio";
    let (bytes, ratio) = (m.number(BYTES), m.number(RATIO));
    let seen = [m.evidence(BYTES, ""), m.evidence(RATIO, "% of memory")];
    match (bytes, ratio) {
        (None, None) => unread(m, "the limits of dirty pages", &[BYTES, RATIO]),
        (Some(bytes), _) if bytes > 0 => {
            Observed::pass(format!("at most {bytes} bytes are dirty")).with(seen)
        }
        (_, Some(ratio)) => Observed::bad_if(
            ratio >= 10,
            format!("up to {ratio} % of the memory may be dirty before writers are stopped"),
            format!("at most {ratio} % of the memory is dirty"),
        )
        .with(seen),
        (Some(_), None) => unread(m, "the limits of dirty pages", &[RATIO]),
    }
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
