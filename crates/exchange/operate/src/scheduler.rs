//! Carries out a schedule on a running network. Which phases have begun is in control's log, so
//! that whoever goes on with it does what was missed, and nothing twice.

use std::time::Duration;

use nm_exchange::control::{Access, AdminRequest};
use nm_exchange::network::Network;
use nm_model::{Failure, FailureKind};
use nm_wire::{Directed, Direction};

use crate::admin::change;
use crate::directions::{self, OfCell};
use crate::instruments;
use crate::schedule::{Due, Group, Schedule};

/// How long control may take to answer, and to log a phase.
const LIMIT: Duration = Duration::from_secs(10);

/// A phase that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// Which, and when it was due.
    pub due: Due,
    /// Its group.
    pub group: String,
    /// What was done in each cell.
    pub cells: Vec<OfCell>,
}

/// Begins the phases that are due at a time, s since 1970, and have not begun yet, one after the
/// other; `begun` gets each.
///
/// # Errors
/// If the network has no control group, a symbol is not listed, or a cell or control does not
/// answer in time. What has not begun then is due when this is called again.
pub fn step(
    network: &Network,
    schedule: &Schedule,
    now_s: u64,
    mut begun: impl FnMut(Begun),
) -> Result<(), Failure> {
    if !network.has_control() {
        let why = "the network has no control group, which knows what has begun: give its \
                   mediators `replication` addresses";
        return Err(Failure::new(FailureKind::BadRequest, why));
    }
    let state = Access::new(network)?.control(LIMIT)?.state;
    for group in &schedule.groups {
        for due in schedule.due(group, state.begun_s(&group.name), now_s) {
            let mut cells = vec![];
            for direction in group.directions(due.phase) {
                cells = direct(network, group, direction)?;
            }
            let at_s = due.at_s;
            let request = AdminRequest::Begun { group: group.name.clone(), at_s };
            change(network, &request, LIMIT, |state| {
                Ok(state.begun_s(&group.name).is_some_and(|known| known >= at_s))
            })?;
            begun(Begun { due, group: group.name.clone(), cells });
        }
    }
    Ok(())
}

/// Directs something on all instruments of a group.
fn direct(network: &Network, group: &Group, direction: Direction) -> Result<Vec<OfCell>, Failure> {
    if group.symbols.is_empty() {
        return directions::direct_all(network, direction);
    }
    let master = instruments::master(network)?;
    let bad = |why: String| Failure::new(FailureKind::BadRequest, why);
    let mut cells: Vec<OfCell> = vec![];
    for symbol in &group.symbols {
        let listed = master.named(symbol).map_err(|error| bad(error.to_string()))?;
        let (cell, one) = directions::direct(network, listed.instrument, direction)?;
        match cells.iter_mut().find(|(known, _)| *known == cell) {
            Some((_, sum)) => *sum = together(*sum, one),
            None => cells.push((cell, one)),
        }
    }
    Ok(cells)
}

/// What came of a direction on different instruments.
pub fn together(one: Directed, other: Directed) -> Directed {
    Directed {
        instruments: one.instruments + other.instruments,
        changed: one.changed + other.changed,
        unfit: one.unfit + other.unfit,
        elsewhere: 0,
        failed: one.failed + other.failed,
        sessions: one.sessions + other.sessions,
        orders: one.orders + other.orders,
    }
}
