//! Settings inside a guest.

use nm_model::Severity;
use nm_model::finding::Confidence::{Judgement, Measured};
use nm_model::finding::FixKind::Application;
use nm_model::finding::{Threat, UndoClass};

use super::common::{Judged, judge, not_a_guest, path_of, unread};
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::Observed;
use nm_settings::{SettingId, source};
use nm_sys::cpu_list;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "guest.haltpoll",
        title: "polling before a virtual CPU halts",
        severity: Severity::Medium,
        settings: &[SettingId::GuestHaltPoll],
        confidence: Measured,
        effect: Some(
            "nested KVM without polling: round trip over loopback 51.7 µs blocking, 7.7 µs \
             spinning; a context switch 2493 to 1486 ns (LKML, 2017)",
        ),
        threatens: &[Threat::Wakeup, Threat::Tail],
        run: haltpoll,
        ..Check::UNDECLARED
    },
    Check {
        id: "guest.vcpu0",
        title: "workload on the first virtual CPU",
        severity: Severity::Medium,
        why: "housekeeping and the first interrupts of devices run there",
        sources: &[source::DEFTECH],
        fix: (Application, "pin the workload to other CPUs"),
        undo: UndoClass::Live,
        confidence: Judgement,
        threatens: &[Threat::Tail],
        run: first_cpu,
        ..Check::UNDECLARED
    },
];

fn haltpoll(m: &Machine<'_>) -> Observed {
    let path = path_of(SettingId::GuestHaltPoll);
    const GOVERNOR: &str = "/sys/devices/system/cpu/cpuidle/current_governor";
    const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
    if let Some(observed) = not_a_guest(m) {
        return observed;
    }
    if m.hypervisor().is_some_and(|name| name != "KVM" && name != "unknown") {
        return Observed::not_applicable("polling in the guest is KVM's");
    }
    let seen = [
        m.evidence(&path, "ns"),
        m.evidence(GOVERNOR, "idle governor"),
        m.evidence(DRIVER, "idle driver"),
    ];
    if m.parameter("idle") == Some("poll") {
        return Observed::pass("virtual CPUs poll and do not halt").with(seen);
    }
    match (judge(m, SettingId::GuestHaltPoll), m.text(DRIVER)) {
        (Some(Judged { text: "0", .. }), _) => {
            Observed::fail("virtual CPUs do not poll before they halt")
        }
        (Some(Judged { text, is_good, .. }), _) => {
            let text = format!("virtual CPUs poll for at most {text} ns");
            Observed::bad_if(!is_good, text.clone(), text)
        }
        (None, Some(driver)) => Observed::fail(format!(
            "virtual CPUs do not poll before they halt: the idle driver is {driver}"
        )),
        (None, None) => return unread(m, "the idle driver", &[&path, DRIVER]),
    }
    .with(seen)
}

fn first_cpu(m: &Machine<'_>) -> Observed {
    if let Some(observed) = not_a_guest(m) {
        return observed;
    }
    if m.snapshot.workload.cpus.is_empty() {
        return Observed::not_applicable("needs `--cpus`, the CPUs of the workload");
    }
    Observed::bad_if(
        m.hot.contains(&0) && m.online.len() > 1,
        "the workload uses CPU 0",
        format!("the workload uses CPUs {}", cpu_list::list(&m.hot)),
    )
    .with([m.evidence("/sys/devices/system/cpu/online", "online")])
}
