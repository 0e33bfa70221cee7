//! A day of ITCH 5.0 in a file: messages, each with its length in two bytes before it.
//!
//! Prices become ticks of 0.01; a part below it is cut. An order that trades at its place, `E`, or
//! at a printed price, `C`, was met by a taker. A `C` that is not printed belongs to a cross: its
//! order has less quantity. Trades with hidden orders, `P`, are left out.

use std::collections::HashMap;
use std::io::{self, BufRead, ErrorKind};
use std::path::Path;

use nm_book::order::Side;
use nm_feed::itch::{Body, Fault, Message};

use crate::file::{DayError, open};
use crate::tape::{Day, Fact, Tape, Window};

/// Ten thousandths of a tick.
const TICK: u32 = 100;

/// Reads a part of a day.
///
/// # Errors
/// If the file cannot be read, or is no day.
pub fn read(path: &Path, window: Window) -> Result<Day, DayError> {
    let failed = |source| DayError::Read { path: path.into(), source };
    let mut file = open(path).map_err(failed)?;
    let mut reader = Reader { tape: Tape::new(window), instruments: HashMap::new() };
    let (mut bytes, mut number) = (vec![], 0_u64);
    loop {
        number += 1;
        let wrong = |why: String| DayError::Content {
            path: path.into(),
            place: format!("message {number}"),
            why,
        };
        match next_message(&mut file, &mut bytes) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(wrong("it is cut".to_string()));
            }
            Err(source) => return Err(failed(source)),
        }
        let message = match Message::read(&bytes) {
            Ok(message) => message,
            // Of a later edition.
            Err(Fault::Type(_)) => continue,
            Err(fault) => return Err(wrong(fault.to_string())),
        };
        if reader.tape.is_over(message.time_ns) {
            break;
        }
        reader.take(&message).map_err(wrong)?;
    }
    Ok(reader.tape.finish())
}

/// Reads the next message; whether there is one.
fn next_message(file: &mut impl BufRead, bytes: &mut Vec<u8>) -> io::Result<bool> {
    if file.fill_buf()?.is_empty() {
        return Ok(false);
    }
    let mut length = [0; 2];
    file.read_exact(&mut length)?;
    bytes.resize(usize::from(u16::from_be_bytes(length)), 0);
    file.read_exact(bytes)?;
    Ok(true)
}

struct Reader {
    tape: Tape,
    /// Instruments by locate, numbered as they come.
    instruments: HashMap<u16, u32>,
}

impl Reader {
    fn take(&mut self, message: &Message) -> Result<(), String> {
        let Some(fact) = self.fact(message)? else { return Ok(()) };
        self.tape.add(message.time_ns, fact).map_err(|error| error.to_string())
    }

    /// What a message says, if it is about an order.
    fn fact(&mut self, message: &Message) -> Result<Option<Fact>, String> {
        let ticks = |price: u32| i64::from(price / TICK);
        Ok(Some(match message.body {
            Body::AddOrder { reference, side, shares, price, .. }
            | Body::AddAttributed { reference, side, shares, price, .. } => {
                let count = self.instruments.len() as u32;
                Fact::Add {
                    instrument: *self.instruments.entry(message.locate).or_insert(count),
                    order: reference,
                    side: match side {
                        b'B' => Side::Buy,
                        b'S' => Side::Sell,
                        other => return Err(format!("an order is on side 0x{other:02x}")),
                    },
                    price: ticks(price),
                    quantity: shares.into(),
                }
            }
            Body::Executed { reference, shares, .. }
            | Body::ExecutedAtPrice { reference, shares, printable: b'Y', .. } => {
                Fact::Trade { order: reference, quantity: shares.into() }
            }
            Body::ExecutedAtPrice { reference, shares, .. }
            | Body::Cancel { reference, shares } => {
                Fact::Reduce { order: reference, quantity: shares.into() }
            }
            Body::Delete { reference } => Fact::Cancel { order: reference },
            Body::Replace { original, reference, shares, price } => Fact::Replace {
                order: original,
                with: reference,
                price: ticks(price),
                quantity: shares.into(),
            },
            Body::Trade { .. } => {
                self.tape.leave_out();
                return Ok(None);
            }
            _ => return Ok(None),
        }))
    }
}
