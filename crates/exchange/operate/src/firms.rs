//! The firms of a running network: whose sessions may connect, what each firm may have at most, and
//! what it has.

use std::time::Duration;

use nm_exchange::control::{Access, AdminRequest, AdminResponse, Retired};
use nm_exchange::firms::{Firm, FirmUse, Firms, FirmsError};
use nm_exchange::network::Network;
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;

use crate::admin::change;
use crate::{directions, retire};

/// How long control may take to log one change, and cells to learn of it.
const CHANGE_LIMIT: Duration = Duration::from_secs(10);

/// How long control may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Pause until a cell is asked again.
const PAUSE: Duration = Duration::from_millis(10);

fn bad(error: &FirmsError) -> Failure {
    Failure::new(FailureKind::BadRequest, error.to_string())
}

/// The firms of a running network, as control has them; without control, as its file has them.
///
/// # Errors
/// If there are none, or no node that could know them answers.
pub fn firms(network: &Network) -> Result<Firms, Failure> {
    let known = match network.has_control() {
        true => {
            let replica = Access::new(network)?.control(ANSWER_LIMIT)?;
            replica.state.routes().map.firms().map(|firms| Firms::clone(firms))
        }
        false => network.firms.as_deref().cloned(),
    };
    known.ok_or_else(|| bad(&FirmsError::NoFirms))
}

/// What firms with limits have in each cell, once it knows the firms of this version.
///
/// # Errors
/// If a cell has no leader that answers, or none that learns of the version in time.
pub fn uses(network: &Network, version: u64) -> Result<Vec<(u16, Vec<FirmUse>)>, Failure> {
    let deadline = Deadline::after(CHANGE_LIMIT);
    network.cells().map(|cell| Ok((cell, uses_in(network, cell, version, deadline)?))).collect()
}

fn uses_in(
    network: &Network,
    cell: u16,
    version: u64,
    deadline: Deadline,
) -> Result<Vec<FirmUse>, Failure> {
    loop {
        let request = AdminRequest::FirmUses { cell };
        match directions::asked(network, cell, &request, deadline)? {
            AdminResponse::FirmUses { version: known, uses } if known >= version => {
                return Ok(uses);
            }
            AdminResponse::FirmUses { .. } if !deadline.passed() => std::thread::sleep(PAUSE),
            AdminResponse::FirmUses { .. } => {
                let message = format!("cell {cell} has not logged the firms");
                return Err(Failure::new(FailureKind::Peer, message));
            }
            _ => {
                let message = format!("cell {cell} answers something else");
                return Err(Failure::new(FailureKind::Peer, message));
            }
        }
    }
}

/// Adds a firm, or changes it, in all cells; whether anything changed.
///
/// # Errors
/// If the network has no firms, it is not possible beside the others, or control or a cell does not
/// log it in time.
pub fn set(network: &Network, firm: &Firm) -> Result<bool, Failure> {
    let is_new = firms(network)?.plan_set(firm).map_err(|error| bad(&error))?;
    if is_new {
        let request = AdminRequest::SetFirm { firm: firm.record().map_err(|error| bad(&error))? };
        change(network, &request, CHANGE_LIMIT, |state| {
            let known = state.routes().map.firms().ok_or(FirmsError::NoFirms);
            let is_new = known.and_then(|known| known.plan_set(firm));
            Ok(!is_new.map_err(|error| bad(&error))?)
        })?;
    }
    uses(network, firms(network)?.version())?;
    Ok(is_new)
}

/// What came of the removal of a firm.
#[derive(Debug)]
pub struct Removed {
    /// The firm as it was.
    pub firm: Firm,
    /// Its live orders, which were cancelled.
    pub orders: u64,
}

/// Removes a firm: its sessions are refused, and what they have in the cells goes. `cancels`: also
/// if it has live orders.
///
/// # Errors
/// If there is no such firm, it is the last one, has live orders that are not to be cancelled, or
/// control or a cell does not do it in time.
pub fn remove(network: &Network, name: &str, cancels: bool) -> Result<Removed, Failure> {
    let known = firms(network)?;
    let firm = known.named(name).map_err(|error| bad(&error))?.clone();
    known.plan_remove(firm.number).map_err(|error| bad(&error))?;
    let orders = directions::live_orders(network, firm.owner())?;
    if orders > 0 && !cancels {
        let message = format!("{name} has {orders} live orders: cancel them first, or by --cancel");
        return Err(Failure::new(FailureKind::Conflict, message));
    }
    let number = firm.number;
    change(network, &AdminRequest::RemoveFirm { number }, CHANGE_LIMIT, |state| {
        let known = state.routes().map.firms().ok_or(FirmsError::NoFirms);
        let is_there = known.and_then(|known| known.plan_remove(number));
        Ok(!is_there.map_err(|error| bad(&error))?)
    })?;
    // Orders that came until its gateways knew go with the sessions.
    let retired = retire::retire(network, Retired::Owner { owner: firm.owner() })?;
    let orders = retired.iter().map(|(_, had)| had.orders).sum();
    uses(network, firms(network)?.version())?;
    Ok(Removed { firm, orders })
}
