//! A day of orders in a table: a line for each thing that happened, with its fields between commas.
//!
//! ```text
//! time,symbol,action,order,side,price,quantity,with
//! 09:30:00.000000001,ACME,add,1,buy,10.25,100,
//! 09:30:00.000400000,ACME,trade,1,,,40,
//! 09:30:00.000500000,ACME,reduce,1,,,10,
//! 09:30:00.000600000,ACME,replace,1,,10.26,50,2
//! 09:30:00.000700000,ACME,cancel,2,,,,
//! ```
//!
//! The first line must be this one. A time may also be a number of ns since midnight. Prices are
//! multiples of 0.01, and quantities are whole numbers.

use std::collections::HashMap;
use std::io::{BufRead, Read as _};
use std::path::Path;

use nm_book::order::Side;
use nm_exchange::decimal::Decimal;

use crate::file::{DayError, open};
use crate::limits::LINE_BYTES_MAX;
use crate::tape::{Day, Fact, Tape, Window};

/// The first line.
pub const HEADER: &str = "time,symbol,action,order,side,price,quantity,with";

/// Reads a part of a day.
///
/// # Errors
/// If the file cannot be read, or a line is wrong.
pub fn read(path: &Path, window: Window) -> Result<Day, DayError> {
    let failed = |source| DayError::Read { path: path.into(), source };
    let mut file = open(path).map_err(failed)?;
    let mut table = Table { tape: Tape::new(window), instruments: HashMap::new(), last_ns: 0 };
    let mut line = String::new();
    for number in 1_u64.. {
        line.clear();
        let length = file.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).map_err(failed)?;
        if length == 0 {
            break;
        }
        let text = line.trim_end_matches(['\r', '\n']);
        let taken = match number {
            1 if text == HEADER => Ok(true),
            1 => Err(format!("the first line must be `{HEADER}`")),
            _ if length as u64 == LINE_BYTES_MAX => Err("it is too long".to_string()),
            _ => table.take(text),
        };
        let wrong =
            |why| DayError::Content { path: path.into(), place: format!("line {number}"), why };
        if !taken.map_err(wrong)? {
            break;
        }
    }
    Ok(table.tape.finish())
}

struct Table {
    tape: Tape,
    instruments: HashMap<String, u32>,
    last_ns: u64,
}

impl Table {
    /// Takes a line; whether the window goes on.
    fn take(&mut self, line: &str) -> Result<bool, String> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [time, symbol, action, order, side, price, quantity, with] = fields[..] else {
            return Err(format!("it has {} fields instead of 8", fields.len()));
        };
        let at_ns = time_ns(time).ok_or_else(|| format!("`{time}` is no time"))?;
        if at_ns < self.last_ns {
            return Err("it is earlier than the line before".to_string());
        }
        self.last_ns = at_ns;
        if self.tape.is_over(at_ns) {
            return Ok(false);
        }
        let order = number("order", order)?;
        let fact = match action {
            "add" => Fact::Add {
                instrument: self.instrument(symbol)?,
                order,
                side: match side {
                    "buy" => Side::Buy,
                    "sell" => Side::Sell,
                    other => return Err(format!("`{other}` is no side: buy and sell are")),
                },
                price: ticks(price)?,
                quantity: number("quantity", quantity)?,
            },
            "trade" => Fact::Trade { order, quantity: number("quantity", quantity)? },
            "reduce" => Fact::Reduce { order, quantity: number("quantity", quantity)? },
            "cancel" => Fact::Cancel { order },
            "replace" => Fact::Replace {
                order,
                with: number("with", with)?,
                price: ticks(price)?,
                quantity: number("quantity", quantity)?,
            },
            other => {
                let known = "add, trade, reduce, cancel and replace are";
                return Err(format!("`{other}` is no action: {known}"));
            }
        };
        self.tape.add(at_ns, fact).map_err(|error| error.to_string())?;
        Ok(true)
    }

    fn instrument(&mut self, symbol: &str) -> Result<u32, String> {
        if symbol.is_empty() {
            return Err("it has no symbol".to_string());
        }
        let count = self.instruments.len() as u32;
        Ok(*self.instruments.entry(symbol.to_string()).or_insert(count))
    }
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|it| *it > 0)
        .ok_or_else(|| format!("`{text}` is no {name}: it must be a whole number above 0"))
}

/// A price in ticks of 0.01.
fn ticks(text: &str) -> Result<i64, String> {
    let cents = Decimal::parse(text).and_then(|price| price.in_units(Decimal::parse("0.01")?));
    cents
        .filter(|ticks| *ticks > 0)
        .ok_or_else(|| format!("`{text}` is no price: it must be a multiple of 0.01 above 0"))
}

/// A time of a day, ns: `HH:MM:SS` with at most nine digits behind the second, or a number of ns.
pub fn time_ns(text: &str) -> Option<u64> {
    const DAY_NS: u64 = 86_400_000_000_000;
    let (clock, fraction) = text.split_once('.').unwrap_or((text, ""));
    let parts: Vec<&str> = clock.split(':').collect();
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let ns = match parts[..] {
        [ns] if !text.contains('.') => ns.parse().ok()?,
        [hour, minute, second] => {
            let is_formed = parts.iter().all(|part| part.len() == 2 && digits(part));
            let fits = digits(fraction) && fraction.len() <= 9;
            let part = |text: &str, most: u64| text.parse::<u64>().ok().filter(|it| *it <= most);
            let (hour, minute, second) = (part(hour, 23)?, part(minute, 59)?, part(second, 59)?);
            let ns: u64 = format!("{fraction:0<9}").parse().ok()?;
            if !is_formed || !fits {
                return None;
            }
            ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + ns
        }
        _ => return None,
    };
    (ns < DAY_NS).then_some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_clock_or_a_number_of_ns() {
        for (text, ns) in [
            ("00:00:01", 1_000_000_000),
            ("09:30:00.000000001", 34_200_000_000_001),
            ("00:00:00.5", 500_000_000),
            ("17", 17),
        ] {
            assert_eq!(time_ns(text), Some(ns), "{text}");
        }
        for text in [
            "",
            "24:00:00",
            "9:30:00",
            "09:60:00",
            "09:30",
            "1.5",
            "00:00:00.0000000001",
            "86400000000000",
            "-1",
            "00:00:+1",
        ] {
            assert_eq!(time_ns(text), None, "{text}");
        }
    }
}
