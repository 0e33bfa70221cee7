//! What a report may contain at most. docs/limits.md lists these numbers; a test compares them.

/// Cells of a network, active and spare.
pub const CELLS_MAX: usize = 256;

/// Instruments of a network of which reports are accepted.
pub const INSTRUMENTS_MAX: usize = 1 << 18;

/// Instruments that a policy leaves in one cell at most: what a cell can have.
pub const CELL_INSTRUMENTS_MAX: usize = 1 << 14;

/// Sites that a report names as origins of one instrument's requests.
pub const ORIGINS_MAX: usize = 64;

/// Latencies between sites in one report: each of 64 sites with each.
pub const LATENCIES_MAX: usize = 64 * 64;

/// Highest rate of requests of a cell, an instrument or an origin, per second.
pub const RATE_PER_S_MAX: f64 = 1e9;

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/limits.md has each number as it is.
    #[test]
    fn the_page_of_limits_has_these_numbers() {
        let page = include_str!("../../../../docs/limits.md");
        for (what, number) in [
            ("reported cells", CELLS_MAX),
            ("reported instruments", INSTRUMENTS_MAX),
            ("instruments of a cell", CELL_INSTRUMENTS_MAX),
            ("origins of an instrument", ORIGINS_MAX),
            ("latencies", LATENCIES_MAX),
            ("reported rate", RATE_PER_S_MAX as usize),
        ] {
            let row = format!("| {what} | {number} |");
            assert!(page.contains(&row), "docs/limits.md lacks `{row}`");
        }
    }
}
