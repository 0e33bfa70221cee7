//! Why the parameters of a probe are refused.

/// Largest message of any probe.
pub const SIZE_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// A parameter that is out of range. [`SpecError::field`] names it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SpecError {
    /// A list without values.
    #[error("{field} is empty")]
    Empty {
        /// Field of the plan.
        field: &'static str,
    },
    /// A message size.
    #[error("size {0} is not in 1 to {max}", max = SIZE_BYTES_MAX)]
    Size(u32),
    /// The number of samples.
    #[error("max_iterations must be 1 to 100000000")]
    Iterations,
    /// A percentile.
    #[error("percentile {0} is not in 0 to 100")]
    Percentile(f64),
    /// The size of a write.
    #[error("write_bytes is {0}, must be 1 to {max}", max = SIZE_BYTES_MAX)]
    WriteBytes(u32),
    /// The rate of requests.
    #[error("rate_per_s is {0}, must be above 0 and at most 1e7")]
    Rate(f64),
    /// A duration.
    #[error("{field} must be above 0 and at most a day")]
    Duration {
        /// Field of the plan.
        field: &'static str,
    },
    /// The rate of requests to the exchange.
    #[error("rate_per_s is {0}, must be 1 to 1e7 requests a second")]
    ExchangeRate(f64),
    /// The measuring time of the exchange.
    #[error("seconds must be above 0 and at most 3600")]
    ExchangeSeconds,
    /// The warm-up time of the exchange.
    #[error("warmup_ms must be at most 60000")]
    ExchangeWarmup,
}

impl SpecError {
    /// The field of the plan that is wrong.
    pub fn field(&self) -> &'static str {
        match self {
            SpecError::Empty { field } | SpecError::Duration { field } => field,
            SpecError::Size(_) => "sizes",
            SpecError::Iterations => "max_iterations",
            SpecError::Percentile(_) => "percentiles",
            SpecError::WriteBytes(_) => "write_bytes",
            SpecError::Rate(_) | SpecError::ExchangeRate(_) => "rate_per_s",
            SpecError::ExchangeSeconds => "seconds",
            SpecError::ExchangeWarmup => "warmup_ms",
        }
    }
}
