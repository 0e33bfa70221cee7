//! FIX as a protocol of a door: the session layer and the orders of one session.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::desk::{Desk, Effect};
use super::framer::{FrameFault, Framer};
use super::market::{MarketDesk, Report};
use super::message::{Body, Message};
use super::record::Record;
use super::session::{self, Profile, Session};
use super::tag;
use crate::line::{self, Cut, Input, Next, Output};
use crate::market::{Market, Views};
use crate::settings::Settings;
use crate::symbols::Symbols;
use nm_client::Change;
use nm_wire::{Message as Frame, Standing};

impl Cut for Framer {
    type Message = Message;

    fn push(&mut self, bytes: &[u8]) {
        self.push(bytes);
    }

    fn next(&mut self) -> Option<Next<Message>> {
        Some(match self.next_message()? {
            Ok(message) => Next::Message(message),
            Err(FrameFault::Garbled(_)) => Next::Ignored,
            Err(fault @ FrameFault::TooLong) => Next::Fault(fault.to_string()),
        })
    }
}

/// A session of FIX.
#[derive(Debug)]
pub struct Line {
    session: Session,
    desk: Desk,
    market: MarketDesk,
    outputs: Vec<Output<Record>>,
}

impl Line {
    /// Lets the session layer handle something, and the orders what follows.
    fn session(&mut self, input: session::Input<'_>, now_ns: u64) {
        let mut delivered = vec![];
        for output in self.session.step(input, now_ns) {
            match output {
                session::Output::Keep(change) => {
                    self.outputs.push(Output::Keep(Record::Session(change)));
                }
                session::Output::Send(bytes) => self.outputs.push(Output::Send(bytes)),
                // What follows has later numbers than what the session has sent already.
                session::Output::Deliver(message) => delivered.push(message),
                session::Output::Close(why) => {
                    self.market.clear();
                    self.outputs.push(Output::Close(why));
                }
            }
        }
        for message in delivered {
            self.deliver(&message, now_ns);
        }
    }

    /// Hands a message of the application to whom it concerns.
    fn deliver(&mut self, message: &Message, now_ns: u64) {
        if let Some(reports) = self.market.receive(message, now_ns) {
            return self.tell(reports, now_ns);
        }
        let is_trade = matches!(message.kind(), "D" | "F" | "G" | "H" | "q");
        let effects = match is_trade && self.session.profile().is_drop_copy {
            true => self.desk.forbid(message),
            false => self.desk.receive(message, now_ns),
        };
        self.follow(effects, now_ns);
    }

    /// Sends what the market desk says.
    fn tell(&mut self, reports: Vec<Report>, now_ns: u64) {
        for (kind, body) in reports {
            self.session(session::Input::SendOnce(kind, body), now_ns);
        }
    }

    /// The copy of a report, if somebody may get one: without its route, and with the name of the
    /// client. A report that only answers a question is not copied.
    fn copy(&self, report: &Body) -> Option<String> {
        const ROUTE: [&str; 6] = ["115=", "116=", "128=", "129=", "144=", "145="];
        self.session.profile().firm.as_ref()?;
        let is_route = |field: &&str| ROUTE.iter().any(|tag| field.starts_with(tag));
        let fields = report.0.split_terminator('\u{1}');
        if fields.clone().any(|field| field == "150=I") {
            return None;
        }
        let client = &self.session.profile().peer;
        let mut copy = Body::default().with(tag::ON_BEHALF_OF_COMP_ID, client);
        for field in fields.skip_while(is_route) {
            copy.0.push_str(field);
            copy.0.push('\u{1}');
        }
        copy.push(tag::COPY_MSG_INDICATOR, "Y");
        Some(copy.0)
    }

    /// Does what follows from a message or an event.
    fn follow(&mut self, effects: Vec<Effect>, now_ns: u64) {
        for effect in effects {
            match effect {
                Effect::Keep(record) => self.outputs.push(Output::Keep(record)),
                Effect::Report(kind, body) => {
                    if kind == "8" {
                        self.outputs.extend(self.copy(&body).map(Output::Copy));
                    }
                    self.session(session::Input::Send(kind, body), now_ns);
                }
            }
        }
    }
}

/// News: the exchange has stopped the firm of a session, or lets it trade again.
fn news(standing: &Standing) -> Body {
    let (headline, text) = match standing.is_stopped {
        true => ("your firm is stopped", "new orders are rejected, and live ones are cancelled"),
        false => ("your firm may trade again", "new orders are taken"),
    };
    Body::default().with(tag::HEADLINE, headline).with(tag::LINES_OF_TEXT, 1).with(tag::TEXT, text)
}

impl line::Line for Line {
    type Cut = Framer;
    type Profile = Profile;
    type Record = Record;

    const PROTOCOL: &str = "fix";

    fn new(settings: &Settings<Profile>, at: usize) -> Line {
        let one = &settings.sessions[at];
        Line {
            session: Session::new(one.profile.clone()),
            desk: Desk::new(one.session, settings.symbols.clone()),
            market: MarketDesk::new(settings.symbols.clone(), one.profile.firm_use.clone()),
            outputs: vec![],
        }
    }

    fn names(profile: &Profile) -> (&str, &str) {
        (&profile.peer, &profile.own)
    }

    fn is_named_by(&self, first: &Message) -> bool {
        let profile = self.session.profile();
        first.kind() == "A"
            && first.get(tag::BEGIN_STRING) == Some(profile.version.begin_string())
            && first.get(tag::SENDER_COMP_ID) == Some(&profile.peer)
            && first.get(tag::TARGET_COMP_ID) == Some(&profile.own)
    }

    /// Nothing: a Logout would take a number from the session.
    fn refusal(_: bool) -> Vec<u8> {
        vec![]
    }

    fn refusal_when_over(message: &Message) -> Option<&'static str> {
        let text = "the store of this session is full: log on with ResetSeqNumFlag";
        (!message.is_set(tag::RESET_SEQ_NUM_FLAG)).then_some(text)
    }

    fn forget_ended(&mut self) {
        self.desk.forget_ended();
    }

    fn has_live_orders(&self) -> bool {
        self.desk.has_live_orders()
    }

    fn is_logged_on(&self) -> bool {
        self.session.is_connected()
    }

    fn step(&mut self, input: Input<'_, Message>, now_ns: u64) -> Vec<Output<Record>> {
        match input {
            Input::Message(message) => self.session(session::Input::Message(message), now_ns),
            Input::Frame(Frame::Standing(standing)) => {
                self.session(session::Input::Send("B", news(standing)), now_ns);
            }
            Input::Frame(frame) => {
                let effects = self.desk.hear(frame, now_ns);
                self.follow(effects, now_ns);
            }
            Input::Tick => self.session(session::Input::Tick, now_ns),
            Input::Disconnected => {
                self.market.clear();
                self.session(session::Input::Disconnected, now_ns);
            }
            Input::CancelAll => {
                let effects = self.desk.cancel_live(now_ns);
                self.follow(effects, now_ns);
            }
            Input::End(why) => self.session(session::Input::End(why), now_ns),
            Input::Copy(fields) => {
                let body = Body(fields.to_string());
                self.session(session::Input::Send("8", body), now_ns);
            }
        }
        std::mem::take(&mut self.outputs)
    }

    fn exchange(&mut self) -> &mut nm_client::Session {
        &mut self.desk.exchange
    }

    fn record(change: Change) -> Record {
        Record::Exchange(change)
    }

    fn is_reset(record: &Record) -> bool {
        *record == Record::Session(session::Change::Reset)
    }

    fn restore(&mut self, record: Record) {
        match record {
            Record::Session(change) => self.session.restore(change),
            Record::Exchange(change) => self.desk.exchange.restore(change),
            Record::Order(order) => self.desk.restore_order(*order),
            Record::Forgotten(number) => self.desk.forget(number),
            Record::Numbered(number) => self.desk.restore_number(number),
        }
    }

    fn snapshot(&self) -> impl Iterator<Item = Record> {
        let of_session = self.session.snapshot().map(Record::Session);
        let of_exchange = self.desk.exchange.snapshot().into_iter().map(Record::Exchange);
        of_session.chain(of_exchange).chain(self.desk.snapshot())
    }

    fn lost_symbol(&self) -> Option<&str> {
        self.desk.lost_symbol()
    }

    fn set_symbols(&mut self, symbols: Arc<Symbols>) {
        self.market.set_symbols(Arc::clone(&symbols));
        self.desk.set_symbols(symbols);
    }

    fn gets_copies_of(&self, other: &Line) -> bool {
        let (own, firm) = (self.session.profile(), &other.session.profile().firm);
        own.is_drop_copy && firm.is_some() && own.firm == *firm
    }

    fn gets_copies(&self) -> bool {
        self.session.profile().is_drop_copy
    }

    fn make_room(&mut self) {
        if self.gets_copies() {
            self.session.forget_half();
        }
    }

    fn wanted(&self, to: &mut BTreeSet<u32>) {
        self.market.wanted(to);
    }

    fn tell_market(
        &mut self,
        market: &Market,
        changed: Option<&Views>,
        now_ns: u64,
    ) -> Vec<Output<Record>> {
        let reports = self.market.tell(market, changed, now_ns);
        self.tell(reports, now_ns);
        std::mem::take(&mut self.outputs)
    }

    fn end_market(&mut self, why: &str, now_ns: u64) -> Vec<Output<Record>> {
        let reports = self.market.end(why);
        self.tell(reports, now_ns);
        std::mem::take(&mut self.outputs)
    }

    fn set_full(&mut self, is_full: bool) {
        self.desk.is_full = is_full;
    }
}
