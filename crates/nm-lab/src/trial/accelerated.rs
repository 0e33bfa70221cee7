//! Whether the connections of accelerated agents really left the kernel, as the agents' own ledgers
//! tell. A row that names the accelerator never shows the kernel's figures in silence.

use std::collections::BTreeSet;

use nm_model::{
    Doubt, DoubtKind, Failure, FailureKind, Launcher, SettingKind, SettingValue, Settings,
    StackPair,
};

use crate::agent::Handle;
use crate::ledger::{Connection, Key, Ledger};
use crate::pair::Pair;

/// Share of calls by way of the kernel, the first ones of each connection among them, that is
/// silently accepted.
pub(crate) const KERNEL_SHARE_MAX: f64 = 0.01;

/// What was there before a trial.
pub struct Watch {
    known: BTreeSet<Key>,
}

/// What is known after it.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    /// Settings to record.
    pub settings: Settings,
    /// What is to be doubted.
    pub doubts: Vec<Doubt>,
}

impl Watch {
    /// Notes which connections there are; none unless both ends are accelerated.
    pub fn begin(pair: &Pair, stacks: &StackPair) -> Option<Watch> {
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
        Some(Watch { known })
    }

    /// Looks at the connections that have come since.
    ///
    /// # Errors
    /// If one of them never left the kernel, with its reason.
    pub fn end(&self, pair: &Pair) -> Result<Found, Failure> {
        let mut found = Found::default();
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

/// Version and settings that are not the defaults. The folder to meet in is another one each time
/// and says nothing about a figure.
fn describe(agent: &Handle, settings: &str) -> String {
    let mut text = format!("nearmetal {}", agent.version());
    for word in settings.split(", ").filter(|word| !word.is_empty()) {
        if !word.starts_with("share ") {
            text += ", ";
            text += word;
        }
    }
    text
}

/// What an agent's connections of one trial show.
fn judge(agent: &Handle, connections: &[Connection]) -> Result<Option<Doubt>, Failure> {
    let refused = |reason: &str| {
        let message = format!("{} was not accelerated: {reason}", agent.name());
        Failure::new(FailureKind::NotAvailable, message)
    };
    if connections.is_empty() {
        return Err(refused("no connection of it is in a ledger, so its library was not loaded"));
    }
    let (mut memory, mut kernel) = (0_u64, 0_u64);
    for connection in connections {
        let (by_memory, by_kernel) = connection.calls();
        if by_memory == 0 {
            let why = connection
                .kernel_reason()
                .unwrap_or_else(|| "it had no reason to give".to_string());
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
    let detail = format!("{percent:.0} % of the calls of {name} went through it{why}");
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
    fn a_connection_that_stays_on_the_kernel_is_refused_with_its_reason() {
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
    fn a_part_on_the_kernel_is_a_doubt() {
        let part = connection(900, 100, KernelReason::UrgentData);
        let doubt = judge(&agent(), &[part]).unwrap().unwrap();
        assert_eq!(doubt.kind, DoubtKind::NotAccelerated);
        assert_eq!(
            doubt.detail,
            "10 % of the calls of agent `client` of netns went through it: urgent data"
        );
    }

    #[test]
    fn settings_are_told_without_the_folder() {
        let text = describe(&agent(), "spin 20 us, share /tmp/nearmetal-share-1-0");
        assert!(text.starts_with("nearmetal ") && text.ends_with(", spin 20 us"), "{text}");
    }
}
