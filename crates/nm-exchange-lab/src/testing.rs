//! What must hold for any bytes that come from outside, for seeded streams, property tests and
//! fuzzers alike; no part of the exchange itself.

use nm_book::book::Book;
use nm_book::codec;
use nm_book::order::Matching;
use nm_book::reference::ReferenceBook;
use nm_book::testing::{Stream, holds, seeded};
use nm_exchange::batch;
use nm_exchange::cell::{Cell, Request};
use nm_exchange::link::Address;
use nm_exchange::network::Network;
use nm_exchange::wire::{self, FrameKind, Header};
use nm_replica::journal::format;

use crate::hosts;
use crate::load::flow::Flow;
use crate::load::log;
use crate::run::Kill;

/// Any bytes, as everything that comes from outside: each is something or refused, and what it is
/// can be written and read again.
///
/// # Panics
/// If something is read that cannot be written so, or a book that was read is not sound.
pub fn codec(bytes: &[u8]) {
    messages(bytes);
    frame(bytes);
    cell(bytes);
    // What only tells whether it means something.
    let marked = |mark: &[u8]| [mark, bytes].concat();
    let _ = Flow::parse(&marked(b"nmflow01"));
    let _ = log::parse(&marked(b"nmclnt01"));
    let _ = format::scan(bytes, 1);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Network::parse(text);
        let _ = hosts::parse(text);
        let _ = text.parse::<Kill>();
        let _ = text.parse::<Address>();
    }
}

fn messages(bytes: &[u8]) {
    let (mut fields, mut again) = (nm_codec::Reader::new(bytes), vec![]);
    while let Ok(command) = codec::read_command(&mut fields) {
        codec::write_command(&command, &mut again);
        assert_eq!(codec::read_command(&mut nm_codec::Reader::new(&again)), Ok(command));
        again.clear();
    }
    let mut fields = nm_codec::Reader::new(bytes);
    while let Ok(event) = codec::read_event(&mut fields) {
        codec::write_event(&event, &mut again);
        assert_eq!(codec::read_event(&mut nm_codec::Reader::new(&again)), Ok(event));
        again.clear();
    }
    if let Ok((_, frames)) = batch::decode(bytes) {
        for frame in frames.flatten() {
            let _ = Request::of(&frame);
        }
    }
}

/// The bytes as a frame whose checksum is right, alone and in a batch.
fn frame(bytes: &[u8]) {
    let body_bytes = bytes.get(56..60).and_then(|word| word.try_into().ok());
    let Some(body_bytes) = body_bytes.map(u32::from_le_bytes) else { return };
    if bytes.len() < wire::HEADER_BYTES || body_bytes as usize > bytes.len() - wire::HEADER_BYTES {
        return;
    }
    let mut whole = bytes.to_vec();
    wire::route(&mut whole, 1, 2, 3);
    if let Ok(Some(frame)) = wire::read(&whole) {
        let _ = (Request::of(&frame), wire::stamps(&frame));
        let mut again = vec![];
        wire::write(&frame.header, frame.body, frame.bytes.len(), &mut again);
        let again = wire::read(&again).expect("what is written means something");
        let again = again.expect("what is written is whole");
        assert_eq!((again.header, again.body), (frame.header, frame.body));
    }
    let mut batch_bytes = vec![];
    batch::begin(1, &mut batch_bytes);
    batch_bytes.extend_from_slice(&whole);
    if let Ok((_, frames)) = batch::decode(&batch_bytes) {
        for frame in frames.flatten() {
            let _ = Request::of(&frame);
        }
    }
}

/// The bytes as a saved book, and as a saved cell whose checksum is right.
fn cell(bytes: &[u8]) {
    let (fast, plain) = (Book::load(bytes), ReferenceBook::load(bytes));
    assert_eq!(fast.is_ok(), plain.is_ok());
    if let (Ok(mut fast), Ok(plain)) = (fast, plain) {
        holds(&fast);
        assert_eq!(fast.hash(), plain.hash());
        let mut stream = Stream::new(bytes.iter().copied(), 48);
        while let Some(command) = stream.command() {
            fast.apply(&command, stream.now_ns, &mut |_| {});
        }
        holds(&fast);
    }
    let _ = Cell::<Book>::load(bytes);
    let mut sealed = Cell::<Book>::default().save();
    sealed.truncate(8);
    sealed.extend_from_slice(bytes);
    sealed.extend_from_slice(&nm_codec::crc32c(&sealed).to_le_bytes());
    if let Ok(cell) = Cell::<Book>::load(&sealed) {
        let again = Cell::<ReferenceBook>::load(&cell.save()).expect("what is saved is loaded");
        assert_eq!(again.hash(), cell.hash());
    }
}

/// Bytes of each kind that [`codec`] reads, from a seed.
pub fn samples(seed: u64) -> Vec<Vec<u8>> {
    let mut stream = Stream::new(seeded(seed), 48);
    let (mut book, mut cell) = (Book::new(), Cell::<Book>::default());
    let (mut messages, mut events, mut frames) = (vec![], vec![], vec![]);
    batch::begin(7, &mut frames);
    for number in 0..40u64 {
        let Some(command) = stream.command() else { break };
        codec::write_command(&command, &mut messages);
        book.apply(&command, stream.now_ns, &mut |event| codec::write_event(&event, &mut events));
        let header = Header {
            session: number as u32 % 3,
            client_seq: number / 3 + 1,
            previous_seq: number / 3,
            ..Header::new(FrameKind::Request)
        };
        let mut body = vec![];
        codec::write_command(&command, &mut body);
        wire::write(&header, &body, 200, &mut frames);
        if let Ok(request) = Request::decode(&header, &body) {
            cell.begin(number + 1, stream.now_ns);
            cell.handle(&request, |_| {});
        }
    }
    let mut saved_book = vec![];
    book.save(&mut saved_book);
    let saved_cell = cell.save();
    let inner = saved_cell[8..saved_cell.len() - 4].to_vec();
    let first_frame = frames[batch::HEADER_BYTES..].to_vec();
    vec![messages, events, saved_book, inner, first_frame, frames]
}
