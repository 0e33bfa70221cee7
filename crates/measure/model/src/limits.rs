//! The limits of the numbers in a plan. An agent checks each request against the same ones before
//! it allocates anything, because its controller may be anybody.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Largest message of any probe, and largest write of a stream, bytes.
pub const SIZE_BYTES_MAX: u32 = 16 << 20;

/// Largest sum of the writes of all flows of a stream, each of which has its own buffer, bytes.
pub const STREAM_BYTES_MAX: u64 = 1 << 30;

/// Largest `SO_SNDBUF` and `SO_RCVBUF`, bytes.
pub const BUFFER_BYTES_MAX: u32 = 1 << 30;

/// Longest time of any kind, s: one day.
pub const SECONDS_MAX: f64 = 86_400.0;

/// Longest time of any kind, ms.
pub const MS_MAX: u64 = SECONDS_MAX as u64 * 1_000;

/// Most samples for each size of a ping-pong.
pub const ITERATIONS_MAX: u64 = 100_000_000;

/// Most samples or requests of one round: 3.2 GB of memory.
pub const SAMPLES_MAX: u64 = 200_000_000;

/// Highest rate, requests a second.
pub const RATE_PER_S_MAX: f64 = 1e7;

/// Most percentiles beside the fixed ones.
pub const PERCENTILES_MAX: usize = 100;

/// Highest limit of a coefficient of variation, %.
pub const CV_PERCENT_MAX: f64 = 1_000.0;

/// Longest name of a congestion control, bytes, as the kernel has it (`TCP_CA_NAME_MAX`, without
/// the zero at its end).
pub const CONGESTION_BYTES_MAX: usize = 15;

/// Longest pause between two exchanges of a ping-pong, µs.
pub const THINK_TIME_US_MAX: u64 = 1_000_000;

/// Most factors of a plan.
pub const FACTORS_MAX: usize = 32;

/// Most CPUs that a task names.
pub const CPUS_MAX: usize = 1_024;

/// Shortest measuring time of the jitter probe, s: stolen time is counted in steps of 10 ms.
pub const JITTER_SECONDS_MIN: f64 = 0.05;

/// Longest measuring time of the jitter probe, s.
pub const JITTER_SECONDS_MAX: f64 = 3_600.0;

/// Highest threshold of the jitter probe, ns.
pub const JITTER_THRESHOLD_NS_MAX: u64 = 1_000_000_000;

/// How many times as long as its threshold a round of the jitter probe is at least: gaps below the
/// threshold are not seen, so with a higher one a target on lost time could not fail.
pub const JITTER_THRESHOLDS_MIN: u64 = 100;

/// Most threads on a core, and most cores, of a layout that gives their numbers.
pub const COMPUTE_THREADS_MAX: u32 = 256;

/// Most layouts of the compute probe.
pub const COMPUTE_LAYOUTS_MAX: usize = 32;

/// Most jobs of each thread in a round of the compute probe.
pub const COMPUTE_REPEATS_MAX: u32 = 1_000;

/// Longest measuring time of the exchange, s.
pub const EXCHANGE_SECONDS_MAX: f64 = 3_600.0;

/// Longest warm-up of the exchange, ms.
pub const EXCHANGE_WARMUP_MS_MAX: u64 = 60_000;

/// Largest ratio of a comparison that still counts as equal, %.
pub const MARGIN_PERCENT_MAX: f64 = 1000.0;

/// Longest stall of the exchange's load generator, ms: it cannot be interrupted.
pub const EXCHANGE_STALL_MS_MAX: f64 = 10_000.0;

/// Most moves of instruments between cells of the exchange, a minute.
pub const EXCHANGE_MOVES_PER_MINUTE_MAX: f64 = 60_000.0;

/// Most virtual CPUs of a guest that configurations are written for.
pub const GUEST_VCPUS_MAX: u32 = 512;

/// Most memory of such a guest, bytes: 16 TiB.
pub const GUEST_MEMORY_BYTES_MAX: u64 = 16 << 40;

/// Longest name of such a guest, bytes.
pub const GUEST_NAME_BYTES_MAX: usize = 64;

/// Longest path that is written into a configuration, bytes.
pub const PATH_BYTES_MAX: usize = 4_096;

/// Most PCI devices of a host that are read.
pub const PCI_DEVICES_MAX: usize = 4_096;

/// Most files of a snapshot. A machine with 256 CPUs has about 15,000 that are read.
pub const SNAPSHOT_FILES_MAX: usize = 120_000;

/// Most other names of a snapshot: entries of folders, symbolic links, paths without content.
pub const SNAPSHOT_NAMES_MAX: usize = 400_000;

/// Most bytes of all files of a snapshot and their paths.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 20;

/// Longest snapshot file that is read, bytes: JSON with escapes.
pub const SNAPSHOT_JSON_BYTES_MAX: u64 = 256 << 20;

/// Longest plan that is read, bytes.
pub const PLAN_BYTES_MAX: u64 = 4 << 20;

/// Longest result that is read, bytes: as JSON, or in a report.
pub const RESULT_BYTES_MAX: u64 = 4 << 30;

/// Most network links of a snapshot.
pub const SNAPSHOT_LINKS_MAX: usize = 1_024;

/// Most settings of firmware that are read. Servers have 200 to 1,500.
pub const FIRMWARE_ATTRIBUTES_MAX: usize = 8_192;

/// Longest name and longest value of such a setting, bytes.
pub const FIRMWARE_TEXT_BYTES_MAX: usize = 4_096;

/// Longest answer of a management controller that is read, bytes.
pub const FIRMWARE_ANSWER_BYTES_MAX: usize = 4 << 20;

/// Longest time that a management controller may take for one answer, s.
pub const FIRMWARE_ANSWER_S_MAX: u64 = 30;

/// Longest time that reading the files of a snapshot takes, s; the interval not included.
pub const SNAPSHOT_SECONDS_MAX: f64 = 10.0;

/// Longest interval between the two samples of a snapshot, s.
pub const SNAPSHOT_INTERVAL_S_MAX: f64 = 60.0;

/// A parameter that is out of range. [`SpecError::field`] names it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A list without values.
    #[error("{field} is empty")]
    Empty {
        /// Field of the plan.
        field: &'static str,
    },
    /// A list with too many values.
    #[error("{field} has {count} values, must have at most {count_max}")]
    TooMany {
        /// Field of the plan.
        field: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        count_max: usize,
    },
    /// A list with one value twice.
    #[error("{field} has {value} twice")]
    Twice {
        /// Field of the plan.
        field: &'static str,
        /// The value.
        value: String,
    },
    /// A number.
    #[error("{field} is {value}, must be {limit}")]
    OutOfRange {
        /// Field of the plan.
        field: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        limit: String,
    },
}

impl SpecError {
    /// The field of the plan that is wrong.
    pub fn field(&self) -> &'static str {
        match self {
            SpecError::Empty { field }
            | SpecError::TooMany { field, .. }
            | SpecError::Twice { field, .. }
            | SpecError::OutOfRange { field, .. } => field,
        }
    }

    /// The error of a number that is not `limit`.
    pub fn out_of_range(
        field: &'static str,
        value: impl Display,
        limit: impl Display,
    ) -> SpecError {
        SpecError::OutOfRange { field, value: value.to_string(), limit: limit.to_string() }
    }
}

/// Checks that a list has a value.
pub(crate) fn check_not_empty<T>(field: &'static str, list: &[T]) -> Result<(), SpecError> {
    if list.is_empty() { Err(SpecError::Empty { field }) } else { Ok(()) }
}

/// Checks that no value is there twice.
pub(crate) fn check_each_once<T: Display + PartialEq>(
    field: &'static str,
    values: &[T],
) -> Result<(), SpecError> {
    let twice = (1..values.len()).find(|at| values[..*at].contains(&values[*at]));
    twice.map_or(Ok(()), |at| Err(SpecError::Twice { field, value: values[at].to_string() }))
}

/// Checks that a number is in a range; a NaN is not.
pub(crate) fn check<T: Display + PartialOrd>(
    field: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), SpecError> {
    let (min, max) = (range.start(), range.end());
    match range.contains(&value) {
        true => Ok(()),
        false => Err(SpecError::out_of_range(field, value, format!("{min} to {max}"))),
    }
}

/// Checks that a number is above zero and at most `max`; a NaN is not.
pub(crate) fn check_positive(field: &'static str, value: f64, max: f64) -> Result<(), SpecError> {
    match value > 0.0 && value <= max {
        true => Ok(()),
        false => Err(SpecError::out_of_range(field, value, format!("above 0 and at most {max}"))),
    }
}

/// Checks a time that must not be zero, ms.
pub(crate) fn check_ms(field: &'static str, ms: u64) -> Result<(), SpecError> {
    check(field, ms, 1..=MS_MAX)
}

/// Checks a time that may be zero, ms.
pub(crate) fn check_pause_ms(field: &'static str, ms: u64) -> Result<(), SpecError> {
    check(field, ms, 0..=MS_MAX)
}

/// Checks a list's length.
pub(crate) fn check_count(
    field: &'static str,
    count: usize,
    count_max: usize,
) -> Result<(), SpecError> {
    match count <= count_max {
        true => Ok(()),
        false => Err(SpecError::TooMany { field, count, count_max }),
    }
}

/// Checks that the requests of a round, its warm-up included, can all be kept.
pub(crate) fn check_requests(
    seconds: f64,
    warmup_ms: u64,
    rate_per_s: f64,
) -> Result<(), SpecError> {
    match (seconds + warmup_ms as f64 / 1e3) * rate_per_s <= SAMPLES_MAX as f64 {
        true => Ok(()),
        false => {
            let max = SAMPLES_MAX as f64 / rate_per_s;
            let limit = format!("at most {max} with the warm-up at {rate_per_s} requests/s");
            Err(SpecError::out_of_range("seconds", seconds, limit))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/limits.md has each number as it is.
    #[test]
    fn the_page_of_limits_has_these_numbers() {
        let page = include_str!("../../../../docs/limits.md");
        for (what, number) in [
            ("snapshot files", SNAPSHOT_FILES_MAX as u64),
            ("snapshot names", SNAPSHOT_NAMES_MAX as u64),
            ("snapshot bytes", SNAPSHOT_BYTES_MAX as u64),
            ("snapshot time", SNAPSHOT_SECONDS_MAX as u64),
            ("snapshot file", SNAPSHOT_JSON_BYTES_MAX),
            ("snapshot links", SNAPSHOT_LINKS_MAX as u64),
            ("firmware settings", FIRMWARE_ATTRIBUTES_MAX as u64),
            ("firmware text", FIRMWARE_TEXT_BYTES_MAX as u64),
            ("controller answer", FIRMWARE_ANSWER_BYTES_MAX as u64),
            ("controller time", FIRMWARE_ANSWER_S_MAX),
            ("interval", SNAPSHOT_INTERVAL_S_MAX as u64),
            ("audit CPUs", CPUS_MAX as u64),
            ("jitter time", JITTER_SECONDS_MAX as u64),
            ("thresholds of a round", JITTER_THRESHOLDS_MIN),
            ("threshold", JITTER_THRESHOLD_NS_MAX),
            ("threads of a layout", u64::from(COMPUTE_THREADS_MAX)),
            ("layouts", COMPUTE_LAYOUTS_MAX as u64),
            ("repeats", u64::from(COMPUTE_REPEATS_MAX)),
            ("virtual CPUs", u64::from(GUEST_VCPUS_MAX)),
            ("guest memory", GUEST_MEMORY_BYTES_MAX),
            ("guest name", GUEST_NAME_BYTES_MAX as u64),
            ("PCI devices", PCI_DEVICES_MAX as u64),
            ("factors", FACTORS_MAX as u64),
            ("moves", EXCHANGE_MOVES_PER_MINUTE_MAX as u64),
            ("plan", PLAN_BYTES_MAX),
            ("result", RESULT_BYTES_MAX),
            ("stall", EXCHANGE_STALL_MS_MAX as u64),
            ("margin", MARGIN_PERCENT_MAX as u64),
        ] {
            assert!(page.contains(&format!("\n| {what} | {number} | ")), "{what}: {number}");
        }
    }

    #[test]
    fn an_error_names_field_value_and_limit() {
        let text = |error: Result<(), SpecError>| error.unwrap_err().to_string();
        assert_eq!(text(check("sizes", 5, 1..=4)), "sizes is 5, must be 1 to 4");
        assert_eq!(
            text(check_positive("seconds", f64::NAN, 4.0)),
            "seconds is NaN, must be above 0 and at most 4"
        );
        assert_eq!(text(check_ms("max_ms", 0)), "max_ms is 0, must be 1 to 86400000");
        assert_eq!(text(check_count("cpus", 3, 2)), "cpus has 3 values, must have at most 2");
        assert!(check_requests(19.0, 1_000, 1e7).is_ok());
        assert_eq!(
            text(check_requests(20.0, 1, 1e7)),
            "seconds is 20, must be at most 20 with the warm-up at 10000000 requests/s"
        );
    }
}
