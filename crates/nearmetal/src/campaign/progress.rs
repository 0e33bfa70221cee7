//! Progress on stderr: a bar on a terminal with the current trial, its estimate and the time left;
//! plain lines elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nm_campaign::progress::ProgressDisplay;
use nm_campaign::schedule::Schedule;
use nm_model::result::Statistic;
use nm_report::{style, units};
use nm_sys::clock::Moment;

use crate::campaign::progress_lines::ProgressLines;
use crate::output;

/// Progress over all trials of a run.
pub struct Progress {
    is_quiet: bool,
    display: Display,
    label: String,
}

enum Display {
    Hidden,
    Bar(Bar),
    Lines(ProgressLines),
}

impl Progress {
    /// The progress of a run; with `is_quiet` only messages that every user sees.
    pub fn new(is_quiet: bool) -> Progress {
        Progress { is_quiet, display: Display::Hidden, label: String::new() }
    }
}

impl ProgressDisplay for Progress {
    fn announce(&mut self, what: &str, schedule: Schedule) {
        if self.is_quiet {
            return;
        }
        let duration = units::duration(schedule.promised_s().round());
        output::message(&format!("{what}: about {duration}; Ctrl-C keeps what is done"));
        self.display = match std::io::stderr().is_terminal() {
            true => Display::Bar(Bar::new(schedule)),
            false => Display::Lines(ProgressLines::new(schedule, output::message)),
        };
    }

    fn begin(&mut self, label: &str) {
        self.label = label.to_string();
        match &mut self.display {
            Display::Hidden => {}
            Display::Bar(bar) => bar.begin(&self.label),
            Display::Lines(lines) => lines.begin(label),
        }
    }

    fn estimate(&self, statistic: Statistic, value: f64) {
        let Display::Bar(bar) = &self.display else { return };
        let figure = match statistic {
            Statistic::Throughput => format!("{value:.2} Gb/s"),
            _ => units::latency(value),
        };
        bar.show(&format!("{}  {figure}", self.label));
    }

    fn advance(&mut self) {
        match &mut self.display {
            Display::Hidden => {}
            Display::Bar(bar) => bar.advance(),
            Display::Lines(lines) => lines.advance(),
        }
    }

    fn note(&self, text: &str) {
        if !self.is_quiet {
            self.message(text);
        }
    }

    /// Above the bar if there is one.
    fn message(&self, text: &str) {
        match &self.display {
            Display::Bar(bar) => bar.bar.suspend(|| output::message(text)),
            Display::Hidden | Display::Lines(_) => output::message(text),
        }
    }

    fn warning(&self, text: &str) {
        self.message(&output::warning(text));
    }

    fn finish(&self) {
        match &self.display {
            Display::Hidden => {}
            Display::Bar(bar) => bar.bar.finish_and_clear(),
            Display::Lines(lines) => lines.finish(),
        }
    }
}

/// A bar as long as the run takes, by what is known now.
struct Bar {
    bar: ProgressBar,
    schedule: Schedule,
    started: Moment,
    trial_started: Moment,
}

impl Bar {
    fn new(schedule: Schedule) -> Bar {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {percent:>3} %  {wide_msg}") {
            bar.set_style(style);
        }
        let now = Moment::now();
        Bar { bar, schedule, started: now, trial_started: now }
    }

    fn begin(&mut self, label: &str) {
        self.trial_started = Moment::now();
        self.show(label);
    }

    fn show(&self, text: &str) {
        let done_s = self.started.elapsed().as_secs_f64();
        let left_s = self.schedule.left_s(self.trial_started.elapsed().as_secs_f64());
        let milliseconds = |s: f64| (s * 1e3) as u64;
        self.bar.set_length(milliseconds(done_s + left_s).max(1));
        self.bar.set_position(milliseconds(done_s));
        // Names of rows may come from a plan of somebody else.
        let text = style::clean(text);
        self.bar.set_message(format!("{} left  {text}", units::duration(left_s.round())));
    }

    fn advance(&mut self) {
        self.schedule.ended(self.trial_started.elapsed().as_secs_f64());
    }
}
