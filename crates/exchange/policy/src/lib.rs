//! The exchange's policies: how many cells are active, and which cell each instrument belongs to.
//!
//! [`Policies::step`] takes what the network [reports](Reports) and returns [decisions](Decision),
//! each with its reason. It does no I/O and reads no clock: time is what the caller passes. Whether
//! a decision is executed is the caller's choice, so a dry run is a caller that does not.
//!
//! Three policies run one after the other on one view of the network. The view has every move that
//! is under way as if it had arrived:
//!
//! 1. the resizer activates spare cells, and empties active ones and retires them,
//! 2. the placement moves instruments to the site that sends most requests for them,
//! 3. the balancer moves instruments from loaded cells to others.
//!
//! Their rules are those of Monterey v3, the middleware of the published study, as far as they are
//! public. The policies of Apache Brooklyn name it as their origin.
#![forbid(unsafe_code)]

mod balancer;
mod decision;
mod emptying;
mod latency;
mod limits;
mod load;
mod orders;
mod placement;
mod policies;
mod repack;
mod reports;
mod resizer;
mod settings;
mod view;

pub use decision::{Action, Decision, DecisionReason};
pub use limits::{
    CELL_INSTRUMENTS_MAX, CELLS_MAX, INSTRUMENTS_MAX, LATENCIES_MAX, ORIGINS_MAX, RATE_PER_S_MAX,
};
pub use policies::Policies;
pub use reports::{
    CellId, CellReport, CellRole, InstrumentId, InstrumentReport, OriginRate, ReportError, Reports,
    SiteId, SiteLatency,
};
pub use settings::{
    BalancerSettings, MoveSettings, PlacementSettings, ResizerSettings, Settings, SettingsError,
};
