//! What a maker does: a bid and an ask around a price. After a fill it cancels what is left of
//! both, moves its price against its position and quotes again. It does not wait for anything.

use std::error::Error;
use std::path::PathBuf;

use nm_client::order::{Event, Side};
use nm_client::{ClientError, Credentials, Happened, Settings, Trader};

const MIDDLE: i64 = 1000;
const LOTS: u64 = 5;

/// What was traded on an instrument.
pub struct Maker {
    pub instrument: u32,
    pub position: i64,
    pub filled: u64,
}

/// Who trades, what it does, and after how many filled lots it ends, by the words of the command.
pub fn of_words() -> Result<(Settings, Maker, u64), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [session, instrument, state, fills, keys, gateways @ ..] = &words[..] else {
        return Err("SESSION INSTRUMENT STATE FILLS KEYS-OR-DASH GATEWAY... are needed".into());
    };
    let gateways = gateways.iter().map(|it| it.parse()).collect::<Result<_, _>>()?;
    let settings = Settings {
        credentials: if keys == "-" { None } else { Some(Credentials::read(keys.as_ref())?) },
        state: Some(PathBuf::from(state)),
        ..Settings::new(gateways, session.parse()?)
    };
    let maker = Maker { instrument: instrument.parse()?, position: 0, filled: 0 };
    Ok((settings, maker, fills.parse()?))
}

impl Maker {
    /// Quotes on each side that has no order.
    pub fn quote(&self, trader: &mut Trader) -> Result<(), ClientError> {
        let price = MIDDLE - self.position / 10;
        for (side, price) in [(Side::Buy, price - 1), (Side::Sell, price + 1)] {
            if trader.orders(self.instrument).all(|(_, order)| order.side != side) {
                trader.order(self.instrument, side, price, LOTS)?;
            }
        }
        Ok(())
    }

    /// Cancels the order of each side whose price is not the present one.
    fn requote(&self, trader: &mut Trader) -> Result<(), ClientError> {
        let price = MIDDLE - self.position / 10;
        let is_old = |side, at| at != if side == Side::Buy { price - 1 } else { price + 1 };
        let orders = trader.orders(self.instrument);
        let old: Vec<u64> =
            orders.filter(|(_, it)| is_old(it.side, it.price)).map(|(id, _)| id).collect();
        for id in old {
            trader.cancel(self.instrument, id)?;
        }
        Ok(())
    }

    pub fn handle(&mut self, trader: &mut Trader, happened: &Happened) -> Result<(), ClientError> {
        println!("{happened}");
        let session = trader.session().number();
        match happened {
            Happened::UsedBefore { .. } => {
                trader.take_over(self.instrument)?;
                trader.cancel_all(self.instrument)?;
            }
            Happened::Event {
                event: Event::Traded { maker, quantity, maker_user, .. }, ..
            } if *maker_user == session => {
                let order = trader.orders(self.instrument).find(|(id, _)| id == maker);
                let is_buy = order.is_none_or(|(_, order)| order.side == Side::Buy);
                self.position += if is_buy { *quantity as i64 } else { -(*quantity as i64) };
                self.filled += quantity;
                self.requote(trader)?;
            }
            _ => {}
        }
        Ok(())
    }
}
