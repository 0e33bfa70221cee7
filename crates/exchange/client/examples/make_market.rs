//! Makes a market: a bid and an ask around a price. After a fill it cancels what is left of both,
//! moves its price against its position and quotes again.
//!
//! usage: `make_market SESSION INSTRUMENT STATE FILLS KEYS-OR-DASH GATEWAY...`
//! It ends after so many lots were filled, and prints a line for each event.
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use nm_client::order::{Event, Side};
use nm_client::{Client, Credentials, Happened, Settings};

const MIDDLE: i64 = 1000;
const LOTS: u64 = 5;

/// The orders of one side and the other, and what was traded.
struct Maker {
    client: Client,
    instrument: u32,
    position: i64,
    filled: u64,
}

impl Maker {
    /// Quotes on each side that has no order.
    fn quote(&mut self) -> Result<(), Box<dyn Error>> {
        let price = MIDDLE - self.position / 10;
        for (side, price) in [(Side::Buy, price - 1), (Side::Sell, price + 1)] {
            if self.client.orders(self.instrument).all(|(_, order)| order.side != side) {
                self.client.order(self.instrument, side, price, LOTS)?;
            }
        }
        Ok(())
    }

    /// Cancels the order of each side whose price is not the present one.
    fn requote(&mut self) -> Result<(), Box<dyn Error>> {
        let price = MIDDLE - self.position / 10;
        let is_old = |side, at| at != if side == Side::Buy { price - 1 } else { price + 1 };
        let orders = self.client.orders(self.instrument);
        let old: Vec<u64> =
            orders.filter(|(_, it)| is_old(it.side, it.price)).map(|(id, _)| id).collect();
        for id in old {
            self.client.cancel(self.instrument, id)?;
        }
        Ok(())
    }

    fn handle(&mut self, happened: &Happened) -> Result<(), Box<dyn Error>> {
        println!("{happened}");
        let session = self.client.session().number();
        match happened {
            Happened::UsedBefore { .. } => {
                self.client.take_over(self.instrument)?;
                self.client.cancel_all(self.instrument)?;
            }
            Happened::Event {
                event: Event::Traded { maker, quantity, maker_user, .. }, ..
            } if *maker_user == session => {
                let order = self.client.orders(self.instrument).find(|(id, _)| id == maker);
                let is_buy = order.is_none_or(|(_, order)| order.side == Side::Buy);
                self.position += if is_buy { *quantity as i64 } else { -(*quantity as i64) };
                self.filled += quantity;
                self.requote()?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [session, instrument, state, fills, keys, gateways @ ..] = &words[..] else {
        return Err("SESSION INSTRUMENT STATE FILLS KEYS-OR-DASH GATEWAY... are needed".into());
    };
    let gateways = gateways.iter().map(|it| it.parse()).collect::<Result<_, _>>()?;
    let client = Client::open(Settings {
        credentials: if keys == "-" { None } else { Some(Credentials::read(keys.as_ref())?) },
        state: Some(PathBuf::from(state)),
        ..Settings::new(gateways, session.parse()?)
    })?;
    let (instrument, fills) = (instrument.parse()?, fills.parse::<u64>()?);
    let mut maker = Maker { client, instrument, position: 0, filled: 0 };
    while maker.filled < fills {
        let happened = maker.client.next(Duration::from_millis(200))?;
        happened.iter().try_for_each(|it| maker.handle(it))?;
        maker.quote()?;
    }
    maker.client.cancel_all(instrument)?;
    while let Some(happened) = maker.client.next(Duration::from_millis(1500))? {
        maker.handle(&happened)?;
    }
    println!("filled {} links {}", maker.filled, maker.client.links());
    Ok(())
}
