//! Firms: whose sessions may connect, and who shares their quotas.
//!
//! ```toml
//! [[firm]]
//! number = 7
//! name = "ACME Capital"
//! sessions = ["9001-9010", "9050"]
//! ```
//!
//! The network's file has these tables. In a network with firms a gateway refuses every session
//! that none of them has, but the operator's. A firm owns its sessions, whatever keys they have and
//! wherever they come from, so that quotas count for the firm. A network without firms lets any
//! session connect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nm_book::order::UserId;
use nm_sys::text_file;
use nm_wire::Owner;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cell::{DESK, OPERATOR};

/// Bytes of a file of firms.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A firm, as files have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Firm {
    /// Its number, by which owners are known.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its sessions: `NUMBER` or `FIRST-LAST`.
    pub sessions: Vec<String>,
}

/// A file of firms alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    firm: Vec<Firm>,
}

/// Why firms cannot be used.
#[derive(Debug, Error)]
pub enum FirmsError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no file of firms.
    #[error("{}: {}", path.display(), source.message())]
    Toml {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Box<toml::de::Error>,
    },
    /// Its content is wrong.
    #[error("{}: {source}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: Box<FirmsError>,
    },
    /// There is none.
    #[error("it has no firm")]
    Nobody,
    /// A number or a name stands twice.
    #[error("two firms have the {0}")]
    Twice(String),
    /// A range is none.
    #[error("sessions `{text}` of firm {firm}: write NUMBER or FIRST-LAST, from 1 on")]
    Range {
        /// Whose.
        firm: String,
        /// What it says.
        text: String,
    },
    /// A session has two firms.
    #[error("session {session} belongs to both {one} and {other}")]
    Shared {
        /// Which.
        session: UserId,
        /// The first firm.
        one: String,
        /// The second one.
        other: String,
    },
}

/// The firms of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firms {
    all: Vec<Firm>,
    /// By their first sessions: the last ones, and the positions of the firms.
    ranges: BTreeMap<UserId, (UserId, usize)>,
}

impl Firms {
    /// The firms of a file that has nothing else.
    ///
    /// # Errors
    /// If it cannot be read, or its content is wrong.
    #[expect(clippy::disallowed_methods, reason = "no node reads such a file")]
    pub fn read(path: &Path) -> Result<Firms, FirmsError> {
        let text = text_file::read(path, FILE_BYTES_MAX)
            .map_err(|source| FirmsError::Read { path: path.into(), source })?;
        let file: FileText = toml::from_str(&text)
            .map_err(|source| FirmsError::Toml { path: path.into(), source: source.into() })?;
        Firms::of(file.firm)
            .map_err(|source| FirmsError::Content { path: path.into(), source: source.into() })
    }

    /// These firms.
    ///
    /// # Errors
    /// If there is none, or a name, number or session is that of two.
    pub fn of(all: Vec<Firm>) -> Result<Firms, FirmsError> {
        if all.is_empty() {
            return Err(FirmsError::Nobody);
        }
        let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        let mut firms = Firms { all: vec![], ranges: BTreeMap::new() };
        for firm in all {
            if !numbers.insert(firm.number) {
                return Err(FirmsError::Twice(format!("number {}", firm.number)));
            }
            if !names.insert(firm.name.clone()) {
                return Err(FirmsError::Twice(format!("name {}", firm.name)));
            }
            firms.add(firm)?;
        }
        Ok(firms)
    }

    fn add(&mut self, firm: Firm) -> Result<(), FirmsError> {
        let at = self.all.len();
        for text in &firm.sessions {
            let (first, last) = range(text)
                .ok_or_else(|| FirmsError::Range { firm: firm.name.clone(), text: text.clone() })?;
            let before = self.ranges.range(..=last).next_back();
            if let Some((start, (end, other))) = before
                && *end >= first
            {
                let one = self.all.get(*other).map_or(&firm.name, |other| &other.name);
                return Err(FirmsError::Shared {
                    session: first.max(*start),
                    one: one.clone(),
                    other: firm.name.clone(),
                });
            }
            self.ranges.insert(first, (last, at));
        }
        self.all.push(firm);
        Ok(())
    }

    /// These firms and another one.
    ///
    /// # Errors
    /// As [`Firms::of`].
    pub fn with(&self, firm: Firm) -> Result<Firms, FirmsError> {
        Firms::of([self.all.clone(), vec![firm]].concat())
    }

    /// All firms.
    pub fn all(&self) -> &[Firm] {
        &self.all
    }

    /// The firm that a session belongs to.
    pub fn of_session(&self, session: UserId) -> Option<&Firm> {
        let (_, (last, at)) = self.ranges.range(..=session).next_back()?;
        self.all.get(*at).filter(|_| session <= *last)
    }

    /// Whether a session may connect.
    pub fn admits(&self, session: UserId) -> bool {
        session == OPERATOR || self.of_session(session).is_some()
    }
}

impl Firm {
    /// The firm as an owner.
    pub fn owner(&self) -> Owner {
        Owner::of_firm(self.number)
    }
}

/// The first and the last session of a text.
fn range(text: &str) -> Option<(UserId, UserId)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (OPERATOR < first && first <= last && last < DESK).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firm(number: u32, name: &str, sessions: &[&str]) -> Firm {
        let sessions = sessions.iter().map(|it| it.to_string()).collect();
        Firm { number, name: name.to_string(), sessions }
    }

    #[test]
    fn a_session_belongs_to_one_firm_or_may_not_connect() {
        let all = vec![firm(7, "A", &["10-20", "5"]), firm(8, "B", &["6-9", "4294967294"])];
        let firms = Firms::of(all).unwrap();
        let name = |session| firms.of_session(session).map(|firm| firm.name.as_str());
        let named = [4, 5, 6, 9, 10, 20, 21, u32::MAX - 1].map(name);
        let (a, b) = (Some("A"), Some("B"));
        assert_eq!(named, [None, a, b, b, a, a, None, b]);
        assert!(firms.admits(OPERATOR) && firms.admits(5) && !firms.admits(4));
        assert_eq!(firms.of_session(5).unwrap().owner().to_string(), "firm:7");
        for (other, why) in [
            (firm(7, "C", &["30"]), "two firms have the number 7"),
            (firm(9, "A", &["30"]), "two firms have the name A"),
            (firm(9, "C", &["1-5"]), "session 5 belongs to both A and C"),
            (firm(9, "C", &["15"]), "session 15 belongs to both A and C"),
            (firm(9, "C", &["1-30"]), "belongs to both"),
            (firm(9, "C", &["30-40", "40"]), "session 40 belongs to both C and C"),
            (firm(9, "C", &["0-3"]), "sessions `0-3` of firm C: write NUMBER or FIRST-LAST"),
            (firm(9, "C", &["9-8"]), "sessions `9-8` of firm C"),
            (firm(9, "C", &["x"]), "sessions `x` of firm C"),
            (firm(9, "C", &["4294967295"]), "sessions `4294967295` of firm C"),
        ] {
            let refused = firms.with(other).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        assert!(matches!(Firms::of(vec![]), Err(FirmsError::Nobody)));
    }
}
