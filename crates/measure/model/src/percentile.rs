//! A percentile of one round.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One percentile with its interval inside the round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PercentileValue {
    /// 0 to 100.
    pub percentile: f64,
    /// Value, ns; absent (`n/a`) if there are too few samples beyond it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_ns: Option<f64>,
    /// Lower end of the 95 % interval by order statistics, ns. It covers the samples of this
    /// round only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_ns: Option<f64>,
    /// Upper end, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_ns: Option<f64>,
}
