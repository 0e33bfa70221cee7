//! What `--format json` prints: documents, results and plans.

use nm_model::RunResult;
pub use nm_report::document::{Document, Versioned};
use serde::Serialize;

/// The name of the schema of results, which hold their version themselves.
pub const RESULT: &str = "result";

/// The name of the schema of plans. They have no version: what a plan holds is read again.
pub const PLAN: &str = "plan";

/// What is printed in the form of its file, with the version that this has.
pub trait SelfVersioned: Serialize {}

impl SelfVersioned for RunResult {}
impl SelfVersioned for nm_model::Plan {}
impl SelfVersioned for nm_run::day::result::DayResult {}
