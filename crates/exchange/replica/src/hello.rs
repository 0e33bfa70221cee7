//! What both ends of a connection say first: who they are. So nobody takes a replica of another
//! network, another member, or a node that was restarted since for the one that it means.
//!
//! ```text
//! hello             0 "nmhello2"   8 cluster u64   16 incarnation u64   24 group u16
//!                   26 member u8   27 content u64   35 crc32c of 0..35 u32
//! connecting end    whom it means; incarnation 0 for any
//! accepting end     who it is
//! ```
//!
//! The checksum of each frame begins with both hellos, so that a frame of another connection is
//! none of this one.

use std::fmt;
use std::io;

use nm_codec::{Field, crc32c, crc32c_append};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::handshake::Stream;

const MAGIC: &[u8; 8] = b"nmhello2";

/// The bytes of a hello.
mod field {
    use super::{Field, MAGIC};

    pub const CLUSTER: Field<u64> = Field::at("cluster", MAGIC.len());
    pub const INCARNATION: Field<u64> = Field::after("incarnation", &CLUSTER);
    pub const GROUP: Field<u16> = Field::after("group", &INCARNATION);
    pub const MEMBER: Field<u8> = Field::after("member", &GROUP);
    pub const CONTENT: Field<u64> = Field::after("content", &MEMBER);
    pub const CHECKSUM: Field<u32> = Field::after("checksum", &CONTENT);

    pub const BYTES: usize = CHECKSUM.end();
}

/// Who a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Number of its network.
    pub cluster: u64,
    /// Random number of the start of its node.
    pub incarnation: u64,
    /// Number of its group.
    pub group: u16,
    /// Its number in the group.
    pub member: u8,
    /// Digest of what its batches and snapshots are made of.
    pub content: u64,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { cluster, incarnation, group, member, .. } = self;
        write!(f, "replica {member} of group {group} of cluster {cluster:x}")?;
        if *incarnation > 0 { write!(f, ", incarnation {incarnation:x}") } else { Ok(()) }
    }
}

impl Identity {
    /// Whether this is the replica that is meant.
    ///
    /// # Errors
    /// `InvalidData` with both if it is another one.
    pub fn check(&self, meant: &Identity) -> io::Result<()> {
        if self.content != meant.content {
            return Err(invalid(format!(
                "{self} has batches of format {:016x}, and the other end those of {:016x}: both \
                 must be versions of nearmetal that know the same messages of logs",
                self.content, meant.content
            )));
        }
        let is_incarnation = [0, self.incarnation].contains(&meant.incarnation);
        if is_incarnation && *self == (Identity { incarnation: self.incarnation, ..*meant }) {
            return Ok(());
        }
        Err(invalid(format!("{meant} was meant, and {self} answered")))
    }

    fn encode(&self) -> [u8; field::BYTES] {
        let mut bytes = [0; field::BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        field::CLUSTER.set(&mut bytes, self.cluster);
        field::INCARNATION.set(&mut bytes, self.incarnation);
        field::GROUP.set(&mut bytes, self.group);
        field::MEMBER.set(&mut bytes, self.member);
        field::CONTENT.set(&mut bytes, self.content);
        let checksum = crc32c(&bytes[..field::CONTENT.end()]);
        field::CHECKSUM.set(&mut bytes, checksum);
        bytes
    }

    async fn read(stream: &mut impl Stream) -> io::Result<Identity> {
        let mut bytes = [0; field::BYTES];
        let (magic, rest) = bytes.split_at_mut(MAGIC.len());
        stream.read_exact(magic).await?;
        if magic != MAGIC {
            return Err(invalid("it does not begin with the hello of this version".to_string()));
        }
        stream.read_exact(rest).await?;
        if field::CHECKSUM.get(&bytes) != crc32c(&bytes[..field::CONTENT.end()]) {
            return Err(invalid("the checksum of its hello is wrong".to_string()));
        }
        Ok(Identity {
            cluster: field::CLUSTER.get(&bytes),
            incarnation: field::INCARNATION.get(&bytes),
            group: field::GROUP.get(&bytes),
            member: field::MEMBER.get(&bytes),
            content: field::CONTENT.get(&bytes),
        })
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// What the checksums of a connection's frames begin with.
fn seed(meant: &Identity, is: &Identity) -> u32 {
    crc32c_append(crc32c(&meant.encode()), &is.encode())
}

/// The connecting end: who answered, and what checksums begin with.
///
/// # Errors
/// The system's error, or if it is not who is meant.
pub async fn connect(stream: &mut impl Stream, meant: &Identity) -> io::Result<(Identity, u32)> {
    stream.write_all(&meant.encode()).await?;
    let is = Identity::read(stream).await?;
    Ok((is, seed(meant, &is)))
}

/// The accepting end, which is who `own` says for whom is meant: what checksums begin with.
///
/// # Errors
/// The system's error, or if somebody else is meant.
pub async fn accept(
    stream: &mut impl Stream,
    own: impl FnOnce(&Identity) -> Identity,
) -> io::Result<u32> {
    let meant = Identity::read(stream).await?;
    let own = own(&meant);
    stream.write_all(&own.encode()).await?;
    own.check(&meant)?;
    Ok(seed(&meant, &own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    const OWN: Identity =
        Identity { cluster: 0xab, incarnation: 0xcd, group: 3, member: 2, content: 0x17 };

    fn hello(meant: Identity) -> (io::Result<(Identity, u32)>, io::Result<u32>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut near, mut far) = duplex(1_024);
            tokio::join!(connect(&mut near, &meant), accept(&mut far, |_| OWN))
        })
    }

    #[test]
    fn both_ends_agree_on_who_they_are() {
        for incarnation in [0, OWN.incarnation] {
            let (connected, accepted) = hello(Identity { incarnation, ..OWN });
            assert_eq!(connected.unwrap(), (OWN, accepted.unwrap()));
        }
    }

    #[test]
    fn another_cluster_member_or_incarnation_is_refused_by_both_names() {
        for (meant, names) in [
            (Identity { cluster: 0xef, ..OWN }, ["cluster ef", "cluster ab"]),
            (Identity { incarnation: 0xef, ..OWN }, ["incarnation ef", "incarnation cd"]),
            (Identity { member: 1, ..OWN }, ["replica 1 of group 3", "replica 2 of group 3"]),
            (Identity { content: 0x18, ..OWN }, ["0000000000000018", "0000000000000017"]),
        ] {
            let (connected, accepted) = hello(meant);
            let (is, _) = connected.unwrap();
            let refusals = [is.check(&meant).unwrap_err(), accepted.unwrap_err()];
            for refusal in refusals.map(|error| error.to_string()) {
                assert!(names.iter().all(|name| refusal.contains(name)), "{refusal}");
            }
        }
    }

    #[test]
    fn a_damaged_hello_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for at in 0..field::BYTES {
            let mut bytes = OWN.encode();
            bytes[at] ^= 1;
            let read = runtime.block_on(async {
                let (mut near, mut far) = duplex(1_024);
                near.write_all(&bytes).await.unwrap();
                Identity::read(&mut far).await
            });
            assert!(read.is_err(), "byte {at}");
        }
    }
}
