//! A scripted day of load, on one network, judged second by second. It has phases with rates,
//! bursts, hot instruments, flows that move between gateways, auctions and faults.
//!
//! A `script` becomes a profile of the load generator. `run` drives it, kills the nodes that the
//! script names, and calls an `operator`, who may change the network meanwhile. Each `second` of
//! the schedule is judged by itself as soon as its requests are answered (`collect`). What happened
//! (`event`) is judged by the seconds around it (`judge`).

mod collect;
mod event;
mod judge;
mod operator;
mod phase_totals;
mod policy_operator;
pub mod result;
mod rolling_restart;
mod run;
mod script;
mod script_events;
mod script_file;
mod second;
pub mod seconds_file;

pub use event::{DayEvent, EventKind};
pub use operator::{NoOperator, Operator, OperatorView};
pub use policy_operator::PolicyOperator;
pub use result::DayResult;
pub use rolling_restart::RollingRestart;
pub use run::{DaySetup, run};
pub use script::{DAY_SECONDS_MAX, Phase, Script};
pub use script_file::ScriptError;
