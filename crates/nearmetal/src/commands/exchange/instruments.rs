//! `nearmetal exchange instruments`: what may be traded on a running network.

use anyhow::Result;
use nm_exchange::master::{InstrumentText, Listing, Master};
use nm_operate::instruments;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::exchange::{
    AddInstrumentsArgs, InstrumentsArgs, InstrumentsCommand, RemoveInstrumentArgs,
};
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// Instruments: all that are listed, or those that a command has changed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct InstrumentsDocument {
    instruments: Vec<InstrumentOf>,
}

/// An instrument. Prices and quantities are decimal numbers.
#[derive(Debug, Serialize, JsonSchema)]
struct InstrumentOf {
    number: u32,
    symbol: String,
    tick: String,
    lot: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<String>,
    /// Lowest limit price of an order; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    low: Option<String>,
    /// Highest limit price of an order; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    high: Option<String>,
    /// Largest quantity of an order; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    most: Option<String>,
}

impl InstrumentOf {
    fn of(listing: &Listing) -> InstrumentOf {
        let InstrumentText { number, symbol, tick, lot, currency, low, high, most } =
            InstrumentText::of(listing);
        InstrumentOf { number, symbol, tick, lot, currency, low, high, most }
    }
}

impl Document for InstrumentsDocument {
    const NAME: &'static str = "exchange-instruments";
}

/// Runs one of the commands.
pub fn run(command: &InstrumentsCommand) -> Result<Exit> {
    match command {
        InstrumentsCommand::List(args) => list(args),
        InstrumentsCommand::Add(args) => add(args),
        InstrumentsCommand::Remove(args) => remove(args),
    }
}

fn list(InstrumentsArgs { access }: &InstrumentsArgs) -> Result<Exit> {
    let master = instruments::master(&status::current(access)?)?;
    show(access.format.format, master.listings(), "")
}

fn add(AddInstrumentsArgs { file, access }: &AddInstrumentsArgs) -> Result<Exit> {
    let new = Master::read(file).map_err(|error| Stop::usage(error.to_string()))?;
    let network = status::current(access)?;
    let changed = instruments::list(&network, new.listings())?;
    if changed.is_empty() && access.format.format == Format::Text {
        output::text("all of them were listed like this before\n")?;
        return Ok(Exit::Pass);
    }
    show(access.format.format, changed.into_iter(), "listed: ")
}

fn remove(RemoveInstrumentArgs { symbol, access }: &RemoveInstrumentArgs) -> Result<Exit> {
    let listing = instruments::delist(&status::current(access)?, symbol)?;
    show(access.format.format, std::iter::once(&listing), "no more listed: ")
}

fn show<'a>(
    format: Format,
    listings: impl Iterator<Item = &'a Listing>,
    prefix: &str,
) -> Result<Exit> {
    let instruments: Vec<InstrumentOf> = listings.map(InstrumentOf::of).collect();
    match format {
        Format::Json => output::json(&InstrumentsDocument { instruments })?,
        Format::Text => {
            for one in &instruments {
                output::text(&format!("{prefix}{}\n", line(one)))?;
            }
        }
    }
    Ok(Exit::Pass)
}

/// One instrument in a line.
fn line(one: &InstrumentOf) -> String {
    let InstrumentOf { number, symbol, tick, lot, currency, low, high, most } = one;
    let mut line = format!("{symbol:<8} instrument {number}  tick {tick}  lot {lot}");
    if let Some(currency) = currency {
        line += &format!("  {currency}");
    }
    for (name, value) in [("low", low), ("high", high), ("most", most)] {
        if let Some(value) = value {
            line += &format!("  {name} {value}");
        }
    }
    line
}
