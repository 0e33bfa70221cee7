//! Whether a gateway is there: heartbeats of a link, as the client sends and misses them.

use std::time::Duration;

use nm_wire::Heartbeat;

/// Intervals without a sign of the gateway after which the client goes to the next one.
const MISSED_MAX: u32 = 3;

/// The heartbeats of a link. Without an interval there are none.
#[derive(Debug, Clone, Copy)]
pub struct Liveness {
    interval_ns: u64,
    contact_ns: u64,
    sent_ns: u64,
    sent: u64,
}

impl Liveness {
    /// Those of a link that was made now.
    pub fn new(interval: Duration, now_ns: u64) -> Liveness {
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        Liveness { interval_ns, contact_ns: now_ns, sent_ns: now_ns, sent: 0 }
    }

    /// Something has come.
    pub fn contacted(&mut self, now_ns: u64) {
        self.contact_ns = now_ns;
    }

    /// Nothing has come although it was looked for; whether the gateway is taken for dead.
    pub fn is_silent(&self, now_ns: u64) -> bool {
        let most_ns = self.interval_ns.saturating_mul(MISSED_MAX.into());
        self.interval_ns > 0 && now_ns.saturating_sub(self.contact_ns) > most_ns
    }

    /// Appends a heartbeat if one is due.
    pub fn beat(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        if self.interval_ns > 0 && now_ns.saturating_sub(self.sent_ns) >= self.interval_ns {
            self.sent_ns = now_ns;
            self.sent += 1;
            nm_wire::write(&Heartbeat { number: self.sent }, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_sends_a_heartbeat_each_interval_and_misses_those_of_the_gateway() {
        let mut alive = Liveness::new(Duration::from_nanos(100), 1_000);
        let (mut out, mut beats) = (vec![], 0);
        for now_ns in 1_000..1_450 {
            alive.beat(now_ns, &mut out);
            beats += usize::from(!std::mem::take(&mut out).is_empty());
            assert_eq!(alive.is_silent(now_ns), now_ns > 1_300, "{now_ns}");
        }
        assert_eq!(beats, 4);
        alive.contacted(1_450);
        assert!(!alive.is_silent(1_750) && alive.is_silent(1_751));
        let mut none = Liveness::new(Duration::ZERO, 0);
        none.beat(u64::MAX, &mut out);
        assert!(out.is_empty() && !none.is_silent(u64::MAX));
    }
}
