//! The types that all other crates share: plan, campaign, facts, samples, result, doubt, verdict.
//!
//! This crate holds types and their text forms. It does no I/O, reads no clock and prints nothing.
//! Times are nanoseconds unless a field's name ends in another unit; rates end in `_per_s`, sizes
//! in `_bytes`.

#![forbid(unsafe_code)]

pub mod agent;
pub mod baseline;
pub mod campaign;
pub mod capability;
pub mod certificate;
pub mod class;
pub mod comparison;
pub mod compute;
pub mod coverage;
pub mod doubt;
pub mod environment;
pub mod exchange;
pub mod explanation;
pub mod factor;
pub mod factor_check;
pub mod facts;
pub mod finding;
pub mod firmware;
pub mod gate;
pub mod guest;
pub mod guest_execution;
pub mod hosts;
pub mod jitter;
pub mod lab_plan;
pub mod launcher;
pub mod limits;
pub mod link_transport;
pub mod machine;
pub mod metric;
pub mod mode;
mod named_enum;
pub mod pci_address;
pub mod percentile;
pub mod plan;
mod plan_check;
pub mod plan_file;
pub mod probe;
pub mod protocol;
pub mod result;
pub mod row;
pub mod row_filter;
pub mod selector;
pub mod setting;
pub mod snapshot;
pub mod stack;
pub mod statistic;
pub mod target;
pub mod toml_error;
pub mod trend;
pub mod undecided;
pub mod v1;
mod value_type;
pub mod verdict;
pub mod watch;
pub mod words;

pub use agent::{Answer, Failure, FailureKind, Request};
pub use baseline::Baseline;
pub use campaign::{Campaign, NotAvailable, Trial};
pub use capability::Obstacle;
pub use class::StackClass;
pub use compute::{ComputeSpec, Layout, Workload};
pub use coverage::{NotJudged, NotJudgedReason, PlanItem, PlanPart};
pub use doubt::{Doubt, DoubtKind};
pub use exchange::ExchangeSpec;
pub use factor::{Factor, FactorKind};
pub use factor_check::{FactorCheck, FactorEvidence};
pub use facts::Facts;
pub use finding::{Audit, Finding, FindingStatus, Severity};
pub use gate::Gate;
pub use guest::{GuestId, GuestRecord, GuestSpec};
pub use guest_execution::GuestExecution;
pub use hosts::HostsSpec;
pub use jitter::JitterSpec;
pub use limits::SpecError;
pub use machine::{MachineLimits, MachineUse};
pub use metric::Metric;
pub use plan::{Plan, PlanError};
pub use plan_file::PublishedRun;
pub use probe::{Case, Pattern, ProbeKind, ProbeSpec, Side};
pub use result::{FactorEffect, FactorResult, RunResult, Series, SeriesKey, TrialFailure};
pub use row::{EndpointId, RowId};
pub use row_filter::RowFilter;
pub use selector::Selector;
pub use setting::{Setting, SettingKind, SettingValue, Settings};
pub use snapshot::Snapshot;
pub use stack::{Launcher, Mode, Protocol, Stack, StackPair};
pub use target::Target;
pub use undecided::Undecided;
pub use verdict::{Outcome, Verdict};
