//! The bytes are what a malicious peer writes anywhere into the shared memory of a connection: the
//! pipes of the other end must not panic, read out of bounds, or return more than was requested.
#![no_main]

use std::os::unix::fs::FileExt;

use nm_ring::EndpointRole::Creator;
use nm_ring::conduit::{CONDUIT_BYTES, ConduitMapping};
use nm_ring::pipe::PIPE_BYTES;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok((victim, file)) = ConduitMapping::new() else { return };
    let peer = std::fs::File::from(file);
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
        match step % 7 {
            0 => assert!(out.push(&buffer[..length]) <= length),
            1 => assert!(out.push(&buffer[..length % 57]) <= length % 57),
            2 => assert!(back.pull(&mut buffer[..length]) <= length),
            3 => assert!(back.peek(word as usize, &mut buffer[..length]) <= length),
            4 => assert!(back.discard(length) <= length),
            5 => {
                let parts = [&buffer[..length % 60], &buffer[..length]];
                assert!(out.push_parts(parts.into_iter()) <= 60 + length);
            }
            _ => assert!(out.copy_sent(word, &mut buffer[..length]) <= length),
        }
        assert!(back.readable() <= PIPE_BYTES && out.writable() <= PIPE_BYTES);
    }
});
