//! The groups of replicas that a node is in, according to the network file.

use std::sync::OnceLock;

use nm_auth::Right;
use nm_model::agent::{Failure, FailureKind};
use nm_replica::{
    Address, ContentFormat, ContentKind, Group, Member, RaftLog, Replicas, Settings, journal,
};
use nm_sys::poll::Waker;
use nm_wire::{PROGRAM, ROWS, Row, VERSION};

use crate::network::{CONTROL, Durability, Network, NodeId, Role, group_name};
use crate::node::replica::logs::{LogSource, Logs};

/// The thread of a node's logs, which ends with this.
#[derive(Debug)]
struct Thread {
    replicas: Replicas,
    /// The settings of its groups.
    settings: Settings,
}

/// The logs of a node's replicas, which join their groups from now on. The waker is woken by each
/// event of a log.
///
/// # Errors
/// As [`start`].
pub fn start_logs(network: &Network, node: NodeId, waker: Waker) -> Result<Logs<RaftLog>, Failure> {
    let settings = of_network(network, Settings::default())?;
    let may_be_given_cells =
        network.durability != Durability::None && network.may_have_replicas(node);
    if network.groups_at(node).is_empty() && !may_be_given_cells {
        return Ok(Logs { of_groups: vec![], source: None });
    }
    let (replicas, logs) = start(network, node, Settings::default(), waker)?;
    let of_groups = logs.into_iter().map(|log| (log.group_id(), log)).collect();
    Ok(Logs { of_groups, source: Some(Box::new(Thread { replicas, settings })) })
}

impl LogSource<RaftLog> for Thread {
    fn next_joined(&mut self) -> Option<Result<(u16, RaftLog), Failure>> {
        let joined = self.replicas.next_joined()?;
        Some(joined.map(|log| (log.group_id(), log)).map_err(Failure::from))
    }

    fn open(&mut self, network: &Network, node: NodeId, cell: u16) -> Result<(), Failure> {
        if let Some(group) = group(network, node, cell, self.settings)? {
            self.replicas.open(group, network.replicas(cell).contains(&node));
        }
        Ok(())
    }

    fn close(&mut self, cell: u16) {
        self.replicas.close(cell);
    }
}

/// Starts the replicas of a node of a network, and gives the data loop's end of each: those of
/// [`Network::groups_at`] in its order, then those that it was given later. The waker is woken by
/// each event of a log.
///
/// # Errors
/// As [`Replicas::start`]; or if the network file lacks something that replication needs.
pub fn start(
    network: &Network,
    node: NodeId,
    settings: Settings,
    waker: Waker,
) -> Result<(Replicas, Vec<RaftLog>), Failure> {
    let settings = of_network(network, settings)?;
    let of_first = network.groups_at(node);
    let others = network.cells().filter(|_| network.durability != Durability::None);
    let others = others.filter(|cell| !of_first.contains(cell));
    let group = |id: u16| group(network, node, id, settings).transpose();
    let others: Vec<Group> = others.filter_map(group).collect::<Result<_, _>>()?;
    let (mut groups, others): (Vec<Group>, Vec<Group>) =
        others.into_iter().partition(Group::has_files);
    let first = of_first.into_iter().filter_map(group);
    groups.splice(..0, first.collect::<Result<Vec<Group>, _>>()?);
    Ok(Replicas::start(&replication(network, node)?, groups, others, waker)?)
}

/// Settings with what the network file says: its number, the key, and whether everything is kept.
///
/// # Errors
/// If the secret cannot be read.
fn of_network(network: &Network, settings: Settings) -> Result<Settings, Failure> {
    let secret = network.secret_of_nodes().map_err(|error| wrong(error.to_string()))?;
    let key = secret.map(|secret| secret.key(Right::Node));
    let (keep_all, cluster) = (settings.keep_all || network.record, network.cluster);
    Ok(Settings { keep_all, cluster, key, content: content(), ..settings })
}

/// What the groups' batches and snapshots are made of: which messages stand in logs, and what else
/// the version says.
pub fn content() -> ContentFormat {
    static KINDS: OnceLock<Vec<ContentKind>> = OnceLock::new();
    let kinds = KINDS.get_or_init(|| {
        let rows = ROWS.iter().filter(|row| row.is_in_logs());
        let kind = |row: &Row| {
            let digest = nm_wire::digest_of(&[*row]);
            ContentKind { code: row.code, name: row.name, digest }
        };
        rows.map(kind).collect()
    });
    ContentFormat { program: PROGRAM, version: VERSION, kinds }
}

fn wrong(message: String) -> Failure {
    Failure::new(FailureKind::BadRequest, message)
}

/// Where a node's replicas listen.
fn replication(network: &Network, node: NodeId) -> Result<Address, Failure> {
    let known = network.node(node).and_then(|known| known.replication.clone());
    known.ok_or_else(|| wrong(format!("{node} of the network has no `replication`")))
}

/// A group as the replica at a node sees it; none if the node may not have one.
///
/// # Errors
/// If the network file lacks something that replication needs.
fn group(
    network: &Network,
    node: NodeId,
    id: u16,
    settings: Settings,
) -> Result<Option<Group>, Failure> {
    let places = network.replica_places(id);
    let Some(own) = places.iter().position(|place| *place == node) else {
        return Ok(None);
    };
    let folder = match network.durability {
        Durability::DiskQuorum => Some(network.folder(node).ok_or_else(|| {
            wrong("disk-quorum needs a `data` folder in the network file".to_string())
        })?),
        _ => None,
    };
    let member = |place: &NodeId| -> Result<Member, Failure> {
        let address = replication(network, *place)?;
        Ok(Member { address, may_lead: place.class == Role::Mediator })
    };
    Ok(Some(Group {
        id,
        name: group_name(id),
        members: places.iter().map(member).collect::<Result<_, _>>()?,
        voters: network.replicas(id).len(),
        own,
        folder: folder.as_ref().map(|folder| folder.join(group_name(id))),
        settings: of_group(settings, id),
    }))
}

/// The settings of a group: control writes little, and keeps it in small files; its followers only
/// stand by.
fn of_group(settings: Settings, group: u16) -> Settings {
    if group != CONTROL {
        return settings;
    }
    let file_bytes = settings.journal.file_bytes.min(256 << 10);
    let journal = journal::Settings { file_bytes };
    let snapshot_bytes = settings.snapshot_bytes.min(128 << 10);
    Settings { notifies_at_once: false, snapshot_bytes, journal, ..settings }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch;

    /// Else an older program would read a folder that it cannot read.
    #[test]
    fn the_content_of_groups_is_all_that_batches_may_have() {
        let content = content();
        for row in ROWS {
            let mut bytes = vec![];
            batch::begin(1, &mut bytes);
            let example = row.example_of(1);
            let put = |out: &mut Vec<u8>| out.extend(&example);
            nm_wire::write_with(row.code, nm_wire::Shape::default(), &mut bytes, put);
            let mut frames = batch::decode(&bytes).unwrap().1;
            let is_known = content.kinds.iter().any(|kind| kind.code == row.code);
            assert_eq!(frames.next().unwrap().is_ok(), is_known, "{}", row.name);
        }
        assert_eq!((content.version, content.program), (VERSION, PROGRAM));
    }
}
