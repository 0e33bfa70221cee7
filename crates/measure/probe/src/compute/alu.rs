//! Work of the arithmetic units alone: multiplications of integers and of floating-point numbers,
//! in registers.
//!
//! There are [`LANES`] chains of integers, `x ← a x + c` modulo 2⁶⁴, enough to keep a core's
//! multiplier busy in each cycle. One more chain has floating-point numbers, `y ← 16807 y` modulo
//! 2³¹ - 1, whose every step is exact. So two threads of one core have to share its units, and the
//! result has a closed form by which it is checked.

use std::hint::black_box;

/// Chains of integers.
pub const LANES: usize = 8;

/// Steps of each integer chain for each step of the floating-point chain.
const INTEGER_STEPS: u64 = 4;

/// Floating-point steps of one job.
pub const STEPS: u64 = 48_000_000;

/// Modulus of the floating-point chain, a prime (Lehmer).
const MODULUS: u64 = (1 << 31) - 1;

/// Factor of the floating-point chain. Its product with a number below the modulus is below 2⁵³.
const FACTOR: u64 = 16_807;

/// The state of all chains.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chains {
    integers: [u64; LANES],
    float: f64,
}

/// Factors and summands of the integer chains: any odd numbers do.
fn parameters() -> [(u64, u64); LANES] {
    const FIRST: u64 = 6_364_136_223_846_793_005;
    std::array::from_fn(|lane| (FIRST.wrapping_add(8 * lane as u64), 2 * lane as u64 + 1))
}

/// The state before the first step.
fn start() -> Chains {
    Chains { integers: std::array::from_fn(|lane| lane as u64 + 1), float: 1.0 }
}

/// Makes `steps` steps from the start. None if `cancelled` became true, which is asked every few
/// milliseconds.
pub fn work(steps: u64, cancelled: &dyn Fn() -> bool) -> Option<Chains> {
    const BLOCK: u64 = 100_000;
    // Unknown to the compiler, which could otherwise join several steps to one.
    let (parameters, mut chains) = (black_box(parameters()), black_box(start()));
    let mut left = steps;
    while left > 0 {
        if cancelled() {
            return None;
        }
        let block = left.min(BLOCK);
        advance(&mut chains, &parameters, block);
        left -= block;
    }
    Some(black_box(chains))
}

#[inline(never)]
fn advance(chains: &mut Chains, parameters: &[(u64, u64); LANES], steps: u64) {
    let Chains { mut integers, mut float } = *chains;
    let (factor, modulus) = (FACTOR as f64, MODULUS as f64);
    for _ in 0..steps {
        for _ in 0..INTEGER_STEPS {
            for (x, (a, c)) in integers.iter_mut().zip(parameters) {
                *x = x.wrapping_mul(*a).wrapping_add(*c);
            }
        }
        let product = float * factor;
        float = product - (product / modulus).floor() * modulus;
    }
    *chains = Chains { integers, float };
}

/// Whether `chains` are the state after `steps` steps, by closed forms.
pub fn is_correct(chains: &Chains, steps: u64) -> bool {
    let integers = parameters().into_iter().zip(start().integers);
    let expected = integers.map(|((a, c), x)| advanced(x, a, c, steps * INTEGER_STEPS));
    let float = power(FACTOR, steps, MODULUS);
    expected.eq(chains.integers) && chains.float == float as f64
}

/// `x` after `steps` steps of `x ← a x + c`, by squaring the step.
fn advanced(x: u64, a: u64, c: u64, steps: u64) -> u64 {
    let (mut factor, mut summand) = (1_u64, 0_u64);
    let (mut a, mut c, mut left) = (a, c, steps);
    while left > 0 {
        if left % 2 == 1 {
            factor = factor.wrapping_mul(a);
            summand = summand.wrapping_mul(a).wrapping_add(c);
        }
        c = c.wrapping_mul(a).wrapping_add(c);
        a = a.wrapping_mul(a);
        left /= 2;
    }
    x.wrapping_mul(factor).wrapping_add(summand)
}

/// `base` to the power of `exponent`, modulo a number below 2³².
fn power(base: u64, exponent: u64, modulus: u64) -> u64 {
    let (mut result, mut base, mut left) = (1, base % modulus, exponent);
    while left > 0 {
        if left % 2 == 1 {
            result = result * base % modulus;
        }
        base = base * base % modulus;
        left /= 2;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_minimal_standard_generator_has_its_published_value() {
        // Park and Miller, 1988: the 10 001st number from the seed 1.
        let chains = work(10_000, &|| false).unwrap();
        assert_eq!(chains.float, 1_043_618_065.0);
    }

    #[test]
    fn cancelled_work_has_no_result() {
        assert_eq!(work(1_000, &|| true), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn work_is_correct_and_any_change_of_it_is_not(
            steps in 0_u64..30_000, lane in 0..LANES, bit in 0_u32..64, more in 1_u64..1_000,
        ) {
            let chains = work(steps, &|| false).unwrap();
            prop_assert!(is_correct(&chains, steps));
            prop_assert!(!is_correct(&chains, steps + more));
            let mut wrong = chains;
            wrong.integers[lane] ^= 1 << bit;
            prop_assert!(!is_correct(&wrong, steps));
            let wrong = Chains { float: chains.float + 1.0, ..chains };
            prop_assert!(!is_correct(&wrong, steps));
        }
    }
}
