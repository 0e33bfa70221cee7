//! What the table of messages says of each of them.

use std::fmt;

use nm_codec::{DecodeError, Random};

use crate::types::Types;

/// Who sends or receives messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party {
    /// A client, with its sessions.
    Client,
    /// A peer that asks for the state of the network, or changes it.
    Observer,
    /// A gateway.
    Gateway,
    /// A router.
    Router,
    /// A mediator.
    Mediator,
    /// A transaction processor.
    Processor,
    /// Any node.
    Node,
    /// The end of a link that has connected.
    Connector,
    /// The end of a link that has accepted the connection.
    Acceptor,
    /// The log of a cell.
    Log,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Party::Client => "client",
            Party::Observer => "observer",
            Party::Gateway => "gateway",
            Party::Router => "router",
            Party::Mediator => "mediator",
            Party::Processor => "processor",
            Party::Node => "node",
            Party::Connector => "end that connects",
            Party::Acceptor => "end that accepts",
            Party::Log => "log of the cell",
        })
    }
}

/// A row of the table of messages.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Name of the message.
    pub name: &'static str,
    /// Its code.
    pub code: u8,
    /// The ways that it takes.
    pub ways: &'static [&'static [Party]],
    /// Adds the definition of the message, and those of its types.
    pub describe: fn(&mut Types),
    /// Appends the bytes of some message of this kind.
    pub example: fn(&mut Random, &mut Vec<u8>),
    /// Decodes a message and encodes it again.
    pub again: fn(&[u8]) -> Result<Vec<u8>, DecodeError>,
}

impl Row {
    /// The bytes of the message that belongs to a seed.
    pub fn example_of(&self, seed: u64) -> Vec<u8> {
        let mut bytes = vec![];
        (self.example)(&mut Random::new(seed), &mut bytes);
        bytes
    }

    /// Its ways as text.
    pub fn ways_text(&self) -> String {
        let way = |way: &&[Party]| way.iter().map(Party::to_string).collect::<Vec<_>>().join(" → ");
        self.ways.iter().map(way).collect::<Vec<_>>().join("; ")
    }

    /// Checks that any bytes are refused, or are a message that is read back as what was written.
    ///
    /// # Panics
    /// If they are not.
    pub fn check(&self, bytes: &[u8]) {
        if let Ok(written) = (self.again)(bytes) {
            let again = (self.again)(&written);
            assert_eq!(again.as_ref(), Ok(&written), "{} is not read back", self.name);
        }
    }
}
