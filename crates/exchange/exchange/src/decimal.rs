//! Exact decimal numbers of prices and quantities.

use std::fmt;

/// Most digits of a number, before and behind its point together.
const DIGITS_MAX: usize = 30;

/// A decimal number: `mantissa` / 10^`scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimal {
    mantissa: i128,
    scale: u32,
}

impl Decimal {
    /// One.
    pub const ONE: Decimal = Decimal { mantissa: 1, scale: 0 };

    /// 0.0001, in which binary protocols write prices.
    pub const PRICE_UNIT: Decimal = Decimal { mantissa: 1, scale: 4 };

    /// The number of a text such as `-12.50`: digits with at most one point, and no exponent.
    pub fn parse(text: &str) -> Option<Decimal> {
        let (is_negative, digits) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let length = integer.len() + fraction.len();
        if length == 0 || length > DIGITS_MAX || !is_number(integer) || !is_number(fraction) {
            return None;
        }
        let mut mantissa = 0_i128;
        for digit in integer.bytes().chain(fraction.bytes()) {
            mantissa = mantissa * 10 + i128::from(digit - b'0');
        }
        let mantissa = if is_negative { -mantissa } else { mantissa };
        Some(Decimal { mantissa, scale: fraction.len() as u32 })
    }

    /// Whether it is above zero.
    pub fn is_positive(self) -> bool {
        self.mantissa > 0
    }

    /// How many units of this size it is, if it is a whole number of them.
    pub fn in_units(self, unit: Decimal) -> Option<i64> {
        let scale = self.scale.max(unit.scale);
        let at_scale = |number: Decimal| {
            10_i128.checked_pow(scale - number.scale).and_then(|it| number.mantissa.checked_mul(it))
        };
        let (value, unit) = (at_scale(self)?, at_scale(unit)?);
        if unit == 0 || value % unit != 0 {
            return None;
        }
        i64::try_from(value / unit).ok()
    }

    /// So many times it.
    pub fn times(self, count: i128) -> Decimal {
        Decimal { mantissa: self.mantissa.saturating_mul(count), scale: self.scale }
    }

    /// It divided by a number, rounded half away from zero to `digits` more places.
    pub fn divided(self, by: u64, digits: u32) -> Decimal {
        if by == 0 {
            return Decimal { mantissa: 0, scale: 0 };
        }
        let by = i128::from(by);
        let value = self.mantissa.saturating_mul(10_i128.pow(digits));
        let half = if value < 0 { -by / 2 } else { by / 2 };
        Decimal { mantissa: value.saturating_add(half) / by, scale: self.scale + digits }
    }
}

/// As FIX writes it: without zeros at the end.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = 10_u128.pow(self.scale);
        let (integer, rest) =
            (self.mantissa.unsigned_abs() / scale, self.mantissa.unsigned_abs() % scale);
        let sign = if self.mantissa < 0 { "-" } else { "" };
        let fraction = format!("{rest:0width$}", width = self.scale as usize);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{sign}{integer}"),
            fraction => write!(f, "{sign}{integer}.{fraction}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn only_digits_with_one_point_are_a_number() {
        for text in ["", "-", ".", "+1", "1e3", "1.2.3", "1,5", " 1", "--1", "0x1", "NaN"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
        assert_eq!(Decimal::parse(&"1".repeat(31)), None);
        assert_eq!(number("002000.00").to_string(), "2000");
        assert_eq!(number("-0.50").to_string(), "-0.5");
        assert_eq!(number(".5").to_string(), "0.5");
        assert_eq!(number("5.").to_string(), "5");
    }

    #[test]
    fn a_price_off_the_tick_is_no_number_of_ticks() {
        assert_eq!(number("1.23").in_units(number("0.01")), Some(123));
        assert_eq!(number("-1.2300").in_units(number("0.01")), Some(-123));
        assert_eq!(number("1.233").in_units(number("0.01")), None);
        assert_eq!(number("0.3").in_units(number("0.1")), Some(3), "as floats it is not");
        assert_eq!(number("1").in_units(number("0")), None);
        assert_eq!(number("99999999999999999999").in_units(number("1")), None, "above i64");
    }

    #[test]
    fn an_average_is_rounded_half_away_from_zero() {
        assert_eq!(number("0.01").times(1_000).divided(3, 6).to_string(), "3.33333333");
        assert_eq!(number("1").times(2).divided(3, 2).to_string(), "0.67");
        assert_eq!(number("1").times(-2).divided(3, 2).to_string(), "-0.67");
        assert_eq!(number("1").divided(0, 2).to_string(), "0");
    }

    proptest! {
        #[test]
        fn units_become_the_same_units_again(units in any::<i64>(), scale in 0_usize..9) {
            let unit = number(&format!("0.{}1", "0".repeat(scale)));
            let text = unit.times(i128::from(units)).to_string();
            prop_assert_eq!(number(&text).in_units(unit), Some(units));
        }

        #[test]
        fn any_text_is_a_number_or_none(text in "[-0-9.+e]{0,40}") {
            if let Some(known) = Decimal::parse(&text) {
                prop_assert_eq!(number(&known.to_string()).in_units(known).unwrap_or(1), 1);
            }
        }
    }
}
