//! The groups of replicas that a node is in, according to the network file.

use nm_auth::Right;
use nm_model::agent::{Failure, FailureKind};
use nm_replica::{Address, Group, Member, RaftLog, Replicas, Settings, journal};
use nm_sys::poll::Waker;

use crate::network::{CONTROL, Durability, Network, Role, group_name};

/// The data loop's ends of the logs of a node.
#[derive(Debug)]
pub struct Logs<L> {
    /// Woken by each event of a log.
    pub waker: Waker,
    /// With the numbers of their groups.
    pub of_groups: Vec<(u16, L)>,
    /// Their thread, which ends with this; none if they have no thread.
    pub thread: Option<Replicas>,
    /// The next log that the node gets while it runs, with the number of its group.
    pub next_joined: fn(&Replicas) -> Option<(u16, L)>,
}

impl Logs<RaftLog> {
    /// The logs of a node's replicas, which join their groups from now on.
    ///
    /// # Errors
    /// As [`start`].
    pub fn start(network: &Network, role: Role, index: usize) -> Result<Logs<RaftLog>, Failure> {
        let system = |error: std::io::Error| Failure::new(FailureKind::System, error.to_string());
        let waker = Waker::new().map_err(system)?;
        let may_be_given_cells = network.durability != Durability::None;
        if network.groups_at(role, index).is_empty() && !may_be_given_cells {
            return Ok(Logs { waker, of_groups: vec![], thread: None, next_joined });
        }
        let (thread, logs) = start(network, role, index, Settings::default(), waker.clone())?;
        let of_groups = logs.into_iter().map(|log| (log.group_id(), log)).collect();
        Ok(Logs { waker, of_groups, thread: Some(thread), next_joined })
    }
}

fn next_joined(thread: &Replicas) -> Option<(u16, RaftLog)> {
    thread.next_joined().map(|log| (log.group_id(), log))
}

/// Starts the replicas of a node of a network, and gives the data loop's end of each: those of
/// [`Network::groups_at`] in its order, then those that it was given later. The waker is woken by
/// each event of a log.
///
/// # Errors
/// As [`Replicas::start`]; or if the network file lacks something that replication needs.
pub fn start(
    network: &Network,
    role: Role,
    index: usize,
    settings: Settings,
    waker: Waker,
) -> Result<(Replicas, Vec<RaftLog>), Failure> {
    let wrong = |message: String| Failure::new(FailureKind::BadRequest, message);
    let address = |role: Role, index: usize| -> Result<Address, Failure> {
        let node = network.nodes(role).get(index);
        node.and_then(|node| node.replication.clone())
            .ok_or_else(|| wrong(format!("{role} {index} of the network has no `replication`")))
    };
    let folder = match network.durability {
        Durability::DiskQuorum => Some(network.folder(role, index).ok_or_else(|| {
            wrong("disk-quorum needs a `data` folder in the network file".to_string())
        })?),
        _ => None,
    };
    let secret = network.secret_of_nodes().map_err(|error| wrong(error.to_string()))?;
    let key = secret.map(|secret| secret.key(Right::Node));
    let settings = Settings { keep_all: settings.keep_all || network.record, key, ..settings };
    let group = |id: u16| -> Result<Option<Group>, Failure> {
        let places = network.replica_places(id);
        let Some(own) = places.iter().position(|place| *place == (role, index)) else {
            return Ok(None);
        };
        let member = |(role, index): &(Role, usize)| -> Result<Member, Failure> {
            let address = address(*role, *index)?;
            Ok(Member { address, may_lead: *role == Role::Mediator })
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
    };
    let of_first = network.groups_at(role, index);
    let cells = 0..network.mediator.len() as u16;
    let cells = cells.filter(|_| network.durability != Durability::None);
    let others = cells.filter(|cell| !of_first.contains(cell));
    // The files of a replica that the node was given later show that it has one.
    let has_files = |group: &Group| group.folder.as_ref().is_some_and(|folder| folder.is_dir());
    let others: Vec<Group> =
        others.filter_map(|id| group(id).transpose()).collect::<Result<_, _>>()?;
    let (mut groups, others): (Vec<Group>, Vec<Group>) = others.into_iter().partition(has_files);
    let first = of_first.into_iter().filter_map(|id| group(id).transpose());
    groups.splice(..0, first.collect::<Result<Vec<Group>, _>>()?);
    Ok(Replicas::start(&address(role, index)?, groups, others, waker)?)
}

/// The settings of a group: control writes little, and keeps it in small files.
fn of_group(settings: Settings, group: u16) -> Settings {
    if group != CONTROL {
        return settings;
    }
    let file_bytes = settings.journal.file_bytes.min(256 << 10);
    let journal = journal::Settings { file_bytes };
    Settings { snapshot_bytes: settings.snapshot_bytes.min(128 << 10), journal, ..settings }
}
