//! The number π by Machin's formula, `π = 16 atan(1/5) - 4 atan(1/239)`, in limbs of nine decimal
//! digits.
//!
//! It is the work of `bc` in the published study, without a program that has to be installed. It is
//! long division, with a time that rises with the square of the digits. It is not the same amount
//! of work: GNU bc takes two to three times as long for its 2000 digits as this for [`DIGITS`].

use sha2::{Digest, Sha256};

/// Digits behind the decimal point that one job computes.
pub const DIGITS: usize = 50_000;

/// SHA-256 of `3.14159…` with [`DIGITS`] digits behind the point and without a line end. A test
/// compares the first digits with those of `bc`. All of them were computed with GNU bc (Machin's
/// formula in integers) and with Python (Chudnovsky's), and are equal.
pub const SHA256: &str = "653b506bfcaf6ca3d0b3e29dc96c1426ae3befe3846564a302bbfc3487463701";

/// Decimal digits of a limb.
const LIMB_DIGITS: usize = 9;

/// One more than the largest limb.
const BASE: u64 = 1_000_000_000;

/// Limbs behind the last digit: each of some 100 000 divisions drops less than one unit of the
/// last limb, so one limb would be enough.
const GUARD_LIMBS: usize = 2;

/// Largest number of digits, for which no sum of a limb can overflow.
pub const DIGITS_MAX: usize = 1_000_000;

/// π as text with `digits` digits behind the point, not rounded. None if `cancelled` became true,
/// which is asked after each term of the series.
pub fn digits(digits: usize, cancelled: &dyn Fn() -> bool) -> Option<String> {
    let digits = digits.min(DIGITS_MAX);
    let limbs = 1 + digits.div_ceil(LIMB_DIGITS) + GUARD_LIMBS;
    // Sums of quotients below the base, carried once at the end.
    let mut sum = vec![0_i64; limbs];
    add_arctangent(&mut sum, 16, 5, cancelled)?;
    add_arctangent(&mut sum, -4, 239, cancelled)?;
    carry(&mut sum);
    let mut text = format!("{}.", sum[0]);
    for limb in &sum[1..] {
        text += &format!("{limb:09}");
    }
    text.truncate("3.".len() + digits);
    Some(text)
}

/// Whether `text` is π with [`DIGITS`] digits.
pub fn is_correct(text: &str) -> bool {
    sha256(text) == SHA256
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Adds `factor · atan(1/x)` to `sum`: `factor/x - factor/(3 x³) + factor/(5 x⁵) - …`.
fn add_arctangent(
    sum: &mut [i64],
    factor: i64,
    x: u64,
    cancelled: &dyn Fn() -> bool,
) -> Option<()> {
    let mut power = vec![0_u64; sum.len()];
    power[0] = factor.unsigned_abs();
    divide(&mut power, x);
    let mut sign = factor.signum();
    for (limb, quotient) in sum.iter_mut().zip(&power) {
        *limb += sign * quotient.cast_signed();
    }
    // Limbs before this one are zero.
    let mut first = 0;
    let mut odd = 1;
    loop {
        while power.get(first) == Some(&0) {
            first += 1;
        }
        if first == power.len() {
            return Some(());
        }
        if cancelled() {
            return None;
        }
        odd += 2;
        sign = -sign;
        add_term(&mut sum[first..], &mut power[first..], x * x, odd, sign);
    }
}

/// Divides `power` by `square`, and adds `sign · power / odd` to `sum`.
#[inline]
fn add_term(sum: &mut [i64], power: &mut [u64], square: u64, odd: u64, sign: i64) {
    let (mut power_rest, mut term_rest) = (0, 0);
    for (sum, limb) in sum.iter_mut().zip(power) {
        let dividend = power_rest * BASE + *limb;
        *limb = dividend / square;
        power_rest = dividend % square;
        let dividend = term_rest * BASE + *limb;
        *sum += sign * (dividend / odd).cast_signed();
        term_rest = dividend % odd;
    }
}

fn divide(number: &mut [u64], divisor: u64) {
    let mut rest = 0;
    for limb in number {
        let dividend = rest * BASE + *limb;
        *limb = dividend / divisor;
        rest = dividend % divisor;
    }
}

/// Makes each limb a number below the base.
fn carry(sum: &mut [i64]) {
    let base = BASE.cast_signed();
    let mut carried = 0;
    for limb in sum.iter_mut().rev() {
        let value = *limb + carried;
        *limb = value.rem_euclid(base);
        carried = value.div_euclid(base);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    #[test]
    fn first_digits_are_those_of_textbooks() {
        let text = digits(50, &|| false).unwrap();
        assert_eq!(text, "3.14159265358979323846264338327950288419716939937510");
        assert_eq!(digits(0, &|| false).unwrap(), "3.");
        assert_eq!(digits(1_000, &|| true), None);
    }

    #[test]
    fn all_digits_have_the_known_hash() {
        let text = digits(DIGITS, &|| false).unwrap();
        assert_eq!(text.len(), "3.".len() + DIGITS);
        assert!(is_correct(&text), "{}", sha256(&text));
        // The 762nd to 767th digits are the famous six nines.
        assert_eq!(&text[2 + 761..2 + 767], "999999");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn more_digits_begin_with_fewer(few in 0_usize..400, more in 0_usize..400) {
            let text = |count| digits(count, &|| false).unwrap();
            prop_assert!(text(few + more).starts_with(&text(few)));
        }

        #[test]
        fn any_wrong_digit_is_noticed(at in 0..DIGITS, other in 1_u8..10) {
            static RIGHT: LazyLock<String> =
                LazyLock::new(|| digits(DIGITS, &|| false).unwrap());
            let mut wrong = RIGHT.clone().into_bytes();
            let digit = &mut wrong["3.".len() + at];
            *digit = b'0' + (*digit - b'0' + other) % 10;
            prop_assert!(!is_correct(&String::from_utf8(wrong).unwrap()));
        }
    }
}
