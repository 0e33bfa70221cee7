//! A client for programs on tokio. Its runtime needs I/O and time (`enable_all`).

use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::time::Duration;

use nm_exchange::client;
use nm_exchange::link::{Address, Link};
use nm_wire::{SessionPosition, Who};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};

use crate::blocking::{ATTEMPT, PAUSE, WAIT};
use crate::session::Happened;
use crate::trader::{ClientError, Settings, Trader};

/// An attempt to connect, which goes on if nobody waits for it any more.
type Attempt = JoinHandle<Result<Link, client::ClientError>>;

/// The descriptor of a link, a copy of it, at the runtime.
#[derive(Debug)]
enum Watched {
    Tcp(TcpStream),
    /// That of shared memory is one as well.
    Unix(UnixStream),
}

impl Watched {
    fn new(gateway: &Address, link: &Link) -> io::Result<Watched> {
        let own = link.as_fd().try_clone_to_owned()?;
        match gateway {
            Address::Tcp(_) => TcpStream::from_std(own.into()).map(Watched::Tcp),
            Address::Unix(_) | Address::Shm(_) => {
                UnixStream::from_std(own.into()).map(Watched::Unix)
            }
        }
    }

    /// Waits until there is something to read. All of it is to be read then, as only what comes
    /// afterwards is told again.
    async fn readable(&self) {
        let is_told = || -> io::Result<()> { Err(ErrorKind::WouldBlock.into()) };
        // If waiting fails, reading tells why.
        let _ = match self {
            Watched::Tcp(stream) => {
                let _ = stream.readable().await;
                stream.try_io(Interest::READABLE, is_told)
            }
            Watched::Unix(stream) => {
                let _ = stream.readable().await;
                stream.try_io(Interest::READABLE, is_told)
            }
        };
    }
}

/// A trading client whose waits are futures: one session. It has the requests and orders of a
/// [`Trader`], which wait for nothing.
///
/// Its futures can be dropped at any point, as `select!` does: nothing is lost, and the next call
/// goes on. Nothing is sent and no heartbeat answered while none of them is polled.
#[derive(Debug)]
pub struct AsyncClient {
    trader: Trader,
    /// That of the link with this number.
    watched: Option<(u64, Watched)>,
    /// Whether there may be more to read, of which the runtime does not tell again.
    has_more: bool,
    attempt: Option<Attempt>,
}

impl AsyncClient {
    /// As [`Client::open`](crate::Client::open).
    ///
    /// # Errors
    /// As there.
    pub fn open(settings: Settings) -> Result<AsyncClient, ClientError> {
        Ok(AsyncClient {
            trader: Trader::open(settings)?,
            watched: None,
            has_more: false,
            attempt: None,
        })
    }

    /// What happens next, whenever that is. What was given before counts as handled: until this is
    /// called again, it comes again after a restart.
    ///
    /// # Errors
    /// As [`Client::next`](crate::Client::next).
    pub async fn next(&mut self) -> Result<Happened, ClientError> {
        loop {
            if let Some(happened) = self.trader.take_happened()? {
                return Ok(happened);
            }
            self.work(Instant::now() + WAIT).await?;
        }
    }

    /// As [`Client::open_orders`](crate::Client::open_orders).
    ///
    /// # Errors
    /// As there.
    pub async fn open_orders(
        &mut self,
        limit: Duration,
    ) -> Result<Option<Vec<SessionPosition>>, ClientError> {
        let deadline = Instant::now() + limit;
        self.trader.forget_inquiry();
        while Instant::now() < deadline {
            self.work(deadline.min(Instant::now() + WAIT)).await?;
            if let Some(found) = self.trader.take_answers() {
                return Ok(Some(found));
            }
        }
        self.trader.forget_inquiry();
        Ok(None)
    }

    /// As [`Client::resume`](crate::Client::resume).
    ///
    /// # Errors
    /// As there.
    pub async fn resume(&mut self, limit: Duration) -> Result<bool, ClientError> {
        let Some(found) = self.open_orders(limit).await? else { return Ok(false) };
        self.trader.resume_at(&found)?;
        Ok(true)
    }

    /// Makes a link if there is none, sends what is to be sent, and handles what comes until then.
    async fn work(&mut self, until: Instant) -> Result<(), ClientError> {
        if self.trader.link().is_none() && !self.connect().await? {
            sleep(PAUSE).await;
            return Ok(());
        }
        self.trader.send_due();
        let has_more = self.has_more;
        let Some(watched) = self.watched() else { return Ok(()) };
        let is_readable = has_more || timeout_at(until, watched.readable()).await.is_ok();
        self.has_more = self.trader.receive(is_readable)?;
        Ok(())
    }

    /// The present link at the runtime. Where that cannot watch it, the link is given up.
    fn watched(&mut self) -> Option<&Watched> {
        let number = self.trader.links();
        let link = self.trader.link()?;
        if self.watched.as_ref().is_none_or(|(of, _)| *of != number) {
            let watched = Watched::new(&self.trader.target().0, link);
            self.watched = watched.ok().map(|watched| (number, watched));
        }
        if self.watched.is_none() {
            self.trader.lose_link();
        }
        self.watched.as_ref().map(|(_, watched)| watched)
    }

    /// Connects to the gateway that is next; whether it did.
    async fn connect(&mut self) -> Result<bool, ClientError> {
        (self.watched, self.has_more) = (None, false);
        let trader = &self.trader;
        let attempt = self.attempt.get_or_insert_with(|| {
            let (target, settings) = (trader.target(), trader.settings());
            let who = Who::Client { session: settings.session };
            let credentials = settings.credentials.clone();
            spawn_blocking(move || {
                let (gateway, meant) = target;
                client::connect_to((&gateway, meant), &[who], credentials.as_ref(), ATTEMPT)
            })
        });
        let ended = attempt.await;
        self.attempt = None;
        // Else the runtime ends.
        let Ok(link) = ended else { return Ok(false) };
        self.trader.connected(link)
    }
}

impl Deref for AsyncClient {
    type Target = Trader;

    fn deref(&self) -> &Trader {
        &self.trader
    }
}

impl DerefMut for AsyncClient {
    fn deref_mut(&mut self) -> &mut Trader {
        &mut self.trader
    }
}
