//! Each reason is one sentence with its numbers.

use nm_policy::DecisionReason;

#[test]
fn reasons_for_a_size_are_sentences() {
    let sentences = [
        (
            DecisionReason::RateAboveUpper {
                total_per_s: 25_000.0,
                active: 1,
                upper_per_s: 6_000.0,
                needed: 5,
            },
            "1 active cell had 25000.0 requests/s, more than 6000.0 each: 5 are needed",
        ),
        (
            DecisionReason::Es10AboveLimit {
                predicted_us: 8_000.0,
                limit_us: 5_000.0,
                utilisation: 0.875,
                active: 2,
                needed: 3,
            },
            "ES10 on 2 active cells is predicted to be 8.00 ms at 88 % utilisation, above the \
             limit of 5.00 ms: 3 are needed",
        ),
        (
            DecisionReason::TooFewActive { active: 1, min: 3 },
            "1 active cell is up, at least 3 must be",
        ),
        (
            DecisionReason::RateBelowLower {
                total_per_s: 10.0,
                active: 3,
                lower_per_s: 7.0,
                needed: 1,
            },
            "3 active cells had 10.0 requests/s, fewer than 7.0 each: 1 is enough",
        ),
        (
            DecisionReason::TooManyActive { active: 6, max: 4 },
            "6 cells are active, at most 4 may be",
        ),
    ];
    for (reason, sentence) in sentences {
        assert_eq!(reason.to_string(), sentence);
    }
}

#[test]
fn reasons_for_a_move_are_sentences() {
    let sentences = [
        (
            DecisionReason::CellEmptied { from: 3, to: 0, to_per_s: 4_100.0, upper_per_s: 6_000.0 },
            "cell 3 is emptied before it is retired; cell 0 then has 4100.0 requests/s of at most \
             6000.0",
        ),
        (
            DecisionReason::CloserToFlow {
                from_site: 0,
                to_site: 1,
                to_site_per_s: 60.0,
                total_per_s: 105.0,
                before_us: 18_095.4,
                after_us: 2_857.1,
            },
            "site 1 sends 60.0 of 105.0 requests/s; away from site 0 their mean latency to the \
             cell falls from 18095 to 2857 us",
        ),
        (
            DecisionReason::CellHot {
                hot: 0,
                hot_per_s: 70.0,
                high_per_s: 60.5,
                cold: 1,
                cold_per_s: 50.0,
                load_per_s: 17.0,
                is_emergency: false,
            },
            "cell 0 has a load of 70.0/s, above the high watermark of 60.5/s, and cell 1 one of \
             50.0/s; 17.0/s move",
        ),
        (
            DecisionReason::CellHot {
                hot: 0,
                hot_per_s: 90.0,
                high_per_s: 49.5,
                cold: 1,
                cold_per_s: 0.0,
                load_per_s: 30.0,
                is_emergency: true,
            },
            "cell 0 has a load of 90.0/s, above the high watermark of 49.5/s, and cell 1 one of \
             0.0/s, less than two thirds of that; 30.0/s move",
        ),
        (
            DecisionReason::Exchange {
                hot: 0,
                hot_per_s: 28.0,
                high_per_s: 26.4,
                cells: 2,
                moves: 2,
                after_per_s: 24.0,
            },
            "cell 0 has a load of 28.0/s, above the high watermark of 26.4/s, and no single move \
             helps; 2 moves among 2 cells leave at most 24.0/s",
        ),
    ];
    for (reason, sentence) in sentences {
        assert_eq!(reason.to_string(), sentence);
    }
}
