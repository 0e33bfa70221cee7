//! Firms: whose sessions may connect, and who shares their quotas.
//!
//! ```toml
//! [[firm]]
//! number = 7
//! name = "ACME Capital"
//! sessions = ["9001-9010", "9050"]
//!
//! [firm.limits]                # each of them is optional, and holds in each cell
//! order_quantity = 1000        # largest quantity of an order, lots
//! order_value = 1000000        # largest value of an order, ticks times lots
//! orders = 500                 # most live orders
//! value = 5000000              # largest value of all live orders, ticks times lots
//! position = 20000             # largest position on an instrument, lots
//! ```
//!
//! A network begins with the tables of its file, and operators change them while it runs. The map
//! carries them to all nodes, and each cell has them in its log ([`crate::cell`] checks the
//! limits). In a network with firms a gateway refuses every session that none of them has, but the
//! operator's. A firm owns its sessions, whatever keys they have and wherever they come from, so
//! that quotas count for the firm. A network without firms lets any session connect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nm_book::order::UserId;
use nm_sys::text_file;
pub use nm_wire::{FirmLimits, FirmUse};
use nm_wire::{FirmRecord, FirmTable, Owner, SessionRange};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cell::{DESK, OPERATOR};
use crate::limits::{FIRM_NAME_BYTES_MAX, FIRM_RANGES_MAX, FIRMS_MAX};

/// Bytes of a file of firms.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Largest number of a limit: a file can have no larger one.
const LIMIT_MAX: u64 = i64::MAX as u64;

/// The limits of a firm, as files have them.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(remote = "FirmLimits", deny_unknown_fields)]
struct LimitsText {
    /// Largest quantity of an order, lots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order_quantity: Option<u64>,
    /// Largest value of an order, ticks times lots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order_value: Option<u64>,
    /// Most live orders in a cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    orders: Option<u64>,
    /// Largest value of all live orders in a cell, ticks times lots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<u64>,
    /// Largest position on an instrument, with the live orders of one side, lots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    position: Option<u64>,
}

fn has_no_limit(limits: &FirmLimits) -> bool {
    !limits.is_any()
}

/// A firm, as files have it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Firm {
    /// Its number, by which owners are known.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its sessions: `NUMBER` or `FIRST-LAST`.
    pub sessions: Vec<String>,
    /// What it may have at most.
    #[serde(default, with = "LimitsText", skip_serializing_if = "has_no_limit")]
    #[schemars(with = "LimitsText")]
    pub limits: FirmLimits,
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
    /// Too many firms.
    #[error("{0} firms are more than a network has: {FIRMS_MAX} are possible")]
    Count(usize),
    /// Too many ranges of sessions.
    #[error("the firms have {0} ranges of sessions, and {FIRM_RANGES_MAX} are possible")]
    Ranges(usize),
    /// A name is none.
    #[error("`{0}` is no name of a firm: 1 to {FIRM_NAME_BYTES_MAX} bytes in one line are one")]
    Name(String),
    /// A limit is too large.
    #[error("a limit of firm {0} is {1}, and {LIMIT_MAX} is the largest one")]
    Limit(String, u64),
    /// There is no firm.
    #[error(
        "this network has no firms, so any session may connect: one begins with \
         `nearmetal exchange run --firms FILE`, or `[[firm]]` in the network's file"
    )]
    NoFirms,
    /// It is the last one.
    #[error("{0} is the only firm: a network with firms has at least one")]
    LastOne(String),
    /// There is no firm of this name.
    #[error("there is no firm {name}: the network has {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
}

/// The firms of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firms {
    /// Rises with each change.
    version: u64,
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
        match all.len() {
            0 => return Err(FirmsError::Nobody),
            count if count > FIRMS_MAX => return Err(FirmsError::Count(count)),
            _ => {}
        }
        let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
        let mut firms = Firms { version: 1, all: vec![], ranges: BTreeMap::new() };
        for firm in all {
            check(&firm)?;
            if !numbers.insert(firm.number) {
                return Err(FirmsError::Twice(format!("number {}", firm.number)));
            }
            if !names.insert(firm.name.clone()) {
                return Err(FirmsError::Twice(format!("name {}", firm.name)));
            }
            firms.add(firm)?;
        }
        match firms.ranges.len() {
            count if count > FIRM_RANGES_MAX => Err(FirmsError::Ranges(count)),
            _ => Ok(firms),
        }
    }

    /// The firms of a table.
    ///
    /// # Errors
    /// As [`Firms::of`].
    pub fn of_table(table: &FirmTable) -> Result<Firms, FirmsError> {
        let firms = Firms::of(table.firms.iter().map(Firm::of).collect())?;
        Ok(Firms { version: table.version, ..firms })
    }

    /// The table that messages and logs have.
    pub fn table(&self) -> FirmTable {
        FirmTable { version: self.version, firms: self.records().collect() }
    }

    /// The firms as messages have them.
    pub fn records(&self) -> impl Iterator<Item = FirmRecord> {
        self.all.iter().zip(0..).map(|(firm, at)| FirmRecord {
            number: firm.number,
            name: firm.name.clone(),
            sessions: self.ranges_of(at),
            limits: firm.limits,
        })
    }

    /// The sessions of the firm at a position.
    fn ranges_of(&self, at: usize) -> Vec<SessionRange> {
        let own = self.ranges.iter().filter(|(_, (_, of))| *of == at);
        own.map(|(first, (last, _))| SessionRange { first: *first, last: *last }).collect()
    }

    /// Rises with each change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// These firms, where one is added, or is as it is given here.
    fn with_set(&self, firm: &Firm) -> Result<Firms, FirmsError> {
        let mut all = self.all.clone();
        match all.iter_mut().find(|known| known.number == firm.number) {
            Some(known) => known.clone_from(firm),
            None => all.push(firm.clone()),
        }
        Ok(Firms { version: self.version, ..Firms::of(all)? })
    }

    /// Whether setting a firm would change anything.
    ///
    /// # Errors
    /// If it is not possible beside the others.
    pub fn plan_set(&self, firm: &Firm) -> Result<bool, FirmsError> {
        Ok(self.with_set(firm)?.table() != self.table())
    }

    /// Whether a firm is there that can be removed.
    ///
    /// # Errors
    /// If it is the last one.
    pub fn plan_remove(&self, number: u32) -> Result<bool, FirmsError> {
        let known = self.all.iter().find(|firm| firm.number == number);
        match known {
            Some(last) if self.all.len() == 1 => Err(FirmsError::LastOne(last.name.clone())),
            known => Ok(known.is_some()),
        }
    }

    /// Adds a firm, or changes it, if that is possible, at a time, ms since 1970; whether anything
    /// changed. Versions rise with the time as well, so that those after a loss of all memory are
    /// higher than those before.
    pub(crate) fn set(&mut self, firm: &Firm, now_ms: u64) -> bool {
        let is_new = self.plan_set(firm).unwrap_or(false);
        if is_new && let Ok(changed) = self.with_set(firm) {
            *self = Firms { version: now_ms.max(self.version + 1), ..changed };
        }
        is_new
    }

    /// Removes a firm, if that is possible, at a time, ms since 1970; whether anything changed.
    pub(crate) fn remove(&mut self, number: u32, now_ms: u64) -> bool {
        let is_there = self.plan_remove(number).unwrap_or(false);
        let mut left = self.all.clone();
        left.retain(|firm| firm.number != number);
        match Firms::of(left) {
            Ok(left) if is_there => {
                *self = Firms { version: now_ms.max(self.version + 1), ..left };
                true
            }
            _ => false,
        }
    }

    /// The firm of a name.
    ///
    /// # Errors
    /// If none has it.
    pub fn named(&self, name: &str) -> Result<&Firm, FirmsError> {
        let found = self.all.iter().find(|firm| firm.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.all.iter().map(|firm| firm.name.as_str()).collect();
            FirmsError::Unknown { name: name.to_string(), known: names.join(", ") }
        })
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

/// What is wrong with a firm by itself, but for its sessions.
fn check(firm: &Firm) -> Result<(), FirmsError> {
    let Firm { name, limits, .. } = firm;
    let is_name = (1..=FIRM_NAME_BYTES_MAX).contains(&name.len());
    if !is_name || name.chars().any(char::is_control) {
        return Err(FirmsError::Name(name.clone()));
    }
    let FirmLimits { order_quantity, order_value, orders, value, position } = *limits;
    let all = [order_quantity, order_value, orders, value, position];
    match all.into_iter().flatten().find(|limit| *limit > LIMIT_MAX) {
        Some(limit) => Err(FirmsError::Limit(name.clone(), limit)),
        None => Ok(()),
    }
}

impl Firm {
    /// The firm of a record.
    pub fn of(record: &FirmRecord) -> Firm {
        let text = |SessionRange { first, last }: &SessionRange| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        Firm {
            number: record.number,
            name: record.name.clone(),
            sessions: record.sessions.iter().map(text).collect(),
            limits: record.limits,
        }
    }

    /// The record of this firm.
    ///
    /// # Errors
    /// If it is wrong by itself.
    pub fn record(&self) -> Result<FirmRecord, FirmsError> {
        let mut records: Vec<FirmRecord> = Firms::of(vec![self.clone()])?.records().collect();
        records.pop().ok_or(FirmsError::Nobody)
    }

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
        Firm { number, name: name.to_string(), sessions, ..Firm::default() }
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

    #[test]
    fn firms_are_limited_in_number_ranges_and_names() {
        let numbered = |count: usize| -> Vec<Firm> {
            (0..count).map(|it| firm(it as u32, &it.to_string(), &[])).collect()
        };
        assert!(Firms::of(numbered(FIRMS_MAX)).is_ok());
        let why = Firms::of(numbered(FIRMS_MAX + 1)).unwrap_err().to_string();
        assert!(why.contains("1025 firms are more than a network has"), "{why}");
        let ranges = |count: usize| {
            let sessions = (1..=count).map(|it| (it * 2).to_string()).collect();
            Firms::of(vec![Firm { sessions, ..firm(7, "A", &[]) }])
        };
        assert!(ranges(FIRM_RANGES_MAX).is_ok());
        let why = ranges(FIRM_RANGES_MAX + 1).unwrap_err().to_string();
        assert!(why.contains("4097 ranges of sessions, and 4096 are possible"), "{why}");
        let named = |name: &str| Firms::of(vec![firm(7, name, &["1"])]);
        assert!(named(&"x".repeat(FIRM_NAME_BYTES_MAX)).is_ok());
        for wrong in ["", "a\nb", &"x".repeat(FIRM_NAME_BYTES_MAX + 1)] {
            let why = named(wrong).unwrap_err().to_string();
            assert!(why.contains("is no name of a firm: 1 to 64 bytes"), "{why}");
        }
    }

    #[test]
    fn a_firm_is_set_and_removed_beside_the_others_and_each_change_is_a_version() {
        let mut firms = Firms::of(vec![firm(7, "A", &["1-4"]), firm(8, "B", &["5"])]).unwrap();
        assert_eq!(firms.version(), 1);
        let limits = FirmLimits { orders: Some(9), ..FirmLimits::default() };
        let other = Firm { limits, ..firm(7, "A", &["3-4", "1"]) };
        assert!(firms.set(&other, 0) && !firms.set(&other, 0));
        // The same sessions in another order are the same.
        assert!(!firms.set(&Firm { limits, ..firm(7, "A", &["1", "3-4"]) }, 0));
        assert_eq!((firms.version(), firms.admits(2), firms.admits(3)), (2, false, true));
        assert!(firms.set(&firm(9, "C", &["2"]), 1_000), "a session that is free");
        assert!(!firms.set(&firm(9, "C", &["3"]), 1_000), "one that is not");
        assert_eq!((firms.version(), firms.all().len()), (1_000, 3));
        assert_eq!(Firms::of_table(&firms.table()).unwrap().table(), firms.table());
        assert!(firms.remove(8, 0) && !firms.remove(8, 0));
        assert_eq!((firms.version(), firms.admits(5), firms.all().len()), (1_001, false, 2));
        assert!(firms.remove(9, 0) && !firms.remove(7, 0), "the last one stays");
        assert!(matches!(firms.plan_remove(7), Err(FirmsError::LastOne(_))));
        assert!(matches!(firms.named("C"), Err(FirmsError::Unknown { .. })));
    }

    #[test]
    fn a_file_has_limits_or_none_and_no_others() {
        let of = |more: &str| {
            let text = format!("[[firm]]\nnumber = 7\nname = \"A\"\nsessions = []\n{more}");
            toml::from_str::<FileText>(&text).map(|file| file.firm[0].clone())
        };
        assert_eq!(of("").unwrap().limits, FirmLimits::default());
        let some = of("[firm.limits]\norders = 3\nvalue = 9").unwrap();
        let limits = FirmLimits { orders: Some(3), value: Some(9), ..FirmLimits::default() };
        assert_eq!(some.limits, limits);
        let text = toml::to_string(&some).unwrap();
        assert_eq!(toml::from_str::<Firm>(&text).unwrap(), some);
        assert!(of("[firm.limits]\nbonds = 3").is_err());
        let large = Firm { limits: FirmLimits { orders: Some(1 << 63), ..limits }, ..some };
        assert!(matches!(Firms::of(vec![large]), Err(FirmsError::Limit(..))));
    }
}
