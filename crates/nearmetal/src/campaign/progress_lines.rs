//! Progress as plain lines, for a stderr that is no terminal. There is one at the start of each
//! trial, at most one a second, and at least one every ten seconds.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nm_campaign::schedule::Schedule;
use nm_report::units;
use nm_sys::clock::Moment;

/// Longest time without a line.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Shortest time between two lines.
const GAP_MIN: Duration = Duration::from_secs(1);

/// Where lines go.
type Sink = Box<dyn Fn(&str) + Send>;

/// Writes the lines, also from a thread that wakes up once in [`SILENCE_MAX`].
pub struct ProgressLines {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    write: Sink,
    schedule: Schedule,
    started: Moment,
    trial: Option<Trial>,
    last_line: Option<Moment>,
    has_ended: bool,
}

struct Trial {
    label: String,
    started: Moment,
}

impl ProgressLines {
    /// Lines about these trials.
    pub fn new(schedule: Schedule, write: impl Fn(&str) + Send + 'static) -> ProgressLines {
        ProgressLines::with_silence(schedule, SILENCE_MAX, write)
    }

    fn with_silence(
        schedule: Schedule,
        silence: Duration,
        write: impl Fn(&str) + Send + 'static,
    ) -> ProgressLines {
        let state = State {
            write: Box::new(write),
            schedule,
            started: Moment::now(),
            trial: None,
            last_line: None,
            has_ended: false,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), ended: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        // Without the thread there are only the lines at the start of trials.
        let thread = thread::Builder::new()
            .name("progress".to_string())
            .spawn(move || of_thread.write_regularly(silence))
            .ok();
        ProgressLines { shared, thread }
    }

    /// The next trial begins.
    pub fn begin(&self, label: &str) {
        let mut state = self.shared.lock();
        let trial = Trial { label: label.to_string(), started: Moment::now() };
        state.trial = Some(trial);
        if state.last_line.is_none_or(|last| last.elapsed() >= GAP_MIN) {
            state.write_line();
        }
    }

    /// The trial has ended.
    pub fn advance(&self) {
        let mut state = self.shared.lock();
        if let Some(trial) = state.trial.take() {
            state.schedule.ended(trial.started.elapsed().as_secs_f64());
        }
    }

    /// Writes no more lines.
    pub fn finish(&self) {
        self.shared.lock().has_ended = true;
        self.shared.ended.notify_all();
    }
}

impl Drop for ProgressLines {
    fn drop(&mut self) {
        self.finish();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_regularly(&self, silence: Duration) {
        let mut state = self.lock();
        while !state.has_ended {
            let since_last = state.last_line.unwrap_or(state.started).elapsed();
            let Some(wait) = silence.checked_sub(since_last).filter(|wait| !wait.is_zero()) else {
                state.write_line();
                continue;
            };
            let woken = self.ended.wait_timeout(state, wait);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// `  12 %  round 2/5  netns/tcp-spin pingpong  1 min 20 s left`.
    fn write_line(&mut self) {
        self.last_line = Some(Moment::now());
        let (label, in_trial_s) = match &self.trial {
            Some(trial) => (trial.label.as_str(), trial.started.elapsed().as_secs_f64()),
            None => ("", 0.0),
        };
        let left_s = self.schedule.left_s(in_trial_s);
        let done_s = self.started.elapsed().as_secs_f64();
        let percent = done_s / (done_s + left_s).max(f64::MIN_POSITIVE) * 100.0;
        (self.write)(&format!(
            "{percent:>4.0} %  {label}  {} left",
            units::duration(left_s.round())
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::ProbeSpec;
    use nm_model::plan::EnvironmentKind;
    use std::sync::mpsc::channel;

    fn schedule(trials: u32) -> Schedule {
        let probe = ProbeSpec::Jitter(nm_model::JitterSpec::default());
        Schedule::of_rounds(&probe, EnvironmentKind::Loopback, trials)
    }

    #[test]
    fn trial_is_named_at_its_start_and_short_trials_make_few_lines() {
        let (sender, lines) = channel();
        let progress = ProgressLines::new(schedule(1001), move |line| {
            let _ = sender.send(line.to_string());
        });
        progress.begin("round 1/5  netns/tcp-spin pingpong");
        let first = lines.recv().unwrap();
        assert!(first.contains(" %  round 1/5  netns/tcp-spin pingpong  "), "{first}");
        assert!(first.ends_with(" left"), "{first}");
        for _ in 0..1000 {
            progress.advance();
            progress.begin("short");
        }
        progress.finish();
        drop(progress);
        let more = lines.iter().count();
        assert!(more < 1000, "{more} lines for a thousand short trials");
    }

    #[test]
    fn long_trial_is_shown_again_and_again() {
        let (sender, lines) = channel();
        let progress =
            ProgressLines::with_silence(schedule(1), Duration::from_millis(1), move |line| {
                let _ = sender.send(line.to_string());
            });
        progress.begin("long");
        for _ in 0..5 {
            assert!(lines.recv().unwrap().contains("left"));
        }
        drop(progress);
        assert_eq!(lines.into_iter().filter(|line| line.is_empty()).count(), 0);
    }
}
