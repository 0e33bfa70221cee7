//! What an agent and a controller say before a session: a line each.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use nm_model::hosts::Destination;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::VERSION;

/// Longest line before a session, bytes.
pub const LINE_BYTES_MAX: usize = 16 << 10;

/// Most labels of an agent.
pub const LABELS_MAX: usize = 64;

/// Longest name of an agent or a label, and longest value, characters.
pub const WORD_CHARS_MAX: usize = 100;

/// Shortest and longest token, characters.
const TOKEN_CHARS: std::ops::RangeInclusive<usize> = 16..=256;

/// The secret that lets agents enter. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct EntryToken(String);

impl fmt::Debug for EntryToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a text is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "it holds no token: write one line of 16 to 256 letters, digits and signs, for example by \
     `openssl rand -hex 32`"
)]
pub struct EntryTokenError;

impl EntryToken {
    /// The token in the text of its file: one line.
    ///
    /// # Errors
    /// If there is none.
    pub fn parse(text: &str) -> Result<EntryToken, EntryTokenError> {
        let word = text.trim();
        let is_token =
            TOKEN_CHARS.contains(&word.len()) && word.chars().all(|c| c.is_ascii_graphic());
        is_token.then(|| EntryToken(word.to_string())).ok_or(EntryTokenError)
    }

    /// Whether it is `other`. The time does not depend on where they differ: digests are compared,
    /// and nobody can choose the digest of a guess.
    fn is(&self, other: &str) -> bool {
        Sha256::digest(&self.0) == Sha256::digest(other)
    }
}

/// Name, labels and address of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Card {
    /// Its name, which no other agent of the controller has.
    pub name: String,
    /// Labels by name.
    pub labels: BTreeMap<String, String>,
    /// Its own address on the path to the controller, or the one that its user gave.
    pub address: IpAddr,
    /// A number that the agent drew at its start: it may replace its own lost connection.
    pub instance: u64,
}

/// Why a card is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CardError {
    /// The name could not be one of a host.
    #[error(
        "`{0}` is no name of an agent: write 1 to {WORD_CHARS_MAX} letters, digits, dots, hyphens \
         and underscores"
    )]
    Name(String),
    /// A label.
    #[error(
        "`{0}` is no label: write NAME=VALUE without blanks, each of at most {WORD_CHARS_MAX} \
         characters"
    )]
    Label(String),
    /// Too many labels.
    #[error("an agent has at most {LABELS_MAX} labels")]
    Labels,
    /// No host has it.
    #[error("`{0}` is no address of a host")]
    Address(IpAddr),
}

impl Card {
    /// Checks what types cannot.
    ///
    /// # Errors
    /// What cannot be meant.
    pub fn check(&self) -> Result<(), CardError> {
        let is_name_char = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let is_name = self.name.len() <= WORD_CHARS_MAX
            && self.name.chars().all(is_name_char)
            && self.name.parse::<Destination>().is_ok();
        if !is_name {
            let start: String = self.name.chars().take(WORD_CHARS_MAX).collect();
            return Err(CardError::Name(start.escape_debug().to_string()));
        }
        if self.labels.len() > LABELS_MAX {
            return Err(CardError::Labels);
        }
        let is_word = |word: &str| {
            let n_chars = word.chars().count();
            (1..=WORD_CHARS_MAX).contains(&n_chars)
                && !word.chars().any(|c| c.is_control() || c.is_whitespace())
        };
        if let Some((name, _)) = self.labels.iter().find(|(k, v)| !is_word(k) || !is_word(v)) {
            let start: String = name.chars().take(WORD_CHARS_MAX).collect();
            return Err(CardError::Label(start.escape_debug().to_string()));
        }
        match self.address.is_unspecified() || self.address.is_multicast() {
            true => Err(CardError::Address(self.address)),
            false => Ok(()),
        }
    }
}

/// Why an agent is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The token is another one.
    #[error("the controller has another token; give this agent the one of the controller")]
    Token,
    /// The version is another one.
    #[error(
        "the controller is nearmetal {controller}, this agent is nearmetal {agent}; install the \
         same version at both ends"
    )]
    Version {
        /// Of the controller.
        controller: String,
        /// Of the agent.
        agent: String,
    },
    /// The line cannot be read.
    #[error("the controller cannot use what this agent says of itself: {0}")]
    Card(String),
    /// The name is taken.
    #[error("another agent named `{0}` is at the controller; give this one another --name")]
    Name(String),
    /// There are too many.
    #[error("the controller has as many agents as it takes, {0}")]
    Full(usize),
    /// There are too many from one address.
    #[error("the controller has as many agents as it takes from one address, {0}")]
    FullAddress(usize),
}

impl Refusal {
    /// Whether it would be refused again, whatever others do.
    pub fn is_final(&self) -> bool {
        matches!(self, Refusal::Token | Refusal::Version { .. } | Refusal::Card(_))
    }
}

/// What a controller says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The agent is known, and waits.
    Welcome,
    /// It is not.
    Refused(Refusal),
    /// A session begins: all that follows is the agent protocol.
    Open,
}

/// The line with which an agent begins.
pub fn first_line(token: &EntryToken, card: &Card) -> String {
    line_of(&token.0, VERSION, card)
}

fn line_of(token: &str, version: &str, card: &Card) -> String {
    serde_json::json!({ "token": token, "version": version, "card": card }).to_string()
}

/// Reads the line of an agent: the token first, then the version, which says how to read the rest.
///
/// # Errors
/// Why the agent is refused.
pub fn read(line: &str, token: &EntryToken) -> Result<Card, Refusal> {
    let line: Value = serde_json::from_str(line).map_err(|_| Refusal::Token)?;
    if !line["token"].as_str().is_some_and(|word| token.is(word)) {
        return Err(Refusal::Token);
    }
    let version = line["version"].as_str().unwrap_or_default();
    if version != VERSION {
        let agent: String = version.chars().filter(|c| !c.is_control()).take(40).collect();
        return Err(Refusal::Version { controller: VERSION.to_string(), agent });
    }
    let card: Card = serde_json::from_value(line["card"].clone())
        .map_err(|error| Refusal::Card(error.to_string()))?;
    card.check().map_err(|error| Refusal::Card(error.to_string()))?;
    Ok(card)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> EntryToken {
        EntryToken::parse("0123456789abcdef\n").unwrap()
    }

    fn card(name: &str) -> Card {
        let labels = BTreeMap::from([("rack".to_string(), "7".to_string())]);
        Card { name: name.into(), labels, address: [192, 0, 2, 1].into(), instance: 1 }
    }

    #[test]
    fn an_agent_is_read_by_token_then_version_then_card() {
        let line = first_line(&token(), &card("a"));
        assert_eq!(read(&line, &token()), Ok(card("a")));
        for wrong in
            ["", "{}", "[1]", "{\"token\":1}", &line_of("0123456789abcdeF", "9", &card("a"))]
        {
            assert_eq!(read(wrong, &token()), Err(Refusal::Token), "{wrong}");
        }
        let other = read(&line_of("0123456789abcdef", "0.0.9", &card("a")), &token()).unwrap_err();
        assert!(other.to_string().contains("this agent is nearmetal 0.0.9; install"), "{other}");
        assert!(other.is_final() && Refusal::Token.is_final());
        assert!(!Refusal::Name("a".into()).is_final() && !Refusal::Full(1).is_final());
    }

    #[test]
    fn names_labels_and_addresses_are_checked() {
        for name in ["", "-oX", "a b", "a\n", "ä", "a/b", "a=b", &"x".repeat(101)] {
            let refused = read(&first_line(&token(), &card(name)), &token());
            assert!(matches!(refused, Err(Refusal::Card(_))), "{name}: {refused:?}");
        }
        let mut many = card("a");
        many.labels = (0..=LABELS_MAX).map(|n| (n.to_string(), "x".into())).collect();
        assert_eq!(many.check(), Err(CardError::Labels));
        let blank = Card { labels: [("a b".into(), "x".into())].into(), ..card("a") };
        assert!(matches!(blank.check(), Err(CardError::Label(_))));
        let any = Card { address: [0, 0, 0, 0].into(), ..card("a") };
        assert!(matches!(any.check(), Err(CardError::Address(_))));
    }

    #[test]
    fn a_token_is_one_word_and_is_never_printed() {
        for bad in ["", "short", "two words are no token", &"x".repeat(257), "0123456789abcdeä"] {
            assert_eq!(EntryToken::parse(bad), Err(EntryTokenError), "{bad}");
        }
        assert!(!format!("{:?}", token()).contains("0123"));
    }

    proptest! {
        #[test]
        fn no_line_enters_without_the_token(line in "(?s).{0,300}") {
            prop_assert_eq!(read(&line, &token()), Err(Refusal::Token));
        }

        #[test]
        fn what_can_be_a_card_is_read_as_it_was(
            name in "[a-z0-9][a-zA-Z0-9._-]{0,99}",
            labels in prop::collection::btree_map("[!-~]{1,20}", "[!-~]{1,20}", 0..10),
            address in any::<[u8; 4]>(),
            instance in any::<u64>(),
        ) {
            let card = Card { name, labels, address: address.into(), instance };
            let read = read(&first_line(&token(), &card), &token());
            match card.check() {
                Ok(()) => prop_assert_eq!(read, Ok(card)),
                Err(error) => prop_assert_eq!(read, Err(Refusal::Card(error.to_string()))),
            }
        }

        #[test]
        fn words_of_a_controller_are_read_as_they_were(text in "\\PC{0,40}", n in any::<usize>()) {
            let version = Refusal::Version { controller: text.clone(), agent: text.clone() };
            let card = Refusal::Card(text.clone());
            let refusals = [card, Refusal::Name(text), Refusal::Full(n), version];
            for word in refusals.map(Word::Refused).into_iter().chain([Word::Open, Word::Welcome]) {
                let line = serde_json::to_string(&word).unwrap();
                prop_assert!(!line.contains('\n'));
                prop_assert_eq!(serde_json::from_str::<Word>(&line).unwrap(), word);
            }
        }
    }
}
