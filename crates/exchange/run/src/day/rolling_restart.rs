//! An operator that restarts every node of the network during a day, one after the other.
//!
//! A mediator or gateway is drained before it is restarted, and works again after it. The next node
//! follows when all nodes are up and every cell has a leader. The restarted node must also have all
//! entries that its replicas must have. So there is a majority of each group at any time.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nm_exchange::network::{Durability, Network, NodeId, Role};
use nm_model::{Failure, FailureKind};
use nm_operate::admin;
use nm_operate::{drain, resize};
use nm_sys::clock::{Deadline, monotonic_ns};

use super::event::{DayEvent, EventKind};
use super::operator::{Operator, OperatorView};

/// How long a node may take to end, start, and be ready.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How long the network may take until all is led again.
const HEALTHY_LIMIT: Duration = Duration::from_secs(30);

/// How long a node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Interval at which the network is asked whether all is led.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Restarts all nodes, from a second of the day on.
#[derive(Debug)]
pub struct RollingRestart {
    from_s: u32,
    /// What the nodes are started with; if none, what they were started with before.
    program: Option<PathBuf>,
    running: Option<Running>,
    /// Nodes that were restarted and are ready, and how many there are.
    done: usize,
    all: usize,
}

/// What the thread of the restarts says.
#[derive(Debug)]
enum Report {
    /// Restart this node.
    Restart(NodeId),
    /// Something was done.
    Event(DayEvent),
}

/// The thread that waits for the network, and what it says. It ends at its next report after this
/// was dropped.
#[derive(Debug)]
struct Running {
    reports: Receiver<Result<Report, Failure>>,
    ready: Sender<()>,
    /// The node that is being restarted.
    restarting: Option<NodeId>,
}

impl RollingRestart {
    /// One that begins at this second of the day, with another program, if one is given.
    pub fn new(from_s: u32, program: Option<PathBuf>) -> RollingRestart {
        RollingRestart { from_s, program, running: None, done: 0, all: 0 }
    }
}

impl Operator for RollingRestart {
    fn act(&mut self, view: OperatorView<'_>) -> Result<Vec<DayEvent>, Failure> {
        if view.now_ns < view.start_ns + u64::from(self.from_s) * 1_000_000_000 {
            return Ok(vec![]);
        }
        let running = self.running.get_or_insert_with(|| {
            // Mediators may have been added to it.
            let now = admin::status(view.network, ANSWER_LIMIT).map(|status| status.network);
            let network = now.unwrap_or_else(|_| view.network.clone());
            self.all = network.all().count();
            Running::start(network)
        });
        if let Some(node) = running.restarting {
            if !view.supervisor.is_ready(node) {
                // Until it is ready, the thread reports nothing but that it has given up.
                return running
                    .reports
                    .try_recv()
                    .map_or(Ok(()), |it| it.map(drop))
                    .map(|()| vec![]);
            }
            running.restarting = None;
            self.done += 1;
            // It fails if the thread has ended, whose last report says why.
            let _ = running.ready.send(());
        }
        let mut events = vec![];
        while running.restarting.is_none()
            && let Ok(report) = running.reports.try_recv()
        {
            match report? {
                Report::Event(event) => events.push(event),
                Report::Restart(node) => {
                    view.supervisor.restart(node, self.program.as_deref());
                    running.restarting = Some(node);
                }
            }
        }
        Ok(events)
    }

    fn unfinished(&self) -> Option<String> {
        let RollingRestart { done, all, .. } = *self;
        match self.running {
            None => Some("the day ended before the rolling restart began".to_string()),
            Some(_) if done < all => Some(format!(
                "the day ended when {done} of {all} nodes were restarted: make its phases longer"
            )),
            Some(_) => None,
        }
    }
}

impl Running {
    fn start(network: Network) -> Running {
        let (reporter, reports) = channel();
        let (ready, is_ready) = channel();
        std::thread::spawn(move || {
            for (node, _) in network.all() {
                let waiting = (&is_ready, READY_LIMIT);
                let restarted = restart(&network, node, &reporter, waiting);
                if let Err(failure) = restarted {
                    // It fails if the day has ended.
                    let _ = reporter.send(Err(named(failure, node)));
                    return;
                }
            }
        });
        Running { reports, ready, restarting: None }
    }
}

/// Says in which node's restart something failed.
fn named(failure: Failure, node: NodeId) -> Failure {
    let message = format!("the rolling restart ended at {node}: {}", failure.message);
    Failure { message, ..failure }
}

/// Restarts a node, and waits until the network can spare the next one.
fn restart(
    network: &Network,
    node: NodeId,
    reporter: &Sender<Result<Report, Failure>>,
    (is_ready, ready_limit): (&Receiver<()>, Duration),
) -> Result<(), Failure> {
    let ended = || Failure::new(FailureKind::Cancelled, "the day has ended");
    let report = |report| reporter.send(Ok(report)).map_err(|_| ended());
    let is_drained = matches!(node.class, Role::Mediator | Role::Gateway)
        && network.nodes(node.class).len() > 1
        && network.has_control();
    if is_drained {
        let begin_ns = monotonic_ns();
        let drained = drain::drain(network, node)?;
        let detail = format!("{node} was drained: {drained}");
        let event = DayEvent::at(begin_ns, EventKind::Maintenance, detail);
        report(Report::Event(event.until(monotonic_ns())))?;
    }
    report(Report::Restart(node))?;
    is_ready.recv_timeout(ready_limit).map_err(|_| {
        let message = format!("it was not ready after {} s", ready_limit.as_secs_f64());
        Failure::new(FailureKind::Peer, message)
    })?;
    wait_until_healthy(network)?;
    if is_drained {
        drain::resume(network, node)?;
        if node.class == Role::Mediator && network.durability == Durability::None {
            give_back(network, node.index);
        }
    }
    Ok(())
}

/// Gives a mediator without replicas its share of the load again. Where there is nothing to share,
/// it stays without.
fn give_back(network: &Network, mediator: u16) {
    let _ = resize::grow(network, Some(mediator));
}

fn wait_until_healthy(network: &Network) -> Result<(), Failure> {
    let deadline = Deadline::after(HEALTHY_LIMIT);
    loop {
        let status = admin::status(network, ANSWER_LIMIT);
        if status.as_ref().is_ok_and(admin::NetworkStatus::is_healthy) {
            return Ok(());
        }
        if deadline.passed() {
            let seconds = HEALTHY_LIMIT.as_secs();
            let message = match status {
                Ok(_) => format!("not all was up and led {seconds} s after it was ready"),
                Err(failure) => failure.message,
            };
            return Err(Failure::new(FailureKind::Peer, message));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_exchange::network::Node;

    #[test]
    fn a_node_that_is_not_ready_in_time_ends_the_rolling_restart() {
        let network = Network::new("1-2-1-1".parse().unwrap(), |id| Node {
            address: format!("unix:/nowhere/{}", id.file_name()).parse().unwrap(),
            replication: None,
        });
        let ((reporter, reports), (_ready, is_ready)) = (channel(), channel());
        let (node, limit) = (Role::Router.node(1), Duration::from_millis(250));
        let late = restart(&network, node, &reporter, (&is_ready, limit)).unwrap_err();
        assert!(matches!(reports.try_recv(), Ok(Ok(Report::Restart(of))) if of == node));
        let late = named(late, node);
        assert_eq!(late.kind, FailureKind::Peer);
        let message = "the rolling restart ended at router 1: it was not ready after 0.25 s";
        assert_eq!(late.message, message);
    }

    #[test]
    fn what_was_not_restarted_is_reported() {
        let mut restart = RollingRestart::new(5, None);
        assert!(restart.unfinished().unwrap().contains("before the rolling restart began"));
        let ((_, reports), (ready, _)) = (channel(), channel());
        restart.running = Some(Running { reports, ready, restarting: Some(Role::Router.node(0)) });
        (restart.done, restart.all) = (3, 4);
        assert!(restart.unfinished().unwrap().contains("3 of 4 nodes were restarted"));
        restart.done = 4;
        assert_eq!(restart.unfinished(), None);
    }
}
