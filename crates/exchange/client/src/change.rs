//! The changes of a session that must survive, one line of text each. The Python package writes and
//! reads the same.

use std::fmt;
use std::str::FromStr;

use nm_book::codec;
use nm_book::order::{Command, Side};
use nm_codec::{Reader, hex};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::open_order::OpenOrder;

/// A change that must survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The session has used this number for a request, or a higher one than before.
    Numbered(u64),
    /// On an instrument the session goes on behind this request: the last one that was answered.
    Base(u32, u64),
    /// A request: instrument, number and command.
    Submitted(u32, u64, Command),
    /// A request was answered: instrument and number.
    Answered(u32, u64),
    /// A request was refused: instrument and number.
    Refused(u32, u64),
    /// The events on an instrument up to this one were handled.
    Handled(u32, u64),
    /// An order on an instrument: its id and what it is.
    Order(u32, u64, OpenOrder),
    /// An order is gone: instrument and id.
    Gone(u32, u64),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Numbered(seq) => write!(f, "numbered {seq}"),
            Change::Base(instrument, seq) => write!(f, "base {instrument} {seq}"),
            Change::Submitted(instrument, seq, command) => {
                write!(f, "submitted {instrument} {seq} ")?;
                let mut bytes = vec![];
                codec::write_command(command, &mut bytes);
                f.write_str(&hex::write(&bytes))
            }
            Change::Answered(instrument, seq) => write!(f, "answered {instrument} {seq}"),
            Change::Refused(instrument, seq) => write!(f, "refused {instrument} {seq}"),
            Change::Handled(instrument, event) => write!(f, "handled {instrument} {event}"),
            Change::Order(instrument, id, OpenOrder { side, price, left, is_open }) => {
                let side = if *side == Side::Buy { "buy" } else { "sell" };
                let is_open = u8::from(*is_open);
                write!(f, "order {instrument} {id} {side} {price} {left} {is_open}")
            }
            Change::Gone(instrument, id) => write!(f, "gone {instrument} {id}"),
        }
    }
}

/// Its line.
impl Serialize for Change {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Change {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Change, D::Error> {
        let line = String::deserialize(deserializer)?;
        line.parse().map_err(|NoChange| D::Error::custom("no change of a session"))
    }
}

/// A line is no change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoChange;

impl FromStr for Change {
    type Err = NoChange;

    fn from_str(line: &str) -> Result<Change, NoChange> {
        fn number<T: FromStr>(word: &str) -> Result<T, NoChange> {
            word.parse().map_err(|_| NoChange)
        }
        let words: Vec<&str> = line.split(' ').collect();
        Ok(match words[..] {
            ["numbered", seq] => Change::Numbered(number(seq)?),
            ["base", on, seq] => Change::Base(number(on)?, number(seq)?),
            ["submitted", on, seq, digits] => {
                Change::Submitted(number(on)?, number(seq)?, command_of(digits).ok_or(NoChange)?)
            }
            ["answered", on, seq] => Change::Answered(number(on)?, number(seq)?),
            ["refused", on, seq] => Change::Refused(number(on)?, number(seq)?),
            ["handled", on, event] => Change::Handled(number(on)?, number(event)?),
            ["order", on, id, side, price, left, is_open] => {
                let side = match side {
                    "buy" => Side::Buy,
                    "sell" => Side::Sell,
                    _ => return Err(NoChange),
                };
                let (price, left, is_open) = (number(price)?, number(left)?, is_open == "1");
                let order = OpenOrder { side, price, left, is_open };
                Change::Order(number(on)?, number(id)?, order)
            }
            ["gone", on, id] => Change::Gone(number(on)?, number(id)?),
            _ => return Err(NoChange),
        })
    }
}

fn command_of(digits: &str) -> Option<Command> {
    codec::read_command(&mut Reader::new(&hex::read(digits)?)).ok()
}
