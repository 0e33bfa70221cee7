//! An operator that lets the policies of the exchange decide during a day.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_model::{Failure, FailureKind};
use nm_policy::Action;
use nm_sys::clock::monotonic_ns;

use super::event::{DayEvent, EventKind};
use super::operator::{Operator, OperatorView};
use crate::policy_runner::{Decided, PolicyRunner, Settings};

/// Pause between two looks at whether the day has ended.
const NAP: Duration = Duration::from_millis(20);

/// Runs policies in a thread of their own, because the network takes its time to answer.
pub struct PolicyOperator {
    settings: Settings,
    every: Duration,
    running: Option<Running>,
}

/// The thread, the decisions that come from it, and what ends it.
struct Running {
    decided: Receiver<Result<Vec<Decided>, Failure>>,
    /// Dropped to end the thread.
    until: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// What went wrong last.
    error: Option<String>,
}

impl PolicyOperator {
    /// Policies that decide at this interval; they begin with the day.
    ///
    /// # Errors
    /// If a setting is outside its range.
    pub fn new(settings: Settings, every: Duration) -> Result<PolicyOperator, Failure> {
        let bad = |error: nm_policy::SettingsError| {
            Failure::new(FailureKind::BadRequest, error.to_string())
        };
        settings.policies.check().map_err(bad)?;
        Ok(PolicyOperator { settings, every, running: None })
    }
}

impl Operator for PolicyOperator {
    fn act(&mut self, view: OperatorView<'_>) -> Result<Vec<DayEvent>, Failure> {
        let running = match &mut self.running {
            Some(running) => running,
            none => {
                let runner = PolicyRunner::new(view.network, &self.settings, false)?;
                none.insert(Running::start(runner, self.every))
            }
        };
        let mut events = vec![];
        for decided in running.decided.try_iter() {
            match decided {
                Ok(decided) => events.extend(decided.into_iter().map(event)),
                // A network that does not answer for a moment is asked again.
                Err(failure) if running.error.as_ref() != Some(&failure.message) => {
                    let detail = format!("policies could not decide: {}", failure.message);
                    events.push(DayEvent::at(view.now_ns, EventKind::Decision, detail));
                    running.error = Some(failure.message);
                }
                Err(_) => {}
            }
        }
        Ok(events)
    }
}

impl Running {
    fn start(mut runner: PolicyRunner, every: Duration) -> Running {
        let (sender, decided) = channel();
        let (until, ended) = channel::<()>();
        let is_over = move || ended.try_recv() == Err(TryRecvError::Disconnected);
        let thread = std::thread::spawn(move || {
            let mut last_ns = monotonic_ns();
            while !is_over() {
                let now_ns = monotonic_ns();
                let step = runner.step(now_ns, Duration::from_nanos(now_ns - last_ns));
                last_ns = now_ns;
                if sender.send(step).is_err() {
                    break;
                }
                let next_ns = now_ns + every.as_nanos() as u64;
                while monotonic_ns() < next_ns && !is_over() {
                    std::thread::sleep(NAP.min(every));
                }
            }
            runner.finish();
        });
        Running { decided, until: Some(until), thread: Some(thread), error: None }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.until = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn event(decided: Decided) -> DayEvent {
    let kind = match decided.decision.action {
        Action::Move { .. } => EventKind::Move,
        _ => EventKind::Decision,
    };
    let what = match decided.decision.action {
        Action::Activate { cell } => format!("activate cell {cell}"),
        Action::Retire { cell } => format!("retire cell {cell}"),
        Action::Empty { cell } => format!("empty cell {cell}"),
        Action::Keep { cell } => format!("keep cell {cell}"),
        Action::Move { instrument, to } => format!("instrument {instrument} to cell {to}"),
    };
    DayEvent::at(decided.at_ns, kind, format!("{what}: {}", decided.sentence))
}
