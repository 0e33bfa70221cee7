//! Frames that arrive over AF_XDP.

use std::net::SocketAddr;

use nm_model::agent::Token;
use nm_transport::frame::{self, FrameAddresses, FrameWriter};
use nm_transport::handshake::{self, HandshakeMessage};

/// A frame: with its checksums verified it is refused or decoded alike, and a datagram that was
/// decoded is written and decoded again.
pub fn xdp_frames(bytes: &[u8]) {
    let Ok(datagram) = frame::decode(bytes, false) else {
        assert!(frame::decode(bytes, true).is_err());
        return;
    };
    if let Ok(verified) = frame::decode(bytes, true) {
        assert_eq!(verified, datagram);
    }
    let _ = handshake::decode(datagram.payload);
    let writer = FrameWriter::new(&datagram.addresses).expect("addresses of one family");
    let mut again = vec![0xff; writer.frame_bytes(datagram.payload.len())];
    writer.write(datagram.payload, &mut again);
    assert_eq!(frame::decode(&again, true), Ok(datagram));
}

pub fn seeds() -> Vec<Vec<u8>> {
    let pairs = [("10.0.0.1:4000", "10.0.0.2:5000"), ("[fd00::1]:4000", "[fd00::2]:5000")];
    let mut all = vec![];
    for (source, destination) in pairs {
        let [source, destination]: [SocketAddr; 2] =
            [source, destination].map(|address| address.parse().expect("an address"));
        let (source_link, destination_link) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let addresses = FrameAddresses { source_link, destination_link, source, destination };
        let writer = FrameWriter::new(&addresses).expect("addresses of one family");
        let mut buffer = [0; handshake::BYTES_MAX];
        let hello = handshake::encode(HandshakeMessage::Hello(Token([7; 16])), &[], &mut buffer);
        for payload in [hello, &[], &[7; 200]] {
            let mut frame = vec![0; writer.frame_bytes(payload.len())];
            writer.write(payload, &mut frame);
            all.push(frame);
        }
    }
    all
}
