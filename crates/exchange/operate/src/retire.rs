//! Removes what a session or an owner has in the cells of a running network. Its orders are
//! cancelled, its sessions forgotten, and so are the instruments that nobody else uses.

use std::time::Duration;

use nm_exchange::client::ClientError;
use nm_exchange::control::{Access, AdminRequest, AdminResponse, Holdings, Retired};
use nm_exchange::network::Network;
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;

/// How long a mediator may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// How long all of it may take.
const RETIRE_LIMIT: Duration = Duration::from_secs(60);

/// Pause until what is left is asked for again: an entry of the log takes so long.
const PAUSE: Duration = Duration::from_millis(5);

/// Removes what a session or an owner has; what that was in each cell.
///
/// # Errors
/// If a cell has no leader that answers, or there is something left after a minute: such as on
/// instruments that are on their way to another cell.
pub fn retire(network: &Network, retired: Retired) -> Result<Vec<(u16, Holdings)>, Failure> {
    let deadline = Deadline::after(RETIRE_LIMIT);
    let mut all = vec![];
    // What is on its way to another cell while that is asked goes there unseen, so that all are
    // asked once more.
    for round in 0..2 {
        for cell in network.cells() {
            let had = retire_in(network, cell, retired, deadline)?;
            if round == 0 {
                all.push((cell, had));
            }
        }
    }
    Ok(all)
}

/// Removes it from a cell; what there was at first.
fn retire_in(
    network: &Network,
    cell: u16,
    retired: Retired,
    deadline: Deadline,
) -> Result<Holdings, Failure> {
    let mut first = None;
    loop {
        let (left, why) = match ask(network, cell, retired) {
            Ok(left) => (Some(left), String::new()),
            Err(why) => (None, why),
        };
        first = first.or(left);
        if left == Some(Holdings::default()) {
            return Ok(first.unwrap_or_default());
        }
        if deadline.passed() {
            let message = match left {
                Some(left) => format!(
                    "after {} s cell {cell} still has {} sessions and {} live orders of it",
                    RETIRE_LIMIT.as_secs(),
                    left.sessions,
                    left.orders
                ),
                None => format!("nobody who leads cell {cell} answers: {why}"),
            };
            return Err(Failure::new(FailureKind::Peer, message));
        }
        std::thread::sleep(PAUSE);
    }
}

/// Asks the leader of a cell, which removes a part; what there was before.
fn ask(network: &Network, cell: u16, retired: Retired) -> Result<Holdings, String> {
    let access = Access::new(network).map_err(|failure| failure.message)?;
    let mut why = "no mediator leads it".to_string();
    // Most cells are led by the mediator of the same number.
    let others = network.cells().filter(|mediator| *mediator != cell);
    for mediator in [cell].into_iter().chain(others) {
        let request = AdminRequest::Retire { cell, retired };
        match access.request(mediator, &request, ANSWER_LIMIT) {
            Ok(AdminResponse::Holdings { holdings }) => return Ok(holdings),
            Ok(AdminResponse::NotLeading) => {}
            Ok(_) => why = access.named(mediator, &ClientError::Unexpected),
            Err(error) => why = access.named(mediator, &error),
        }
    }
    Err(why)
}
