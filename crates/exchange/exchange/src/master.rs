//! The instrument master: what may be traded in a network, and the rules of each instrument.
//!
//! ```toml
//! [[instrument]]
//! number = 1000                # its number in messages
//! symbol = "ACME"              # at most 8 letters, digits and points
//! tick = "0.01"                # prices are multiples of it
//! lot = "1"                    # quantities are multiples of it
//! currency = "USD"             # optional
//! low = "5"                    # lowest limit price; optional
//! high = "20"                  # highest limit price; optional
//! most = "10000"               # largest quantity of an order; optional
//! ```
//!
//! The network's file has these tables, and the map carries them to all nodes. A network without
//! them lets anybody trade any number. A gateway finds which rule a request breaks, and the request
//! says so in the log of its cell ([`nm_wire::Breach`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nm_book::order::{Command, InstrumentId, Price, Quantity};
use nm_sys::text_file;
pub use nm_wire::Listing;
use nm_wire::{Breach, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::decimal::Decimal;
use crate::limits::LISTED_MAX;

/// Bytes of a file of instruments.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Letters of a symbol at most: ITCH and OUCH have room for so many.
const SYMBOL_BYTES_MAX: usize = 8;

/// An instrument, as files have it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstrumentText {
    /// Its number.
    pub number: InstrumentId,
    /// Its name.
    pub symbol: String,
    /// Price of a tick.
    pub tick: String,
    /// Quantity of a lot.
    pub lot: String,
    /// Currency of prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
    /// Lowest limit price of an order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<String>,
    /// Highest limit price of an order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<String>,
    /// Largest quantity of an order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<String>,
}

/// A file of instruments alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    instrument: Vec<InstrumentText>,
}

/// Why instruments cannot be listed.
#[derive(Debug, Error)]
pub enum MasterError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no file of instruments.
    #[error("{}: {}", path.display(), source.message())]
    Toml {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Box<toml::de::Error>,
    },
    /// Its content is wrong.
    #[error("{}: {source}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: Box<MasterError>,
    },
    /// Too few or too many.
    #[error("{0} instruments are listed: 1 to {LISTED_MAX} are possible")]
    Count(usize),
    /// A symbol is none.
    #[error("`{0}` is no symbol: 1 to 8 letters, digits and points are one")]
    Symbol(String),
    /// A tick or lot is none.
    #[error("{what} of {symbol} is `{text}`, and must be a decimal number above 0")]
    Unit {
        /// `tick` or `lot`.
        what: &'static str,
        /// Of which instrument.
        symbol: String,
        /// What it says.
        text: String,
    },
    /// A price or quantity is none.
    #[error("{what} of {symbol} is `{text}`, and must be a multiple of its {unit}")]
    Multiple {
        /// `low`, `high` or `most`.
        what: &'static str,
        /// Of which instrument.
        symbol: String,
        /// What it says.
        text: String,
        /// `tick` or `lot`.
        unit: &'static str,
    },
    /// No price is possible, or no quantity.
    #[error("no order of {0} is possible: `low` is above `high`, or `most` is 0")]
    Nothing(String),
    /// A currency is none.
    #[error("the currency of {0} is `{1}`: three capital letters are one")]
    Currency(String, String),
    /// A number stands twice.
    #[error("instrument {0} stands twice")]
    SameNumber(InstrumentId),
    /// A symbol stands twice.
    #[error("symbol {0} stands twice: instruments {1} and {2} have it")]
    SameSymbol(String, InstrumentId, InstrumentId),
    /// What orders depend on would change.
    #[error(
        "instrument {} is listed as {} with tick {} and lot {}, which cannot change: its orders \
         have prices in ticks and quantities in lots",
        .0.instrument, .0.symbol, .0.tick, .0.lot
    )]
    Fixed(Box<Listing>),
    /// There is no master.
    #[error(
        "this network has no instrument master, so any instrument may be traded: one begins with \
         `nearmetal exchange run --instruments FILE`, or `[[instrument]]` in the network's file"
    )]
    NoMaster,
    /// It is not listed.
    #[error("{0} is not listed: `nearmetal exchange instruments list` shows those that are")]
    NotListed(String),
    /// It is the last one.
    #[error("{0} is the only listed instrument: a network with a master has at least one")]
    LastOne(String),
}

/// What may be traded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Master(BTreeMap<InstrumentId, Listing>);

impl Master {
    /// The master of a file that has nothing else.
    ///
    /// # Errors
    /// If it cannot be read, or its content is wrong.
    #[expect(clippy::disallowed_methods, reason = "no node reads such a file")]
    pub fn read(path: &Path) -> Result<Master, MasterError> {
        let text = text_file::read(path, FILE_BYTES_MAX)
            .map_err(|source| MasterError::Read { path: path.into(), source })?;
        let file: FileText = toml::from_str(&text)
            .map_err(|source| MasterError::Toml { path: path.into(), source: source.into() })?;
        Master::of_texts(&file.instrument)
            .map_err(|source| MasterError::Content { path: path.into(), source: source.into() })
    }

    /// The master of the tables of a file.
    ///
    /// # Errors
    /// If there is none, or one of them is wrong.
    pub fn of_texts(texts: &[InstrumentText]) -> Result<Master, MasterError> {
        Master::of(texts.iter().map(listing).collect::<Result<_, _>>()?)
    }

    /// The master of these listings.
    ///
    /// # Errors
    /// If there is none, or one of them is wrong.
    pub fn of(listings: Vec<Listing>) -> Result<Master, MasterError> {
        if listings.is_empty() || listings.len() > LISTED_MAX {
            return Err(MasterError::Count(listings.len()));
        }
        let (mut all, mut symbols) = (BTreeMap::new(), BTreeMap::new());
        for one in listings {
            check(&one)?;
            let number = one.instrument;
            if let Some(other) = symbols.insert(one.symbol.clone(), number) {
                return Err(MasterError::SameSymbol(one.symbol, other, number));
            }
            if all.insert(number, one).is_some() {
                return Err(MasterError::SameNumber(number));
            }
        }
        Ok(Master(all))
    }

    /// All listings, by the numbers of their instruments.
    pub fn listings(&self) -> impl Iterator<Item = &Listing> {
        self.0.values()
    }

    /// How an instrument is listed.
    pub fn get(&self, instrument: InstrumentId) -> Option<&Listing> {
        self.0.get(&instrument)
    }

    /// How the instrument of a symbol is listed.
    ///
    /// # Errors
    /// If none has it.
    pub fn named(&self, symbol: &str) -> Result<&Listing, MasterError> {
        let mut all = self.listings();
        let found = all.find(|one| one.symbol == symbol);
        found.ok_or_else(|| MasterError::NotListed(symbol.to_string()))
    }

    /// Whether a listing would change anything.
    ///
    /// # Errors
    /// If it is not possible beside the others.
    pub fn plan_list(&self, new: &Listing) -> Result<bool, MasterError> {
        check(new)?;
        let mut others = self.listings().filter(|one| one.instrument != new.instrument);
        if let Some(other) = others.find(|one| one.symbol == new.symbol) {
            let (symbol, number) = (new.symbol.clone(), new.instrument);
            return Err(MasterError::SameSymbol(symbol, other.instrument, number));
        }
        let fixed = |one: &Listing| (one.symbol.clone(), one.tick.clone(), one.lot.clone());
        match self.get(new.instrument) {
            Some(known) if fixed(known) != fixed(new) => {
                Err(MasterError::Fixed(known.clone().into()))
            }
            Some(known) => Ok(known != new),
            None if self.0.len() >= LISTED_MAX => Err(MasterError::Count(self.0.len() + 1)),
            None => Ok(true),
        }
    }

    /// Whether an instrument is there that can be removed.
    ///
    /// # Errors
    /// If it is the last one.
    pub fn plan_delist(&self, instrument: InstrumentId) -> Result<bool, MasterError> {
        match self.get(instrument) {
            Some(last) if self.0.len() == 1 => Err(MasterError::LastOne(last.symbol.clone())),
            known => Ok(known.is_some()),
        }
    }

    /// Lists an instrument, or changes how it is listed, if that is possible.
    pub(crate) fn list(&mut self, new: &Listing) -> bool {
        let is_new = self.plan_list(new).unwrap_or(false);
        if is_new {
            self.0.insert(new.instrument, new.clone());
        }
        is_new
    }

    /// Lists an instrument no more, if that is possible.
    pub(crate) fn delist(&mut self, instrument: InstrumentId) -> bool {
        let is_there = self.plan_delist(instrument).unwrap_or(false);
        is_there && self.0.remove(&instrument).is_some()
    }

    /// Which rule a request breaks, if any.
    pub fn breach(&self, request: &Request) -> Option<Breach> {
        let Some(listing) = self.get(request.instrument) else { return Some(Breach::NotListed) };
        let (limit, quantity) = match &request.command {
            Command::New(order) => {
                (order.order_type.has_limit().then_some(order.price), order.quantity)
            }
            Command::Replace { price, quantity, .. } => (Some(*price), *quantity),
            _ => return None,
        };
        if quantity > listing.most {
            Some(Breach::TooLarge)
        } else if limit.is_some_and(|price| !(listing.low..=listing.high).contains(&price)) {
            Some(Breach::OutsideCollar)
        } else {
            None
        }
    }

    /// The master with other instruments beside its own, which have no rules.
    ///
    /// # Errors
    /// If one of them is in the master.
    pub fn with_unnamed(
        &self,
        instruments: impl Iterator<Item = InstrumentId>,
    ) -> Result<Master, MasterError> {
        let unnamed = instruments.map(|instrument| Listing {
            instrument,
            symbol: format!("LOAD{instrument}"),
            tick: "1".to_string(),
            lot: "1".to_string(),
            currency: String::new(),
            low: Price::MIN,
            high: Price::MAX,
            most: Quantity::MAX,
        });
        Master::of(self.listings().cloned().chain(unnamed).collect())
    }

    /// The tables of a file that has it.
    pub fn texts(&self) -> Vec<InstrumentText> {
        self.listings().map(InstrumentText::of).collect()
    }
}

/// What is wrong with a listing by itself.
fn check(one: &Listing) -> Result<(), MasterError> {
    let Listing { symbol, tick, lot, currency, low, high, most, .. } = one;
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    if !(1..=SYMBOL_BYTES_MAX).contains(&symbol.len()) || !symbol.bytes().all(is_part) {
        return Err(MasterError::Symbol(symbol.clone()));
    }
    unit("tick", symbol, tick)?;
    unit("lot", symbol, lot)?;
    let is_currency = currency.len() == 3 && currency.bytes().all(|it| it.is_ascii_uppercase());
    if !currency.is_empty() && !is_currency {
        return Err(MasterError::Currency(symbol.clone(), currency.clone()));
    }
    if low > high || *most == 0 {
        return Err(MasterError::Nothing(symbol.clone()));
    }
    Ok(())
}

/// The decimal number of a tick or lot.
fn unit(what: &'static str, symbol: &str, text: &str) -> Result<Decimal, MasterError> {
    let number = Decimal::parse(text).filter(|unit| unit.is_positive());
    number.ok_or_else(|| {
        let (symbol, text) = (symbol.to_string(), text.to_string());
        MasterError::Unit { what, symbol, text }
    })
}

/// The listing of a table.
fn listing(text: &InstrumentText) -> Result<Listing, MasterError> {
    let InstrumentText { number, symbol, tick, lot, currency, low, high, most } = text;
    let (tick_size, lot_size) = (unit("tick", symbol, tick)?, unit("lot", symbol, lot)?);
    let multiple = |what, unit, size, text: &Option<String>, otherwise: i64| match text {
        None => Ok(otherwise),
        Some(text) => {
            let number = Decimal::parse(text).and_then(|number| number.in_units(size));
            number.ok_or_else(|| {
                let (symbol, text) = (symbol.clone(), text.clone());
                MasterError::Multiple { what, symbol, text, unit }
            })
        }
    };
    let most = match multiple("most", "lot", lot_size, most, i64::MAX)? {
        i64::MAX => Quantity::MAX,
        lots => Quantity::try_from(lots).unwrap_or(0),
    };
    let one = Listing {
        instrument: *number,
        symbol: symbol.clone(),
        tick: tick_size.to_string(),
        lot: lot_size.to_string(),
        currency: currency.clone().unwrap_or_default(),
        low: multiple("low", "tick", tick_size, low, Price::MIN)?,
        high: multiple("high", "tick", tick_size, high, Price::MAX)?,
        most,
    };
    check(&one)?;
    Ok(one)
}

impl InstrumentText {
    /// The table of a listing.
    pub fn of(one: &Listing) -> InstrumentText {
        let price = |ticks: Price, none: Price| of_units(&one.tick, ticks.into(), none.into());
        InstrumentText {
            number: one.instrument,
            symbol: one.symbol.clone(),
            tick: one.tick.clone(),
            lot: one.lot.clone(),
            currency: Some(one.currency.clone()).filter(|it| !it.is_empty()),
            low: price(one.low, Price::MIN),
            high: price(one.high, Price::MAX),
            most: of_units(&one.lot, one.most.into(), Quantity::MAX.into()),
        }
    }
}

/// So many ticks or lots as a decimal number; none if so many mean that there is no limit.
fn of_units(unit: &str, count: i128, none: i128) -> Option<String> {
    let unit = Decimal::parse(unit)?;
    (count != none).then(|| unit.times(count).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::OPERATOR;
    use crate::control::{InstrumentMap, MembershipReport};
    use crate::network::Network;
    use nm_book::order::{NewOrder, OrderType, Side};
    use nm_wire::{FRAME_BYTES_MAX, overhead_bytes};

    const ACME: &str = "[[instrument]]\nnumber = 1000\nsymbol = \"ACME\"\ntick = \"0.01\"\n\
                        lot = \"10\"\n";

    fn read(text: &str) -> Result<Master, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("instruments.toml");
        std::fs::write(&file, text).unwrap();
        Master::read(&file).map_err(|error| error.to_string())
    }

    fn with(rules: &str) -> Result<Master, String> {
        read(&format!("{ACME}{rules}"))
    }

    #[test]
    fn a_file_of_instruments_is_read_or_refused_in_a_sentence() {
        let all = "currency = \"USD\"\nlow = \"5\"\nhigh = \"20.50\"\nmost = \"1000\"\n";
        let master = with(all).unwrap();
        let one = master.named("ACME").unwrap();
        assert_eq!((one.instrument, one.low, one.high, one.most), (1000, 500, 2050, 100));
        let again = InstrumentText::of(one);
        assert_eq!((again.low.as_deref(), again.high.as_deref()), (Some("5"), Some("20.5")));
        assert_eq!(Master::of_texts(&master.texts()).unwrap(), master);
        let free = with("").unwrap();
        assert_eq!(Master::of_texts(&free.texts()).unwrap(), free);
        let other = ACME.replace("1000", "1001");
        for (text, why) in [
            (String::new(), "0 instruments are listed: 1 to 4096 are possible"),
            (ACME.replace("ACME", "NINECHARS"), "`NINECHARS` is no symbol"),
            (ACME.replace("ACME", "AC ME"), "`AC ME` is no symbol"),
            (
                ACME.replace("0.01", "0"),
                "tick of ACME is `0`, and must be a decimal number above 0",
            ),
            (ACME.replace("\"10\"", "\"x\""), "lot of ACME is `x`"),
            (format!("{ACME}low = \"5.005\""), "low of ACME is `5.005`, and must be a multiple"),
            (
                format!("{ACME}most = \"15\""),
                "most of ACME is `15`, and must be a multiple of its lot",
            ),
            (format!("{ACME}most = \"-10\""), "no order of ACME is possible"),
            (format!("{ACME}low = \"6\"\nhigh = \"5\""), "no order of ACME is possible"),
            (format!("{ACME}currency = \"usd\""), "the currency of ACME is `usd`"),
            (format!("{ACME}{other}"), "symbol ACME stands twice: instruments 1000 and 1001"),
            (format!("{ACME}{}", ACME.replace("ACME", "B")), "instrument 1000 stands twice"),
            (format!("{ACME}phase = \"open\""), "unknown field `phase`"),
        ] {
            let refused = read(&text).unwrap_err();
            assert!(refused.contains("instruments.toml: ") && refused.contains(why), "{refused}");
        }
        assert!(Master::read(Path::new("/none")).unwrap_err().to_string().contains("/none cannot"));
    }

    #[test]
    fn an_instrument_keeps_what_its_orders_depend_on_while_its_rules_change() {
        let mut master = with("").unwrap();
        let listed = |text: &str| read(text).unwrap().named("ACME").cloned().unwrap();
        let finer = listed(&ACME.replace("0.01", "0.005"));
        let why = master.plan_list(&finer).unwrap_err().to_string();
        assert!(why.contains("listed as ACME with tick 0.01 and lot 10, which cannot"), "{why}");
        assert!(!master.list(&finer));
        let narrower = listed(&format!("{ACME}high = \"20\"\n"));
        assert!(master.list(&narrower) && !master.list(&narrower));
        let twin = listed(&ACME.replace("1000", "7"));
        assert!(matches!(master.plan_list(&twin), Err(MasterError::SameSymbol(..))));
        assert!(matches!(master.plan_delist(1000), Err(MasterError::LastOne(_))));
        let other = Listing { instrument: 7, symbol: "B".to_string(), ..narrower };
        assert!(master.list(&other) && master.delist(1000) && !master.delist(1000));
        assert!(master.named("ACME").unwrap_err().to_string().contains("ACME is not listed"));
        // A listing of a message is checked as one of a file is.
        let wrong = Listing { currency: "x".to_string(), ..other };
        assert!(matches!(master.plan_list(&wrong), Err(MasterError::Currency(..))));
    }

    #[test]
    fn a_request_breaks_a_rule_of_its_instrument() {
        let rules = "low = \"5\"\nhigh = \"20\"\nmost = \"1000\"\n";
        let master = with(rules).unwrap();
        let request = |instrument, command| Request {
            instrument,
            ..crate::testing::request(1, instrument, command)
        };
        let new = |order_type, price, quantity| {
            let Command::New(order) = crate::testing::order(1, 1, Side::Buy, 1) else { panic!() };
            let order = NewOrder { order_type, price, quantity, ..order };
            master.breach(&request(1000, Command::New(order)))
        };
        assert_eq!(new(OrderType::Limit, 500, 100), None);
        assert_eq!(new(OrderType::Limit, 2000, 100), None);
        assert_eq!(new(OrderType::Limit, 499, 100), Some(Breach::OutsideCollar));
        assert_eq!(new(OrderType::StopLimit, 2001, 100), Some(Breach::OutsideCollar));
        assert_eq!(new(OrderType::Market, 2001, 100), None, "it has no limit");
        assert_eq!(new(OrderType::Market, 0, 101), Some(Breach::TooLarge));
        let replace = |price| Command::Replace { id: 1, user: 1, price, quantity: 1 };
        assert_eq!(master.breach(&request(1000, replace(500))), None);
        assert_eq!(master.breach(&request(1000, replace(1))), Some(Breach::OutsideCollar));
        assert_eq!(master.breach(&request(1000, Command::Cancel { id: 1, user: 1 })), None);
        for session in [1, OPERATOR] {
            let unknown = Request { session, ..request(1001, Command::Tick) };
            assert_eq!(master.breach(&unknown), Some(Breach::NotListed));
        }
    }

    /// The largest one fits every message that has a map, beside the most of all else.
    #[test]
    fn a_master_has_a_number_of_instruments_and_fits_a_message() {
        let digits = format!("0.{}", "3".repeat(29));
        let one = |instrument| Listing {
            instrument,
            symbol: format!("{instrument:08}"),
            tick: digits.clone(),
            lot: digits.clone(),
            currency: "USD".to_string(),
            low: 1,
            high: 2,
            most: 3,
        };
        let all = |count: usize| Master::of((0..count as u32).map(one).collect());
        assert!(matches!(all(LISTED_MAX + 1), Err(MasterError::Count(_))));
        let mut master = all(LISTED_MAX).unwrap();
        assert!(matches!(master.plan_list(&one(9_999)), Err(MasterError::Count(_))));
        assert!(!master.list(&one(9_999)));
        let map = InstrumentMap::new(1).with_master(Some(master.into()));
        let bytes = nm_wire::encode(&MembershipReport::new(map).message()).len();
        // Nodes with long addresses, in the map and in control's state, and all moves.
        let others = 4 * 64 * 3 * (crate::limits::ADDRESS_BYTES_MAX + 32)
            + crate::limits::MOVED_INSTRUMENTS_MAX * 10
            + crate::limits::MOVES_PENDING_MAX * 10;
        assert!(bytes + others + overhead_bytes(false) < FRAME_BYTES_MAX, "{bytes} {others}");
    }

    #[test]
    fn the_file_of_a_network_has_its_master() {
        let node = |class: &str| format!("[[{class}]]\naddress = \"unix:/{class}\"\n");
        let nodes: String = ["gateway", "router", "mediator", "processor"].map(node).concat();
        let network = Network::parse(&format!("{nodes}{ACME}high = \"20\"\n")).unwrap();
        let again = Network::parse(&network.to_toml().unwrap()).unwrap();
        assert_eq!(again, network);
        assert_eq!(again.master.unwrap().named("ACME").unwrap().high, 2000);
        assert_eq!(Network::parse(&nodes).unwrap().master, None);
        let wrong = Network::parse(&format!("{nodes}{}", ACME.replace("0.01", "0")));
        assert!(wrong.unwrap_err().to_string().contains("tick of ACME is `0`"));
    }
}
