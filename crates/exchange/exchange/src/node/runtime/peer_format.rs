//! The format of messages at the other end of a link. It is the same, or another one of which all
//! that both ends know is the same. Then two versions of nearmetal run in one network.

use nm_wire::{Common, Difference, Format, ROWS};

use super::peer::PeerError;

/// What a node knows of the format at the other end of a link.
#[derive(Debug, Default)]
pub enum PeerFormat {
    /// Nothing yet. If the peer goes on without saying more, it must be the same.
    #[default]
    Unknown,
    /// What the peer has said before its hello or welcome: its program, and what is in common.
    Announced(String, Result<Common, Difference>),
    /// It is the same.
    Same,
    /// It is another one; only these messages are sent.
    Other(Common),
}

impl PeerFormat {
    /// The peer says which messages it knows.
    ///
    /// # Errors
    /// If that is too late.
    pub fn announce(&mut self, format: &Format) -> Result<(), PeerError> {
        let PeerFormat::Unknown = self else { return Err(PeerError::RepeatedHandshake) };
        let common = format.common((Format::own(), ROWS));
        *self = PeerFormat::Announced(format.printable_program(), common);
        Ok(())
    }

    /// The peer's hello or welcome has this digest; whether the formats differ, and this is known
    /// only now.
    ///
    /// # Errors
    /// If the two formats cannot be used together.
    pub fn check(&mut self, found: u64) -> Result<bool, PeerError> {
        let own = nm_wire::digest();
        let (next, is_new) = match self {
            _ if found == own => (PeerFormat::Same, false),
            PeerFormat::Other(common) => (PeerFormat::Other(*common), false),
            PeerFormat::Announced(_, Ok(common)) => (PeerFormat::Other(*common), true),
            PeerFormat::Announced(program, Err(difference)) => {
                let (program, difference) = (std::mem::take(program), *difference);
                return Err(PeerError::Incompatible { program, found, own, difference });
            }
            PeerFormat::Unknown | PeerFormat::Same => {
                return Err(PeerError::OtherFormat { found, own });
            }
        };
        *self = next;
        Ok(is_new)
    }

    /// Whether the peer knows the message with this code. Those of the handshake are sent before
    /// that is known.
    #[inline]
    pub fn knows(&self, code: u8) -> bool {
        match self {
            PeerFormat::Other(common) => common.has(code),
            _ => true,
        }
    }

    /// Whether it is another format.
    #[inline]
    pub fn is_other(&self) -> bool {
        matches!(self, PeerFormat::Other(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_wire::{Kind, KnownMessage, Listed, Request};

    const OTHER: u64 = 0x1234;

    fn announced(change: impl FnOnce(&mut Vec<KnownMessage>)) -> PeerFormat {
        let mut format = Format::of("7.8.9", ROWS);
        change(&mut format.messages);
        let mut peer = PeerFormat::default();
        peer.announce(&format).unwrap();
        assert!(matches!(peer.announce(&format), Err(PeerError::RepeatedHandshake)));
        peer
    }

    fn without(kind: Kind) -> PeerFormat {
        announced(|messages| messages.retain(|known| known.code != kind.code()))
    }

    #[test]
    fn a_peer_that_lacks_a_message_or_has_one_more_is_sent_what_both_know() {
        let mut lacks = without(Kind::GoAway);
        assert!(lacks.check(OTHER).unwrap() && !lacks.check(OTHER).unwrap());
        for kind in Kind::ALL {
            assert_eq!(lacks.knows(kind.code()), *kind != Kind::GoAway, "{kind:?}");
        }
        let mut more = announced(|all| all.push(KnownMessage { code: 249, digest: 1 }));
        assert!(more.check(OTHER).unwrap());
        assert!(Kind::ALL.iter().all(|kind| more.knows(kind.code())) && !more.knows(249));
    }

    #[test]
    fn a_message_that_differs_is_refused_in_a_sentence_that_names_it_and_both_versions() {
        let code = <Request as Listed>::CODE;
        let mut changed = announced(|all| {
            all.iter_mut().find(|known| known.code == code).unwrap().digest ^= 1;
            all.retain(|known| known.code != Kind::Retire.code());
        });
        let why = changed.check(OTHER).unwrap_err();
        assert!(why.is_lasting() && why.is_for_peer());
        let own = format!("{:016x}", nm_wire::digest());
        for words in ["nearmetal 7.8.9", nm_wire::PROGRAM, "0000000000001234", &own, "Request "] {
            assert!(why.to_string().contains(words), "no `{words}` in: {why}");
        }
        // What stands in logs must be known to all replicas.
        let why = without(Kind::Retire).check(OTHER).unwrap_err().to_string();
        assert!(why.contains("Retire, which stands in the logs of cells, is missing"), "{why}");
    }

    #[test]
    fn a_silent_peer_must_have_the_same_format() {
        let mut silent = PeerFormat::default();
        assert!(matches!(silent.check(OTHER), Err(PeerError::OtherFormat { found: OTHER, .. })));
        assert!(!silent.check(nm_wire::digest()).unwrap());
        assert!(matches!(silent.check(OTHER), Err(PeerError::OtherFormat { .. })));
    }
}
