//! What the reports say of each probe beyond the tables and charts that all have. `of` is the
//! registration: one row for each probe, and a folder of the same name for its tables, charts and
//! sentences.

pub(crate) mod case_words;
pub(crate) mod compute;
pub mod exchange;
pub mod jitter;
pub mod pingpong;
pub(crate) mod rr;
pub(crate) mod section;
pub(crate) mod stream;

use maud::Markup;
use nm_model::RunResult;
use nm_model::probe::ProbeKind;
use nm_model::result::{Series, Statistic};

use section::Section;

/// What the reports say of one probe.
pub(crate) struct ProbeReport {
    /// Whether a picture of all probes names it; the usual one goes without.
    pub is_named: bool,
    /// Its round trips over something that carries messages, the one that names a stack first.
    pub round_trips: &'static [Statistic],
    /// What tells two of its statistics apart in the label of a line.
    pub origin: fn(Statistic) -> &'static str,
    /// Whether a published series belongs beside one that was measured.
    pub is_beside: fn(&Series, &Series) -> bool,
    /// Its own section of a report; none without figures of it.
    pub section: fn(&RunResult) -> Option<Section>,
    /// That section as a page shows it.
    pub page: fn(&RunResult) -> Option<Markup>,
}

/// A probe that needs nothing of its own.
const PLAIN: ProbeReport = ProbeReport {
    is_named: true,
    round_trips: &[],
    origin: |_| "",
    is_beside: |_, _| true,
    section: |_| None,
    page: |_| None,
};

/// The report of each probe.
pub(crate) fn of(kind: ProbeKind) -> &'static ProbeReport {
    match kind {
        ProbeKind::Pingpong => {
            &ProbeReport { is_named: false, round_trips: pingpong::ROUND_TRIPS, ..PLAIN }
        }
        ProbeKind::Stream => &PLAIN,
        ProbeKind::Rr => &ProbeReport { round_trips: rr::ROUND_TRIPS, origin: rr::origin, ..PLAIN },
        ProbeKind::Compute => {
            &ProbeReport { section: compute::section, page: compute::page::section, ..PLAIN }
        }
        ProbeKind::Jitter => {
            &ProbeReport { section: jitter::section, page: jitter::page::section, ..PLAIN }
        }
        ProbeKind::Exchange => &ProbeReport {
            round_trips: exchange::ROUND_TRIPS,
            is_beside: exchange::is_beside,
            section: exchange::section,
            page: exchange::page::section,
            ..PLAIN
        },
    }
}

/// The sections of all probes with what a page shows of each.
pub(crate) fn pages(result: &RunResult) -> Vec<(Section, Markup)> {
    let page = |kind: &ProbeKind| Some(((of(*kind).section)(result)?, (of(*kind).page)(result)?));
    ProbeKind::ALL.iter().filter_map(page).collect()
}

/// The sections of all probes.
pub(crate) fn sections(result: &RunResult) -> Vec<Section> {
    ProbeKind::ALL.iter().filter_map(|kind| (of(*kind).section)(result)).collect()
}
