//! Settings of the load and of its rounds, and the requests that it consists of.

use nm_book::order::{Command, InstrumentId, UserId};
use nm_model::exchange::OrderMix;
use thiserror::Error;

use crate::random::Sizes;
use crate::schedule::Arrivals;

/// A request for a session to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderRequest {
    /// The session.
    pub session: UserId,
    /// Instrument.
    pub instrument: InstrumentId,
    /// The command.
    pub command: Command,
    /// Size that the message is padded to, bytes.
    pub size_bytes: u32,
}

/// Settings of the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Sessions, numbered from 1 on and spread evenly over the gateways.
    pub sessions: u32,
    /// Instruments, numbered from 0 on.
    pub instruments: u32,
    /// Zipf exponent of the demand for instruments; zero for equal demand.
    pub zipf: f64,
    /// Mix of orders.
    pub mix: OrderMix,
    /// Sizes of messages.
    pub sizes: Sizes,
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
            is_stamped: true,
        }
    }
}

/// A value of [`Settings`] or [`Pace`] that is not possible.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SettingsError {
    /// No session or instrument, or too many.
    #[error(
        "{sessions} sessions on {instruments} instruments are not possible: it must be one of each \
         at least, and {most} pairs of them at most",
        most = PAIRS_MAX
    )]
    Pairs {
        /// Sessions.
        sessions: u32,
        /// Instruments.
        instruments: u32,
    },
    /// The Zipf exponent.
    #[error("the Zipf exponent is {0}, must be 0 to 10")]
    Zipf(f64),
    /// The rate.
    #[error("the rate is {0}, must be 1 to 1e7 a second")]
    Rate(f64),
    /// The length of the schedule.
    #[error("a round of {0} s is not possible: up to 3600 s are")]
    Seconds(f64),
    /// The drain time.
    #[error("waiting {0} s for replies is not possible: 0 to 600")]
    Drain(f64),
}

/// Most pairs of session and instrument.
const PAIRS_MAX: u64 = 1 << 24;

impl Settings {
    /// Checks what types cannot.
    ///
    /// # Errors
    /// The first value that is not possible.
    pub fn check(&self) -> Result<(), SettingsError> {
        let pairs = u64::from(self.sessions) * u64::from(self.instruments);
        if !(1..=PAIRS_MAX).contains(&pairs) {
            let Settings { sessions, instruments, .. } = *self;
            return Err(SettingsError::Pairs { sessions, instruments });
        }
        if !(0.0..=10.0).contains(&self.zipf) {
            return Err(SettingsError::Zipf(self.zipf));
        }
        Ok(())
    }
}

/// How fast one round goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Requests per second on average. A recorded flow has its own times.
    pub rate_per_s: f64,
    /// The arrival process.
    pub arrivals: Arrivals,
    /// Length of the schedule, s.
    pub seconds: f64,
    /// Time after that for the last replies, s; requests without a reply then are lost.
    pub drain_s: f64,
    /// A stall of the generator, to test the measurement itself.
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
    /// The first value that is not possible.
    pub fn check(&self) -> Result<(), SettingsError> {
        if !(1.0..=1e7).contains(&self.rate_per_s) {
            return Err(SettingsError::Rate(self.rate_per_s));
        }
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            return Err(SettingsError::Seconds(self.seconds));
        }
        if !(0.0..=600.0).contains(&self.drain_s) {
            return Err(SettingsError::Drain(self.drain_s));
        }
        Ok(())
    }
}

/// A stall: the generator neither sends nor receives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// From this time of the round on, s.
    pub at_s: f64,
    /// Duration, ms.
    pub for_ms: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_refused() {
        let settings = Settings::default();
        assert_eq!((settings.check(), Pace::default().check()), (Ok(()), Ok(())));
        let refused = |bad: Settings, why: &str| {
            assert!(bad.check().unwrap_err().to_string().contains(why), "{why}");
        };
        refused(Settings { sessions: 0, ..settings }, "0 sessions");
        refused(Settings { sessions: 1 << 20, instruments: 1 << 20, ..settings }, "at most");
        refused(Settings { zipf: f64::NAN, ..settings }, "Zipf");
        let refused = |bad: Pace, why: &str| {
            assert!(bad.check().unwrap_err().to_string().contains(why), "{why}");
        };
        refused(Pace { rate_per_s: 0.0, ..Pace::default() }, "rate");
        refused(Pace { seconds: f64::NAN, ..Pace::default() }, "round");
        refused(Pace { drain_s: -1.0, ..Pace::default() }, "waiting");
    }
}
