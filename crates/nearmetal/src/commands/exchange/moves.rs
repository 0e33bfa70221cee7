//! `nearmetal exchange move`, `assign`, `grow`, `shrink`, `drain`, `resume` and `replace`: moves
//! instruments of a running network to other cells, and leadership, clients and replicas to other
//! nodes.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use nm_exchange::network::NodeId;
use nm_operate::admin::{self, MoveOutcome};
use nm_operate::drain;
use nm_operate::replace::{self, Replaced};
use nm_operate::resize::{self, Resized};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::exchange::{
    AccessArgs, AssignArgs, ChosenNodeArgs, MoveArgs, ReplaceArgs, ResizeArgs,
};
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// How long the moves of one command may take.
const MOVE_LIMIT: Duration = Duration::from_secs(60);

/// Moves to a cell, or from one.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MovesDocument {
    cell: u16,
    moves: Vec<MoveOutcome>,
}

impl Document for MovesDocument {
    const NAME: &'static str = "exchange-moves";
}

/// A node that carries nothing any more.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DrainedDocument {
    #[serde(flatten)]
    node: NodeId,
    /// Groups that another node leads now.
    groups: Vec<String>,
    moves: Vec<MoveOutcome>,
    /// Sessions that are at other gateways now.
    sessions: Option<u32>,
}

impl Document for DrainedDocument {
    const NAME: &'static str = "exchange-drained";
}

/// A replica that was replaced.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReplacedDocument {
    cell: u16,
    /// Nodes that have the cell's replicas now.
    voters: Vec<String>,
    took_ms: f64,
}

impl Document for ReplacedDocument {
    const NAME: &'static str = "exchange-replaced";
}

/// An instrument that was moved.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AssignedDocument {
    instrument: u32,
    cell: u16,
    map_version: Option<u32>,
}

impl Document for AssignedDocument {
    const NAME: &'static str = "exchange-assigned";
}

/// Moves instruments to a cell.
pub fn run(args: &MoveArgs) -> Result<Exit> {
    let MoveArgs { instruments, to, access } = args;
    let outcomes = move_all(instruments, *to, access)?;
    match access.format.format {
        Format::Json => output::json(&MovesDocument { cell: *to, moves: outcomes.clone() })?,
        Format::Text => output::data(&text(&outcomes, *to))?,
    }
    let refused = outcomes.iter().any(|outcome| outcome.refused.is_some());
    Ok(if refused { Exit::Conflict } else { Exit::Pass })
}

/// Gives a spare cell its share of the load.
pub fn grow(args: &ResizeArgs) -> Result<Exit> {
    let network = status::current(&args.access)?;
    show(&resize::grow(&network, args.cell)?, "filled", args.access.format.format)
}

/// Takes all instruments from a cell.
pub fn shrink(args: &ResizeArgs) -> Result<Exit> {
    let network = status::current(&args.access)?;
    show(&resize::shrink(&network, args.cell)?, "emptied", args.access.format.format)
}

fn show(resized: &Resized, verb: &str, format: Format) -> Result<Exit> {
    let Resized { cell, moves } = resized;
    let refused = moves.iter().filter(|outcome| outcome.refused.is_some()).count();
    match format {
        Format::Json => output::json(&MovesDocument { cell: *cell, moves: moves.clone() })?,
        Format::Text => {
            let moved = moves.len() - refused;
            let line =
                format!("cell {cell} is {verb}: {moved} instruments moved, {refused} refused\n");
            output::data(&line)?;
        }
    }
    Ok(if refused > 0 { Exit::Conflict } else { Exit::Pass })
}

/// Makes a mediator or gateway carry nothing.
pub fn drain(args: &ChosenNodeArgs) -> Result<Exit> {
    let network = status::current(&args.access)?;
    let node = args.node;
    let drained = drain::drain(&network, node)?;
    let refused = drained.refused();
    match args.access.format.format {
        Format::Json => output::json(&DrainedDocument {
            node,
            groups: drained.groups.clone(),
            moves: drained.moves.clone(),
            sessions: drained.sessions,
        })?,
        Format::Text => {
            let verb = if refused == 0 { "can" } else { "must not" };
            output::data(&format!("{node} {verb} be stopped: {drained}\n"))?;
        }
    }
    Ok(if refused > 0 { Exit::Conflict } else { Exit::Pass })
}

/// Replaces a replica of a cell by one of another node.
pub fn replace(args: &ReplaceArgs) -> Result<Exit> {
    let network = status::current(&args.access)?;
    let ReplaceArgs { cell, from, to, .. } = *args;
    let Replaced { voters, took_ms } = replace::replace(&network, cell, from, to)?;
    match args.access.format.format {
        Format::Json => output::json(&ReplacedDocument { cell, voters, took_ms })?,
        Format::Text => output::data(&format!(
            "{to} has replaced {from} in cell {cell} after {:.1} s; its replicas are at {}\n",
            took_ms / 1e3,
            voters.join(", ")
        ))?,
    }
    Ok(Exit::Pass)
}

/// Moves one instrument.
pub fn assign(args: &AssignArgs) -> Result<Exit> {
    let AssignArgs { instrument, cell, access } = args;
    let outcomes = move_all(&[*instrument], *cell, access)?;
    for MoveOutcome { map_version, refused, .. } in &outcomes {
        if let Some(reason) = refused {
            return Err(Stop::with(Exit::Conflict, reason.clone()));
        }
        match access.format.format {
            Format::Json => output::json(&AssignedDocument {
                instrument: *instrument,
                cell: *cell,
                map_version: *map_version,
            })?,
            Format::Text => output::data(&text(&outcomes, *cell))?,
        }
    }
    Ok(Exit::Pass)
}

fn move_all(instruments: &[u32], cell: u16, access: &AccessArgs) -> Result<Vec<MoveOutcome>> {
    let network = status::current(access)?;
    let mut unique = instruments.to_vec();
    unique.sort_unstable();
    unique.dedup();
    let mut outcomes = admin::move_instruments(&network, &unique, cell, MOVE_LIMIT)?;
    // They end in any order.
    outcomes.sort_by_key(|outcome| outcome.instrument);
    Ok(outcomes)
}

fn text(outcomes: &[MoveOutcome], cell: u16) -> String {
    let mut text = String::new();
    for MoveOutcome { instrument, map_version, refused, took_ms } in outcomes {
        let _ = match (map_version, refused) {
            (Some(version), _) => writeln!(
                text,
                "instrument {instrument} is in cell {cell}, map version {version}, after \
                 {took_ms:.1} ms"
            ),
            (None, reason) => writeln!(
                text,
                "instrument {instrument} stays: {}",
                reason.as_deref().unwrap_or("refused")
            ),
        };
    }
    text
}
