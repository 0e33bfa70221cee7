//! The books of the cells beside those of a consumer.

use std::collections::BTreeSet;
use std::time::Duration;

use nm_book::order::InstrumentId;
use nm_book::snapshot::BookSnapshot;
use nm_doors::symbols::Symbols;
use nm_exchange::client::{self, ClientError};
use nm_exchange::control::AdminRequest;
use nm_exchange::link::Link;
use nm_exchange::network::NetworkError;
use nm_sys::clock::Deadline;
use nm_wire::Kind;

use crate::displayed::{displayed, hash};
use crate::itch::Stock;
use crate::node_link::{FromNode, Images, NetworkFile};
use crate::stock::Listing;

/// How long a node may take to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// The hashes of what the cells' books display.
pub struct Check {
    file: NetworkFile,
    symbols: Option<Symbols>,
    /// Stocks whose book of the feed was that of the cell once since the check began.
    equal: BTreeSet<Stock>,
    /// The others that cells have.
    open: BTreeSet<Stock>,
}

impl Check {
    /// A check that has not begun.
    pub fn new(file: NetworkFile, symbols: Option<Symbols>) -> Check {
        Check { file, symbols, equal: BTreeSet::new(), open: BTreeSet::new() }
    }

    /// How many stocks have had equal books.
    pub fn equal(&self) -> usize {
        self.equal.len()
    }

    /// Stocks whose books were never equal.
    pub fn open(&self) -> impl Iterator<Item = String> {
        self.open.iter().map(|stock| String::from_utf8_lossy(stock).trim().to_string())
    }

    fn listing(&self, instrument: InstrumentId) -> Option<Listing> {
        match &self.symbols {
            None => Some(Listing::unnamed(instrument)),
            Some(symbols) => Listing::of(symbols.of(instrument)?),
        }
    }

    /// Asks the nodes for the books that were not equal yet, each compared at once: `hash_of`
    /// has the consumer take what has come, and is the hash of its book. Whether all are equal.
    ///
    /// # Errors
    /// If the network's file cannot be read.
    pub fn compare(
        &mut self,
        mut hash_of: impl FnMut(&Stock) -> Option<u64>,
    ) -> Result<bool, NetworkError> {
        let mut found = BTreeSet::new();
        for (node, address) in self.file.nodes()? {
            let Ok(mut link) = self.file.connect(node, &address) else { continue };
            let Ok(instruments) = instruments(&mut link) else { continue };
            for instrument in instruments {
                let Some(listing) = self.listing(instrument) else { continue };
                found.insert(listing.stock);
                if self.equal.contains(&listing.stock) {
                    continue;
                }
                let Ok(Some(book)) = image(&mut link, instrument) else { continue };
                let expected = hash(displayed(&book, &listing));
                if hash_of(&listing.stock) == Some(expected) {
                    self.equal.insert(listing.stock);
                }
            }
        }
        self.open = found.difference(&self.equal).copied().collect();
        Ok(self.open.is_empty() && !found.is_empty())
    }
}

/// The instruments of a node's cells.
#[expect(clippy::disallowed_methods, reason = "it compares; the lines have threads of their own")]
fn instruments(link: &mut Link) -> Result<Vec<InstrumentId>, ClientError> {
    nm_wire::write(&AdminRequest::Follow, &mut link.output);
    let mut all = vec![];
    loop {
        let answer = client::receive(link, Kind::AdminResponse, Deadline::after(ANSWER))?;
        let nm_wire::AdminResponse::Following { books, has_more } = nm_wire::decode(&answer)?
        else {
            return Err(ClientError::Unexpected);
        };
        all.extend(books.iter().map(|book| book.instrument));
        if !has_more {
            return Ok(all);
        }
    }
}

/// The book of an instrument, if the node has it.
#[expect(clippy::disallowed_methods, reason = "it compares; the lines have threads of their own")]
fn image(link: &mut Link, instrument: InstrumentId) -> Result<Option<BookSnapshot>, ClientError> {
    nm_wire::write(&AdminRequest::Image { instrument }, &mut link.output);
    let mut images = Images::default();
    loop {
        let answer = client::receive(link, Kind::AdminResponse, Deadline::after(ANSWER))?;
        if let Some(FromNode::Image(_, bytes)) = images.on_response(nm_wire::decode(&answer)?) {
            return Ok(BookSnapshot::read(&bytes).ok());
        }
    }
}
