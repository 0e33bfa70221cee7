//! What the version that comes next does more (`next-format`): nodes send a greeting on each link.
//! Tests of rolling upgrades see by it which messages reach whom.

use nm_wire::{FrameMut, Greeting, Kind};

use super::links::{LinkId, Links};
use super::peer::Peer;

/// A link is up: its other end gets a greeting, if it is a node.
pub fn send(links: &mut Links, id: LinkId, peer: Peer) {
    if matches!(peer, Peer::Node(..)) {
        let start = links.own().1;
        links.send(id, &Greeting { start });
    }
}

/// Reports a greeting; whether the frame is one.
pub fn is_greeting(links: &mut Links, peer: Peer, frame: &FrameMut<'_>) -> bool {
    let is_one = frame.kind() == Kind::Greeting;
    if is_one {
        links.warnings.push(format!("{peer} sends a greeting"));
    }
    is_one
}
