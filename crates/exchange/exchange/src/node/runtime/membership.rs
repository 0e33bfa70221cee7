//! Whether an added node was removed: it asks control when another node has refused it. It may
//! have been removed while it had no link by which it could learn that.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use nm_sys::poll::Waker;

use super::peer::{Peer, PeerError};
use crate::control::{self, InstrumentMap};
use crate::network::Network;

/// How long control may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Time between two questions, ns.
const INTERVAL_NS: u64 = 2_000_000_000;

/// The doubt of an added node, and the question to control. A thread asks, because an answer may
/// take long or never come; the waker says that there is one.
#[derive(Debug)]
pub struct MembershipDoubt {
    is_open: bool,
    /// Before this it does not ask again, ns.
    next_ns: u64,
    /// Gets what control answers, once.
    asked: Option<Receiver<Option<InstrumentMap>>>,
    waker: Waker,
}

impl MembershipDoubt {
    /// No doubt.
    ///
    /// # Errors
    /// The system's error.
    pub fn new() -> std::io::Result<MembershipDoubt> {
        Ok(MembershipDoubt { is_open: false, next_ns: 0, asked: None, waker: Waker::new()? })
    }

    /// A link was closed. Only a node can give a reason to doubt: it is where the network has it.
    /// Strangers say what they like.
    pub fn on_closed(&mut self, peer: Peer, reason: &PeerError) {
        self.is_open |= matches!((peer, reason), (Peer::Node(..), PeerError::Refused(_)));
    }

    /// Begins to ask if there is a doubt and it is time to.
    #[expect(clippy::disallowed_methods, reason = "a thread asks")]
    pub fn ask_if_due(&mut self, now_ns: u64, network: &Network) {
        if self.deadline_ns().is_none_or(|due_ns| now_ns < due_ns) {
            return;
        }
        (self.is_open, self.next_ns) = (false, now_ns + INTERVAL_NS);
        let (answer, asked) = channel();
        let (network, waker) = (network.clone(), self.waker.clone());
        let ask = move || {
            let current = control::current(&network, ANSWER_LIMIT).ok();
            // Fails if the node has ended.
            let _ = answer.send(current.map(|network| InstrumentMap::of(&network)));
            waker.wake();
        };
        // Where there is no thread it goes on as it is, as without an answer.
        let started = thread::Builder::new().name("membership".into()).spawn(ask);
        self.asked = started.is_ok().then_some(asked);
    }

    /// The nodes that there are, if control has answered since.
    pub fn take_answer(&mut self) -> Option<InstrumentMap> {
        self.waker.drain();
        let answer = self.asked.as_ref()?.try_recv();
        if answer != Err(TryRecvError::Empty) {
            self.asked = None;
        }
        answer.ok().flatten()
    }

    /// When [`MembershipDoubt::ask_if_due`] has something to do, ns.
    pub fn deadline_ns(&self) -> Option<u64> {
        (self.is_open && self.asked.is_none()).then_some(self.next_ns)
    }
}

impl AsFd for MembershipDoubt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
