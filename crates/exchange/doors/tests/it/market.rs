//! What clients ask to be sent of the market, what they are sent, and limits.

use std::collections::BTreeMap;
use std::sync::Arc;

use nm_book::codec;
use nm_book::order::Event;
use nm_doors::door::{Act, ConnectionId, Door};
use nm_doors::fix::line::Line;
use nm_doors::fix::message::{Message, seal};
use nm_doors::fix::settings::read;
use nm_doors::fix::time;
use nm_doors::limits::{
    CLIENT_ID_BYTES_MAX, DEPTH_MAX, FIRM_SYMBOLS_MAX, MARKET_REQUESTS_MAX, MARKET_SLOW_NS,
    MARKET_SYMBOLS_MAX, MARKET_WAIT_NS,
};
use nm_doors::market::{Level, Trade, TradingPhase, View};
use nm_doors::settings::read_symbols;
use nm_wire::{DayEnded, Message as Frame, Owner, Public, Series, Standing};

const NOW_NS: u64 = 1_796_000_000_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Five clients of the firm F, and one without a firm; `symbols` are traded, A1 and so on.
fn door(symbols: usize) -> Door<Line> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.toml");
    let mut text = "venue = \"VENUE\"\n".to_string();
    for at in 1..=symbols {
        text += &format!(
            "[[symbol]]\nname = \"A{at}\"\ninstrument = {at}\ntick = \"0.25\"\nlot = \"10\"\n"
        );
    }
    for at in 1..=6 {
        let firm = if at < 6 { "firm = \"F\"\n" } else { "" };
        text += &format!(
            "[[session]]\nclient = \"C{at}\"\nversion = \"FIX.4.4\"\nsession = {at}\n{firm}"
        );
    }
    std::fs::write(&file, text).unwrap();
    Door::new(&read(&file, None).unwrap())
}

/// Clients that have logged on, number 1 and so on, and what they were sent.
struct Market {
    door: Door<Line>,
    next: BTreeMap<ConnectionId, u64>,
    received: BTreeMap<ConnectionId, Vec<Message>>,
    kept: usize,
    now_ns: u64,
}

impl Market {
    fn new(symbols: usize, clients: u64) -> Market {
        let (next, received) = (BTreeMap::new(), BTreeMap::new());
        let mut market = Market { door: door(symbols), next, received, kept: 0, now_ns: NOW_NS };
        for client in 1..=clients {
            assert!(market.door.connected(client, Owner::NOBODY, NOW_NS));
            market.send(client, "A", "98=0|108=0");
            assert_eq!(market.take(client).len(), 1);
        }
        market
    }

    fn send(&mut self, client: ConnectionId, kind: &str, body: &str) {
        let seq = self.next.entry(client).or_default();
        *seq += 1;
        let now = time::format(self.now_ns);
        let text = format!("35={kind}|34={seq}|49=C{client}|52={now}|56=VENUE|{body}|");
        let bytes = seal("FIX.4.4", &text.replace('|', "\u{1}"));
        self.door.received(client, &bytes, self.now_ns);
        self.collect();
    }

    fn collect(&mut self) {
        for act in self.door.take_acts() {
            match act {
                Act::Send(to, bytes) => {
                    let message = Message::parse(&bytes).unwrap();
                    self.received.entry(to).or_default().push(message);
                }
                Act::Keep(..) => self.kept += 1,
                _ => {}
            }
        }
    }

    /// A request for market data of symbols.
    fn request(&mut self, client: ConnectionId, id: &str, more: &str, symbols: &[&str]) {
        let named: String = symbols.iter().map(|name| format!("|55={name}")).collect();
        self.send(client, "V", &format!("262={id}|{more}|146={}{named}", symbols.len()));
    }

    fn show(&mut self, views: impl IntoIterator<Item = (u32, View)>) {
        let views = views.into_iter().map(|(at, view)| (at, Arc::new(view)));
        self.door.market_changed(views.collect(), self.now_ns);
        self.collect();
    }

    fn wait(&mut self, ns: u64) {
        self.now_ns += ns;
        self.door.tick(self.now_ns);
        self.collect();
    }

    fn hear(&mut self, frame: &Frame<'_>) {
        self.door.received_frame(frame, self.now_ns);
        self.wait(SECOND_NS);
    }

    /// Something is announced of an instrument.
    fn announce(&mut self, instrument: u32, event: Event) {
        let mut bytes = vec![];
        codec::write_event(&event, &mut bytes);
        let (output_seq, previous_event, gateway, cell) = (1, 0, 0, 0);
        let events = Series::of(&bytes);
        self.hear(&Frame::Public(Public {
            instrument,
            output_seq,
            previous_event,
            gateway,
            cell,
            events,
        }));
    }

    /// What a client was sent since the last call.
    fn take(&mut self, client: ConnectionId) -> Vec<Message> {
        self.received.remove(&client).unwrap_or_default()
    }

    /// The same as bodies.
    fn bodies(&mut self, client: ConnectionId) -> Vec<String> {
        self.take(client).iter().map(body).collect()
    }

    /// The only message that a client was sent, which is of this type.
    #[track_caller]
    fn refused(&mut self, client: ConnectionId, kind: &str) -> (String, String) {
        let all = self.take(client);
        let [message] = &all[..] else { panic!("{all:?}") };
        assert_eq!(message.kind(), kind, "{}", body(message));
        let field = |tag| message.get(tag).unwrap_or_default().to_string();
        (field(281), field(58))
    }
}

/// The type of a message and its fields behind the header.
fn body(message: &Message) -> String {
    let header = [8, 9, 34, 49, 52, 56, 10];
    let mut text = message.kind().to_string();
    for (tag, value) in message.fields().filter(|(tag, _)| !header.contains(tag) && *tag != 35) {
        text += &format!(" {tag}={}", String::from_utf8_lossy(value));
    }
    text
}

fn level(price: i64, quantity: u64, orders: u32) -> Level {
    Level { price, quantity, orders }
}

fn view(bids: &[Level], offers: &[Level]) -> View {
    View { bids: bids.to_vec(), offers: offers.to_vec(), ..View::empty() }
}

const ALL: &str = "263=1|264=0|265=1|267=2|269=0|269=1";

#[test]
fn a_subscription_is_a_snapshot_and_then_what_changes() {
    let mut market = Market::new(2, 1);
    market.request(1, "r", ALL, &["A1"]);
    assert!(market.take(1).is_empty(), "nobody knows the book yet");
    let mut wanted = market.door.wanted();
    assert_eq!(wanted, [1].into());
    let first = view(&[level(41, 3, 2), level(40, 1, 1)], &[level(44, 2, 1)]);
    market.show([(1, first.clone()), (2, first)]);
    let expected = "W 262=r 55=A1 268=3 269=0 270=10.25 271=30 346=2 269=0 270=10 271=10 346=1 \
                    269=1 270=11 271=20 346=1";
    assert_eq!(market.bodies(1), [expected]);
    market.show([(1, view(&[level(42, 1, 1), level(41, 2, 1)], &[level(44, 2, 1)]))]);
    let expected = "X 262=r 268=3 279=2 269=0 55=A1 270=10 271=10 346=1 279=0 269=0 55=A1 \
                    270=10.5 271=10 346=1 279=1 269=0 55=A1 270=10.25 271=20 346=1";
    assert_eq!(market.bodies(1), [expected]);
    let same = view(&[level(42, 1, 1), level(41, 2, 1)], &[level(44, 2, 1)]);
    market.show([(1, View { volume: 5, ..same })]);
    assert!(market.take(1).is_empty(), "nothing that it has asked for has changed");
    market.request(1, "r", "263=2|264=0|267=1|269=0", &["A1"]);
    market.show([(1, View::empty())]);
    assert!(market.take(1).is_empty(), "it has ended");
    wanted.clear();
    assert_eq!(market.door.wanted(), wanted);
}

#[test]
fn depth_entries_and_the_kind_of_update_are_as_asked_for() {
    let mut market = Market::new(1, 3);
    let deep = view(&[level(9, 1, 1), level(8, 1, 1), level(7, 1, 1)], &[level(10, 1, 1)]);
    let traded = View { last: Some(Trade { price: 9, quantity: 2 }), volume: 2, ..deep.clone() };
    market.request(1, "top", "263=1|264=1|265=0|267=1|269=0", &["A1"]);
    market.request(2, "trades", "263=1|264=1|267=2|269=2|269=B", &["A1"]);
    market.request(3, "once", "263=0|264=2|267=1|269=0", &["A1"]);
    market.show([(1, deep.clone())]);
    assert_eq!(market.bodies(1), ["W 262=top 55=A1 268=1 269=0 270=2.25 271=10 346=1"]);
    assert_eq!(market.bodies(2), ["W 262=trades 55=A1 268=1 269=B 271=0"]);
    let once = "W 262=once 55=A1 268=2 269=0 270=2.25 271=10 346=1 269=0 270=2 271=10 346=1";
    assert_eq!(market.bodies(3), [once]);
    market.show([(1, traded.clone())]);
    assert!(market.take(1).is_empty(), "its only level is as it was");
    let trade = "X 262=trades 268=2 279=0 269=2 55=A1 270=2.25 271=20 279=1 269=B 55=A1 271=20";
    assert_eq!(market.bodies(2), [trade]);
    assert!(market.take(3).is_empty(), "it was answered");
    market.show([(1, View { bids: vec![level(8, 4, 2)], ..traded })]);
    assert_eq!(market.bodies(1), ["W 262=top 55=A1 268=1 269=0 270=2 271=40 346=2"]);
    // A second request knows the book at once.
    market.request(3, "again", "263=0|264=1|267=1|269=1", &["A1"]);
    assert_eq!(market.bodies(3), ["W 262=again 55=A1 268=1 269=1 270=2.5 271=10 346=1"]);
}

#[test]
fn a_request_that_nobody_can_answer_is_refused_with_its_reason() {
    let mut market = Market::new(2, 1);
    let too_deep = format!("263=1|264={}|267=1|269=0", DEPTH_MAX + 1);
    for (more, symbols, reason, text) in [
        (ALL, &["A1", "B"][..], "0", "no symbol B is traded here"),
        (too_deep.as_str(), &["A1"], "5", "MarketDepth must be 0 to 100"),
        ("263=1|264=0|265=2|267=1|269=0", &["A1"], "6", "MDUpdateType must be 0"),
        ("263=1|264=0|266=N|267=1|269=0", &["A1"], "7", "AggregatedBook must be Y"),
        ("263=1|264=0|267=2|269=0|269=7", &["A1"], "8", "and is 7"),
        ("263=2|264=0|267=1|269=0", &["A1"], "", "no subscription has MDReqID r"),
    ] {
        market.request(1, "r", more, symbols);
        let (found, why) = market.refused(1, "Y");
        assert_eq!(found, reason, "{why}");
        assert!(why.contains(text), "{why}");
    }
    market.request(1, "r", ALL, &["A1"]);
    market.request(1, "r", ALL, &["A2"]);
    assert_eq!(market.refused(1, "Y").0, "1");
    let long = "i".repeat(CLIENT_ID_BYTES_MAX + 1);
    market.request(1, &long, ALL, &["A2"]);
    assert!(market.refused(1, "Y").1.contains("64 characters"));
    // Without a group, or with another number of symbols, it is no message of this type.
    market.send(1, "V", "262=q|263=1|264=0|267=1|269=0");
    assert_eq!(market.take(1)[0].kind(), "3");
    market.send(1, "V", "262=q|263=1|264=0|267=1|269=0|146=2|55=A1");
    assert_eq!(market.take(1)[0].kind(), "3");
}

#[test]
fn what_nobody_knows_is_refused_after_a_time() {
    let mut market = Market::new(2, 1);
    market.request(1, "r", ALL, &["A1", "A2"]);
    market.show([(1, View::empty())]);
    assert_eq!(market.bodies(1), ["W 262=r 55=A1 268=0"]);
    market.wait(MARKET_WAIT_NS - 1);
    assert!(market.take(1).is_empty());
    market.wait(SECOND_NS);
    assert!(market.refused(1, "Y").1.contains("ask again"));
    market.show([(2, View::empty())]);
    assert!(market.take(1).is_empty(), "it has ended");
}

#[test]
fn a_client_that_reads_slowly_gets_the_difference_once_it_has_read() {
    let mut market = Market::new(1, 1);
    market.request(1, "r", ALL, &["A1"]);
    market.show([(1, view(&[level(1, 1, 1)], &[]))]);
    market.take(1);
    market.door.set_slow(1, true, market.now_ns);
    for quantity in 2..100 {
        market.show([(1, view(&[level(1, quantity, 1), level(2, 1, 1)], &[]))]);
        market.wait(1_000);
    }
    assert!(market.take(1).is_empty());
    market.door.set_slow(1, false, market.now_ns);
    market.collect();
    let difference = "X 262=r 268=2 279=1 269=0 55=A1 270=0.25 271=990 346=1 279=0 269=0 55=A1 \
                      270=0.5 271=10 346=1";
    assert_eq!(market.bodies(1), [difference]);
}

#[test]
fn the_subscriptions_of_a_client_that_does_not_read_end_with_a_reason() {
    let mut market = Market::new(1, 1);
    market.request(1, "r", ALL, &["A1"]);
    market.send(1, "e", "324=s|263=1|55=A1");
    market.show([(1, View::empty())]);
    market.take(1);
    market.door.set_slow(1, true, market.now_ns);
    market.door.set_slow(1, true, market.now_ns + MARKET_SLOW_NS - 1);
    market.collect();
    assert!(market.take(1).is_empty());
    market.door.set_slow(1, true, market.now_ns + MARKET_SLOW_NS);
    market.collect();
    let sent = market.bodies(1);
    let why = "58=the client reads too slowly for market data";
    assert_eq!(sent, [format!("Y 262=r 281=2 {why}"), format!("f 324=s 55=[N/A] 326=20 {why}")]);
    assert!(market.door.wanted().is_empty());
}

#[test]
fn market_data_is_not_kept_and_a_gap_fill_goes_over_it() {
    let mut market = Market::new(1, 1);
    market.request(1, "r", ALL, &["A1"]);
    market.show([(1, View::empty())]);
    market.show([(1, view(&[level(1, 1, 1)], &[]))]);
    let sent = market.take(1);
    assert_eq!(sent.iter().map(Message::seq).collect::<Vec<u64>>(), [2, 3]);
    let before = market.kept;
    market.send(1, "2", "7=2|16=0");
    let sent = market.take(1);
    let [fill] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((fill.kind(), fill.get(36), fill.get(123)), ("4", Some("4"), Some("Y")));
    assert_eq!(market.kept, before + 1, "the number of the request alone");
    // Its subscriptions end with its connection.
    market.door.disconnected(1, market.now_ns);
    assert!(market.door.wanted().is_empty());
    market.show([(1, View::empty())]);
    let snapshot: Vec<_> = market.door.snapshot(0).collect();
    assert!(!format!("{snapshot:?}").contains("269="), "{snapshot:?}");
}

#[test]
fn trading_status_is_sent_when_it_changes() {
    let mut market = Market::new(1, 1);
    market.send(1, "e", "324=s|263=1|55=A1");
    market.send(1, "e", "324=t|263=0|55=A1");
    market.send(1, "e", "324=u|263=1|55=B");
    let why = "f 324=u 55=B 326=20 58=no symbol B is traded here";
    assert_eq!(market.bodies(1), [why]);
    market.show([(1, View::empty())]);
    assert_eq!(market.bodies(1), ["f 324=s 55=A1 326=17", "f 324=t 55=A1 326=17"]);
    market.show([(1, View { volume: 1, ..View::empty() })]);
    assert!(market.take(1).is_empty());
    for (phase, status) in [
        (TradingPhase::Halted, 2),
        (TradingPhase::Continuous, 3),
        (TradingPhase::Auction, 21),
        (TradingPhase::Continuous, 17),
    ] {
        market.show([(1, View { phase, ..View::empty() })]);
        assert_eq!(market.bodies(1), [format!("f 324=s 55=A1 325=Y 326={status}")]);
    }
    market.send(1, "e", "324=s|263=2|55=A1");
    market.show([(1, View { phase: TradingPhase::Halted, ..View::empty() })]);
    assert!(market.take(1).is_empty());
}

/// A door that sees no books has what is announced to all clients.
#[test]
fn halts_auctions_and_the_end_of_the_day_reach_those_who_subscribed() {
    let mut market = Market::new(2, 2);
    market.send(1, "g", "335=x|263=1");
    market.send(1, "e", "324=s|263=1|55=A1");
    market.send(1, "e", "324=t|263=0|55=A2");
    market.send(2, "g", "335=x|263=0");
    assert_eq!(market.bodies(1), ["h 335=x 336=DAY 340=2"]);
    assert_eq!(market.bodies(2), ["h 335=x 336=DAY 340=2"]);
    market.wait(MARKET_WAIT_NS);
    let unknown = "f 324=s 55=A1 326=20 58=this door sees no books: the next change of the status \
                   is reported";
    let refused = "f 324=t 55=[N/A] 326=20 58=the exchange does not say what its books have: ask \
                   again";
    assert_eq!(market.bodies(1), [unknown, refused]);
    market.announce(1, Event::Halted);
    assert_eq!(market.bodies(1), ["f 324=s 55=A1 325=Y 326=2"]);
    market.announce(2, Event::Halted);
    assert_eq!(market.bodies(1), ["h 335=x 336=DAY 325=Y 340=1"]);
    market.announce(1, Event::Resumed);
    assert_eq!(market.bodies(1), ["f 324=s 55=A1 325=Y 326=3", "h 335=x 336=DAY 325=Y 340=2"]);
    market.announce(1, Event::Halted);
    market.take(1);
    market.hear(&Frame::DayEnded(DayEnded { cell: 0, instruments: vec![1, 2] }));
    assert_eq!(market.bodies(1), ["f 324=s 55=A1 325=Y 326=18", "h 335=x 336=DAY 325=Y 340=3"]);
    market.announce(1, Event::AuctionBegun);
    market.take(1);
    market.announce(2, Event::AuctionBegun);
    assert_eq!(market.bodies(1), ["h 335=x 336=DAY 325=Y 340=4"]);
    market.send(1, "g", "335=x|263=2");
    market.announce(2, Event::Uncrossed { price: None, volume: 0 });
    assert!(market.take(1).is_empty() && market.take(2).is_empty());
    market.send(1, "g", "335=x|263=2");
    assert_eq!(market.bodies(1), ["h 335=x 336=DAY 340=6 58=no subscription has TradSesReqID x"]);
}

#[test]
fn a_firm_that_is_stopped_gets_news_that_are_kept() {
    let mut market = Market::new(1, 2);
    market.door.disconnected(1, market.now_ns);
    let (owner, cell) = (Owner::NOBODY, 0);
    for is_stopped in [true, false] {
        market.hear(&Frame::Standing(Standing { session: 1, owner, cell, is_stopped }));
    }
    assert!(market.take(2).is_empty(), "it is of another session");
    assert!(market.door.connected(9, Owner::NOBODY, NOW_NS));
    let now = time::format(market.now_ns);
    let logon = format!("35=A|34=2|49=C1|52={now}|56=VENUE|98=0|108=0|");
    market.door.received(9, &seal("FIX.4.4", &logon.replace('|', "\u{1}")), market.now_ns);
    market.collect();
    market.take(9);
    let ask = format!("35=2|34=3|49=C1|52={now}|56=VENUE|7=2|16=3|");
    market.door.received(9, &seal("FIX.4.4", &ask.replace('|', "\u{1}")), market.now_ns);
    market.collect();
    let news: Vec<_> = market
        .take(9)
        .iter()
        .map(|it| (it.kind().to_string(), it.get(148).map(str::to_string)))
        .collect();
    let headline = |text: &str| ("B".to_string(), Some(text.to_string()));
    assert_eq!(news, [headline("your firm is stopped"), headline("your firm may trade again")]);
}

#[test]
fn a_session_that_is_unknown_has_no_status() {
    let mut market = Market::new(1, 1);
    market.send(1, "g", "335=x|263=0");
    assert_eq!(market.bodies(1), ["h 335=x 336=DAY 340=2"]);
    market.send(1, "g", "335=y|263=0|336=NIGHT");
    assert_eq!(market.bodies(1), ["h 335=y 336=NIGHT 340=6 58=the only trading session is DAY"]);
}

#[test]
fn requests_are_limited_by_session_and_by_firm() {
    let symbols = MARKET_SYMBOLS_MAX + 1;
    let names: Vec<String> = (1..=symbols).map(|at| format!("A{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut market = Market::new(symbols, 6);
    // A message has at most 1024 fields.
    let (first, second) = names[..MARKET_SYMBOLS_MAX].split_at(MARKET_SYMBOLS_MAX / 2);
    for client in 1..=4 {
        market.request(client, "a", ALL, first);
        market.request(client, "b", ALL, second);
        assert!(market.take(client).is_empty(), "{client}");
    }
    market.request(1, "c", ALL, &names[..1]);
    let (reason, why) = market.refused(1, "Y");
    assert_eq!(reason, "2");
    assert!(why.contains("of a session have at most 1024 symbols"), "{why}");
    assert_eq!(FIRM_SYMBOLS_MAX, 4 * MARKET_SYMBOLS_MAX);
    market.request(5, "a", ALL, &names[..1]);
    assert!(market.refused(5, "Y").1.contains("of a firm have at most 4096 symbols"));
    market.request(6, "a", ALL, &names[..1]);
    assert!(market.take(6).is_empty(), "it is of no firm");
    market.door.disconnected(4, market.now_ns);
    market.request(5, "a", ALL, first);
    assert!(market.take(5).is_empty(), "there is room again");
    for at in 1..MARKET_REQUESTS_MAX {
        market.request(6, &format!("r{at}"), ALL, &names[..1]);
        assert!(market.take(6).is_empty(), "{at}");
    }
    market.request(6, "more", ALL, &names[..1]);
    assert!(market.refused(6, "Y").1.contains("at most 64 requests"));
}

#[test]
fn symbols_that_are_listed_later_are_known_and_reports_of_old_ones_stay_right() {
    let mut market = Market::new(1, 1);
    market.request(1, "r", ALL, &["B"]);
    assert_eq!(market.refused(1, "Y").0, "0");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("symbols.toml");
    let text = "[[symbol]]\nname = \"B\"\ninstrument = 7\ntick = \"0.5\"\nlot = \"1\"\n";
    std::fs::write(&file, text).unwrap();
    market.door.set_symbols(&Arc::new(read_symbols(&file).unwrap()));
    market.request(1, "r", ALL, &["B"]);
    market.show([(7, view(&[level(3, 4, 1)], &[]))]);
    assert_eq!(market.bodies(1), ["W 262=r 55=B 268=1 269=0 270=1.5 271=4 346=1"]);
    market.send(1, "x", "320=l|559=4");
    assert!(market.bodies(1)[0].ends_with("146=1 55=B"), "the other one is not listed any more");
}
