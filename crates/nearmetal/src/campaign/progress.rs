//! Progress on a terminal: the current trial, its estimate, the time left. Hidden elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nm_model::result::Statistic;

/// A bar over all trials of a run.
pub struct Progress {
    bar: ProgressBar,
    label: String,
}

impl Progress {
    /// No bar: only messages are shown.
    pub fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden(), label: String::new() }
    }

    /// A bar for trials that take `duration_s` in all. It draws on stderr, and only on a terminal.
    pub fn new(duration_s: f64) -> Progress {
        let milliseconds = (duration_s * 1e3) as u64;
        let bar = ProgressBar::with_draw_target(Some(milliseconds), ProgressDrawTarget::stderr());
        let template = "{bar:24} {percent:>3} %  {eta} left  {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, label: String::new() }
    }

    /// A trial begins.
    pub fn begin(&mut self, label: &str) {
        self.label = label.to_string();
        self.bar.set_message(self.label.clone());
        self.bar.tick();
    }

    /// The current estimate inside a trial: ns, or Gb/s for throughput.
    pub fn estimate(&self, statistic: Statistic, value: f64) {
        let figure = match statistic {
            Statistic::Throughput => format!("{value:.2} Gb/s"),
            _ => nm_report::units::latency(value),
        };
        self.bar.set_message(format!("{}  {figure}", self.label));
    }

    /// A trial of this duration has ended.
    pub fn advance(&self, duration_s: f64) {
        self.bar.inc((duration_s * 1e3) as u64);
    }

    /// Writes a message above the bar.
    pub fn message(&self, text: &str) {
        self.bar.suspend(|| crate::output::message(text));
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
