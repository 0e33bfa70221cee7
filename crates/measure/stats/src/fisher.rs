//! Fisher's exact test of a 2×2 table (1922): do two groups have the same share of two classes?

/// Two-sided p-value of the table `[[a, b], [c, d]]`: the probability, with all sums fixed, of a
/// table no more likely than this one. Time and memory grow with the smallest sum.
pub fn fisher(table: [[u64; 2]; 2]) -> f64 {
    let [[a, b], [c, d]] = table;
    let (row, other_row, column) = (a + b, c + d, a + c);
    let smallest = column.saturating_sub(other_row);
    let largest = row.min(column);
    // Log weights relative to the first table, by the ratio of neighbours.
    let mut log_weights = vec![0.0f64];
    for k in smallest..largest {
        let chosen = (row - k) as f64 * (column - k) as f64;
        let ratio = chosen / ((k + 1) as f64 * (other_row + k + 1 - column) as f64);
        log_weights.push(log_weights[log_weights.len() - 1] + ratio.ln());
    }
    let top = log_weights.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = log_weights.iter().map(|w| (w - top).exp()).collect();
    let observed = weights[(a - smallest) as usize];
    // Equal probabilities may differ by rounding.
    let extreme: f64 = weights.iter().filter(|w| **w <= observed * (1.0 + 1e-9)).sum();
    (extreme / weights.iter().sum::<f64>()).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_lady_tasting_tea() {
        assert!((fisher([[3, 1], [1, 3]]) - 34.0 / 70.0).abs() < 1e-12);
        assert!((fisher([[4, 0], [0, 4]]) - 2.0 / 70.0).abs() < 1e-12);
        assert_eq!(fisher([[0, 0], [3, 4]]), 1.0);
    }

    proptest! {
        #[test]
        fn swapping_rows_or_columns_changes_nothing(
            a in 0u64..30, b in 0u64..30, c in 0u64..30, d in 0u64..30,
        ) {
            let p = fisher([[a, b], [c, d]]);
            prop_assert!((0.0..=1.0).contains(&p));
            for other in [[[c, d], [a, b]], [[b, a], [d, c]], [[a, c], [b, d]]] {
                prop_assert!((fisher(other) - p).abs() < 1e-9);
            }
        }
    }
}
