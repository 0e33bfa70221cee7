//! OUCH as a protocol of a door: a session of SoupBinTCP, and its orders.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::appendage::Appendage;
use super::desk::{Desk, Effect};
use super::message::{Inbound, Outbound, SystemEvent};
use super::record::Record;
use super::settings::{Profile, check_symbol};
use crate::line::{self, Input, Output};
use crate::market::begins_day;
use crate::settings::Settings;
use crate::soup::packet::{self, Framer, Packet, packet};
use crate::soup::session::{self, LoginRequest, Session};
use crate::symbols::Symbols;
use nm_client::Change;
use nm_wire::Message as Frame;

/// ns of a day.
const DAY_NS: u64 = 86_400_000_000_000;

/// A session of OUCH.
#[derive(Debug)]
pub struct Line {
    session: Session,
    desk: Desk,
    day: Day,
    outputs: Vec<Output<Record>>,
}

/// The day of a session: it ends when that of all symbols has, and begins with the first of them.
#[derive(Debug, Default)]
struct Day {
    /// Instruments whose day has ended, as the door has heard.
    ended: BTreeSet<u32>,
    /// Whether the client was told that the day has ended.
    is_over: bool,
}

impl Day {
    /// The event that follows from a message of the gateway.
    fn hear(&mut self, frame: &Frame<'_>, symbols: &Symbols) -> Option<u8> {
        match frame {
            Frame::DayEnded(ended) => self.ended.extend(&ended.instruments),
            Frame::Public(public) => {
                let mut events = public.events.take_while(Result::is_ok).flatten();
                if !events.any(|event| begins_day(&event)) {
                    return None;
                }
                self.ended.remove(&public.instrument);
                let is_own = symbols.of(public.instrument).is_some();
                return (is_own && std::mem::take(&mut self.is_over)).then_some(b'S');
            }
            _ => return None,
        }
        let mut all = symbols.0.values();
        let has_any = !symbols.0.is_empty();
        let is_over = has_any && all.all(|symbol| self.ended.contains(&symbol.instrument));
        let was_over = self.is_over;
        self.is_over |= is_over;
        (is_over && !was_over).then_some(b'E')
    }
}

impl Line {
    /// Does what the session says, and what follows from the requests in it.
    fn act(&mut self, now_ns: u64) {
        for output in self.session.take() {
            match output {
                session::Output::Keep(change) => {
                    self.outputs.push(Output::Keep(Record::Session(change)));
                }
                session::Output::Send(bytes) => self.outputs.push(Output::Send(bytes)),
                session::Output::Close(why) => self.outputs.push(Output::Close(why)),
                session::Output::Deliver(message) => match Inbound::read(&message) {
                    Ok((request, options)) => {
                        let effects = self.desk.receive(request, &options, now_ns);
                        self.follow(effects, now_ns);
                    }
                    Err(fault) => {
                        self.session.close(&fault.to_string());
                        self.act(now_ns);
                    }
                },
            }
        }
    }

    fn follow(&mut self, effects: Vec<Effect>, now_ns: u64) {
        for effect in effects {
            match effect {
                Effect::Keep(record) => self.outputs.push(Output::Keep(record)),
                Effect::Note(text) => self.outputs.push(Output::Note(text)),
                Effect::Send(message) => {
                    self.session.send(message, now_ns);
                    self.act(now_ns);
                }
            }
        }
    }

    /// A session that nobody has used gets its name, and tells that a day begins.
    fn begin(&mut self, now_ns: u64) {
        self.session.begin(now_ns);
        self.tell_event(b'S', now_ns);
    }

    fn tell_event(&mut self, event: u8, now_ns: u64) {
        let event = Outbound::from(SystemEvent { at: now_ns % DAY_NS, event });
        self.session.send(event.write(&Appendage::default()), now_ns);
    }
}

impl line::Line for Line {
    type Cut = Framer;
    type Profile = Profile;
    type Record = Record;

    const PROTOCOL: &str = "ouch";

    fn new(settings: &Settings<Profile>, at: usize) -> Line {
        let one = &settings.sessions[at];
        Line {
            session: Session::new(one.profile.login.clone()),
            desk: Desk::new(one.session, one.profile.firm, settings.symbols.clone()),
            day: Day::default(),
            outputs: vec![],
        }
    }

    fn names(profile: &Profile) -> (&str, &str) {
        (&profile.login.username, "OUCH")
    }

    fn is_named_by(&self, first: &Packet) -> bool {
        let request = LoginRequest::read(first);
        request.is_some_and(|it| it.username == self.session.login().username)
    }

    fn refusal(is_in_use: bool) -> Vec<u8> {
        let reason = if is_in_use { session::NOT_AVAILABLE } else { session::NOT_AUTHORISED };
        packet(packet::LOGIN_REJECTED, &[reason])
    }

    /// Requests lead to answers, which are kept.
    fn refusal_when_over(packet: &Packet) -> Option<&'static str> {
        (packet.kind == packet::UNSEQUENCED).then_some("the store of this session is full")
    }

    /// They are forgotten when they end.
    fn forget_ended(&mut self) {}

    fn has_live_orders(&self) -> bool {
        self.desk.has_live_orders()
    }

    fn is_logged_on(&self) -> bool {
        self.session.is_logged_in()
    }

    fn step(&mut self, input: Input<'_, Packet>, now_ns: u64) -> Vec<Output<Record>> {
        if !self.session.has_begun() {
            self.begin(now_ns);
        }
        match input {
            Input::Message(packet) => self.session.receive(packet, now_ns),
            Input::Frame(frame) => {
                if let Some(event) = self.day.hear(frame, self.desk.symbols()) {
                    self.outputs.push(Output::Keep(Record::DayOver(event == b'E')));
                    self.tell_event(event, now_ns);
                }
                let effects = self.desk.hear(frame, now_ns);
                self.follow(effects, now_ns);
            }
            Input::Tick => self.session.tick(now_ns),
            Input::Disconnected => self.session.disconnected(),
            Input::CancelAll => {
                let effects = self.desk.cancel_live(now_ns);
                self.follow(effects, now_ns);
            }
            Input::End(why) if self.session.is_logged_in() => self.session.close(why),
            Input::End(_) | Input::Copy(_) => {}
        }
        self.act(now_ns);
        std::mem::take(&mut self.outputs)
    }

    fn exchange(&mut self) -> &mut nm_client::Session {
        &mut self.desk.exchange
    }

    fn record(change: Change) -> Record {
        Record::Exchange(change)
    }

    fn is_reset(_: &Record) -> bool {
        false
    }

    fn restore(&mut self, record: Record) {
        match record {
            Record::Session(change) => self.session.restore(change),
            Record::Exchange(change) => self.desk.exchange.restore(change),
            Record::Order(order) => self.desk.restore_order(*order),
            Record::Ended(first) => self.desk.forget(first),
            Record::Used(used) => self.desk.restore_used(used),
            Record::Disabled(is_disabled) => self.desk.restore_disabled(is_disabled),
            Record::DayOver(is_over) => self.day.is_over = is_over,
        }
    }

    fn snapshot(&self) -> impl Iterator<Item = Record> {
        let of_session = self.session.snapshot().map(Record::Session);
        let of_exchange = self.desk.exchange.snapshot().into_iter().map(Record::Exchange);
        let day = Record::DayOver(self.day.is_over);
        of_session.chain(of_exchange).chain(self.desk.snapshot()).chain([day])
    }

    fn set_symbols(&mut self, symbols: Arc<Symbols>) {
        let mut symbols = Symbols::clone(&symbols);
        // One that was listed later may be none that OUCH can express: it is not traded here.
        symbols.0.retain(|_, symbol| check_symbol(symbol).is_ok());
        self.desk.set_symbols(Arc::new(symbols));
    }

    fn lost_symbol(&self) -> Option<&str> {
        self.desk.lost_symbol()
    }

    fn set_full(&mut self, is_full: bool) {
        self.desk.is_full = is_full;
    }
}
