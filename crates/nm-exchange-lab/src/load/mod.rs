//! The load: an open loop on an absolute schedule over all gateways of a network.
//!
//! What is asked ([`mix`], [`random`]) and when ([`schedule`]) follow from a seed alone, or from a
//! recorded [`flow`]; neither waits for the network. A round trip is measured from the moment at
//! which its request was *meant* to be sent, so that whatever keeps the generator from sending
//! counts as well. [`clients`] keeps the sessions without touching a socket or a clock,
//! [`generator`] drives them, [`round`] says what came out, and [`log`] writes down what was sent
//! and answered, for [`crate::verify`].

pub mod clients;
mod dial;
pub mod flow;
pub mod generator;
pub mod log;
pub mod mix;
pub mod random;
pub mod round;
pub mod schedule;

use nm_book::order::{Command, InstrumentId, UserId};
use nm_model::exchange::OrderMix;

pub use generator::Generator;
pub use random::Sizes;
pub use round::Round;
pub use schedule::Arrivals;

/// A request that a session is to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderRequest {
    /// The session.
    pub session: UserId,
    /// Instrument.
    pub instrument: InstrumentId,
    /// What is asked.
    pub command: Command,
    /// Size that the message is padded to, bytes.
    pub size_bytes: u32,
    /// Whether everybody is told what happens.
    pub is_public: bool,
}

/// What the load is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// From which everything that is drawn follows.
    pub seed: u64,
    /// Sessions, numbered from 1 on and spread evenly over the gateways.
    pub sessions: u32,
    /// Instruments, numbered from 0 on.
    pub instruments: u32,
    /// Exponent by which instruments are more or less in demand; zero for all alike.
    pub zipf: f64,
    /// What orders there are.
    pub mix: OrderMix,
    /// How long the messages are.
    pub sizes: Sizes,
    /// Share of requests of which everybody is told.
    pub public_share: f64,
    /// Whether each node stamps its time, so that a round trip can be split by hop.
    pub is_stamped: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            seed: 1,
            sessions: 256,
            instruments: 64,
            zipf: 1.0,
            mix: OrderMix::Default,
            sizes: Sizes::study(),
            public_share: 0.01,
            is_stamped: true,
        }
    }
}

/// Pairs of session and instrument that are kept at most.
const PAIRS_MAX: u64 = 1 << 24;

impl Settings {
    /// Checks what types cannot.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        let pairs = u64::from(self.sessions) * u64::from(self.instruments);
        if !(1..=PAIRS_MAX).contains(&pairs) {
            return Err(format!(
                "{} sessions on {} instruments are not possible: it must be one of each at least, \
                 and {PAIRS_MAX} pairs of them at most",
                self.sessions, self.instruments
            ));
        }
        if !(0.0..=10.0).contains(&self.zipf) {
            return Err(format!("the Zipf exponent is {}, must be 0 to 10", self.zipf));
        }
        if !(0.0..=1.0).contains(&self.public_share) {
            return Err(format!(
                "the share of public requests is {}, must be 0 to 1",
                self.public_share
            ));
        }
        Ok(())
    }
}

/// How fast one round goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Requests a second on average. A recorded flow has its own times.
    pub rate_per_s: f64,
    /// How they follow each other.
    pub arrivals: Arrivals,
    /// Time during which they are meant to be sent, s.
    pub seconds: f64,
    /// Time after that for the last replies, s; what has none then is lost.
    pub drain_s: f64,
    /// A time at which the generator stands still, to try the measurement itself.
    pub stall: Option<Stall>,
}

impl Default for Pace {
    fn default() -> Pace {
        let (arrivals, stall) = (Arrivals::Poisson, None);
        Pace { rate_per_s: 10_000.0, arrivals, seconds: 5.0, drain_s: 2.0, stall }
    }
}

impl Pace {
    /// Checks what types cannot.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if !(1.0..=1e7).contains(&self.rate_per_s) {
            return Err(format!("the rate is {}, must be 1 to 1e7 a second", self.rate_per_s));
        }
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(format!("a round of {} s is not possible: up to 3600 s are", self.seconds));
        }
        if !(0.0..=600.0).contains(&self.drain_s) {
            return Err(format!(
                "waiting {} s for replies is not possible: 0 to 600",
                self.drain_s
            ));
        }
        Ok(())
    }
}

/// The generator stands still: it neither sends nor receives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// From this time of the round on, s.
    pub at_s: f64,
    /// For so long, ms.
    pub for_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let settings = Settings::default();
        assert_eq!((settings.check(), Pace::default().check()), (Ok(()), Ok(())));
        let refused = |bad: Settings, why: &str| assert!(bad.check().unwrap_err().contains(why));
        refused(Settings { sessions: 0, ..settings }, "0 sessions");
        refused(Settings { sessions: 1 << 20, instruments: 1 << 20, ..settings }, "at most");
        refused(Settings { zipf: f64::NAN, ..settings }, "Zipf");
        refused(Settings { public_share: 1.5, ..settings }, "share");
        let refused = |bad: Pace, why: &str| assert!(bad.check().unwrap_err().contains(why));
        refused(Pace { rate_per_s: 0.0, ..Pace::default() }, "rate");
        refused(Pace { seconds: f64::NAN, ..Pace::default() }, "round");
        refused(Pace { drain_s: -1.0, ..Pace::default() }, "waiting");
    }
}
