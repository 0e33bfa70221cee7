//! What the network reports: its cells, its instruments, and the latencies between its sites.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits::{CELLS_MAX, INSTRUMENTS_MAX, LATENCIES_MAX, ORIGINS_MAX, RATE_PER_S_MAX};

/// Number of a cell, from 0. The mediator of this number is its first replica.
pub type CellId = u16;

/// Number of an instrument.
pub type InstrumentId = u32;

/// Number of a site.
pub type SiteId = u16;

/// What is known of a network at one time. Rates are averages over the time since the report
/// before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reports {
    /// All cells of the network, in any order.
    pub cells: Vec<CellReport>,
    /// All instruments that have requests, or had some, in any order.
    pub instruments: Vec<InstrumentReport>,
    /// Latencies between sites, as far as they were measured.
    #[serde(default)]
    pub latencies: Vec<SiteLatency>,
}

/// Whether a cell may own instruments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellRole {
    /// It may.
    Active,
    /// It has none, and waits to be activated.
    Spare,
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellReport {
    /// Which.
    pub cell: CellId,
    /// Where it is.
    pub site: SiteId,
    /// Whether it may own instruments.
    pub role: CellRole,
    /// Whether it has a leader that answers. Nothing is moved from or to a cell that has none.
    pub is_up: bool,
    /// Requests that arrived.
    pub requests_per_s: f64,
    /// Share of one core that it used, from 0 to 1, if known.
    pub cpu_fraction: Option<f64>,
    /// Mean of the slowest tenth of the round trips through it, in µs, if known.
    pub es10_us: Option<f64>,
}

/// One instrument.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstrumentReport {
    /// Which.
    pub instrument: InstrumentId,
    /// The cell that owns it; it is active.
    pub cell: CellId,
    /// The cell that it is on its way to, if it is being moved.
    pub moving_to: Option<CellId>,
    /// Requests for it.
    pub requests_per_s: f64,
    /// CPU time that they cost, in µs per second, if known.
    pub cpu_us_per_s: Option<f64>,
    /// Where they come from, as far as known.
    #[serde(default)]
    pub origins: Vec<OriginRate>,
}

/// Requests for an instrument from one site.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OriginRate {
    /// Which site.
    pub site: SiteId,
    /// How many.
    pub requests_per_s: f64,
}

/// The latency between two sites, which holds in both directions unless the other one is reported
/// as well.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SiteLatency {
    /// From this site.
    pub from: SiteId,
    /// To this one; if it is the same, the latency within the site, which is 0 if not reported.
    pub to: SiteId,
    /// One way, in µs.
    pub latency_us: f64,
}

/// Why reports cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ReportError {
    /// More entries than accepted.
    #[error("a report has {count} {what}, at most {max} are accepted; split the network")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many are accepted.
        max: usize,
    },
    /// A number that is negative, too large or no number.
    #[error("{what} of {of} is {value}, but must be from 0 to {max}; check what reports it")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// Of which cell, instrument or site.
        of: String,
        /// Its value.
        value: f64,
        /// The largest one accepted.
        max: f64,
    },
    /// Two entries for the same thing.
    #[error("{of} is reported twice; report it once")]
    Twice {
        /// The cell, instrument or site.
        of: String,
    },
    /// An instrument in a cell that is not reported, or on its way to one.
    #[error("instrument {instrument} names cell {cell}, which is not reported; report all cells")]
    UnknownCell {
        /// The instrument.
        instrument: InstrumentId,
        /// The cell.
        cell: CellId,
    },
    /// An instrument in a spare cell.
    #[error(
        "instrument {instrument} belongs to cell {cell}, which is reported as a spare; only \
         active cells own instruments"
    )]
    OwnedBySpare {
        /// The instrument.
        instrument: InstrumentId,
        /// The cell.
        cell: CellId,
    },
}

impl Reports {
    /// Checks them before they are used.
    ///
    /// # Errors
    /// The first thing in them that is wrong.
    pub fn check(&self) -> Result<(), ReportError> {
        let cells = self.check_cells()?;
        self.check_instruments(&cells)?;
        at_most("latencies", self.latencies.len(), LATENCIES_MAX)?;
        let mut known = BTreeSet::new();
        for SiteLatency { from, to, latency_us } in &self.latencies {
            let of = || format!("the way from site {from} to site {to}");
            once(known.insert((*from, *to)), of)?;
            in_range("latency_us", of, *latency_us, RATE_PER_S_MAX)?;
        }
        Ok(())
    }

    fn check_cells(&self) -> Result<BTreeMap<CellId, CellRole>, ReportError> {
        at_most("cells", self.cells.len(), CELLS_MAX)?;
        let mut cells = BTreeMap::new();
        for cell in &self.cells {
            let of = || format!("cell {}", cell.cell);
            once(cells.insert(cell.cell, cell.role).is_none(), of)?;
            in_range("requests_per_s", of, cell.requests_per_s, RATE_PER_S_MAX)?;
            in_range("cpu_fraction", of, cell.cpu_fraction.unwrap_or(0.0), 1.0)?;
            in_range("es10_us", of, cell.es10_us.unwrap_or(0.0), RATE_PER_S_MAX)?;
        }
        Ok(cells)
    }

    fn check_instruments(&self, cells: &BTreeMap<CellId, CellRole>) -> Result<(), ReportError> {
        at_most("instruments", self.instruments.len(), INSTRUMENTS_MAX)?;
        let mut known = BTreeSet::new();
        for report in &self.instruments {
            let (instrument, cell) = (report.instrument, report.cell);
            let of = || format!("instrument {instrument}");
            once(known.insert(instrument), of)?;
            in_range("requests_per_s", of, report.requests_per_s, RATE_PER_S_MAX)?;
            in_range("cpu_us_per_s", of, report.cpu_us_per_s.unwrap_or(0.0), RATE_PER_S_MAX)?;
            at_most("origins of an instrument", report.origins.len(), ORIGINS_MAX)?;
            for (index, origin) in report.origins.iter().enumerate() {
                let of = || format!("instrument {instrument} from site {}", origin.site);
                let is_first = report.origins[..index].iter().all(|o| o.site != origin.site);
                once(is_first, of)?;
                in_range("requests_per_s", of, origin.requests_per_s, RATE_PER_S_MAX)?;
            }
            match cells.get(&cell) {
                None => return Err(ReportError::UnknownCell { instrument, cell }),
                Some(CellRole::Spare) => {
                    return Err(ReportError::OwnedBySpare { instrument, cell });
                }
                Some(CellRole::Active) => {}
            }
            if let Some(cell) = report.moving_to.filter(|cell| !cells.contains_key(cell)) {
                return Err(ReportError::UnknownCell { instrument, cell });
            }
        }
        Ok(())
    }
}

fn at_most(what: &'static str, count: usize, max: usize) -> Result<(), ReportError> {
    if count > max { Err(ReportError::TooMany { what, count, max }) } else { Ok(()) }
}

fn once(is_first: bool, of: impl Fn() -> String) -> Result<(), ReportError> {
    if is_first { Ok(()) } else { Err(ReportError::Twice { of: of() }) }
}

fn in_range(
    what: &'static str,
    of: impl Fn() -> String,
    value: f64,
    max: f64,
) -> Result<(), ReportError> {
    if (0.0..=max).contains(&value) {
        Ok(())
    } else {
        Err(ReportError::OutOfRange { what, of: of(), value, max })
    }
}
