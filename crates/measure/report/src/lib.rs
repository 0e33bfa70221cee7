//! Reports of a result in several formats, and other tools' output imported as a result.
//!
//! Every format is a pure function of a [`nm_model::RunResult`]: the same result gives the same
//! bytes, now and on another machine. Nothing here reads a clock or prints.

#![forbid(unsafe_code)]

pub mod audit;
pub mod baseline_folder;
mod best;
pub mod card;
pub mod certificate;
mod columns;
pub mod comparison;
pub mod comparison_brief;
mod consistency;
pub mod csv;
pub mod decisive;
mod distribution;
pub mod document;
mod factors;
mod facts;
mod file_failure;
mod file_names;
pub mod first_screen;
pub mod fleet;
pub mod folder;
pub mod gate;
pub mod group_table;
mod guests;
pub mod headline;
pub mod hlog;
pub mod html;
pub mod hunt;
mod identity;
pub mod import;
pub mod junit;
pub mod markdown;
mod measured_time;
pub mod openmetrics;
pub mod output_folder;
pub mod probes;
mod record_line;
pub mod reference;
pub mod sarif;
pub mod schema;
mod sentences;
pub mod style;
pub mod summary;
pub mod svg;
pub mod table;
pub mod terminal;
pub mod title;
pub mod trend;
pub mod trial_log;
pub mod units;
pub mod view;
pub mod watch;
pub mod watch_log;
pub mod weight;
