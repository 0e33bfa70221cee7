//! What requests are for, and where they come from: shares of instruments and of gateways.

use nm_book::order::{InstrumentId, UserId};
use nm_stats::random::Random;

use crate::random::{Weighted, zipf_weights};

/// Instruments that together get a fixed share of all requests.
#[derive(Debug, Clone, PartialEq)]
pub struct HotSet {
    /// The instruments, which are in no other set.
    pub instruments: Vec<InstrumentId>,
    /// Their share of all requests, equal for each of them; at most 1.
    pub share: f64,
}

/// How requests are distributed over instruments and gateways.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand {
    instruments: Weighted,
    gateways: Option<Weighted>,
}

impl Demand {
    /// Demand for `instruments` instruments, numbered from 0 on, by a Zipf exponent, with sets that
    /// have shares of their own; the Zipf distribution applies to the others and the rest.
    /// `gateway_shares`: share of the requests of each gateway; none if sessions are drawn without
    /// regard to their gateway.
    pub fn new(
        instruments: u32,
        zipf: f64,
        hot: &[HotSet],
        gateway_shares: Option<&[f64]>,
    ) -> Demand {
        let mut weights: Vec<f64> = zipf_weights(instruments, zipf).collect();
        for set in hot {
            for instrument in &set.instruments {
                weights[*instrument as usize] = 0.0;
            }
        }
        let others: f64 = weights.iter().sum();
        let rest = 1.0 - hot.iter().map(|set| set.share).sum::<f64>();
        if others > 0.0 && !hot.is_empty() {
            weights.iter_mut().for_each(|weight| *weight *= rest.max(0.0) / others);
        }
        for set in hot {
            for instrument in &set.instruments {
                weights[*instrument as usize] = set.share / set.instruments.len() as f64;
            }
        }
        let gateways = gateway_shares.map(|shares| Weighted::new(shares.iter().copied()));
        Demand { instruments: Weighted::new(weights), gateways }
    }

    /// Draws the instrument of a request.
    pub fn draw_instrument(&self, random: &mut Random) -> InstrumentId {
        self.instruments.draw(random)
    }

    /// Draws the gateway of a request, if gateways have shares.
    pub fn draw_gateway(&self, random: &mut Random) -> Option<Site> {
        let gateways = self.gateways.as_ref()?;
        let gateway = gateways.draw(random);
        Some(Site { gateway, gateways: gateways.count() })
    }
}

/// A gateway, whose sessions are those whose number has its index as remainder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    gateway: u32,
    gateways: u32,
}

impl Site {
    /// Whether a session is connected to it.
    pub fn has(self, session: UserId) -> bool {
        session % self.gateways == self.gateway
    }

    /// Draws one of its sessions from those with numbers from 1 to `sessions`, of which there must
    /// be as many as gateways at least.
    pub fn draw_session(self, sessions: u32, random: &mut Random) -> UserId {
        let first = if self.gateway == 0 { self.gateways } else { self.gateway };
        let count = (sessions.saturating_sub(first) / self.gateways) + 1;
        first + self.gateways * random.below(count as usize) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(demand: &Demand, count: usize) -> Vec<f64> {
        let (mut random, mut shares) = (Random::new(4), vec![0.0; count]);
        for _ in 0..100_000 {
            shares[demand.draw_instrument(&mut random) as usize] += 1e-5;
        }
        shares
    }

    #[test]
    fn hot_sets_have_their_shares_and_the_others_the_rest() {
        let near = |found: f64, expected: f64| (found - expected).abs() < 0.01;
        let hot = [
            HotSet { instruments: vec![5, 2], share: 0.6 },
            HotSet { instruments: vec![0], share: 0.1 },
        ];
        let found = shares(&Demand::new(6, 0.0, &hot, None), 6);
        for (instrument, expected) in [0.1, 0.1, 0.3, 0.1, 0.1, 0.3].into_iter().enumerate() {
            assert!(near(found[instrument], expected), "{found:?}");
        }
        // All requests for one instrument; instruments without a set keep the Zipf distribution.
        let one = [HotSet { instruments: vec![1], share: 1.0 }];
        assert!(near(shares(&Demand::new(3, 1.0, &one, None), 3)[1], 1.0));
        let zipf = shares(&Demand::new(2, 1.0, &[], None), 2);
        assert!(near(zipf[0], 2.0 / 3.0), "{zipf:?}");
    }

    #[test]
    fn sessions_of_a_gateway_are_drawn_by_its_share() {
        let demand = Demand::new(1, 0.0, &[], Some(&[0.7, 0.0, 0.3]));
        let (mut random, mut counts) = (Random::new(2), [0f64; 3]);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100_000 {
            let site = demand.draw_gateway(&mut random).unwrap();
            let session = site.draw_session(7, &mut random);
            assert!((1..=7).contains(&session) && site.has(session));
            counts[(session % 3) as usize] += 1e-5;
            seen.insert(session);
        }
        assert!((counts[0] - 0.7).abs() < 0.01 && counts[1] == 0.0, "{counts:?}");
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [2, 3, 5, 6]);
        assert_eq!(Demand::new(1, 0.0, &[], None).draw_gateway(&mut random), None);
    }
}
