//! Market data: datagrams of strangers, and the messages in them.

use nm_feed::itch::{LENGTHS, MESSAGE_BYTES_MAX, Message};
use nm_feed::mold::{Draft, Header, Packet};
use nm_feed::top::{MESSAGE_BYTES, Top};

/// Bytes are a packet of whole messages or none, and a message is written as it was read.
pub fn feed(bytes: &[u8]) {
    if let Ok(header) = Header::read(bytes) {
        assert_eq!(header.bytes(), bytes[..header.bytes().len()]);
    }
    let messages = Packet::read(bytes).map(|packet| packet.messages().collect::<Vec<_>>());
    let inside = messages.unwrap_or_default().into_iter().map(|(_, message)| message);
    for message in inside.chain([bytes]) {
        // A price without shares is none, so not all bytes come back.
        let top = Top::read(message);
        assert_eq!(top.and_then(|top| Top::read(&top.write())), top);
        let Ok(read) = Message::read(message) else { continue };
        let mut written = [0; MESSAGE_BYTES_MAX];
        let length = read.write(&mut written);
        assert_eq!(&written[..length], message);
    }
}

/// Each message alone, and packets of all of them.
pub fn seeds() -> Vec<Vec<u8>> {
    let bodies = LENGTHS.iter().map(|(kind, bytes)| {
        let mut message = vec![0; *bytes];
        message[0] = *kind;
        message
    });
    let mut seeds: Vec<Vec<u8>> = bodies.collect();
    let mut draft = Draft::new(*b"0000000001", 1);
    for message in &seeds {
        draft.push(message);
    }
    let packet = draft.bytes().to_vec();
    draft.begin_next();
    let mut top = vec![1; MESSAGE_BYTES];
    top[0] = b'T';
    seeds.extend([packet, draft.bytes().to_vec(), top]);
    seeds
}
