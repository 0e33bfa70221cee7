//! Warnings of a node. A peer can cause some as often as it likes. These are limited to one a
//! second for each reason and owner, with the number of those in between. Where many owners cause
//! some, the further ones share a line.

use std::collections::BTreeMap;

use nm_wire::Owner;

/// Time for which warnings with the same reason are gathered, ns.
const INTERVAL_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct Gathered {
    since_ns: u64,
    /// Warnings since the one that was reported, and the last of them.
    count: u64,
    last: String,
}

/// Reasons and owners whose warnings are gathered each for itself at the same time.
const CAUSES_MAX: usize = 64;

/// Why a peer is warned about, and whose it is.
pub type Cause = (&'static str, Owner);

/// Warnings that are to be reported.
#[derive(Debug, Default)]
pub struct Warnings {
    due: Vec<String>,
    /// By the reason of a limited warning and whose peer it is about.
    gathered: BTreeMap<Cause, Gathered>,
}

impl Warnings {
    /// Adds one that the node itself is the cause of.
    pub fn push(&mut self, message: String) {
        self.due.push(message);
    }

    /// Adds one that a peer is the cause of.
    pub fn push_limited(&mut self, cause: Cause, now_ns: u64, message: String) {
        let is_full = self.gathered.len() >= CAUSES_MAX && !self.gathered.contains_key(&cause);
        let cause = if is_full { (cause.0, Owner::NOBODY) } else { cause };
        match self.gathered.get_mut(&cause) {
            Some(gathered) => {
                gathered.count += 1;
                gathered.last = message;
            }
            None => {
                let gathered = Gathered { since_ns: now_ns, count: 0, last: String::new() };
                self.gathered.insert(cause, gathered);
                self.due.push(message);
            }
        }
    }

    /// Those that are due now.
    pub fn take(&mut self, now_ns: u64) -> Vec<String> {
        if !self.gathered.is_empty() {
            self.end_intervals(now_ns);
        }
        std::mem::take(&mut self.due)
    }

    fn end_intervals(&mut self, now_ns: u64) {
        let due = &mut self.due;
        self.gathered.retain(|_, gathered| {
            if now_ns.saturating_sub(gathered.since_ns) < INTERVAL_NS {
                return true;
            }
            let last = std::mem::take(&mut gathered.last);
            match std::mem::take(&mut gathered.count) {
                0 => return false,
                1 => due.push(last),
                count => due.push(format!("{last} ({count} such warnings since the last one)")),
            }
            gathered.since_ns = now_ns;
            true
        });
    }

    /// When [`Warnings::take`] has something at the latest.
    pub fn deadline_ns(&self) -> Option<u64> {
        let waiting = self.gathered.values().filter(|gathered| gathered.count > 0);
        waiting.map(|gathered| gathered.since_ns + INTERVAL_NS).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAUSE: Cause = ("garbage", Owner::of_user(1));

    #[test]
    fn a_million_warnings_with_one_reason_are_a_line_a_second_with_their_number() {
        let mut warnings = Warnings::default();
        let mut lines = vec![];
        for number in 0..1_000_000_u64 {
            // A warning every 10 µs, for 10 s.
            warnings.push_limited(CAUSE, number * 10_000, format!("link {number} refused"));
            lines.extend(warnings.take(number * 10_000));
        }
        assert_eq!(lines.len(), 10, "{lines:#?}");
        assert_eq!(lines[0], "link 0 refused");
        assert!(lines[1].starts_with("link 100000 refused (100000 such"), "{lines:#?}");
        let end_ns = warnings.deadline_ns().unwrap();
        lines.extend(warnings.take(end_ns));
        assert!(lines[10].contains("(99999 such warnings"), "{lines:#?}");
        // Afterwards the first one is reported at once again.
        assert_eq!(warnings.deadline_ns(), None);
        assert!(warnings.take(end_ns + 2 * INTERVAL_NS).is_empty());
        warnings.push_limited(CAUSE, end_ns + 2 * INTERVAL_NS, "again".to_string());
        assert_eq!(warnings.take(end_ns + 2 * INTERVAL_NS), ["again"]);
    }

    #[test]
    fn reasons_are_limited_each_for_itself_and_the_nodes_own_warnings_are_not() {
        let mut warnings = Warnings::default();
        for _ in 0..2 {
            warnings.push("own".to_string());
            warnings.push_limited(("a", Owner::of_user(1)), 5, "a".to_string());
            warnings.push_limited(("b", Owner::of_user(1)), 5, "b".to_string());
        }
        assert_eq!(warnings.take(5), ["own", "a", "b", "own"]);
        assert_eq!(warnings.deadline_ns(), Some(5 + INTERVAL_NS));
        assert_eq!(warnings.take(5 + INTERVAL_NS), ["a", "b"]);
    }

    /// One owner that causes warnings hides none of another's, and many owners cause few lines.
    #[test]
    fn owners_are_warned_about_each_for_itself_up_to_a_number() {
        let mut warnings = Warnings::default();
        for user in 0..1000 {
            for _ in 0..3 {
                let cause = ("garbage", Owner::of_user(user));
                warnings.push_limited(cause, 5, format!("user {user}"));
            }
        }
        let lines = warnings.take(5);
        assert_eq!(lines.len(), CAUSES_MAX + 1);
        assert_eq!(lines[..2], ["user 0", "user 1"]);
        let later = warnings.take(5 + INTERVAL_NS);
        assert_eq!(later.len(), CAUSES_MAX + 1);
        assert!(later.contains(&"user 1 (2 such warnings since the last one)".to_string()));
    }
}
