//! Checks of all decoders with arbitrary bytes, for property tests and fuzzers; not part of the
//! exchange itself.

use nm_book::book::Book;
use nm_book::codec;
use nm_book::order::Matching;
use nm_book::reference::ReferenceBook;
use nm_book::testing::{Stream, holds, seeded};
use nm_exchange::batch;
use nm_exchange::cell::Cell;
use nm_exchange::link::Address;
use nm_exchange::network::Network;
use nm_load::flow::Flow;
use nm_load::log;
use nm_replica::journal::format;
use nm_wire::{FrameMut, ROWS, Request, Shape};

use crate::day::Script;
use crate::hosts;
use crate::page;
use crate::round::Kill;

/// Decodes arbitrary bytes with every decoder: each refuses them, or returns a value that survives
/// a round trip.
///
/// # Panics
/// If a decoded value does not survive a round trip, or a decoded book violates its invariants.
pub fn codec(bytes: &[u8]) {
    messages(bytes);
    frame(bytes);
    cell(bytes);
    // Decoders without an encoder: they must not panic.
    let with_magic = |magic: &[u8]| [magic, bytes].concat();
    let _ = Flow::parse(&with_magic(b"nmflow01"));
    let _ = log::parse(&with_magic(b"nmclnt02"));
    let _ = format::scan(bytes, 1, None);
    let _ = page::asked(bytes, 80);
    let _ = page::asked(&with_magic(b"GET /events HTTP/1.1\r\nHost: "), 80);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Network::parse(text);
        let _ = hosts::parse(text);
        let _ = text.parse::<Kill>();
        let _ = Script::parse(text);
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
            let _ = frame.read::<Request>();
        }
    }
}

/// The bytes as each message, in a frame with a valid checksum, alone and in a batch.
fn frame(bytes: &[u8]) {
    let _ = nm_wire::read(bytes);
    for row in ROWS {
        row.check(bytes);
        let mut sealed = vec![];
        let shape = Shape { is_stamped: bytes.len() % 2 == 1, size_bytes: 0 };
        nm_wire::write_with(row.code, shape, &mut sealed, |out| out.extend_from_slice(bytes));
        let frame = nm_wire::read(&sealed).expect("an encoded frame is decoded");
        let frame = frame.expect("an encoded frame is complete");
        assert_eq!((frame.code, frame.message), (row.code, bytes));
        let mut batch_bytes = vec![];
        batch::begin(1, &mut batch_bytes);
        batch_bytes.extend_from_slice(&sealed);
        if let Ok((_, frames)) = batch::decode(&batch_bytes) {
            for frame in frames.flatten() {
                let _ = Cell::<ReferenceBook>::default().admit(frame);
            }
        }
        let mut changed = FrameMut::of(&mut sealed).expect("it is complete");
        if let Ok(mut edit) = nm_wire::request::Edit::of(&mut changed) {
            edit.gateway(1).cell(2).map_version(3);
        }
        assert!(nm_wire::read(&sealed).is_ok(), "a changed frame is sealed");
    }
}

/// The bytes as a saved book, and as a saved cell with a valid checksum.
fn cell(bytes: &[u8]) {
    let (fast, reference) = (Book::load(bytes), ReferenceBook::load(bytes));
    assert_eq!(fast.is_ok(), reference.is_ok());
    if let (Ok(mut fast), Ok(reference)) = (fast, reference) {
        holds(&fast);
        assert_eq!(fast.hash(), reference.hash());
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
        let again = Cell::<ReferenceBook>::load(&cell.save()).expect("a saved cell is loaded");
        assert_eq!(again.hash(), cell.hash());
    }
}

/// Valid bytes for each decoder of [`codec`], from a seed.
pub fn samples(seed: u64) -> Vec<Vec<u8>> {
    let mut stream = Stream::new(seeded(seed), 48);
    let (mut book, mut cell) = (Book::new(), Cell::<Book>::default());
    let (mut messages, mut events, mut frames) = (vec![], vec![], vec![]);
    batch::begin(7, &mut frames);
    for number in 0..40u64 {
        let Some(command) = stream.command() else { break };
        codec::write_command(&command, &mut messages);
        book.apply(&command, stream.now_ns, &mut |event| codec::write_event(&event, &mut events));
        let request = Request {
            instrument: 0,
            session: number as u32 % 3,
            client_seq: number / 3 + 1,
            previous_seq: number / 3,
            acknowledged: 0,
            intended_ns: 0,
            owner: nm_wire::Owner::NOBODY,
            map_version: 0,
            gateway: 0,
            cell: 0,
            attempt: 0,
            is_previous_answered: false,
            breach: 0,
            command,
        };
        let shape = Shape { is_stamped: false, size_bytes: 200 };
        nm_wire::write_shaped(&request, shape, &mut frames);
        cell.begin(number + 1, stream.now_ns);
        cell.handle(&request, |_| {});
    }
    let mut saved_book = vec![];
    book.save(&mut saved_book);
    let saved_cell = cell.save();
    let inner = saved_cell[8..saved_cell.len() - 4].to_vec();
    let first_frame = frames[batch::HEADER_BYTES..].to_vec();
    let examples = ROWS.iter().map(|row| row.example_of(seed));
    [messages, events, saved_book, inner, first_frame, frames].into_iter().chain(examples).collect()
}
