//! Memory that another process may write at any time.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nm_ring::EndpointRole::Creator;
use nm_ring::conduit::{CONDUIT_BYTES, ConduitMapping};
use nm_ring::ledger::{LEDGER_BYTES, Ledger, LedgerView, RECORDS, SocketPhase};
use nm_ring::pipe::PIPE_BYTES;

/// What a hostile peer writes anywhere into the shared memory of a connection: the pipes of the
/// other end must not read out of bounds, or return more than was requested.
pub fn pipe(bytes: &[u8]) {
    let Ok((victim, file)) = ConduitMapping::<PIPE_BYTES>::new() else { return };
    let peer = File::from(file);
    let (out, back) = (victim.outgoing(Creator), victim.incoming(Creator));
    let mut buffer = vec![0; PIPE_BYTES + 99];
    for (step, input) in bytes.chunks_exact(11).enumerate() {
        // Mostly the header of a pipe, where wrong values are most dangerous.
        let [first, second, region, word @ ..] = input else { return };
        let offset = u64::from(*first) << 8 | u64::from(*second);
        let pipe = (CONDUIT_BYTES as u64 - 384) / 2;
        let at = match region % 4 {
            0 => offset * 8 % CONDUIT_BYTES as u64,
            which => 384 + u64::from(which & 1) * pipe + offset % 96 * 8,
        };
        let at = at.min(CONDUIT_BYTES as u64 - 8) / 8 * 8;
        peer.write_all_at(word, at).expect("the memory is writable");
        let word = word.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let length = (word >> 7) as usize % buffer.len();
        match step % 8 {
            0 => assert!(out.push(&buffer[..length]) <= length),
            1 => assert!(out.push(&buffer[..length % 57]) <= length % 57),
            2 => assert!(back.pull(&mut buffer[..length]) <= length),
            3 => assert!(back.peek(word as usize, &mut buffer[..length]) <= length),
            4 => assert!(back.discard(length) <= length),
            5 => {
                let parts = [&buffer[..length % 60], &buffer[..length]];
                assert!(out.push_parts(parts.into_iter()) <= 60 + length);
            }
            6 => {
                for (start, count) in out.sent_pieces(word, length) {
                    assert!(count <= length);
                    // SAFETY: a piece lies in the memory, which is mapped; nobody writes now.
                    let piece = unsafe { std::slice::from_raw_parts(start, count) };
                    buffer[..count].copy_from_slice(piece);
                }
            }
            _ => {
                let pieces = out.free_pieces(length);
                for (start, count) in pieces {
                    assert!(count <= length);
                    // SAFETY: as above.
                    unsafe { start.write_bytes(1, count) };
                }
                out.push_filled(pieces[0].1 + pieces[1].1);
            }
        }
        assert!(back.readable() <= PIPE_BYTES && out.writable() <= PIPE_BYTES);
    }
}

/// Bytes of the ledger that are written: its header and the first records.
const LEDGER_FUZZED_BYTES: u64 = 16 << 10;

/// What a program writes into its ledger: each record that a reader sees is a valid one, and the
/// texts have no control characters.
pub fn ledger_view(bytes: &[u8]) {
    let Ok((ledger, file)) = Ledger::create(1, "program", "settings", 1) else { return };
    let Ok(writer) = file.try_clone().map(File::from) else { return };
    let Ok(view) = LedgerView::open(file) else { panic!("a new ledger is valid") };
    for input in bytes.chunks_exact(7) {
        let [first, second, width, word @ ..] = input else { return };
        let at = (u64::from(*first) << 8 | u64::from(*second)) * 4 % LEDGER_FUZZED_BYTES;
        let at = at.min(LEDGER_BYTES as u64 - 4);
        // Small numbers are valid far more often than large ones.
        let small = [word[0] % 8, 0, 0, 0];
        let word = if width % 2 == 0 { &small } else { word };
        writer.write_all_at(word, at).expect("the memory is writable");
    }
    for seen in view.records() {
        assert!(seen.phase != SocketPhase::Free && seen.index < RECORDS);
        assert!(!seen.reason.text().is_empty());
    }
    let texts = view.program() + &view.settings();
    assert!(!texts.chars().any(char::is_control));
    // The writers' side does not rely on the content either.
    if let Some(record) = ledger.claim(1, 1) {
        record.set_phase(SocketPhase::Kernel);
        assert!(ledger.index_of(record).is_some());
    }
}
