//! The handshake of a connection between replicas that have a key: both ends prove that they have
//! it, before any frame. Without a key there is none.
//!
//! ```text
//! accepting end    MAGIC  nonce
//! connecting end   nonce  proof
//! accepting end    proof
//! ```

use std::io;
use std::time::Duration;

use nm_auth::{End, Key, NONCE_BYTES, Nonce, Nonces, PROOF_BYTES, Proof};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// What carries a connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// Begins the handshake, with its version.
const MAGIC: [u8; 8] = *b"nmauth01";

/// What both ends claim to be: replicas that have said these hellos to each other.
fn claim(hellos: u32) -> Vec<u8> {
    [&b"replica"[..], &hellos.to_le_bytes()].concat()
}

/// Time limit of a handshake, and of the first bytes where there is none.
pub const LIMIT: Duration = Duration::from_secs(5);

/// The connecting end.
///
/// # Errors
/// The system's error, or if the other end does not have the key.
pub async fn connect(stream: &mut impl Stream, key: &Key, hellos: u32) -> io::Result<()> {
    timeout(LIMIT, prove_first(stream, key, &claim(hellos))).await.unwrap_or_else(|_| Err(late()))
}

/// The end that accepted the connection.
///
/// # Errors
/// The system's error, or if the other end does not have the key.
pub async fn accept(stream: &mut impl Stream, key: &Key, hellos: u32) -> io::Result<()> {
    timeout(LIMIT, challenge(stream, key, &claim(hellos))).await.unwrap_or_else(|_| Err(late()))
}

async fn prove_first(stream: &mut impl Stream, key: &Key, claim: &[u8]) -> io::Result<()> {
    let mut challenge = [0; MAGIC.len() + NONCE_BYTES];
    stream.read_exact(&mut challenge).await?;
    let (magic, nonce) = challenge.split_at(MAGIC.len());
    let Ok(acceptor) = nonce.try_into().map(Nonce) else { return Err(unproven()) };
    if magic != MAGIC {
        return Err(unproven());
    }
    let connector = random()?;
    let nonces = Nonces { acceptor, connector };
    let proof = key.prove(End::Connector, &nonces, claim);
    stream.write_all(&[connector.0, proof.0].concat()).await?;
    let mut answer = [0; PROOF_BYTES];
    stream.read_exact(&mut answer).await?;
    check(key, End::Acceptor, (&nonces, claim), &Proof(answer))
}

async fn challenge(stream: &mut impl Stream, key: &Key, claim: &[u8]) -> io::Result<()> {
    let acceptor = random()?;
    stream.write_all(&[&MAGIC[..], &acceptor.0].concat()).await?;
    let (mut connector, mut proof) = ([0; NONCE_BYTES], [0; PROOF_BYTES]);
    stream.read_exact(&mut connector).await?;
    stream.read_exact(&mut proof).await?;
    let nonces = Nonces { acceptor, connector: Nonce(connector) };
    check(key, End::Connector, (&nonces, claim), &Proof(proof))?;
    stream.write_all(&key.prove(End::Acceptor, &nonces, claim).0).await
}

fn check(key: &Key, end: End, (nonces, claim): (&Nonces, &[u8]), proof: &Proof) -> io::Result<()> {
    if key.verify(end, nonces, claim, proof) { Ok(()) } else { Err(unproven()) }
}

fn random() -> io::Result<Nonce> {
    Nonce::random().map_err(io::Error::other)
}

fn unproven() -> io::Error {
    let message = "it does not prove that it has the network's secret";
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

pub fn late() -> io::Error {
    let message = format!("its handshake was not complete after {} s", LIMIT.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_auth::{Right, Secret};
    use tokio::io::{DuplexStream, duplex};

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(work)
    }

    fn keys() -> [Key; 2] {
        [(); 2].map(|()| Secret::random().unwrap().key(Right::Node))
    }

    async fn both(near: &Key, far: &Key) -> (io::Result<()>, io::Result<()>) {
        let (mut a, mut b) = duplex(1_024);
        // An end that refuses closes its stream.
        let connect = async move { connect(&mut a, near, 5).await };
        let accept = async move { accept(&mut b, far, 5).await };
        tokio::join!(connect, accept)
    }

    #[test]
    fn replicas_with_the_same_key_accept_each_other_and_others_do_not() {
        let [key, other] = keys();
        let (connected, accepted) = run(both(&key, &key));
        connected.unwrap();
        accepted.unwrap();
        let (connected, accepted) = run(both(&key, &other));
        assert!(accepted.unwrap_err().to_string().contains("does not prove"));
        assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_replayed_handshake_is_refused() {
        let [key, _] = keys();
        let answered = run(async {
            let (mut near, mut far) = duplex(1_024);
            let accepted = tokio::spawn(async move { accept(&mut far, &key, 5).await });
            let answer = answer_of(&mut near, &key).await;
            near.write_all(&answer).await.unwrap();
            accepted.await.unwrap().unwrap();
            answer
        });
        let again = run(async {
            let (mut near, mut far) = duplex(1_024);
            let accepted = tokio::spawn(async move { accept(&mut far, &key, 5).await });
            near.write_all(&answered).await.unwrap();
            accepted.await.unwrap()
        });
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    /// The nonce and proof of a connecting end.
    async fn answer_of(stream: &mut DuplexStream, key: &Key) -> Vec<u8> {
        let mut challenge = [0; MAGIC.len() + NONCE_BYTES];
        stream.read_exact(&mut challenge).await.unwrap();
        let acceptor = Nonce(challenge[MAGIC.len()..].try_into().unwrap());
        let nonces = Nonces { acceptor, connector: Nonce([7; NONCE_BYTES]) };
        [nonces.connector.0, key.prove(End::Connector, &nonces, &claim(5)).0].concat()
    }

    #[test]
    fn an_end_that_does_not_speak_the_protocol_is_refused() {
        let [key, _] = keys();
        let end = |bytes: &'static [u8]| {
            run(async move {
                let (mut near, mut far) = duplex(1_024);
                far.write_all(bytes).await.unwrap();
                drop(far);
                (connect(&mut near, &key, 5).await, accept(&mut near, &key, 5).await)
            })
        };
        for bytes in [&b""[..], b"nmauth", &[0; 40], &[9; 104], &[0xff; 200]] {
            let (connected, accepted) = end(bytes);
            assert!(connected.is_err() && accepted.is_err(), "{bytes:?}");
        }
    }
}
