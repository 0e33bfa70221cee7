//! `nearmetal exchange firms`: who may trade on a running network, and how much.

use anyhow::Result;
use nm_exchange::firms::{Firm, FirmLimits, FirmUse};
use nm_operate::firms;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::access::AccessArgs;
use crate::cli::firms::{FirmsArgs, FirmsCommand, LimitArg, RemoveFirmArgs, SetFirmArgs};
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// Firms: all of them, or the one that a command has changed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FirmsDocument {
    /// Whether the command changed anything; absent of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    changed: Option<bool>,
    /// Live orders that were cancelled with a firm that was removed; absent of others.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled: Option<u64>,
    firms: Vec<FirmOf>,
}

/// A firm.
#[derive(Debug, Serialize, JsonSchema)]
struct FirmOf {
    number: u32,
    name: String,
    /// Numbers and ranges.
    sessions: Vec<String>,
    limits: LimitsOf,
    /// What it has in each cell; empty without limits, or if it was removed.
    cells: Vec<UseOf>,
}

/// What a firm may have at most; absent if there is no limit.
#[derive(Debug, Serialize, JsonSchema)]
struct LimitsOf {
    /// Largest quantity of an order, lots.
    #[serde(skip_serializing_if = "Option::is_none")]
    order_quantity: Option<u64>,
    /// Largest value of an order, ticks times lots.
    #[serde(skip_serializing_if = "Option::is_none")]
    order_value: Option<u64>,
    /// Most live orders in a cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    orders: Option<u64>,
    /// Largest value of all live orders in a cell, ticks times lots.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
    /// Largest position on an instrument, long or short, with what live orders add, lots.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
}

/// What a firm has in a cell.
#[derive(Debug, Serialize, JsonSchema)]
struct UseOf {
    cell: u16,
    /// Live orders.
    orders: u64,
    /// Their value, ticks times lots.
    value: u64,
    /// The largest position on one instrument, with what live orders add, lots.
    position: u64,
    /// The instrument of that position; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    instrument: Option<u32>,
    /// Whether that position is short.
    is_short: bool,
}

impl Document for FirmsDocument {
    const NAME: &'static str = "exchange-firms";
}

impl FirmOf {
    fn of(firm: &Firm, uses: &[(u16, Vec<FirmUse>)]) -> FirmOf {
        let FirmLimits { order_quantity, order_value, orders, value, position } = firm.limits;
        let of_cell = |(cell, all): &(u16, Vec<FirmUse>)| {
            let found = all.iter().find(|it| it.number == firm.number)?;
            Some(UseOf {
                cell: *cell,
                orders: found.orders,
                value: found.value,
                position: found.position,
                instrument: (found.position > 0).then_some(found.instrument),
                is_short: found.is_short,
            })
        };
        FirmOf {
            number: firm.number,
            name: firm.name.clone(),
            sessions: firm.sessions.clone(),
            limits: LimitsOf { order_quantity, order_value, orders, value, position },
            cells: uses.iter().filter_map(of_cell).collect(),
        }
    }

    /// Some lines.
    fn text(&self) -> String {
        let FirmOf { number, name, sessions, limits, cells } = self;
        let mut text = format!("{name}  firm {number}  sessions {}\n", sessions.join(", "));
        let all = [
            ("order quantity", limits.order_quantity),
            ("order value", limits.order_value),
            ("orders", limits.orders),
            ("value", limits.value),
            ("position", limits.position),
        ];
        let named = all.iter().filter_map(|(name, limit)| Some(format!("{name} {}", (*limit)?)));
        let named: Vec<String> = named.collect();
        match named.is_empty() {
            true => text.push_str("  no limits\n"),
            false => text.push_str(&format!("  at most in each cell: {}\n", named.join(", "))),
        }
        for UseOf { cell, orders, value, position, instrument, is_short } in cells {
            text.push_str(&format!("  cell {cell}: orders {orders}, value {value}"));
            if let Some(instrument) = instrument {
                let side = if *is_short { "short" } else { "long" };
                text.push_str(&format!(", position {position} {side} on instrument {instrument}"));
            }
            text.push('\n');
        }
        text
    }
}

/// Runs one of the commands.
pub fn run(command: &FirmsCommand) -> Result<Exit> {
    match command {
        FirmsCommand::List(args) => list(args),
        FirmsCommand::Set(args) => set(args),
        FirmsCommand::Remove(args) => remove(args),
    }
}

fn list(FirmsArgs { access }: &FirmsArgs) -> Result<Exit> {
    let network = status::current(access)?;
    let all = firms::firms(&network)?;
    let uses = firms::uses(&network, all.version())?;
    let firms = all.all().iter().map(|firm| FirmOf::of(firm, &uses)).collect();
    show(access, "", FirmsDocument { changed: None, cancelled: None, firms })
}

fn set(args: &SetFirmArgs) -> Result<Exit> {
    let network = status::current(&args.access)?;
    let all = firms::firms(&network)?;
    let known = all.all().iter().find(|firm| firm.number == args.number);
    if known.is_none() && (args.name.is_none() || args.sessions.is_empty()) {
        let number = args.number;
        return Err(Stop::usage(format!(
            "there is no firm {number}: give --name and --sessions to add it"
        )));
    }
    let mut firm = known.cloned().unwrap_or_default();
    firm.number = args.number;
    if let Some(name) = &args.name {
        firm.name.clone_from(name);
    }
    if !args.sessions.is_empty() {
        firm.sessions.clone_from(&args.sessions);
    }
    let change = |limit: &mut Option<u64>, to: Option<LimitArg>| {
        if let Some(LimitArg(to)) = to {
            *limit = to;
        }
    };
    let limits = &mut firm.limits;
    change(&mut limits.order_quantity, args.order_quantity);
    change(&mut limits.order_value, args.order_value);
    change(&mut limits.orders, args.orders);
    change(&mut limits.value, args.value);
    change(&mut limits.position, args.position);
    let is_new = firms::set(&network, &firm)?;
    let all = firms::firms(&network)?;
    let uses = firms::uses(&network, all.version())?;
    let firms = vec![FirmOf::of(&firm, &uses)];
    let prefix = if is_new { "set: " } else { "it was so before: " };
    show(&args.access, prefix, FirmsDocument { changed: Some(is_new), cancelled: None, firms })
}

fn remove(args: &RemoveFirmArgs) -> Result<Exit> {
    let network = status::current(&args.access)?;
    let removed = firms::remove(&network, &args.name, args.cancel)?;
    let prefix = format!("removed, {} live orders cancelled: ", removed.orders);
    let document = FirmsDocument {
        changed: Some(true),
        cancelled: Some(removed.orders),
        firms: vec![FirmOf::of(&removed.firm, &[])],
    };
    show(&args.access, &prefix, document)
}

fn show(access: &AccessArgs, prefix: &str, document: FirmsDocument) -> Result<Exit> {
    match access.format.format {
        Format::Json => output::json(&document)?,
        Format::Text => {
            for firm in &document.firms {
                output::text(&format!("{prefix}{}", firm.text()))?;
            }
        }
    }
    Ok(Exit::Pass)
}
