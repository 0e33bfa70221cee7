//! What the connections of accelerated programs come to. It has the share in shared memory, how
//! many gain, how their ends waited, and a histogram of their shares.

use nm_lab::ledger::Benefit;
use nm_report::units;
use schemars::JsonSchema;
use serde::Serialize;

use super::row::Row;

/// Upper ends of the classes of the histogram but the first, which is "nothing in memory".
const CLASSES: [(f64, &str); 4] =
    [(0.5, "up to 50 %"), (0.9, "up to 90 %"), (0.99, "up to 99 %"), (1.0, "up to 100 %")];

/// Sums over connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Summary {
    /// Connections that gain.
    pub gain: usize,
    /// Those most of whose calls went through the kernel, although memory could be used.
    pub save_little: usize,
    /// Those that were left on the kernel because memory cost more than it saved.
    pub cost_more: usize,
    /// All others.
    pub on_kernel: usize,
    /// Spins that ended without success.
    pub failed_spins: u64,
    /// Waits that slept in the kernel.
    pub sleeps: u64,
    /// Fallbacks from shared memory to the kernel.
    pub fallbacks: u64,
    /// Returns to shared memory.
    pub rejoins: u64,
    /// Connections by the share of their bytes in memory: none, and up to 50, 90, 99 and 100 %.
    pub by_share: [usize; 5],
}

impl Summary {
    /// The sums over `rows`.
    pub fn of(rows: &[Row]) -> Summary {
        let mut sums = Summary::default();
        for row in rows {
            match row.benefit {
                Benefit::Gains => sums.gain += 1,
                Benefit::SavesLittle => sums.save_little += 1,
                Benefit::CostsMore => sums.cost_more += 1,
                Benefit::NotYet | Benefit::None => sums.on_kernel += 1,
            }
            for (sum, more) in [
                (&mut sums.failed_spins, row.failed_spins),
                (&mut sums.sleeps, row.sleeps),
                (&mut sums.fallbacks, row.fallbacks),
                (&mut sums.rejoins, row.rejoins),
            ] {
                *sum = sum.saturating_add(more);
            }
            if let Some(share) = share_in_memory(std::slice::from_ref(row)) {
                sums.by_share[class(share)] += 1;
            }
        }
        sums
    }

    /// The share of the bytes, and how many connections gain; `connections` is their number with
    /// its noun.
    pub fn headline(&self, share: Option<f64>, connections: &str) -> String {
        let share = share.map_or_else(
            || "no bytes were transferred".to_string(),
            |share| format!("{} of the bytes in shared memory", units::percent(share)),
        );
        let parts: Vec<String> = [
            (self.gain, "gain"),
            (self.save_little, "save little"),
            (self.cost_more, "cost more than they save"),
            (self.on_kernel, "on the kernel"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        format!("{share} ({connections}: {})", parts.join(", "))
    }

    /// How the ends waited and the histogram, as lines; empty if there is nothing to say.
    pub fn details(&self) -> String {
        let mut text = String::new();
        if self.failed_spins + self.sleeps + self.fallbacks + self.rejoins > 0 {
            text += &format!(
                "waits: {} spins in vain, {} sleeps; {} fallbacks to the kernel, {} returns\n",
                units::count(self.failed_spins),
                units::count(self.sleeps),
                units::count(self.fallbacks),
                units::count(self.rejoins),
            );
        }
        if self.by_share.iter().sum::<usize>() > 0 {
            let names = ["none"].into_iter().chain(CLASSES.iter().map(|(_, name)| *name));
            let parts = names.zip(self.by_share).filter(|(_, count)| *count > 0);
            let parts: Vec<String> =
                parts.map(|(name, count)| format!("{name}: {count}")).collect();
            text += &format!("connections by their bytes in memory: {}\n", parts.join(" · "));
        }
        text
    }
}

/// The class of the histogram for a share.
fn class(share: f64) -> usize {
    match share {
        0.0 => 0,
        _ => 1 + CLASSES.iter().take(3).filter(|(end, _)| share > *end).count(),
    }
}

/// The share of all bytes of these connections that went through memory; none without bytes.
pub fn share_in_memory(rows: &[Row]) -> Option<f64> {
    let flows = || rows.iter().flat_map(|row| [row.sent, row.received]);
    let all = flows().map(|flow| flow.bytes()).fold(0, u64::saturating_add);
    let memory = flows().map(|flow| flow.memory_bytes).fold(0, u64::saturating_add);
    (all > 0).then(|| memory as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fall_into_one_class() {
        let found = [0.0, 0.001, 0.5, 0.6, 0.9, 0.95, 0.99, 0.999, 1.0].map(class);
        assert_eq!(found, [0, 1, 1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn a_small_share_does_not_read_as_success() {
        let sums = Summary { save_little: 8, on_kernel: 3, ..Summary::default() };
        assert_eq!(
            sums.headline(Some(0.025), "11 TCP sockets"),
            "2.50 % of the bytes in shared memory (11 TCP sockets: 8 save little, 3 on the kernel)"
        );
        assert_eq!(sums.details(), "");
        let sums = Summary { sleeps: 2, by_share: [3, 0, 0, 0, 1], ..sums };
        assert_eq!(
            sums.details(),
            "waits: 0 spins in vain, 2 sleeps; 0 fallbacks to the kernel, 0 returns\n\
             connections by their bytes in memory: none: 3 · up to 100 %: 1\n"
        );
    }
}
