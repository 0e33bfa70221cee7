//! All books that are followed, by the updates of any replicas, and the feed that follows from
//! them.
//!
//! A book executes the same commands as the cells do, so it is the same book. An update says by its
//! history which one it follows. So copies of it by other replicas have no effect, and one that is
//! missing is noticed. This holds whichever replica leads, and in whichever cell the instrument is.
//! If no replica has sent the missing one for [`MISSING_NS`], the book is asked for, and the feed
//! goes on from there. What traded meanwhile is not in it, and a line says so.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nm_book::book::Book;
use nm_book::order::{Event, InstrumentId, Matching as _, Side, TradingPhase};
use nm_book::snapshot::BookSnapshot;
use nm_doors::market::{Trade, View};
use nm_doors::symbols::Symbols;
use nm_wire::{BookPosition, BookUpdate};

use crate::derive::Derivation;
use crate::itch::Message;
use crate::limits::{EARLY_UPDATES_MAX, MISSING_NS, STOCKS_MAX};
use crate::stock::Listing;
use crate::top::Top;

/// ns of a day.
const DAY_NS: u64 = 86_400_000_000_000;

/// How long an answer is waited for until a book is asked for again, ns.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// How often the imbalance of an auction is sent, ns.
const IMBALANCE_NS: u64 = 1_000_000_000;

/// Number of a node that sends updates.
pub type Source = usize;

/// One instrument.
struct Followed {
    book: Book,
    derivation: Derivation,
    output_seq: u64,
    history: u64,
    /// The latest time of an update.
    time_ns: u64,
    /// Whether the book is that of the cell at its position.
    is_known: bool,
    /// Updates that came before the one that they follow, by the history that they follow.
    early: HashMap<u64, BookUpdate>,
    /// The position that a node has reported and that is to be reached.
    awaited: Option<BookPosition>,
    missing_since_ns: Option<u64>,
    asked_ns: Option<u64>,
    /// The node that has sent something of it last.
    source: Source,
    imbalance_ns: u64,
    /// The latest trade, and the lots that traded, since it is followed.
    last: Option<Trade>,
    volume: u64,
}

/// Which instruments are followed, and how they are shown.
enum Chosen {
    /// All, without a name.
    All,
    /// Those with a symbol.
    Symbols(Symbols),
    /// These, without a name.
    Instruments(BTreeSet<InstrumentId>),
}

/// All instruments that are followed.
pub struct Books {
    chosen: Chosen,
    followed: BTreeMap<InstrumentId, Followed>,
    /// Those whose books have changed since they were asked for last.
    changed: BTreeSet<InstrumentId>,
    listed: u16,
    /// Whether an instrument has found no place.
    is_full: bool,
    /// Nodes that have sent anything.
    sources: Source,
    events: Vec<nm_book::order::Event>,
    /// What an operator should know.
    pub notes: Vec<String>,
}

/// No instrument is followed.
impl Default for Books {
    fn default() -> Books {
        Books::choose(Chosen::Instruments(BTreeSet::new()))
    }
}

impl Books {
    /// No instruments yet. With symbols, others than those are not followed.
    pub fn new(symbols: Option<Symbols>) -> Books {
        Books::choose(symbols.map_or(Chosen::All, Chosen::Symbols))
    }

    fn choose(chosen: Chosen) -> Books {
        Books {
            chosen,
            changed: BTreeSet::new(),
            followed: BTreeMap::new(),
            listed: 0,
            is_full: false,
            sources: 0,
            events: vec![],
            notes: vec![],
        }
    }

    /// How an instrument is shown, if it is.
    fn listing(&self, instrument: InstrumentId) -> Option<Listing> {
        match &self.chosen {
            Chosen::All => Some(Listing::unnamed(instrument)),
            Chosen::Symbols(symbols) => Listing::of(symbols.of(instrument)?),
            Chosen::Instruments(all) => {
                all.contains(&instrument).then(|| Listing::unnamed(instrument))
            }
        }
    }

    /// The instrument; listed if it is new.
    fn entry(&mut self, instrument: InstrumentId, out: &mut Vec<Message>) -> Option<&mut Followed> {
        if !self.followed.contains_key(&instrument) {
            let listing = self.listing(instrument)?;
            if self.followed.len() == STOCKS_MAX {
                if !std::mem::replace(&mut self.is_full, true) {
                    let what =
                        format!("instrument {instrument} and others have no place in the feed");
                    self.notes.push(what);
                }
                return None;
            }
            self.listed = self.listed.wrapping_add(1);
            let derivation = Derivation::new(self.listed, listing);
            derivation.describe(out);
            let followed = Followed {
                book: Book::new(),
                derivation,
                output_seq: 0,
                history: 0,
                time_ns: 0,
                is_known: true,
                early: HashMap::new(),
                awaited: None,
                missing_since_ns: None,
                asked_ns: None,
                source: 0,
                imbalance_ns: 0,
                last: None,
                volume: 0,
            };
            self.followed.insert(instrument, followed);
            self.changed.insert(instrument);
        }
        self.followed.get_mut(&instrument)
    }

    /// A node says where a book stands.
    pub fn on_position(
        &mut self,
        from: Source,
        position: BookPosition,
        now_ns: u64,
        out: &mut Vec<Message>,
    ) {
        self.sources = self.sources.max(from + 1);
        let Some(followed) = self.entry(position.instrument, out) else { return };
        let known = followed.awaited.map_or(0, |awaited| awaited.output_seq);
        if position.output_seq > followed.output_seq.max(known) {
            followed.source = from;
            followed.awaited = Some(position);
            followed.missing_since_ns.get_or_insert(now_ns);
        }
    }

    /// A book has executed something.
    pub fn on_update(
        &mut self,
        from: Source,
        update: BookUpdate,
        now_ns: u64,
        out: &mut Vec<Message>,
    ) {
        self.sources = self.sources.max(from + 1);
        let mut events = std::mem::take(&mut self.events);
        if let Some(followed) = self.entry(update.instrument, out) {
            followed.on_update(from, update, now_ns, &mut events, out);
            self.changed.insert(update.instrument);
        }
        self.events = events;
    }

    /// A node has sent a book; `bytes` are empty if it does not have it.
    pub fn on_image(
        &mut self,
        position: BookPosition,
        bytes: &[u8],
        now_ns: u64,
        out: &mut Vec<Message>,
    ) {
        let mut events = std::mem::take(&mut self.events);
        let note = match self.followed.get_mut(&position.instrument) {
            Some(followed) => followed.on_image(position, bytes, now_ns, &mut events, out),
            None => None,
        };
        self.changed.insert(position.instrument);
        self.notes.extend(note);
        self.events = events;
    }

    /// Other symbols are listed from now on; those that were stay in the feed.
    pub fn set_symbols(&mut self, symbols: Symbols) {
        self.chosen = Chosen::Symbols(symbols);
    }

    /// Other instruments than these are not followed from now on.
    pub fn set_instruments(&mut self, instruments: BTreeSet<InstrumentId>) {
        self.followed.retain(|instrument, _| instruments.contains(instrument));
        self.chosen = Chosen::Instruments(instruments);
    }

    /// The instruments whose books have changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<InstrumentId> {
        std::mem::take(&mut self.changed)
    }

    /// What the book of an instrument shows, so many levels of each side; none if it is not
    /// followed, or not known yet.
    pub fn view(&self, instrument: InstrumentId, depth: usize) -> Option<View> {
        let followed = self.followed.get(&instrument)?;
        followed.missing_since_ns.is_none().then(|| View {
            bids: followed.book.levels(Side::Buy, depth),
            offers: followed.book.levels(Side::Sell, depth),
            last: followed.last,
            volume: followed.volume,
            phase: followed.derivation.phase(),
        })
    }

    /// Time passes: instruments whose books are to be asked for, with the nodes to ask. A node that
    /// did not have the book is followed by the next one.
    pub fn on_time(&mut self, now_ns: u64) -> Vec<(Source, InstrumentId)> {
        let mut asked = vec![];
        for (instrument, followed) in &mut self.followed {
            let Some(since_ns) = followed.missing_since_ns else { continue };
            let is_due = match followed.asked_ns {
                None => now_ns >= since_ns + MISSING_NS,
                Some(asked_ns) => now_ns >= asked_ns + ASK_AGAIN_NS,
            };
            if is_due {
                if followed.asked_ns.is_some() {
                    followed.source = (followed.source + 1) % self.sources.max(1);
                }
                followed.asked_ns = Some(now_ns);
                asked.push((followed.source, *instrument));
            }
        }
        asked
    }

    /// What auctions would trade now, of each once a second.
    pub fn imbalances(&mut self, now_ns: u64, out: &mut Vec<Message>) {
        for followed in self.followed.values_mut() {
            let is_auction = followed.derivation.phase() == TradingPhase::Auction;
            if is_auction && now_ns >= followed.imbalance_ns + IMBALANCE_NS {
                followed.imbalance_ns = now_ns;
                out.push(followed.derivation.imbalance(followed.book.indicative()));
            }
        }
    }

    /// The complete state as messages: all stocks, then all orders.
    pub fn snapshot(&self, out: &mut Vec<Message>) {
        self.followed.values().for_each(|followed| followed.derivation.describe(out));
        self.followed.values().for_each(|followed| followed.derivation.orders(out));
    }

    /// The best prices of an instrument; none if it is not followed, or not known yet. A price or
    /// a quantity that ITCH cannot express is left out.
    pub fn top(&self, instrument: InstrumentId) -> Option<Top> {
        let followed = self.followed.get(&instrument)?;
        let listing = followed.derivation.listing();
        let shown = |(price, quantity)| Some((listing.price(price)?, listing.all_shares(quantity)));
        followed.missing_since_ns.is_none().then(|| Top {
            locate: followed.derivation.locate(),
            stock: listing.stock,
            time_ns: followed.time_ns % DAY_NS,
            state: followed.derivation.state(),
            bid: followed.book.best(Side::Buy).and_then(shown),
            offer: followed.book.best(Side::Sell).and_then(shown),
            last: followed.last.and_then(|trade| shown((trade.price, trade.quantity))),
            volume: listing.all_shares(followed.volume),
        })
    }

    /// Whether anything is known of an instrument.
    pub fn follows(&self, instrument: InstrumentId) -> bool {
        self.followed.contains_key(&instrument)
    }

    /// Instruments that are shown.
    pub fn len(&self) -> usize {
        self.followed.len()
    }

    /// Whether none is shown.
    pub fn is_empty(&self) -> bool {
        self.followed.is_empty()
    }
}

impl Followed {
    fn on_update(
        &mut self,
        from: Source,
        update: BookUpdate,
        now_ns: u64,
        events: &mut Vec<nm_book::order::Event>,
        out: &mut Vec<Message>,
    ) {
        let is_next = self.is_known && update.previous_history == self.history;
        if is_next {
            self.source = from;
            self.execute(&update, events, out);
            self.catch_up(events, out);
            return;
        }
        // A copy: a book that begins again has a later time.
        if update.output_seq <= self.output_seq && update.now_ns <= self.time_ns {
            return;
        }
        self.source = from;
        self.missing_since_ns.get_or_insert(now_ns);
        if self.early.len() < EARLY_UPDATES_MAX {
            self.early.insert(update.previous_history, update);
        }
    }

    fn execute(
        &mut self,
        update: &BookUpdate,
        events: &mut Vec<nm_book::order::Event>,
        out: &mut Vec<Message>,
    ) {
        self.output_seq = update.output_seq;
        self.history = update.history;
        self.time_ns = self.time_ns.max(update.now_ns);
        if let Some(command) = &update.command {
            events.clear();
            update.execute(&mut self.book, &mut |event| events.push(event));
            events.iter().for_each(|event| self.count_trade(event));
            self.derivation.derive(command, events, self.time_ns, out);
        }
    }

    fn count_trade(&mut self, event: &Event) {
        if let Event::Traded { price, quantity, .. } = *event {
            self.last = Some(Trade { price, quantity });
            self.volume = self.volume.saturating_add(quantity);
        }
    }

    /// Executes what was early, as far as nothing is missing.
    fn catch_up(&mut self, events: &mut Vec<nm_book::order::Event>, out: &mut Vec<Message>) {
        while !self.early.is_empty()
            && let Some(update) = self.early.remove(&self.history)
        {
            self.execute(&update, events, out);
        }
        if self.missing_since_ns.is_none() {
            return;
        }
        let (seq, time_ns) = (self.output_seq, self.time_ns);
        self.early.retain(|_, early| early.output_seq > seq || early.now_ns > time_ns);
        self.awaited = self.awaited.filter(|awaited| awaited.output_seq > seq);
        if self.early.is_empty() && self.awaited.is_none() {
            (self.missing_since_ns, self.asked_ns) = (None, None);
        }
    }

    fn on_image(
        &mut self,
        position: BookPosition,
        bytes: &[u8],
        now_ns: u64,
        events: &mut Vec<nm_book::order::Event>,
        out: &mut Vec<Message>,
    ) -> Option<String> {
        // By then it may have come by updates.
        self.missing_since_ns?;
        let image = BookSnapshot::read(bytes).ok()?;
        if position.output_seq <= self.output_seq && image.now_ns <= self.time_ns {
            return None;
        }
        let begins = self.output_seq == 0;
        self.book = Book::load(bytes).ok()?;
        self.output_seq = position.output_seq;
        self.history = position.history;
        self.time_ns = self.time_ns.max(image.now_ns);
        self.derivation.resume_from(&image, out);
        // Any others are asked for again.
        self.missing_since_ns = Some(now_ns);
        self.asked_ns = None;
        self.catch_up(events, out);
        let instrument = position.instrument;
        (!begins).then(|| {
            format!(
                "instrument {instrument}: the feed goes on from the book at request {}: what \
                 traded since the request before is not in it",
                position.output_seq
            )
        })
    }
}
