//! Names of the files of a result folder that other files name.

/// The result.
pub const RESULT: &str = "result.json";

/// The trials of a run that is not finished yet.
pub const TRIALS: &str = "trials.log";

/// The report.
pub const REPORT: &str = "report.html";

/// The summary for a pull request.
pub const SUMMARY: &str = "summary.md";
