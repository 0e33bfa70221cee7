//! `nearmetal exchange halt`, `auction` and the like: what an operator directs while others trade.

use anyhow::Result;
use nm_exchange::control::Retired;
use nm_exchange::firms::Firm;
use nm_exchange::master::Master;
use nm_exchange::network::{Network, NodeId};
use nm_operate::directions::{self, Directed, Direction, InstrumentId, OfCell};
use nm_operate::scheduler::together;
use nm_operate::{drain, instruments};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::directions::{
    AuctionArgs, DirectionArgs, FirmArgs, MassCancelArgs, ResumeArgs, ResumeTarget,
};
use crate::cli::exchange::AccessArgs;
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// The direction by which halted instruments go on.
const RESUME: &str = "resume";

/// What a direction did.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DirectedDocument {
    /// What was directed, such as `halt`.
    direction: String,
    /// Whether a firm was stopped, or not stopped, before already; absent of other directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    was_so: Option<bool>,
    /// In each cell that was asked.
    cells: Vec<DirectedInCell>,
    /// Orders that were cancelled, in all cells.
    orders: u64,
}

/// What it did in a cell.
#[derive(Debug, Serialize, JsonSchema)]
struct DirectedInCell {
    cell: u16,
    /// Instruments that it was for.
    instruments: u64,
    /// Those on which something was done; the others were so before.
    changed: u64,
    /// Those that do not allow it in their phase.
    unfit: u64,
    /// Those on which it was not done, because the cell is full or others were faster.
    failed: u64,
    /// Orders that were cancelled.
    orders: u64,
}

impl Document for DirectedDocument {
    const NAME: &'static str = "exchange-directed";
}

/// What goes on again.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ResumedDocument {
    /// A node.
    Node {
        /// Which.
        #[serde(flatten)]
        node: NodeId,
        /// Whether it was drained.
        was_drained: bool,
    },
    /// Instruments.
    Instruments(DirectedDocument),
}

impl Document for ResumedDocument {
    const NAME: &'static str = "exchange-resumed";
}

/// The instruments of these symbols; those of a network without a master are named by number.
fn numbers(network: &Network, symbols: &[String]) -> Result<Vec<InstrumentId>> {
    let master = instruments::master(network).ok();
    symbols.iter().map(|symbol| number(master.as_ref(), symbol)).collect()
}

fn number(master: Option<&Master>, symbol: &str) -> Result<InstrumentId> {
    match master {
        Some(master) => {
            let listed = master.named(symbol).map_err(|error| Stop::usage(error.to_string()));
            Ok(listed?.instrument)
        }
        None => symbol.parse().map_err(|_| {
            Stop::usage(format!(
                "the network has no instrument master, so no symbol {symbol}: name an instrument \
                 by its number, such as 7"
            ))
        }),
    }
}

/// Directs something on the instruments of these symbols, or on all.
fn direct(
    name: &str,
    (symbols, access): (&[String], &AccessArgs),
    direction: Direction,
) -> Result<Exit> {
    let network = status::current(access)?;
    let cells = match symbols {
        [] => directions::direct_all(&network, direction)?,
        symbols => {
            let mut cells: Vec<OfCell> = vec![];
            for instrument in numbers(&network, symbols)? {
                let (cell, one) = directions::direct(&network, instrument, direction)?;
                match cells.iter_mut().find(|(known, _)| *known == cell) {
                    Some((_, sum)) => *sum = together(*sum, one),
                    None => cells.push((cell, one)),
                }
            }
            cells
        }
    };
    show(name, access, None, &cells)?;
    let sum = sum(&cells);
    if sum.failed > 0 {
        let what = "was not done: a cell is full, or other operators were faster each time";
        return Err(Stop::with(Exit::Conflict, format!("{} {what}", on(sum.failed))));
    }
    if sum.unfit > 0 && !symbols.is_empty() {
        let why = "is halted, and allows that when trading goes on: `nearmetal exchange resume`";
        return Err(Stop::with(Exit::Conflict, format!("{} {why}", on(sum.unfit))));
    }
    Ok(Exit::Pass)
}

/// So many instruments in words.
fn on(instruments: u64) -> String {
    match instruments {
        1 => "1 instrument".to_string(),
        count => format!("each of {count} instruments"),
    }
}

fn sum(cells: &[OfCell]) -> Directed {
    cells.iter().fold(Directed::default(), |sum, (_, one)| together(sum, *one))
}

/// Shows what was done.
pub fn show(name: &str, access: &AccessArgs, was_so: Option<bool>, cells: &[OfCell]) -> Result<()> {
    let all = sum(cells);
    let orders = all.orders;
    if access.format.format == Format::Json {
        let of_cell = |(cell, it): &OfCell| DirectedInCell {
            cell: *cell,
            instruments: it.instruments,
            changed: it.changed,
            unfit: it.unfit,
            failed: it.failed,
            orders: it.orders,
        };
        let document = DirectedDocument {
            direction: name.to_string(),
            was_so,
            cells: cells.iter().map(of_cell).collect(),
            orders,
        };
        return match name {
            RESUME => output::json(&ResumedDocument::Instruments(document)),
            _ => output::json(&document),
        };
    }
    let what = match was_so {
        Some(true) => "it was so before",
        _ if all.unfit + all.failed > 0 => "not done on all",
        _ => "done",
    };
    let of_orders = |count: u64| match count {
        1 => "1 order cancelled".to_string(),
        count => format!("{count} orders cancelled"),
    };
    let mut text = format!("{name}: {what}, {}\n", of_orders(orders));
    for (cell, Directed { instruments, changed, unfit, orders, .. }) in cells {
        text.push_str(&format!(
            "  cell {cell}: {changed} of {instruments} instruments changed, {}",
            of_orders(*orders)
        ));
        if *unfit > 0 {
            text.push_str(&format!(", {unfit} are halted and do not allow it"));
        }
        text.push('\n');
    }
    output::text(&text)
}

/// Halts trading.
pub fn halt(args: &DirectionArgs) -> Result<Exit> {
    direct("halt", (&args.which.symbols, &args.access), Direction::Halt)
}

/// Lets a drained node work again, or trading go on.
pub fn resume(args: &ResumeArgs) -> Result<Exit> {
    let mut symbols = vec![];
    for target in &args.targets {
        match target {
            ResumeTarget::Symbol(symbol) => symbols.push(symbol.clone()),
            ResumeTarget::Node(node) if args.targets.len() == 1 => {
                return resume_node(*node, &args.access);
            }
            ResumeTarget::Node(node) => {
                return Err(Stop::usage(format!("resume {node} by a command of its own")));
            }
        }
    }
    direct(RESUME, (&symbols, &args.access), Direction::Resume)
}

/// Lets a drained node work again.
fn resume_node(node: NodeId, access: &AccessArgs) -> Result<Exit> {
    let was_drained = drain::resume(&status::current(access)?, node)?;
    match access.format.format {
        Format::Json => output::json(&ResumedDocument::Node { node, was_drained })?,
        Format::Text => {
            let word = if was_drained { "works again" } else { "was not drained" };
            output::text(&format!("{node} {word}\n"))?;
        }
    }
    Ok(Exit::Pass)
}

/// Begins an auction, or ends it.
pub fn auction(args: &AuctionArgs) -> Result<Exit> {
    let (name, direction) = match (args.end, args.closing) {
        (true, _) => ("auction --end", Direction::Uncross),
        (false, true) => ("auction --closing", Direction::ClosingAuction),
        (false, false) => ("auction", Direction::Auction),
    };
    direct(name, (&args.which.symbols, &args.access), direction)
}

/// Cancels the day orders.
pub fn end_of_day(args: &DirectionArgs) -> Result<Exit> {
    direct("end-of-day", (&args.which.symbols, &args.access), Direction::EndOfDay)
}

/// The firm of this name.
pub fn firm<'a>(network: &'a Network, name: &str) -> Result<&'a Firm> {
    let firms = network.firms.as_ref().map_or(&[][..], |firms| firms.all());
    let found = firms.iter().find(|firm| firm.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = firms.iter().map(|firm| firm.name.as_str()).collect();
        let known = if names.is_empty() { "no firms".to_string() } else { names.join(", ") };
        Stop::usage(format!("there is no firm {name}: the network has {known}"))
    })
}

/// Stops a firm, and cancels all of its orders.
pub fn kill_firm(args: &FirmArgs) -> Result<Exit> {
    set_stopped("kill-firm", args, true)
}

/// Lets a firm send orders again.
pub fn restore_firm(args: &FirmArgs) -> Result<Exit> {
    set_stopped("restore-firm", args, false)
}

fn set_stopped(name: &str, args: &FirmArgs, is_stopped: bool) -> Result<Exit> {
    let network = status::current(&args.access)?;
    let owner = firm(&network, &args.name)?.owner();
    let stopped = directions::set_stopped(&network, owner, is_stopped)?;
    let name = format!("{name} {}", args.name);
    show(&name, &args.access, Some(stopped.was_so), &stopped.cells)?;
    Ok(Exit::Pass)
}

/// Cancels all orders of a session or a firm.
pub fn mass_cancel(args: &MassCancelArgs) -> Result<Exit> {
    let network = status::current(&args.access)?;
    let whose = match (args.session, &args.firm) {
        (Some(session), _) => {
            if let Some(firms) = network.firms.as_ref().filter(|firms| !firms.admits(session)) {
                let of = |firm: &Firm| format!("{} has {}", firm.name, firm.sessions.join(", "));
                let known: Vec<String> = firms.all().iter().map(of).collect();
                let known = known.join("; ");
                return Err(Stop::usage(format!(
                    "session {session} belongs to no firm of the network: {known}"
                )));
            }
            Retired::Session { session }
        }
        (None, name) => {
            let owner = firm(&network, name.as_deref().unwrap_or_default())?.owner();
            Retired::Owner { owner }
        }
    };
    let instrument = match &args.symbol {
        Some(symbol) => numbers(&network, std::slice::from_ref(symbol))?.first().copied(),
        None => None,
    };
    let cells = directions::cancel(&network, whose, instrument)?;
    show("mass-cancel", &args.access, None, &cells)?;
    Ok(Exit::Pass)
}
