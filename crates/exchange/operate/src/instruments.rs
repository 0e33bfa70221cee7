//! The instrument master of a running network: what may be traded, and how an operator changes it.

use std::time::Duration;

use nm_exchange::control::{Access, AdminRequest};
use nm_exchange::master::{Listing, Master, MasterError};
use nm_exchange::network::Network;
use nm_model::{Failure, FailureKind};

use crate::admin::change;

/// How long control may take to log one change.
const CHANGE_LIMIT: Duration = Duration::from_secs(10);

/// How long control may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

fn bad(error: &MasterError) -> Failure {
    Failure::new(FailureKind::BadRequest, error.to_string())
}

/// The master of a running network, as control has it; without control, as its file has it.
///
/// # Errors
/// If there is none, or no node that could know it answers.
pub fn master(network: &Network) -> Result<Master, Failure> {
    let known = match network.has_control() {
        true => {
            let replica = Access::new(network)?.control(ANSWER_LIMIT)?;
            replica.state.routes().map.master().cloned()
        }
        false => network.master.as_deref().cloned(),
    };
    known.ok_or_else(|| bad(&MasterError::NoMaster))
}

/// Lists instruments, or changes how they are listed; which of them that changed.
///
/// # Errors
/// If the network has no master, a listing is not possible beside the others, in which case those
/// before it are listed, or control does not log it in time.
pub fn list<'a>(
    network: &Network,
    listings: impl Iterator<Item = &'a Listing>,
) -> Result<Vec<&'a Listing>, Failure> {
    let mut changed = vec![];
    for listing in listings {
        let is_new = master(network)?.plan_list(listing).map_err(|error| bad(&error))?;
        if !is_new {
            continue;
        }
        let request = AdminRequest::List { listing: listing.clone() };
        change(network, &request, CHANGE_LIMIT, |state| {
            let known = state.routes().map.master().ok_or(MasterError::NoMaster);
            let is_new = known.and_then(|known| known.plan_list(listing));
            Ok(!is_new.map_err(|error| bad(&error))?)
        })?;
        changed.push(listing);
    }
    Ok(changed)
}

/// Lists the instrument of a symbol no more; how it was listed.
///
/// # Errors
/// If it is not listed, is the last one, or control does not log it in time.
pub fn delist(network: &Network, symbol: &str) -> Result<Listing, Failure> {
    let known = master(network)?;
    let listing = known.named(symbol).map_err(|error| bad(&error))?;
    let instrument = listing.instrument;
    change(network, &AdminRequest::Delist { instrument }, CHANGE_LIMIT, |state| {
        let known = state.routes().map.master().ok_or(MasterError::NoMaster);
        let is_there = known.and_then(|known| known.plan_delist(instrument));
        Ok(!is_there.map_err(|error| bad(&error))?)
    })?;
    Ok(listing.clone())
}
