//! An operator that lets the policies of the exchange decide during a day.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nm_model::{Failure, FailureKind};
use nm_operate::policy_runner::{Decided, PolicyRunner, Settings};
use nm_policy::Action;
use nm_sys::clock::monotonic_ns;

use super::event::{DayEvent, EventKind};
use super::operator::{Operator, OperatorView};

/// Runs policies in a thread of their own, because the network takes its time to answer.
pub struct PolicyOperator {
    settings: Settings,
    every: Duration,
    running: Option<Running>,
}

/// What the policies' thread takes and gives. The thread ends at its next step after this was
/// dropped; nobody waits for it, because it may be waiting for a network that has ended.
struct Running {
    decided: Receiver<Result<Vec<Decided>, Failure>>,
    /// The ES10 of the last second, as clients saw it, µs.
    es10_us: Arc<Mutex<Option<f64>>>,
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
        let es10_ns = view.last_second.and_then(|second| second.es10_ns);
        *lock(&running.es10_us) = es10_ns.map(|ns| ns / 1e3);
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
    fn start(runner: PolicyRunner, every: Duration) -> Running {
        let (sender, decided) = channel();
        let es10_us = Arc::new(Mutex::new(None));
        let shared = Arc::downgrade(&es10_us);
        std::thread::spawn(move || decide(runner, every, &shared, &sender));
        Running { decided, es10_us, error: None }
    }
}

/// Decides at an interval, until nobody wants to know.
fn decide(
    mut runner: PolicyRunner,
    every: Duration,
    es10_us: &Weak<Mutex<Option<f64>>>,
    sender: &Sender<Result<Vec<Decided>, Failure>>,
) {
    let mut last_ns = monotonic_ns();
    while let Some(es10_us) = es10_us.upgrade().map(|shared| *lock(&shared)) {
        let now_ns = monotonic_ns();
        let step = runner.step(now_ns, Duration::from_nanos(now_ns - last_ns), es10_us);
        last_ns = now_ns;
        if sender.send(step).is_err() {
            return;
        }
        std::thread::sleep(every.saturating_sub(Duration::from_nanos(monotonic_ns() - now_ns)));
    }
}

fn lock(es10_us: &Mutex<Option<f64>>) -> std::sync::MutexGuard<'_, Option<f64>> {
    es10_us.lock().unwrap_or_else(PoisonError::into_inner)
}

fn event(decided: Decided) -> DayEvent {
    let kind = match decided.decision.action {
        Action::Move { .. } => EventKind::Move,
        _ => EventKind::Decision,
    };
    let Decided { decision, sentence, .. } = &decided;
    DayEvent::at(decided.at_ns, kind, format!("{}: {sentence}", decision.action))
}
