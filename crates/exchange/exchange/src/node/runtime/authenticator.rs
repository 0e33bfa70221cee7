//! Checks who is at the other end of a link, and proves who is at this end, where the network has a
//! secret. This happens once for each link, and for each session of a client.

use nm_auth::{End, Nonce, Nonces, Right, Secret};
use nm_wire::{Challenge, Evidence, Welcome, Who};

use super::peer::PeerError;

/// A node's end of the handshakes.
#[derive(Debug)]
pub struct Authenticator(Option<Secret>);

impl Authenticator {
    /// That of a node in a network with this secret.
    pub fn new(secret: Option<Secret>) -> Authenticator {
        Authenticator(secret)
    }

    /// Whether the network has a secret.
    pub fn is_required(&self) -> bool {
        self.0.is_some()
    }

    /// What an accepted connection is asked first.
    pub fn challenge(&self) -> std::io::Result<Option<Challenge>> {
        let Some(_) = self.0 else { return Ok(None) };
        let nonce = Nonce::random().map_err(std::io::Error::other)?;
        Ok(Some(Challenge { nonce }))
    }

    /// Answers the challenge of a node.
    pub fn answer(
        &self,
        Challenge { nonce: acceptor }: Challenge,
        hello: &Who,
    ) -> Result<(Nonces, Evidence), PeerError> {
        let secret = self.0.as_ref().ok_or(PeerError::SecretNeeded)?;
        let connector = Nonce::random()?;
        let nonces = Nonces { acceptor, connector };
        let proof = secret.key(hello.right()).prove(End::Connector, &nonces, &hello.claim());
        Ok((nonces, Evidence { nonce: connector, proof }))
    }

    /// Checks the hello of whoever answered a challenge; the welcome gets the proof of this end.
    pub fn check_hello(
        &self,
        challenge: Option<Challenge>,
        (hello, evidence): (&Who, Option<&Evidence>),
        welcome: Welcome,
    ) -> Result<Welcome, PeerError> {
        let (Some(secret), Some(Challenge { nonce: acceptor })) = (&self.0, challenge) else {
            return Ok(welcome);
        };
        let right = hello.right();
        let Evidence { nonce, proof } = evidence.ok_or(PeerError::NoProof(right))?;
        let (key, nonces) = (secret.key(right), Nonces { acceptor, connector: *nonce });
        if !key.verify(End::Connector, &nonces, &hello.claim(), proof) {
            return Err(PeerError::WrongProof(right));
        }
        let proof = key.prove(End::Acceptor, &nonces, &welcome.claim(hello));
        Ok(Welcome { proof: Some(proof), ..welcome })
    }

    /// Checks the welcome of a node to which this one sent its hello.
    pub fn check_welcome(
        &self,
        nonces: Option<&Nonces>,
        hello: &Who,
        welcome: &Welcome,
    ) -> Result<(), PeerError> {
        let Some(secret) = &self.0 else { return Ok(()) };
        let key = secret.key(Right::Node);
        let is_proven = nonces.zip(welcome.proof.as_ref()).is_some_and(|(nonces, proof)| {
            key.verify(End::Acceptor, nonces, &welcome.claim(hello), proof)
        });
        if is_proven { Ok(()) } else { Err(PeerError::Unproven) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Role;

    const HELLO: Who = Who::Node { node: Role::Gateway.node(1), start: 9 };
    const WELCOME: Welcome = Welcome {
        digest: 0,
        network: 1,
        start: 4,
        session: 0,
        node: Role::Router.node(0),
        proof: None,
    };

    fn pair() -> (Authenticator, Authenticator) {
        let secret = Secret::random().unwrap();
        (Authenticator::new(Some(secret.clone())), Authenticator::new(Some(secret)))
    }

    #[test]
    fn both_ends_prove_that_they_have_the_secret() {
        let (near, far) = pair();
        let challenge = far.challenge().unwrap().unwrap();
        let (nonces, evidence) = near.answer(challenge, &HELLO).unwrap();
        let checked = far.check_hello(Some(challenge), (&HELLO, Some(&evidence)), WELCOME);
        let proven = checked.unwrap();
        near.check_welcome(Some(&nonces), &HELLO, &proven).unwrap();
        // A welcome of another start, without a proof, or without a challenge before it.
        let other = Welcome { start: 5, ..proven };
        for (nonces, welcome) in [(Some(&nonces), other), (Some(&nonces), WELCOME), (None, proven)]
        {
            let refused = near.check_welcome(nonces, &HELLO, &welcome).unwrap_err();
            assert!(matches!(refused, PeerError::Unproven), "{refused}");
        }
    }

    #[test]
    fn a_hello_that_is_replayed_or_changed_is_refused() {
        let (near, far) = pair();
        let challenge = far.challenge().unwrap().unwrap();
        let (_, evidence) = near.answer(challenge, &HELLO).unwrap();
        let check = |challenge, hello, evidence| {
            far.check_hello(Some(challenge), (hello, evidence), WELCOME).unwrap_err()
        };
        let later = far.challenge().unwrap().unwrap();
        let refused = check(later, &HELLO, Some(&evidence));
        assert!(matches!(refused, PeerError::WrongProof(Right::Node)), "{refused}");
        let other = Who::Node { node: Role::Gateway.node(0), start: 9 };
        let refused = check(challenge, &other, Some(&evidence));
        assert!(matches!(refused, PeerError::WrongProof(Right::Node)), "{refused}");
        let refused = check(challenge, &HELLO, None);
        assert!(matches!(refused, PeerError::NoProof(Right::Node)), "{refused}");
        let stranger = Authenticator::new(Some(Secret::random().unwrap()));
        let (_, evidence) = stranger.answer(challenge, &HELLO).unwrap();
        let refused = check(challenge, &HELLO, Some(&evidence));
        assert!(matches!(refused, PeerError::WrongProof(Right::Node)), "{refused}");
    }

    #[test]
    fn without_a_secret_nothing_is_asked_and_nothing_can_be_answered() {
        let open = Authenticator::new(None);
        assert_eq!(open.challenge().unwrap(), None);
        assert!(open.check_hello(None, (&HELLO, None), WELCOME).unwrap().proof.is_none());
        open.check_welcome(None, &HELLO, &WELCOME).unwrap();
        let challenge = pair().0.challenge().unwrap().unwrap();
        let refused = open.answer(challenge, &HELLO).unwrap_err();
        assert!(matches!(refused, PeerError::SecretNeeded), "{refused}");
    }
}
