//! What an operator directs on a running network: halts, auctions, the end of the day, and cancels
//! of all orders of a session or firm. Also whether a firm may send orders.
//!
//! Each cell carries it out in its own log. What was done is not done again. So everything can be
//! repeated: after a leader's death, after a move of an instrument, or by a second operator.

use std::time::Duration;

pub use nm_book::order::InstrumentId;
use nm_exchange::client::ClientError;
use nm_exchange::control::{Access, AdminRequest, AdminResponse, Holdings, Owner, Retired};
use nm_exchange::network::Network;
use nm_model::{Failure, FailureKind};
use nm_sys::clock::Deadline;
use nm_wire::StopOrder;
pub use nm_wire::{Directed, Direction};

/// How long a mediator may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How long all of it may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Pause until it is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// What came of a direction in a cell.
pub type OfCell = (u16, Directed);

/// Adds what came of the same direction once more.
fn add(sum: &mut Directed, more: &Directed) {
    sum.instruments = sum.instruments.max(more.instruments);
    sum.sessions = sum.sessions.max(more.sessions);
    sum.changed += more.changed;
    sum.orders += more.orders;
    (sum.unfit, sum.elsewhere, sum.failed) = (more.unfit, more.elsewhere, more.failed);
}

/// The network's map as it is: its version, and the cells of instruments that move.
struct Places {
    /// Of the map; none without control.
    version: Option<u32>,
    moving: usize,
    network: Network,
}

impl Places {
    fn of(network: &Network) -> Result<Places, Failure> {
        if !network.has_control() {
            return Ok(Places { version: None, moving: 0, network: network.clone() });
        }
        let state = Access::new(network)?.control(ANSWER_LIMIT)?.state;
        Ok(Places {
            version: Some(state.routes().map.version()),
            moving: state.pending_moves().len(),
            network: state.routes().map.extended(network).into_owned(),
        })
    }
}

/// Directs something on all instruments of all cells. Instruments that move meanwhile are directed
/// when they have arrived.
///
/// # Errors
/// If a cell has no leader that answers, or instruments go on moving for a minute.
pub fn direct_all(network: &Network, direction: Direction) -> Result<Vec<OfCell>, Failure> {
    let deadline = Deadline::after(LIMIT);
    let mut all: Vec<OfCell> = vec![];
    loop {
        let before = Places::of(network)?;
        for cell in before.network.cells() {
            let request = AdminRequest::Direct { cell, instrument: None, direction };
            let directed = directed(&before.network, cell, &request, deadline)?;
            match all.iter_mut().find(|(known, _)| *known == cell) {
                Some((_, sum)) => add(sum, &directed),
                None => all.push((cell, directed)),
            }
        }
        let after = Places::of(network)?;
        if before.moving == 0 && (before.version, after.moving) == (after.version, 0) {
            return Ok(all);
        }
        check(deadline, || "instruments move all the time".to_string())?;
        std::thread::sleep(PAUSE);
    }
}

/// Directs something on an instrument, in whichever cell it is.
///
/// # Errors
/// If its cell has no leader that answers.
pub fn direct(
    network: &Network,
    instrument: InstrumentId,
    direction: Direction,
) -> Result<OfCell, Failure> {
    let deadline = Deadline::after(LIMIT);
    let mut sum = Directed::default();
    loop {
        let mut why = String::new();
        let places = Places::of(network)?;
        for cell in places.network.cells() {
            let request = AdminRequest::Direct { cell, instrument: Some(instrument), direction };
            match ask(&places.network, cell, &request) {
                Ok(AdminResponse::Directed { directed }) => {
                    add(&mut sum, &directed);
                    if directed.elsewhere == 0 {
                        return Ok((cell, sum));
                    }
                }
                Ok(AdminResponse::Refused { reason, .. }) => why = reason,
                Ok(_) => {}
                Err(error) => why = error,
            }
        }
        check(deadline, || format!("no cell has instrument {instrument}: {why}"))?;
        std::thread::sleep(PAUSE);
    }
}

fn check(deadline: Deadline, why: impl FnOnce() -> String) -> Result<(), Failure> {
    match deadline.passed() {
        false => Ok(()),
        true => Err(Failure::new(FailureKind::Peer, why())),
    }
}

/// The answer of a cell's leader to a direction for all of its instruments.
fn directed(
    network: &Network,
    cell: u16,
    request: &AdminRequest,
    deadline: Deadline,
) -> Result<Directed, Failure> {
    match asked(network, cell, request, deadline)? {
        AdminResponse::Directed { directed } => Ok(directed),
        _ => Err(Failure::new(FailureKind::Peer, format!("cell {cell} answers something else"))),
    }
}

/// Asks the leader of a cell until it answers.
pub(crate) fn asked(
    network: &Network,
    cell: u16,
    request: &AdminRequest,
    deadline: Deadline,
) -> Result<AdminResponse, Failure> {
    loop {
        let why = match ask(network, cell, request) {
            Ok(AdminResponse::Refused { reason, .. }) => reason,
            Ok(answer) => return Ok(answer),
            Err(why) => why,
        };
        check(deadline, || format!("nobody who leads cell {cell} answers: {why}"))?;
        std::thread::sleep(PAUSE);
    }
}

/// Asks the mediators, until one answers as the leader of a cell.
fn ask(network: &Network, cell: u16, request: &AdminRequest) -> Result<AdminResponse, String> {
    let access = Access::new(network).map_err(|failure| failure.message)?;
    let mut why = "no mediator leads it".to_string();
    // Most cells are led by the mediator of the same number.
    let others = network.cells().filter(|mediator| *mediator != cell);
    for mediator in [cell].into_iter().chain(others) {
        match access.request(mediator, request, ANSWER_LIMIT) {
            Ok(AdminResponse::NotLeading) => {}
            Ok(
                answer @ (AdminResponse::Directed { .. }
                | AdminResponse::Stopped { .. }
                | AdminResponse::FirmUses { .. }
                | AdminResponse::Refused { .. }),
            ) => return Ok(answer),
            Ok(_) => why = access.named(mediator, &ClientError::Unexpected),
            Err(error) => why = access.named(mediator, &error),
        }
    }
    Err(why)
}

/// Cancels all live orders of a session or an owner, on one instrument or on all.
///
/// # Errors
/// As [`direct_all`]; or if it has sent no request on these instruments, so that the name may be
/// wrong.
pub fn cancel(
    network: &Network,
    whose: Retired,
    instrument: Option<InstrumentId>,
) -> Result<Vec<OfCell>, Failure> {
    let direction = Direction::Cancel { whose };
    let all = match instrument {
        Some(instrument) => vec![direct(network, instrument, direction)?],
        None => direct_all(network, direction)?,
    };
    if all.iter().all(|(_, directed)| directed.sessions == 0) {
        let who = match whose {
            Retired::Session { session } => format!("session {session}"),
            Retired::Owner { owner } => owner.to_string(),
        };
        let message = format!(
            "{who} has sent no request there, so nothing is cancelled: name one that trades"
        );
        return Err(Failure::new(FailureKind::BadRequest, message));
    }
    Ok(all)
}

/// What came of a stop, or of its end.
#[derive(Debug)]
pub struct Stopped {
    /// Whether it was so in all cells before.
    pub was_so: bool,
    /// What was cancelled in each cell.
    pub cells: Vec<OfCell>,
}

/// Stops an owner in all cells, and cancels all of its live orders; or lets it send orders again.
///
/// # Errors
/// If a cell has no leader that answers, or something is left after a minute.
pub fn set_stopped(network: &Network, owner: Owner, is_stopped: bool) -> Result<Stopped, Failure> {
    let deadline = Deadline::after(LIMIT);
    let network = Places::of(network)?.network;
    let known = decisions(&network, owner, deadline)?;
    let was_so = known.iter().all(|order| order.is_stopped == is_stopped);
    let version = known.iter().map(|order| order.version).max().unwrap_or(0);
    // A decision that not all cells know is made once more, with a number of its own.
    let is_known = was_so && known.iter().all(|order| order.version == version);
    if !is_known {
        let order = StopOrder { owner, version: version + 1, is_stopped };
        for cell in network.cells() {
            decide(&network, cell, order, deadline)?;
        }
    }
    let cells = match is_stopped {
        true => cancel_stopped(&network, owner, deadline)?,
        false => vec![],
    };
    Ok(Stopped { was_so, cells })
}

/// What each cell knows of an owner.
fn decisions(
    network: &Network,
    owner: Owner,
    deadline: Deadline,
) -> Result<Vec<StopOrder>, Failure> {
    let nothing = StopOrder { owner, ..StopOrder::default() };
    network.cells().map(|cell| Ok(stop(network, cell, nothing, deadline)?.0)).collect()
}

/// Has a cell take a decision.
fn decide(
    network: &Network,
    cell: u16,
    order: StopOrder,
    deadline: Deadline,
) -> Result<(), Failure> {
    loop {
        let (known, _) = stop(network, cell, order, deadline)?;
        if known.version >= order.version {
            return Ok(());
        }
        check(deadline, || format!("cell {cell} has not logged it"))?;
        std::thread::sleep(PAUSE);
    }
}

fn stop(
    network: &Network,
    cell: u16,
    order: StopOrder,
    deadline: Deadline,
) -> Result<(StopOrder, Holdings), Failure> {
    match asked(network, cell, &AdminRequest::Stop { cell, order }, deadline)? {
        AdminResponse::Stopped { order, holdings } => Ok((order, holdings)),
        _ => Err(Failure::new(FailureKind::Peer, format!("cell {cell} answers something else"))),
    }
}

/// How many live orders an owner has in all cells.
///
/// # Errors
/// If a cell has no leader that answers.
pub fn live_orders(network: &Network, owner: Owner) -> Result<u64, Failure> {
    let deadline = Deadline::after(LIMIT);
    let nothing = StopOrder { owner, ..StopOrder::default() };
    let of_cell = |cell| Ok(stop(network, cell, nothing, deadline)?.1.orders);
    network.cells().map(of_cell).sum()
}

/// Cancels the orders of a stopped owner until none is left.
fn cancel_stopped(
    network: &Network,
    owner: Owner,
    deadline: Deadline,
) -> Result<Vec<OfCell>, Failure> {
    let direction = Direction::Cancel { whose: Retired::Owner { owner } };
    let mut all: Vec<OfCell> = vec![];
    loop {
        for (cell, directed) in direct_all(network, direction)? {
            match all.iter_mut().find(|(known, _)| *known == cell) {
                Some((_, sum)) => add(sum, &directed),
                None => all.push((cell, directed)),
            }
        }
        let left = live_orders(network, owner)?;
        if left == 0 {
            return Ok(all);
        }
        check(deadline, || format!("{left} live orders are left"))?;
        std::thread::sleep(PAUSE);
    }
}
