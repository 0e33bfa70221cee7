//! The eight cells of one size of a sweep, as sfnt-pingpong writes them: size, mean, min, median,
//! max, a percentile, stddev, iter.

use nm_model::probe::Case;
use nm_model::result::LatencyRound;

use super::builder::{in_order, integer, number, percentile};
use super::fault::{ImportFault, fault};

/// Reads the cells of line `line`, whose tail column is `tail_percentile`; a cell for which
/// `is_absent` holds has no value.
pub fn read(
    line: usize,
    cells: [&str; 8],
    tail_percentile: f64,
    is_absent: impl Fn(&str) -> bool,
) -> Result<(Case, LatencyRound), ImportFault> {
    let [size, mean, min, median, max, tail, stddev, count] = cells;
    let ns = |what: &str, cell: &str| -> Result<Option<f64>, ImportFault> {
        if is_absent(cell) { Ok(None) } else { number(line, what, cell).map(Some) }
    };
    let count: Option<u64> = match is_absent(count) {
        true => None,
        false => Some(integer(line, "iter", count)?),
    };
    let (min_ns, max_ns) = (ns("min", min)?, ns("max", max)?);
    if min_ns.zip(max_ns).is_some_and(|(min, max)| min > max) {
        return fault(line, format!("min {min} is above max {max}"));
    }
    let tail = (tail_percentile, ns("%ile", tail)?, count);
    let percentiles = [(50.0, ns("median", median)?, None), tail]
        .into_iter()
        .filter_map(|(p, value, count)| Some(percentile(p, value?, count)))
        .collect();
    let round = LatencyRound {
        count,
        mean_ns: ns("mean", mean)?,
        min_ns,
        max_ns,
        stddev_ns: ns("stddev", stddev)?,
        percentiles: in_order(percentiles),
        ..Default::default()
    };
    Ok((Case::Message { size_bytes: integer(line, "size", size)? }, round))
}
