//! Progress on stderr: a bar on a terminal with the current trial, its estimate and the time left;
//! plain lines elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nm_model::result::Statistic;

use crate::campaign::progress_lines::ProgressLines;
use crate::output;

/// Progress over all trials of a run.
pub struct Progress {
    display: Display,
    label: String,
}

enum Display {
    Hidden,
    Bar(ProgressBar),
    Lines(ProgressLines),
}

impl Progress {
    /// No progress: only messages are shown.
    pub fn hidden() -> Progress {
        Progress { display: Display::Hidden, label: String::new() }
    }

    /// Progress of trials that take at most `duration_s` in all.
    pub fn new(duration_s: f64) -> Progress {
        let display = match std::io::stderr().is_terminal() {
            true => Display::Bar(bar(duration_s)),
            false => Display::Lines(ProgressLines::new(duration_s, output::message)),
        };
        Progress { display, label: String::new() }
    }

    /// A trial of at most `duration_s` begins.
    pub fn begin(&mut self, label: &str, duration_s: f64) {
        self.label = label.to_string();
        match &self.display {
            Display::Hidden => {}
            Display::Bar(bar) => {
                bar.set_message(self.label.clone());
                bar.tick();
            }
            Display::Lines(lines) => lines.begin(label, duration_s),
        }
    }

    /// The current estimate inside a trial: ns, or Gb/s for throughput.
    pub fn estimate(&self, statistic: Statistic, value: f64) {
        let Display::Bar(bar) = &self.display else { return };
        let figure = match statistic {
            Statistic::Throughput => format!("{value:.2} Gb/s"),
            _ => nm_report::units::latency(value),
        };
        bar.set_message(format!("{}  {figure}", self.label));
    }

    /// A trial of this duration has ended.
    pub fn advance(&self, duration_s: f64) {
        match &self.display {
            Display::Hidden => {}
            Display::Bar(bar) => bar.inc((duration_s * 1e3) as u64),
            Display::Lines(lines) => lines.advance(duration_s),
        }
    }

    /// Writes a message, above the bar if there is one.
    pub fn message(&self, text: &str) {
        match &self.display {
            Display::Bar(bar) => bar.suspend(|| output::message(text)),
            Display::Hidden | Display::Lines(_) => output::message(text),
        }
    }

    /// Ends the display.
    pub fn finish(&self) {
        match &self.display {
            Display::Hidden => {}
            Display::Bar(bar) => bar.finish_and_clear(),
            Display::Lines(lines) => lines.finish(),
        }
    }
}

fn bar(duration_s: f64) -> ProgressBar {
    let milliseconds = (duration_s * 1e3) as u64;
    let bar = ProgressBar::with_draw_target(Some(milliseconds), ProgressDrawTarget::stderr());
    let template = "{bar:24} {percent:>3} %  {eta} left  {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
