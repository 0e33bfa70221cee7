//! The replicas that a node has at the moment, and the groups that it may get one of.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use nm_auth::Key;
use nm_sys::poll::Waker;
use tokio::runtime::Handle;

use crate::channel::RaftLog;
use crate::env::Env;
use crate::error::ReplicaError;
use crate::group::Group;
use crate::group_replica::GroupReplica;
use crate::hello::Identity;
use crate::lifecycle::{Opened, open, run};
use crate::log::LogEvent;

/// The data loop's end of a replica that was opened while the node runs, or why it could not be.
pub type Joined = Result<RaftLog, ReplicaError>;

/// The replicas of a node.
pub struct OpenReplicas {
    env: Env,
    cluster: u64,
    /// Digest of what batches and snapshots are made of.
    content: u64,
    /// Random number of the start of the node.
    incarnation: u64,
    key: Option<Key>,
    waker: Waker,
    /// Where the logs of replicas go that are opened later.
    joined: Sender<Joined>,
    groups: Mutex<Groups>,
}

impl fmt::Debug for OpenReplicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenReplicas").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Groups {
    open: BTreeMap<u16, Arc<GroupReplica>>,
    /// Groups whose replicas are being opened.
    opening: BTreeSet<u16>,
    /// Groups that the node has no replica of.
    others: BTreeMap<u16, Group>,
}

/// On which occasion a replica is opened while the node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// The node has it from the group's beginning on.
    Begins,
    /// The node may have had it before it was restarted. If it has no files of it, it may join.
    HasFiles,
    /// The group's leader asks for it.
    Joins,
}

impl OpenReplicas {
    /// A node that may get a replica of these groups.
    pub fn new(
        env: Env,
        others: Vec<Group>,
        (cluster, key, content): (u64, Option<Key>, u64),
        joined: Sender<Joined>,
        waker: Waker,
    ) -> Self {
        let others = others.into_iter().map(|group| (group.id, group)).collect();
        let groups = Mutex::new(Groups { others, ..Groups::default() });
        let incarnation = env.random().max(1);
        OpenReplicas { env, cluster, content, incarnation, key, waker, joined, groups }
    }

    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who this node is for somebody who means a replica of a group.
    pub fn identity(&self, meant: &Identity) -> Identity {
        let groups = self.groups();
        let open = groups.open.get(&meant.group).map(|replica| &replica.group);
        let group = open.or_else(|| groups.others.get(&meant.group));
        // It may hear of a group later than others do.
        let member = group.map_or(meant.member, |group| group.own as u8 + 1);
        let Self { cluster, incarnation, content, .. } = *self;
        Identity { cluster, incarnation, group: meant.group, member, content }
    }

    /// The key by which replicas authenticate, if they do.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// All replicas.
    pub fn all(&self) -> Vec<Arc<GroupReplica>> {
        self.groups().open.values().cloned().collect()
    }

    /// The replica of a group.
    pub fn find(&self, group: u16) -> Option<Arc<GroupReplica>> {
        self.groups().open.get(&group).cloned()
    }

    /// The replica of a group. If there is none, it is opened, and who asks for it asks again.
    pub fn join(self: &Arc<Self>, group: u16) -> Option<Arc<GroupReplica>> {
        if let Some(replica) = self.find(group) {
            return Some(replica);
        }
        let config = self.groups().others.remove(&group)?;
        self.open(config, Occasion::Joins);
        self.find(group)
    }

    /// Opens the replica of a group by a thread: a disk that stops holds up no other replica, and
    /// no data loop. To be called where the runtime is.
    pub fn open(self: &Arc<Self>, group: Group, occasion: Occasion) {
        self.groups().opening.insert(group.id);
        let (node, runtime, of_thread) = (Arc::clone(self), Handle::current(), group.clone());
        let open = move || {
            if occasion == Occasion::HasFiles && !of_thread.has_files() {
                let mut groups = node.groups();
                if groups.opening.remove(&of_thread.id) {
                    groups.others.insert(of_thread.id, of_thread);
                }
                return;
            }
            let joins = occasion == Occasion::Joins;
            let opened = open(&node.env, of_thread.clone(), joins, node.waker.clone());
            let _context = runtime.enter();
            node.take_opened(of_thread, joins, opened);
        };
        if !self.env.has_threads() {
            return open();
        }
        if let Err(error) = thread::Builder::new().name("open".to_string()).spawn(open) {
            let joins = occasion == Occasion::Joins;
            self.take_opened(group, joins, Err(ReplicaError::Thread(Arc::new(error))));
        }
    }

    fn take_opened(
        self: &Arc<Self>,
        group: Group,
        joins: bool,
        opened: Result<(Opened, RaftLog), ReplicaError>,
    ) {
        // Else the group has ended meanwhile.
        if !self.groups().opening.remove(&group.id) {
            return;
        }
        let joined = match opened {
            Ok((opened, log)) => {
                self.start(opened);
                Ok(log)
            }
            // The leader asks again; a folder that cannot be used may be put right meanwhile.
            Err(_) if joins => return self.may_join(group),
            Err(error) => Err(error),
        };
        // It fails only if the data loop has ended.
        let _ = self.joined.send(joined);
        self.waker.wake();
    }

    /// The node may get a replica of one more group, when its leader asks for that.
    pub fn may_join(&self, group: Group) {
        self.groups().others.insert(group.id, group);
    }

    /// There is no such group any more: the replica of it ends, if the node has one.
    pub fn close(&self, group: u16) {
        let mut groups = self.groups();
        groups.others.remove(&group);
        groups.opening.remove(&group);
        if let Some(replica) = groups.open.get(&group) {
            replica.close();
        }
    }

    /// Runs a replica.
    pub fn start(self: &Arc<Self>, opened: Opened) {
        let (node, replica) = (Arc::clone(self), Arc::clone(&opened.0));
        let before = self.groups().open.insert(replica.group.id, Arc::clone(&replica));
        assert!(before.is_none(), "a node has one replica of a group");
        tokio::spawn(async move {
            match run(opened).await {
                Ok(()) => node.remove(&replica),
                Err(error) => replica.events.send(LogEvent::Stopped(error)),
            }
        });
    }

    /// Removes a replica that has ended. It may join again, unless the group has ended as well.
    fn remove(&self, replica: &GroupReplica) {
        let id = replica.group.id;
        let mut groups = self.groups();
        groups.open.remove(&id);
        if !replica.is_closed() {
            groups.others.insert(id, replica.group.clone());
        }
        replica.events.send(LogEvent::Removed);
    }
}
