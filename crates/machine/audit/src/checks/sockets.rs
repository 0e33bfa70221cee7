//! Settings of sockets and the network stack.

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Judgement};
use nm_model::finding::FixKind::{Command, Record};
use nm_model::finding::{Threat, UndoClass};

use super::common::{of_setting, unread};
use crate::check::Check;
use crate::machine::Machine;
use crate::observed::{Observed, evidence};
use nm_settings::{SettingId, source};

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "net.buffers",
        title: "receive buffers of UDP",
        severity: Severity::Medium,
        why: "a burst that does not fit is lost",
        sources: &[source::AWS],
        fix: (Command, "sysctl -w net.core.rmem_max=16777216   # and SO_RCVBUF in the application"),
        undo: UndoClass::Live,
        threatens: &[Threat::Loss],
        run: buffers,
        ..Check::UNDECLARED
    },
    Check {
        id: "net.idle_cwnd",
        title: "congestion window after a pause",
        severity: Severity::Medium,
        settings: &[SettingId::NetIdleCwnd],
        threatens: &[Threat::Network, Threat::Tail],
        run: idle_window,
        ..Check::UNDECLARED
    },
    Check {
        id: "net.cork",
        title: "gathering of small writes",
        severity: Severity::Low,
        settings: &[SettingId::NetAutocork],
        confidence: Judgement,
        effect: Some("40 ms without TCP_NODELAY"),
        threatens: &[Threat::Tail],
        run: cork,
        ..Check::UNDECLARED
    },
    Check {
        id: "net.placebo",
        title: "settings that have no effect",
        severity: Severity::Info,
        why: "a setting from an old guide that does nothing hides that nothing was done",
        sources: &[source::K_IP],
        fix: (Record, "remove it from the machine's settings"),
        undo: UndoClass::Nothing,
        confidence: Documented,
        threatens: &[Threat::Median],
        run: placebo,
        ..Check::UNDECLARED
    },
];

/// A counter of the protocol `Udp:` in `/proc/net/snmp`.
fn udp(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Udp:"));
    let at = lines.next()?.split_whitespace().position(|word| word == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

fn buffers(m: &Machine<'_>) -> Observed {
    const SNMP: &str = "/proc/net/snmp";
    const MAX: &str = "/proc/sys/net/core/rmem_max";
    let Some(errors) = m.text(SNMP).and_then(|text| udp(text, "RcvbufErrors")) else {
        return unread(m, "the count of full receive buffers", &[SNMP]);
    };
    let later = m.second(SNMP).and_then(|text| udp(text, "RcvbufErrors"));
    let seen = [
        evidence(SNMP, &format!("RcvbufErrors {errors}"), "since boot"),
        m.evidence(MAX, "bytes at most"),
    ];
    let text = format!("{errors} datagrams found a full buffer since boot");
    match later {
        _ if errors == 0 && later.unwrap_or(0) == 0 => Observed::pass(text),
        Some(later) if later > errors => {
            Observed::fail(format!("{text}, {} more during the snapshot", later - errors))
        }
        _ => Observed::fail(text).severity(Severity::Low),
    }
    .with(seen)
}

fn idle_window(m: &Machine<'_>) -> Observed {
    of_setting(
        m,
        SettingId::NetIdleCwnd,
        "connections start slowly after a pause",
        "connections keep their window over a pause",
    )
}

fn cork(m: &Machine<'_>) -> Observed {
    of_setting(
        m,
        SettingId::NetAutocork,
        "the kernel may gather small writes",
        "the kernel does not gather small writes",
    )
}

fn placebo(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/proc/sys/net/ipv4/tcp_low_latency";
    let isolated = m.isolated();
    let mut bad = vec![];
    if m.text(PATH) == Some("1") {
        bad.push("tcp_low_latency is set; it has no effect since Linux 4.14".to_string());
    }
    if m.online.len() == 1 && m.parameter("isolcpus").is_some() {
        bad.push("isolcpus is set on a machine with one CPU".to_string());
    }
    if m.parameter("isolcpus").is_some() && isolated.is_empty() && m.online.len() > 1 {
        bad.push("isolcpus is set, and no CPU is isolated".to_string());
    }
    if m.text(PATH).is_none() && m.text("/proc/cmdline").is_none() {
        return unread(m, "settings without effect", &[PATH, "/proc/cmdline"]);
    }
    Observed::bad_if(!bad.is_empty(), bad.join("; "), "no setting without effect was found")
        .with([m.evidence(PATH, ""), m.evidence("/proc/cmdline", "")])
}
