//! Checks in the agents' ledgers that connections of accelerated agents used shared memory. So
//! figures of the kernel's sockets are never shown as those of the accelerator.

use std::collections::BTreeSet;

use nm_model::{
    Doubt, DoubtKind, Failure, FailureKind, Launcher, SettingKind, SettingValue, Settings,
    StackPair,
};

use crate::agent::Handle;
use crate::ledger::{Connection, Key, Ledger};
use crate::pair::Pair;

/// Fraction of calls through the kernel, including the first ones of each connection, up to which
/// there is no doubt.
pub(crate) const KERNEL_SHARE_MAX: f64 = 0.01;

/// The connections that existed before a trial.
pub struct AccelerationCheck {
    known: BTreeSet<Key>,
}

/// Result of the check.
#[derive(Debug, Default, PartialEq)]
pub struct AccelerationReport {
    /// Settings to record.
    pub settings: Settings,
    /// Doubts about the figures.
    pub doubts: Vec<Doubt>,
}

impl AccelerationCheck {
    /// Lists the existing connections; none unless both ends are accelerated.
    pub fn begin(pair: &Pair, stacks: &StackPair) -> Option<AccelerationCheck> {
        let both = [stacks.client, stacks.server];
        if both.iter().any(|stack| stack.launcher != Some(Launcher::Accel)) {
            return None;
        }
        let known = [&pair.client, &pair.server]
            .into_iter()
            .flat_map(|agent| Ledger::of_process(agent.pid()))
            .flat_map(|ledger| ledger.connections())
            .map(|connection| connection.key())
            .collect();
        Some(AccelerationCheck { known })
    }

    /// Checks the connections that were made since.
    ///
    /// # Errors
    /// If one of them never used shared memory, with its reason.
    pub fn end(&self, pair: &Pair) -> Result<AccelerationReport, Failure> {
        let mut found = AccelerationReport::default();
        for agent in [&pair.client, &pair.server] {
            let ledgers = Ledger::of_process(agent.pid());
            let connections: Vec<Connection> = ledgers
                .iter()
                .flat_map(Ledger::connections)
                .filter(|connection| !self.known.contains(&connection.key()))
                .collect();
            found.doubts.extend(judge(agent, &connections)?);
            let settings = ledgers.first().map(Ledger::settings).unwrap_or_default();
            let text = SettingValue::text(describe(agent, &settings));
            found.settings.set(SettingKind::Accelerator, text);
        }
        Ok(found)
    }
}

/// The version, and settings that differ from the defaults. The shared folder is left out: it is
/// different each time and does not affect figures.
fn describe(agent: &Handle, settings: &str) -> String {
    let mut text = format!("nearmetal {}", agent.version());
    for setting in settings.split(", ").filter(|setting| !setting.is_empty()) {
        if !setting.starts_with("share ") {
            text += ", ";
            text += setting;
        }
    }
    text
}

/// Judges the connections of an agent in one trial.
fn judge(agent: &Handle, connections: &[Connection]) -> Result<Option<Doubt>, Failure> {
    let refused = |reason: &str| {
        let message = format!("{} was not accelerated: {reason}", agent.name());
        Failure::new(FailureKind::NotAvailable, message)
    };
    if connections.is_empty() {
        return Err(refused("its ledger has no connection, so its library was not loaded"));
    }
    let (mut memory, mut kernel) = (0_u64, 0_u64);
    for connection in connections {
        let (by_memory, by_kernel) = connection.calls();
        if by_memory == 0 {
            let why =
                connection.kernel_reason().unwrap_or_else(|| "no reason was recorded".to_string());
            return Err(refused(&format!("its connection stayed on the kernel: {why}")));
        }
        memory += by_memory;
        kernel += by_kernel;
    }
    let share = kernel as f64 / (memory + kernel) as f64;
    if share <= KERNEL_SHARE_MAX {
        return Ok(None);
    }
    let why = connections.iter().find_map(Connection::kernel_reason);
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let (percent, name) = (share * 1e2, agent.name());
    let detail = format!("{percent:.0} % of the calls of {name} went through the kernel{why}");
    Ok(Some(Doubt::new(DoubtKind::NotAccelerated, detail)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::fixture::connection;
    use nm_ring::ledger::KernelReason;

    fn agent() -> Handle {
        Handle::local("agent `client` of netns").unwrap()
    }

    #[test]
    fn connection_on_the_kernel_is_refused_with_its_reason() {
        let agent = agent();
        let failure = judge(&agent, &[]).unwrap_err();
        assert!(failure.message.contains("library was not loaded"), "{failure}");
        let moved = connection(1000, 5, KernelReason::None);
        let stayed = connection(0, 1000, KernelReason::PeerNotAccelerated);
        let failure = judge(&agent, &[moved, stayed]).unwrap_err();
        assert!(failure.message.ends_with("kernel: the peer is not accelerated"), "{failure}");
        assert_eq!(judge(&agent, &[moved]), Ok(None));
    }

    #[test]
    fn calls_through_the_kernel_raise_a_doubt() {
        let part = connection(900, 100, KernelReason::UrgentData);
        let doubt = judge(&agent(), &[part]).unwrap().unwrap();
        assert_eq!(doubt.kind, DoubtKind::NotAccelerated);
        assert_eq!(
            doubt.detail,
            "10 % of the calls of agent `client` of netns went through the kernel: urgent data"
        );
    }

    #[test]
    fn settings_are_described_without_the_folder() {
        let text = describe(&agent(), "spin 20 us, share /tmp/nearmetal-share-1-0");
        assert!(text.starts_with("nearmetal ") && text.ends_with(", spin 20 us"), "{text}");
    }
}
