//! Keeps the nodes of one host running until it is told to end.
//!
//! Unlike a run, it goes on whatever happens to a node. One that ends is started again, after
//! pauses that become longer if it ends again and again. The network may have nodes on other
//! hosts, which are not waited for.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nm_exchange::network::{Network, NodeId};
use nm_model::{Failure, FailureKind};

use crate::place;
use crate::reload::Reload;
use crate::supervise::Supervisor;

/// Interval at which nodes are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The file in the folder that says that somebody serves from it.
const LOCK: &str = "lock";

/// What happens while nodes are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeEvent {
    /// A node can do its work.
    Ready {
        /// Which.
        node: NodeId,
        /// How often it was started again.
        start: u32,
    },
    /// All nodes of this host can do their work, for the first time.
    AllReady,
    /// A node has ended or is not ready any more.
    Ended {
        /// Which.
        node: NodeId,
        /// What it wrote last.
        why: Option<String>,
    },
    /// Something about all of them failed, and is tried again.
    Failed(String),
    /// Nodes are looked at: the supervisor goes on.
    Alive,
    /// It was told to read the network's file again, and what it says now is followed.
    Reloaded(Reload),
    /// It was told to, and cannot: why.
    NotReloaded(String),
    /// It was told to end.
    Stopping,
    /// A node wrote no last report: it had to be killed.
    Killed(NodeId),
}

/// What is served.
#[derive(Debug)]
pub struct Serve<'a> {
    /// The network's file, which is read again when that is asked for.
    pub file: &'a Path,
    /// What it says, with paths that do not depend on the folder of the file.
    pub network: &'a Network,
    /// The program of nodes.
    pub program: &'a Path,
    /// What nodes are told, and what they write.
    pub folder: &'a Path,
    /// Nodes of this host.
    pub nodes: Vec<NodeId>,
}

/// What somebody has asked for.
#[derive(Debug, Default)]
pub struct Asked {
    /// That it ends.
    pub end: Arc<AtomicBool>,
    /// That the network's file is read again.
    pub reload: Arc<AtomicBool>,
}

/// The nodes of a network that listen on this machine.
pub fn nodes_here(network: &Network) -> Vec<NodeId> {
    network.all().filter(|(_, node)| place::is_here(&node.address)).map(|(id, _)| id).collect()
}

/// Serves until the end is asked for; `say` hears what happens.
///
/// # Errors
/// If another one serves from the folder, or it cannot be written to.
pub fn serve(
    what: &Serve<'_>,
    asked: &Asked,
    say: &mut dyn FnMut(ServeEvent),
) -> Result<(), Failure> {
    let _lock = lock(what.folder)?;
    let Serve { file, network, program, folder, nodes } = what;
    let mut supervisor = Supervisor::serve(network, program, folder, nodes)?;
    let (mut before, mut is_complete) = (BTreeMap::new(), false);
    while !asked.end.load(Ordering::Relaxed) {
        if asked.reload.swap(false, Ordering::Relaxed) {
            say(reload(file, network, &mut supervisor));
        }
        if let Err(failure) = supervisor.restart_dead_nodes(POLL_INTERVAL) {
            say(ServeEvent::Failed(failure.to_string()));
        }
        changes(&supervisor, &mut before, say);
        if !is_complete && supervisor.states().all(|(_, is_ready, _)| is_ready) {
            is_complete = true;
            say(ServeEvent::AllReady);
        }
        say(ServeEvent::Alive);
    }
    say(ServeEvent::Stopping);
    let here: Vec<NodeId> = supervisor.states().map(|(node, ..)| node).collect();
    let stopped = supervisor.stop_in_order();
    let has_ended = |node: &NodeId| stopped.ends.iter().any(|end| end.node == *node);
    here.into_iter().filter(|node| !has_ended(node)).for_each(|node| say(ServeEvent::Killed(node)));
    Ok(())
}

/// Reads the network's file again, and follows what may change.
fn reload(file: &Path, begun: &Network, supervisor: &mut Supervisor) -> ServeEvent {
    let new = match Network::read(file) {
        Ok(new) => new,
        Err(error) => return ServeEvent::NotReloaded(error.to_string()),
    };
    let reload = Reload::of(begun, supervisor.network(), &new);
    supervisor.reopen_logs(new.logs);
    ServeEvent::Reloaded(reload)
}

/// Says which nodes are ready now and were not, or were and are not.
fn changes(
    supervisor: &Supervisor,
    before: &mut BTreeMap<NodeId, (bool, u32)>,
    say: &mut dyn FnMut(ServeEvent),
) {
    for (node, is_ready, start) in supervisor.states() {
        let (was_ready, last_start) = before.insert(node, (is_ready, start)).unwrap_or_default();
        if was_ready && !is_ready || start != last_start {
            let why = supervisor.why_ended(node);
            say(ServeEvent::Ended { node, why });
        }
        if is_ready && (!was_ready || start != last_start) {
            say(ServeEvent::Ready { node, start });
        }
    }
}

/// A lock on the folder, which goes with this process.
fn lock(folder: &Path) -> Result<File, Failure> {
    let path: PathBuf = folder.join(LOCK);
    let open = || -> io::Result<File> {
        fs::create_dir_all(folder)?;
        File::options().create(true).truncate(false).write(true).open(&path)
    };
    let file = open().map_err(|error| {
        Failure::new(FailureKind::System, format!("{} cannot be used: {error}", path.display()))
    })?;
    file.try_lock().map_err(|_| {
        let message = format!("another `exchange serve` runs in {}", folder.display());
        Failure::new(FailureKind::Conflict, message)
    })?;
    Ok(file)
}
