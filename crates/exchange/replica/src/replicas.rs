//! The replication thread of a node: all groups that the node is in, one async runtime, one socket
//! that listens.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use nm_sys::poll::Waker;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::address::Address;
use crate::channel::RaftLog;
use crate::connection::Connection;
use crate::env::{Env, Machine};
use crate::error::ReplicaError;
use crate::gate::Gate;
use crate::group::Group;
use crate::group_replica::CHECK_INTERVAL;
use crate::lifecycle::{Opened, open};
use crate::open_replicas::{Joined, Occasion, OpenReplicas};
use crate::sockets::Listener;

/// The replication of all groups of a node. Ends when it is dropped, as if the node had been
/// killed: what was acknowledged is on disk, or in the memory of the other replicas.
#[derive(Debug)]
pub struct Replicas {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    joined: Receiver<Joined>,
    node: Arc<OpenReplicas>,
    runtime: Handle,
}

impl Replicas {
    /// Starts the replicas of these groups, which the others reach at `listen`, and gives the data
    /// loop's end of each, in the same order. The node gets a replica of one of `others` when its
    /// leader asks for that: see [`Replicas::next_joined`]. The waker is woken by each event.
    ///
    /// # Errors
    /// If the address is in use, or a folder cannot be used or is damaged.
    pub fn start(
        listen: &Address,
        groups: Vec<Group>,
        others: Vec<Group>,
        waker: Waker,
    ) -> Result<(Replicas, Vec<RaftLog>), ReplicaError> {
        Replicas::start_in(Machine::env(), listen, (groups, others), waker)
    }

    /// As [`Replicas::start`], in these surroundings.
    pub(crate) fn start_in(
        env: Env,
        listen: &Address,
        (groups, others): (Vec<Group>, Vec<Group>),
        waker: Waker,
    ) -> Result<(Replicas, Vec<RaftLog>), ReplicaError> {
        let failed = |error: io::Error| ReplicaError::Thread(Arc::new(error));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = {
            let _context = runtime.enter();
            env.listen(listen)
        };
        let listener = listener.map_err(|error| ReplicaError::Listen {
            address: listen.clone(),
            source: Arc::new(error),
        })?;
        let first = groups.iter().chain(&others).map(|group| group.settings).next();
        let trust = first.unwrap_or_default();
        let trust = (trust.cluster, trust.key, trust.content.digest());
        let (mut replicas, mut logs) = (vec![], vec![]);
        for group in groups {
            let (opened, log) = open(&env, group, false, waker.clone())?;
            replicas.push(opened);
            logs.push(log);
        }
        let (stop, stopped) = oneshot::channel();
        let (sender, joined) = channel();
        let node = Arc::new(OpenReplicas::new(env, others, trust, sender, waker));
        let (of_thread, handle) = (Arc::clone(&node), runtime.handle().clone());
        let thread = std::thread::Builder::new()
            .name("replication".to_string())
            .spawn(move || runtime.block_on(serve(listener, replicas, of_thread, stopped)))
            .map_err(failed)?;
        let (stop, thread, runtime) = (Some(stop), Some(thread), handle);
        Ok((Replicas { stop, thread, joined, node, runtime }, logs))
    }

    /// Opens the replica of one more group by a thread, if the node has it from the group's
    /// beginning on (`begins`), or has files of it because it had it before it was restarted. Else
    /// it gets one when the group's leader asks for that. See [`Replicas::next_joined`].
    pub fn open(&self, group: Group, begins: bool) {
        let _context = self.runtime.enter();
        self.node.open(group, if begins { Occasion::Begins } else { Occasion::HasFiles });
    }

    /// There is no such group any more. The replica of it, if the node has one, reports
    /// [`crate::LogEvent::Removed`].
    pub fn close(&self, group: u16) {
        self.node.close(group);
    }

    /// The data loop's end of the next replica that was opened while the node runs. To be called
    /// until there is none after each wake-up.
    ///
    /// # Errors
    /// If the folder of a replica that the node must have cannot be used or is damaged.
    pub fn next_joined(&self) -> Option<Joined> {
        self.joined.try_recv().ok()
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs the replicas of a node until `stopped`.
pub async fn serve(
    listener: Box<dyn Listener>,
    opened: Vec<Opened>,
    node: Arc<OpenReplicas>,
    stopped: oneshot::Receiver<()>,
) {
    opened.into_iter().for_each(|replica| node.start(replica));
    tokio::select! {
        biased;
        _ = stopped => {}
        () = accept(listener, &node) => {}
    }
}

async fn accept(listener: Box<dyn Listener>, node: &Arc<OpenReplicas>) {
    let gate = Gate::new(Arc::clone(node));
    loop {
        match listener.accept().await {
            Ok(stream) => gate.admit(Connection::new(stream)),
            // Too many open files, for instance: it may pass.
            Err(_) => sleep(CHECK_INTERVAL).await,
        }
    }
}
