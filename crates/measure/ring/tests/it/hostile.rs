//! A peer that writes anything anywhere can corrupt its own messages and nothing else.

use std::time::Duration;

use nm_ring::memory::{REGION_BYTES, RegionMapping};
use nm_ring::{Endpoint, EndpointParts, EndpointRole};
use nm_sys::shared_memory::SharedMemory;
use proptest::prelude::*;

/// An endpoint, and write access to all of its memory for a hostile peer.
fn endpoint_under_attack<const SLEEPS: bool>()
-> (Endpoint<SLEEPS>, SharedMemory, std::os::fd::OwnedFd) {
    let memory = RegionMapping::new().unwrap();
    let descriptor = memory.descriptor().try_clone_to_owned().unwrap();
    let raw = SharedMemory::open(descriptor, REGION_BYTES).unwrap();
    let (lifeline, other) = nm_sys::socket::unix_pair().unwrap();
    (
        Endpoint::new(EndpointParts {
            memory,
            lifeline: lifeline.into(),
            role: EndpointRole::Creator,
        }),
        raw,
        other,
    )
}

fn overwrite(raw: &SharedMemory, at: usize, bytes: &[u8]) {
    let at = at % (REGION_BYTES - bytes.len());
    // SAFETY: the range lies within the live mapping; nothing else in this thread touches it now.
    unsafe {
        let to = raw.start().cast::<u8>().as_ptr().add(at);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
    }
}

/// Offsets of the state words, the counters, and the headers of the first slots, which matter most,
/// and any others.
fn offset() -> impl Strategy<Value = usize> {
    let lane = (REGION_BYTES - 256) / 2;
    let words = (0usize..256).boxed();
    let counters = (0usize..2, 0usize..8).prop_map(move |(which, by)| 256 + which * lane + by);
    let headers = (0usize..2, 0usize..64, 0usize..8)
        .prop_map(move |(which, slot, by)| 256 + which * lane + 128 + slot * 384 + by);
    prop_oneof![words, counters, headers, 0usize..REGION_BYTES]
}

#[derive(Debug, Clone)]
enum Step {
    Overwrite(usize, Vec<u8>),
    /// A header for a slot with the sequence number that the endpoint expects next.
    Forge(u16, u16, u16),
    Send(usize),
    Receive(usize),
    SendRecord(usize),
    ReceiveRecord(usize),
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (offset(), prop::collection::vec(any::<u8>(), 1..16))
            .prop_map(|(a, b)| Step::Overwrite(a, b)),
        (any::<u16>(), any::<u16>(), any::<u16>()).prop_map(|(a, b, c)| Step::Forge(a, b, c)),
        (0usize..300_000).prop_map(Step::Send),
        (1usize..300_000).prop_map(Step::Receive),
        (0usize..40_000).prop_map(Step::SendRecord),
        (0usize..40_000).prop_map(Step::ReceiveRecord),
        Just(Step::Wait),
    ]
}

fn run_steps<const SLEEPS: bool>(steps: &[Step]) {
    let (mut end, raw, _other) = endpoint_under_attack::<SLEEPS>();
    let back = 256 + (REGION_BYTES - 256) / 2;
    let (mut buffer, mut sequence) = (vec![0; 300_000], 0u16);
    let brief = Duration::from_micros(200);
    for step in steps {
        match step {
            Step::Overwrite(at, bytes) => overwrite(&raw, *at, bytes),
            Step::Forge(taken, length, place) => {
                let slot = usize::from(sequence) % 64;
                sequence = sequence.wrapping_add(1);
                let words = [sequence, *taken, *length, *place];
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                overwrite(&raw, back + 128 + slot * 384, &bytes);
            }
            Step::Send(length) => assert!(end.try_send(&buffer[..*length]) <= *length),
            Step::Receive(length) => {
                if let Ok(Some(received)) = end.try_receive(&mut buffer[..*length]) {
                    assert!(received <= *length);
                }
            }
            Step::SendRecord(length) => {
                end.try_send_record(&buffer[..*length]);
            }
            Step::ReceiveRecord(length) => {
                if let Ok(Some(received)) = end.try_receive_record(&mut buffer[..*length]) {
                    assert!(received <= *length);
                }
            }
            Step::Wait => {
                let _ = (end.receive(&mut buffer[..10], brief), end.send(&[1; 9], brief));
            }
        }
    }
}

proptest! {
    // Each case maps memory and moves megabytes.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_writes_never_make_an_endpoint_panic_read_outside_or_hang(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        run_steps::<false>(&steps);
        run_steps::<true>(&steps);
    }
}

#[test]
fn peer_that_sends_empty_records_counts_as_dead() {
    let (mut end, raw, _other) = endpoint_under_attack::<true>();
    let back = 256 + (REGION_BYTES - 256) / 2;
    for slot in 0..3u16 {
        let header: Vec<u8> = [slot + 1, 0, 0, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
        overwrite(&raw, back + 128 + usize::from(slot) * 384, &header);
    }
    assert_eq!(
        end.receive(&mut [0; 8], Duration::from_secs(1_000)),
        Err(nm_ring::TransferError::Closed)
    );
}

#[test]
fn forged_headers_are_read_within_the_area() {
    // All combinations of extreme lengths and positions.
    let extremes = [0, 1, 376, 377, 4095, 4096, 32_767, 32_768, 65_535];
    let steps: Vec<Step> = extremes
        .iter()
        .flat_map(|&length| extremes.map(|place| Step::Forge(65_535, length, place)))
        .flat_map(|forged| [forged, Step::Receive(300_000)])
        .collect();
    run_steps::<false>(&steps);
    run_steps::<true>(&steps);
}
