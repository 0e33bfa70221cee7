//! Progress as plain lines, for a stderr that is no terminal: one at the start of each trial, at
//! most one a second, and at least one every ten seconds.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

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
    total_s: f64,
    done_s: f64,
    started: Moment,
    trial: Option<Trial>,
    last_line: Option<Moment>,
    has_ended: bool,
}

struct Trial {
    label: String,
    duration_s: f64,
    started: Moment,
}

impl ProgressLines {
    /// Lines about trials that take at most `total_s` in all.
    pub fn new(total_s: f64, write: impl Fn(&str) + Send + 'static) -> ProgressLines {
        ProgressLines::with_silence(total_s, SILENCE_MAX, write)
    }

    fn with_silence(
        total_s: f64,
        silence: Duration,
        write: impl Fn(&str) + Send + 'static,
    ) -> ProgressLines {
        let state = State {
            write: Box::new(write),
            total_s,
            done_s: 0.0,
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

    /// A trial of at most this duration begins.
    pub fn begin(&self, label: &str, duration_s: f64) {
        let mut state = self.shared.lock();
        let trial = Trial { label: label.to_string(), duration_s, started: Moment::now() };
        state.trial = Some(trial);
        if state.last_line.is_none_or(|last| last.elapsed() >= GAP_MIN) {
            state.write_line();
        }
    }

    /// A trial of this duration has ended.
    pub fn advance(&self, duration_s: f64) {
        let mut state = self.shared.lock();
        state.done_s += duration_s;
        state.trial = None;
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
            Some(trial) => {
                let elapsed_s = trial.started.elapsed().as_secs_f64();
                (trial.label.as_str(), elapsed_s.min(trial.duration_s))
            }
            None => ("", 0.0),
        };
        let planned_s = (self.done_s + in_trial_s).min(self.total_s);
        let percent = if self.total_s > 0.0 { planned_s / self.total_s * 100.0 } else { 0.0 };
        let before_trial_s = self.started.elapsed().as_secs_f64() - in_trial_s;
        let left_s = (self.total_s - planned_s) * pace(self.done_s, before_trial_s);
        (self.write)(&format!(
            "{percent:>4.0} %  {label}  {} left",
            units::duration(left_s.round())
        ));
    }
}

/// Time taken for one second of planned trials, by those that have ended: a trial may end before
/// its longest time, and starting an environment takes time that is not planned.
fn pace(done_s: f64, elapsed_s: f64) -> f64 {
    if done_s > 0.0 { elapsed_s.max(0.0) / done_s } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn trial_is_named_at_its_start_and_short_trials_make_few_lines() {
        let (sender, lines) = channel();
        let progress = ProgressLines::new(10.0, move |line| {
            let _ = sender.send(line.to_string());
        });
        progress.begin("round 1/5  netns/tcp-spin pingpong", 2.0);
        let first = lines.recv().unwrap();
        assert!(first.contains(" %  round 1/5  netns/tcp-spin pingpong  "), "{first}");
        assert!(first.ends_with(" left"), "{first}");
        for _ in 0..1000 {
            progress.advance(0.01);
            progress.begin("short", 0.01);
        }
        progress.finish();
        drop(progress);
        let more = lines.iter().count();
        assert!(more < 1000, "{more} lines for a thousand short trials");
    }

    #[test]
    fn long_trial_is_shown_again_and_again() {
        let (sender, lines) = channel();
        let progress = ProgressLines::with_silence(60.0, Duration::from_millis(1), move |line| {
            let _ = sender.send(line.to_string());
        });
        progress.begin("long", 60.0);
        for _ in 0..5 {
            assert!(lines.recv().unwrap().contains("left"));
        }
        drop(progress);
        assert_eq!(lines.into_iter().filter(|line| line.is_empty()).count(), 0);
    }

    #[test]
    fn time_left_follows_the_pace_of_ended_trials() {
        assert_eq!(pace(0.0, 18.0), 1.0, "nothing has ended yet");
        assert_eq!(pace(50.0, 10.0), 0.2);
        assert_eq!(pace(10.0, 15.0), 1.5);
    }
}
