//! The normal distribution, for samples that are too large for an exact computation.

/// Probability that a standard normal value exceeds `z`.
pub fn upper_tail(z: f64) -> f64 {
    0.5 * erfc(z / std::f64::consts::SQRT_2)
}

/// Probability of a standard normal value at least as far from zero as `z`, either side.
pub fn two_sided(z: f64) -> f64 {
    erfc(z.abs() / std::f64::consts::SQRT_2).min(1.0)
}

/// The value that a standard normal one exceeds with this probability, by bisection.
pub fn quantile(tail: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if upper_tail(middle) > tail { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// Complementary error function. A power series near zero, a continued fraction beyond
/// (Abramowitz and Stegun 7.1.6 and 7.1.14); relative error below 1e-12 where it matters.
fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        return f64::NAN;
    }
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 { 1.0 - erf_series(x) } else { erfc_fraction(x) }
}

/// `erf(x) = 2/sqrt(pi) exp(-x^2) sum 2^k x^(2k+1) / (1 3 5 … (2k+1))`: all terms positive.
fn erf_series(x: f64) -> f64 {
    let mut term = x;
    let mut sum = x;
    let mut odd = 1.0;
    while term > 1e-17 * sum {
        odd += 2.0;
        term *= 2.0 * x * x / odd;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// `sqrt(pi) exp(x^2) erfc(x) = 1/(x + (1/2)/(x + 1/(x + (3/2)/(x + …))))`, from the inside out.
fn erfc_fraction(x: f64) -> f64 {
    let tail = (1..=80).rev().fold(x, |inner, k| x + f64::from(k) / 2.0 / inner);
    (-x * x).exp() / tail * std::f64::consts::FRAC_2_SQRT_PI / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_tails() {
        for (z, p) in [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457_05),
            (1.959_963_984_540_054, 0.025),
            (3.0, 0.001_349_898_031_630_094_6),
            (3.6, 0.000_159_108_590_157_533_65),
            (6.0, 9.865_876_450_376_946e-10),
        ] {
            assert!((upper_tail(z) / p - 1.0).abs() < 1e-10, "{z}: {}", upper_tail(z));
            assert!((upper_tail(-z) + p - 1.0).abs() < 1e-14, "-{z}");
        }
        for (tail, z) in [(0.5, 0.0), (0.05, 1.644_853_626_951), (0.0125, 2.241_402_727_605)] {
            assert!((quantile(tail) - z).abs() < 1e-9, "{tail}: {}", quantile(tail));
        }
        assert_eq!(two_sided(0.0), 1.0);
        assert_eq!(two_sided(f64::INFINITY), 0.0);
    }
}
