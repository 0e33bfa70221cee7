//! Who is told how a run goes on.

use nm_model::result::Statistic;

use crate::schedule::Schedule;

/// Shows the user how a run goes on.
pub trait ProgressDisplay {
    /// `what` begins, with these trials.
    fn announce(&mut self, what: &str, schedule: Schedule);

    /// The next trial begins.
    fn begin(&mut self, label: &str);

    /// The current estimate inside a trial: ns, or Gb/s for throughput.
    fn estimate(&self, statistic: Statistic, value: f64);

    /// The trial has ended.
    fn advance(&mut self);

    /// A message that a user may have switched off.
    fn note(&self, text: &str);

    /// A message that every user sees.
    fn message(&self, text: &str);

    /// A warning.
    fn warning(&self, text: &str);

    /// No trial follows.
    fn finish(&self);
}

/// Shows nothing.
pub struct NoDisplay;

impl ProgressDisplay for NoDisplay {
    fn announce(&mut self, _: &str, _: Schedule) {}
    fn begin(&mut self, _: &str) {}
    fn estimate(&self, _: Statistic, _: f64) {}
    fn advance(&mut self) {}
    fn note(&self, _: &str) {}
    fn message(&self, _: &str) {}
    fn warning(&self, _: &str) {}
    fn finish(&self) {}
}
