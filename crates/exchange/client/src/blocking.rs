//! A client that waits in the thread that calls it.

use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::thread::sleep;
use std::time::Duration;

use nm_exchange::client;
use nm_sys::clock::Deadline;
use nm_wire::{SessionPosition, Who};

use crate::session::Happened;
use crate::trader::{ClientError, Settings, Trader};

/// Longest attempt to connect to a gateway.
pub(crate) const ATTEMPT: Duration = Duration::from_millis(500);

/// Pause between two of them.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// Longest wait for a message before the time is looked at.
pub(crate) const WAIT: Duration = Duration::from_millis(100);

/// A trading client: one session. It has the requests and orders of a [`Trader`].
#[derive(Debug)]
pub struct Client(Trader);

impl Client {
    /// Opens a session; it connects when it is used.
    ///
    /// # Errors
    /// If its state cannot be used, or it has no gateway.
    pub fn open(settings: Settings) -> Result<Client, ClientError> {
        Trader::open(settings).map(Client)
    }

    /// Asks the exchange for the session's live orders and last numbers on all instruments; none if
    /// not all cells answer within `limit`. What happens meanwhile is given by [`Client::next`].
    ///
    /// # Errors
    /// As [`Client::next`].
    pub fn open_orders(
        &mut self,
        limit: Duration,
    ) -> Result<Option<Vec<SessionPosition>>, ClientError> {
        let deadline = Deadline::after(limit);
        self.0.forget_inquiry();
        while !deadline.passed() {
            self.work(deadline)?;
            if let Some(found) = self.0.take_answers() {
                return Ok(Some(found));
            }
        }
        self.0.forget_inquiry();
        Ok(None)
    }

    /// Goes on where the exchange says that the session stands on all instruments, with its live
    /// orders: for a client that has no state, or an old one. Earlier events are skipped. Whether
    /// all cells have answered within `limit`.
    ///
    /// # Errors
    /// As [`Client::next`].
    pub fn resume(&mut self, limit: Duration) -> Result<bool, ClientError> {
        let Some(found) = self.open_orders(limit)? else { return Ok(false) };
        self.0.resume_at(&found)?;
        Ok(true)
    }

    /// What happens next; none if nothing does within `limit`. What was given before counts as
    /// handled: until this is called again, it comes again after a restart.
    ///
    /// # Errors
    /// If the state cannot be kept, or a gateway refuses for a reason that lasts.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Happened>, ClientError> {
        let deadline = Deadline::after(limit);
        loop {
            let happened = self.0.take_happened()?;
            if happened.is_some() || deadline.passed() {
                return Ok(happened);
            }
            self.work(deadline)?;
        }
    }

    /// Makes a link if there is none, sends what is to be sent, and handles what comes.
    fn work(&mut self, deadline: Deadline) -> Result<(), ClientError> {
        if self.0.link().is_none() && !self.connect()? {
            sleep(PAUSE.min(deadline.remaining()));
            return Ok(());
        }
        self.0.send_due();
        let Some(link) = self.0.link() else { return Ok(()) };
        let limit = deadline.remaining().min(WAIT);
        let is_readable = nm_sys::poll::readable(link.as_fd().as_raw_fd(), limit);
        // Where the system cannot tell, reading does.
        self.0.receive(is_readable.unwrap_or(true)).map(drop)
    }

    /// Connects to the gateway that is next; whether it did.
    fn connect(&mut self) -> Result<bool, ClientError> {
        let (gateway, meant) = self.0.target();
        let settings = self.0.settings();
        let who = Who::Client { session: settings.session };
        let credentials = settings.credentials.as_ref();
        let attempt = client::connect_to((&gateway, meant), &[who], credentials, ATTEMPT);
        self.0.connected(attempt)
    }
}

impl Deref for Client {
    type Target = Trader;

    fn deref(&self) -> &Trader {
        &self.0
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Trader {
        &mut self.0
    }
}
