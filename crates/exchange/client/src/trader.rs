//! A session over links to gateways: what a client does without waiting for anything.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nm_auth::Credentials;
use nm_book::order::{Command, NewOrder, OrderType, Peg, PostOnly, SelfTrade, Side, TimeInForce};
use nm_exchange::client;
use nm_exchange::client::Meant;
use nm_exchange::link::{Address, Link, LinkError, READ_BYTES};
use nm_sys::clock::monotonic_ns;
use nm_wire::{Close, Kind, LoggedOn, Logon, Message, SessionPosition};
use thiserror::Error;

use crate::inquiry::Inquiry;
use crate::liveness::Liveness;
use crate::open_order::OpenOrder;
use crate::session::{Happened, Session};
use crate::state::{StateError, StateFile};

/// Why a client cannot go on.
#[derive(Debug, Error)]
pub enum ClientError {
    /// It has no gateway.
    #[error("a client needs the address of a gateway")]
    NoGateway,
    /// A gateway refuses for a reason that lasts.
    #[error("gateway {gateway}: {source}")]
    Gateway {
        /// Where it listens.
        gateway: Address,
        /// Why.
        source: client::ClientError,
    },
    /// A gateway ends the link; why, in its words.
    #[error("gateway {gateway} refuses: {words}")]
    Refused {
        /// Where it listens.
        gateway: Address,
        /// Its words.
        words: String,
    },
    /// The state cannot be kept.
    #[error(transparent)]
    State(#[from] StateError),
}

/// What a client is made of.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where gateways listen: it uses one of them, and the next one when that fails.
    pub gateways: Vec<Address>,
    /// Number of the session.
    pub session: u32,
    /// Number of the network, 0 for any.
    pub network: u64,
    /// The session's key, where the network has a secret.
    pub credentials: Option<Credentials>,
    /// The file of its state. Without one, the state ends with the process.
    pub state: Option<PathBuf>,
    /// How often both ends of a link send heartbeats: 0.5 s to 60 s, or 0 for never. Without a sign
    /// of the gateway for three of them, the client goes to the next one.
    pub heartbeat: Duration,
    /// After how long without a link the exchange cancels the session's live orders: 2 s to 1 h, in
    /// whole seconds, or 0 for never. The exchange keeps to it until the session logs on with
    /// another one.
    pub cancel_after: Duration,
}

impl Settings {
    /// How often heartbeats are sent unless a program wants it otherwise.
    pub const HEARTBEAT: Duration = Duration::from_secs(2);

    /// A session without a file, with the gateways of any network that has no secret.
    pub fn new(gateways: Vec<Address>, session: u32) -> Settings {
        Settings {
            gateways,
            session,
            network: 0,
            credentials: None,
            state: None,
            heartbeat: Settings::HEARTBEAT,
            cancel_after: Duration::ZERO,
        }
    }

    fn logon(&self) -> Logon {
        Logon {
            session: self.session,
            heartbeat_ms: u32::try_from(self.heartbeat.as_millis()).unwrap_or(u32::MAX),
            cancel_after_s: u32::try_from(self.cancel_after.as_secs()).unwrap_or(u32::MAX),
        }
    }
}

/// The requests and orders of a client, which wait for nothing. [`Client`](crate::Client) and
/// [`AsyncClient`](crate::AsyncClient) have all of this.
#[derive(Debug)]
pub struct Trader {
    settings: Settings,
    session: Session,
    state: Option<StateFile>,
    link: Option<Link>,
    /// Which gateway it uses, or tries next.
    gateway: usize,
    links: u64,
    liveness: Liveness,
    /// The answer to its logon over this link.
    logged_on: Option<LoggedOn>,
    inquiry: Option<Inquiry>,
}

impl Trader {
    /// A session without a link.
    pub(crate) fn open(settings: Settings) -> Result<Trader, ClientError> {
        if settings.gateways.is_empty() {
            return Err(ClientError::NoGateway);
        }
        let number = settings.session;
        let (state, session) = match &settings.state {
            Some(path) => {
                let (state, session) = StateFile::open(path, number)?;
                (Some(state), session)
            }
            None => (None, Session::new(number)),
        };
        let liveness = Liveness::new(settings.heartbeat, 0);
        Ok(Trader {
            settings,
            session,
            state,
            link: None,
            gateway: 0,
            links: 0,
            liveness,
            logged_on: None,
            inquiry: None,
        })
    }

    /// The session: its requests and orders.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How many links it has made.
    pub fn links(&self) -> u64 {
        self.links
    }

    /// Its orders on an instrument that are open or on their way.
    pub fn orders(&self, instrument: u32) -> impl Iterator<Item = (u64, &OpenOrder)> {
        let orders = self.session.orders();
        orders.filter(move |(on, ..)| *on == instrument).map(|(_, id, order)| (id, order))
    }

    /// Sends a limit order that rests until it is filled or cancelled; its id.
    ///
    /// # Errors
    /// As [`Trader::request`].
    pub fn order(
        &mut self,
        on: u32,
        side: Side,
        price: i64,
        lots: u64,
    ) -> Result<u64, ClientError> {
        self.limit_order(on, side, price, lots, TimeInForce::GoodTillCancelled)
    }

    /// Sends a limit order whose rest is cancelled if it cannot trade at once; its id.
    ///
    /// # Errors
    /// As [`Trader::request`].
    pub fn immediate(
        &mut self,
        on: u32,
        side: Side,
        price: i64,
        lots: u64,
    ) -> Result<u64, ClientError> {
        self.limit_order(on, side, price, lots, TimeInForce::ImmediateOrCancel)
    }

    /// Sends an order for the closing auction alone; its id. Without a price it has no limit.
    /// Nobody sees it, and what is left of it is cancelled with the auction.
    ///
    /// # Errors
    /// As [`Trader::request`].
    pub fn on_close(
        &mut self,
        on: u32,
        side: Side,
        price: Option<i64>,
        lots: u64,
    ) -> Result<u64, ClientError> {
        let time_in_force = TimeInForce::AtClose;
        let order = self.limit(side, price.unwrap_or(0), lots, time_in_force);
        let order_type = if price.is_some() { OrderType::Limit } else { OrderType::Market };
        self.new_order(on, NewOrder { order_type, ..order })
    }

    /// Sends an order whose price follows the best displayed prices; its id. It goes no further
    /// than its limit, if it has one, and nobody sees it.
    ///
    /// # Errors
    /// As [`Trader::request`].
    pub fn pegged(
        &mut self,
        on: u32,
        side: Side,
        peg: Peg,
        limit: Option<i64>,
        lots: u64,
    ) -> Result<u64, ClientError> {
        let order = self.limit(side, limit.unwrap_or(0), lots, TimeInForce::GoodTillCancelled);
        let order_type = if limit.is_some() { OrderType::Limit } else { OrderType::Market };
        self.new_order(on, NewOrder { order_type, peg, ..order })
    }

    fn limit_order(
        &mut self,
        instrument: u32,
        side: Side,
        price: i64,
        quantity: u64,
        time_in_force: TimeInForce,
    ) -> Result<u64, ClientError> {
        self.new_order(instrument, self.limit(side, price, quantity, time_in_force))
    }

    fn limit(&self, side: Side, price: i64, quantity: u64, time_in_force: TimeInForce) -> NewOrder {
        NewOrder {
            id: 0,
            user: self.session.number(),
            side,
            order_type: OrderType::Limit,
            time_in_force,
            price,
            stop_price: 0,
            quantity,
            display: 0,
            minimum: 0,
            is_hidden: false,
            peg: Peg::No,
            post_only: PostOnly::No,
            self_trade: SelfTrade::CancelNewest,
        }
    }

    /// Sends an order of any kind; the id that it gets, whatever id and user it has.
    ///
    /// # Errors
    /// As [`Trader::request`].
    pub fn new_order(&mut self, instrument: u32, order: NewOrder) -> Result<u64, ClientError> {
        let (id, user) = (self.session.next_seq(wall_ns()), self.session.number());
        self.submit(instrument, id, Command::New(NewOrder { id, user, ..order }))?;
        Ok(id)
    }

    /// Cancels an order.
    ///
    /// # Errors
    /// As [`Trader::request`].
    pub fn cancel(&mut self, instrument: u32, id: u64) -> Result<u64, ClientError> {
        self.request(instrument, Command::Cancel { id, user: self.session.number() })
    }

    /// Changes the price and the open quantity of an order.
    ///
    /// # Errors
    /// As [`Trader::request`].
    pub fn replace(
        &mut self,
        instrument: u32,
        id: u64,
        price: i64,
        quantity: u64,
    ) -> Result<u64, ClientError> {
        let user = self.session.number();
        self.request(instrument, Command::Replace { id, user, price, quantity })
    }

    /// Cancels all orders on an instrument.
    ///
    /// # Errors
    /// As [`Trader::request`].
    pub fn cancel_all(&mut self, instrument: u32) -> Result<u64, ClientError> {
        self.request(instrument, Command::MassCancel { user: self.session.number() })
    }

    /// Sends any command; the number of the request. It does not wait: the state has it, and it is
    /// sent when there is a link.
    ///
    /// # Errors
    /// If the state cannot be kept.
    pub fn request(&mut self, instrument: u32, command: Command) -> Result<u64, ClientError> {
        let seq = self.session.next_seq(wall_ns());
        self.submit(instrument, seq, command)?;
        Ok(seq)
    }

    fn submit(&mut self, instrument: u32, seq: u64, command: Command) -> Result<(), ClientError> {
        self.session.submit(instrument, seq, command, monotonic_ns());
        self.keep()?;
        if !self.exchange_bytes() {
            self.lose_link();
        }
        Ok(())
    }

    /// Goes on where the exchange says that the session stands: see [`Session::take_over`].
    ///
    /// # Errors
    /// If the state cannot be kept.
    pub fn take_over(&mut self, instrument: u32) -> Result<bool, ClientError> {
        let is_taken = self.session.take_over(instrument);
        self.keep()?;
        Ok(is_taken)
    }

    /// Where to connect to now, and what is meant by that.
    pub(crate) fn target(&self) -> (Address, Meant) {
        (self.gateway().clone(), Meant { network: self.settings.network, node: None })
    }

    /// The settings.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    fn gateway(&self) -> &Address {
        &self.settings.gateways[self.gateway % self.settings.gateways.len()]
    }

    /// What came of an attempt to connect; whether there is a link.
    pub(crate) fn connected(
        &mut self,
        attempt: Result<Link, client::ClientError>,
    ) -> Result<bool, ClientError> {
        match attempt {
            Ok(mut link) => {
                if !self.settings.heartbeat.is_zero() || !self.settings.cancel_after.is_zero() {
                    nm_wire::write(&self.settings.logon(), &mut link.output);
                }
                self.liveness = Liveness::new(self.settings.heartbeat, monotonic_ns());
                self.link = Some(link);
                self.links += 1;
                self.session.connected(monotonic_ns());
                Ok(true)
            }
            Err(source) if source.is_lasting() => {
                Err(ClientError::Gateway { gateway: self.gateway().clone(), source })
            }
            Err(_) => {
                self.gateway += 1;
                Ok(false)
            }
        }
    }

    /// The link, if there is one.
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// What happens next, if it is there; what was given before counts as handled.
    pub(crate) fn take_happened(&mut self) -> Result<Option<Happened>, ClientError> {
        let happened = self.session.next_happened();
        self.keep()?;
        Ok(happened)
    }

    /// Asks all cells anew where the session stands.
    pub(crate) fn forget_inquiry(&mut self) {
        self.inquiry = None;
    }

    /// What all cells have answered; asks them if the gateway has named them.
    pub(crate) fn take_answers(&mut self) -> Option<Vec<SessionPosition>> {
        if let Some(found) = self.inquiry.as_mut().and_then(Inquiry::take) {
            self.inquiry = None;
            return Some(found);
        }
        if self.inquiry.is_none()
            && let Some(logged_on) = &self.logged_on
        {
            self.inquiry = Some(Inquiry::new(self.settings.session, &logged_on.cells));
        }
        None
    }

    /// Goes on where the exchange says that the session stands.
    pub(crate) fn resume_at(&mut self, found: &[SessionPosition]) -> Result<(), ClientError> {
        found.iter().for_each(|standing| self.session.resume(standing));
        self.keep()
    }

    /// Sends what is due now; without a link nothing is. A link that has failed is given up.
    pub(crate) fn send_due(&mut self) {
        self.session.tick(monotonic_ns());
        if !self.exchange_bytes() {
            self.lose_link();
        }
    }

    /// Bytes have come, or nothing has for a while: reads once and handles that. A link that has
    /// failed, or whose gateway is silent, is given up. Whether there may be more to read.
    pub(crate) fn receive(&mut self, is_readable: bool) -> Result<bool, ClientError> {
        let read = match is_readable {
            true => self.read(),
            false => (!self.liveness.is_silent(monotonic_ns())).then_some(false),
        };
        if read.is_none() || !self.handle_frames()? {
            self.lose_link();
            return Ok(false);
        }
        Ok(read == Some(true))
    }

    /// Goes to the next gateway.
    pub(crate) fn lose_link(&mut self) {
        if self.link.take().is_some() {
            self.gateway += 1;
            (self.logged_on, self.inquiry) = (None, None);
            self.session.disconnected();
        }
    }

    /// Keeps changes before frames that follow from them are sent.
    fn keep(&mut self) -> Result<(), ClientError> {
        if let Some(state) = &mut self.state
            && !self.session.changes.is_empty()
        {
            state.append(&self.session.changes)?;
        }
        self.session.changes.clear();
        Ok(())
    }

    /// Sends frames; whether the link is up.
    fn exchange_bytes(&mut self) -> bool {
        let Some(link) = &mut self.link else { return true };
        let now_ns = monotonic_ns();
        if self.logged_on.is_some() {
            self.liveness.beat(now_ns, &mut link.output);
        }
        if let Some(inquiry) = &mut self.inquiry {
            inquiry.ask(now_ns, &mut link.output);
        }
        link.output.append(&mut self.session.frames);
        link.flush().is_ok()
    }

    /// Reads once; whether there may be more, and nothing if the link has failed.
    fn read(&mut self) -> Option<bool> {
        let link = self.link.as_mut()?;
        self.liveness.contacted(monotonic_ns());
        link.receive_most(READ_BYTES).ok()
    }

    /// Handles what was received; whether the link goes on.
    fn handle_frames(&mut self) -> Result<bool, ClientError> {
        let Some(link) = &mut self.link else { return Ok(false) };
        let now_ns = monotonic_ns();
        loop {
            let frame = match link.input.next_frame().map_err(LinkError::from) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(true),
                Err(_) => return Ok(false),
            };
            match frame.kind() {
                Kind::GoAway => return Ok(false),
                Kind::Close if frame.read::<Close>().is_ok_and(|close| close.is_of_silence()) => {
                    // The program did not call for too long; it goes on over another link.
                    return Ok(false);
                }
                Kind::LoggedOn => self.logged_on = frame.read().ok(),
                Kind::OpenOrders => {
                    if let (Some(inquiry), Ok(part)) = (&mut self.inquiry, frame.read()) {
                        inquiry.receive(&part);
                    }
                }
                Kind::Close => {
                    let words = frame
                        .read::<Close>()
                        .map_or_else(|_| "without words".to_string(), |close| close.printable());
                    let gateway = self.gateway().clone();
                    return Err(ClientError::Refused { gateway, words });
                }
                _ => {
                    if let Ok(message) = Message::read(frame.shared()) {
                        self.session.receive(&message, now_ns);
                    }
                }
            }
        }
    }
}

/// The wall clock, ns since 1970.
fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX / 2)
}
