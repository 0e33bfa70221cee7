//! The events that follow from a script alone: what changes from each phase to the next.

use super::event::{DayEvent, EventKind};
use super::script::{Phase, Script};

impl Script {
    /// Its events on a clock on which the day starts at `start_ns`. Faults are none of them: when a
    /// node was killed is known by who did it.
    pub(super) fn events(&self, start_ns: u64) -> Vec<DayEvent> {
        let mut events = vec![];
        let mut before: Option<&Phase> = None;
        for (start_s, phase) in self.starts() {
            let at = |second: u32| start_ns + u64::from(second) * 1_000_000_000;
            let event = |kind, detail| DayEvent::at(at(start_s), kind, detail);
            let (from, to) = (phase.rate_per_s, phase.end_per_s());
            if let Some(before) = before.filter(|before| before.end_per_s() != from) {
                let detail = format!("{}/s to {from}/s", before.end_per_s());
                events.push(event(EventKind::Rate, detail));
            }
            if from != to {
                let ramp = event(EventKind::Ramp, format!("{from}/s to {to}/s, linearly"));
                events.push(ramp.until(at(start_s + phase.seconds)));
            }
            let demand = |phase: &Phase| (phase.hot.clone(), phase.zipf);
            if before.is_some_and(|before| demand(before) != demand(phase)) {
                events.push(event(EventKind::HotSet, hot_sets(phase)));
            }
            if before.is_some_and(|before| before.gateway_shares != phase.gateway_shares) {
                events.push(event(EventKind::GatewayShift, gateways(phase)));
            }
            if let Some(auction_seconds) = phase.auction_seconds {
                let auction =
                    event(EventKind::Auction, format!("{} instruments", self.instruments));
                events.push(auction.until(at(start_s + auction_seconds)));
            }
            before = Some(phase);
        }
        events
    }
}

fn hot_sets(phase: &Phase) -> String {
    if phase.hot.is_empty() {
        return format!("Zipf exponent {}", phase.zipf);
    }
    let instruments = phase.hot.iter().map(|set| set.instruments.len()).sum::<usize>();
    let share = phase.hot.iter().map(|set| set.share).sum::<f64>();
    format!("{instruments} instruments get {:.0} %", share * 100.0)
}

fn gateways(phase: &Phase) -> String {
    match &phase.gateway_shares {
        None => "all gateways alike".to_string(),
        Some(shares) => {
            let shares: Vec<String> =
                shares.iter().map(|share| format!("{:.0} %", share * 100.0)).collect();
            format!("gateways get {}", shares.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::day::script::HotSettings;

    #[test]
    fn what_changes_between_phases_is_an_event() {
        let mut script = Script::step(100.0, 900.0, 10);
        let [_, step, after] = &mut script.phases[..] else { panic!() };
        step.hot = vec![HotSettings { instruments: vec![1, 2], share: 0.25 }];
        step.gateway_shares = Some(vec![0.9, 0.1]);
        (after.to_rate_per_s, after.auction_seconds) = (Some(50.0), Some(4));
        let start_ns = 1_000;
        let found: Vec<(u64, u64, String)> = script
            .events(start_ns)
            .into_iter()
            .map(|event| {
                let second = |at_ns: u64| (at_ns - start_ns) / 1_000_000_000;
                let text = format!("{}: {}", event.kind, event.detail);
                (second(event.at_ns), second(event.until_ns), text)
            })
            .collect();
        let expected = [
            (10, 10, "rate: 100/s to 900/s"),
            (10, 10, "hot set: 2 instruments get 25 %"),
            (10, 10, "gateway shift: gateways get 90 %, 10 %"),
            (20, 20, "rate: 900/s to 100/s"),
            (20, 30, "ramp: 100/s to 50/s, linearly"),
            (20, 20, "hot set: Zipf exponent 1"),
            (20, 20, "gateway shift: all gateways alike"),
            (20, 24, "auction: 64 instruments"),
        ];
        let expected: Vec<_> = expected.map(|(at, until, it)| (at, until, it.to_string())).into();
        assert_eq!(found, expected);
    }
}
