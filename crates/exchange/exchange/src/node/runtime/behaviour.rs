//! What differs between the classes of nodes: roles that are stepped by a frame, by the time, or by
//! events of their logs. A step is given the time, and leaves what is to be sent in [`Links`]: no
//! role has a socket or a clock.

use nm_model::agent::Failure;
use nm_wire::{FrameMut, Owner};

use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};

/// What a class of nodes does in its event loop.
pub trait Behaviour {
    /// A peer is connected.
    fn on_connected(&mut self, _links: &mut Links, _peer: Peer) {}

    /// The link of a connected peer is closed.
    fn on_disconnected(&mut self, _links: &mut Links, _peer: Peer, _id: LinkId) {}

    /// A frame was received.
    ///
    /// # Errors
    /// If that peer must not send it; the link is closed then.
    fn on_frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut FrameMut<'_>,
    ) -> Result<(), PeerError>;

    /// All that was ready is handled; the backlogs of links are written after this.
    ///
    /// # Errors
    /// If the node cannot continue.
    fn on_iteration(&mut self, _links: &mut Links) -> Result<(), Failure> {
        Ok(())
    }

    /// Its logs have events, or it has asked to be woken ([`Links::wake`]).
    ///
    /// # Errors
    /// If the node cannot continue.
    fn on_wake(&mut self, _links: &mut Links) -> Result<(), Failure> {
        Ok(())
    }

    /// When the next iteration must be at the latest, ns on the machine's clock, which shows
    /// `now_ns` in the present one.
    fn deadline_ns(&self, _now_ns: u64) -> Option<u64> {
        None
    }

    /// Whether it could do its work if all links were up.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether nothing is lost if the node ends now, after it was removed from the network.
    fn has_left(&self, _links: &Links) -> bool {
        true
    }

    /// The node was stopped.
    ///
    /// # Errors
    /// If it cannot write its files.
    fn on_stop(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether an owner has so many requests under way that its links wait while others are
    /// served.
    fn is_full(&self, _owner: Owner) -> bool {
        false
    }

    /// Requests handled and resent.
    fn counts(&self) -> (u64, u64);
}
