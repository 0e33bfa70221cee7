//! Frames around messages.

use nm_book::order::Command;
use nm_codec::DecodeFault;
use nm_wire::{
    DecodeError, FrameMut, Kind, Owner, PREFIX_BYTES, Request, STAMPS, Shape, VERSION,
    overhead_bytes, read, request, stamp, write_shaped,
};
use proptest::prelude::*;

fn request() -> Request {
    Request {
        instrument: 1,
        session: 2,
        client_seq: 3,
        previous_seq: 4,
        acknowledged: 5,
        intended_ns: 6,
        owner: Owner::of_session(14),
        map_version: 7,
        gateway: 8,
        cell: 9,
        attempt: 10,
        is_previous_answered: false,
        breach: 0,
        command: Command::Cancel { id: 11, user: 12 },
    }
}

fn frame(size_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![];
    write_shaped(&request(), Shape { is_stamped: true, size_bytes }, &mut bytes);
    bytes
}

#[test]
fn a_changed_and_stamped_frame_is_read_back() {
    let mut bytes = frame(800);
    assert_eq!(bytes.len(), 800);
    stamp(&mut bytes, 2, 1 << 60 | 7);
    let mut routed = FrameMut::of(&mut bytes).unwrap();
    let mut edit = request::Edit::of(&mut routed).unwrap();
    let owner = Owner::of_user(1000);
    edit.gateway(700).cell(800).owner(owner).map_version(900).attempt(250);
    edit.is_previous_answered(true);
    drop(edit);
    let expected = Request {
        gateway: 700,
        cell: 800,
        owner,
        map_version: 900,
        attempt: 250,
        is_previous_answered: true,
        ..request()
    };
    assert_eq!(routed.read(), Ok(expected));
    let view = request::View::of(routed.shared()).unwrap();
    assert_eq!((view.gateway(), view.client_seq()), (700, 3));
    bytes.extend_from_slice(b"the next frame");
    let read_back = read(&bytes).unwrap().unwrap();
    assert_eq!((read_back.kind(), read_back.read()), (Kind::Request, Ok(expected)));
    assert_eq!(read_back.stamps(), Some([0, 0, 1 << 60 | 7, 0]));
    for cut in 0..800 {
        assert_eq!(read(&bytes[..cut]), Ok(None), "cut at {cut}");
    }
    bytes[70] ^= 1;
    assert_eq!(read(&bytes), Err(DecodeError::checksum("checksum")));
}

#[test]
fn decode_errors_name_the_field() {
    let error = |at: usize, to: u8| {
        let mut bytes = frame(0);
        bytes[at] = to;
        read(&bytes).unwrap_err()
    };
    assert_eq!(error(4, 1), DecodeError::other_version("version", 1, VERSION));
    assert_eq!(error(3, 255).field, "length");
    assert_eq!((error(5, 0).field, error(5, 0).fault), ("kind", DecodeFault::UnknownCode(0)));
    assert_eq!((error(6, 3).field, error(7, 1).field), ("stamps", "reserved"));
    assert_eq!((error(9, 9).field, error(11, 255).field), ("message_bytes", "message_bytes"));
    assert_eq!(error(12, frame(0)[12] ^ 1).field, "checksum");
}

#[test]
fn a_frame_of_another_length_is_refused() {
    let mut bytes = frame(0);
    let message_bytes = bytes.len() - overhead_bytes(true);
    assert_eq!(overhead_bytes(true) - overhead_bytes(false), 8 * STAMPS);
    assert_eq!(FrameMut::of(&mut bytes).unwrap().shared().message.len(), message_bytes);
    bytes.push(0);
    assert_eq!(FrameMut::of(&mut bytes).unwrap_err().field, "length");
    assert_eq!(FrameMut::of(&mut bytes[..9]).unwrap_err().field, "prefix");
}

#[test]
fn a_request_without_a_number_is_refused() {
    let mut bytes = vec![];
    write_shaped(&Request { client_seq: 0, ..request() }, Shape::default(), &mut bytes);
    let read: Result<Request, DecodeError> = read(&bytes).unwrap().unwrap().read();
    assert_eq!(read, Err(DecodeError::invalid("client_seq", "is zero")));
    // Nor is one that breaks a rule that there is not.
    let request = Request { breach: 4, ..request() };
    assert_eq!(nm_wire::decode::<Request>(&nm_wire::encode(&request)).unwrap_err().field, "breach");
}

proptest! {
    #[test]
    fn any_bytes_are_a_frame_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300),
                                        length in 0u32..400) {
        let mut bytes = bytes;
        if bytes.len() > PREFIX_BYTES {
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[4..8].copy_from_slice(&[VERSION, 2, 4, 0]);
        }
        let _ = read(&bytes);
        stamp(&mut bytes, 3, 1);
        let _ = FrameMut::of(&mut bytes).map(|mut frame| request::Edit::of(&mut frame).is_ok());
    }
}
