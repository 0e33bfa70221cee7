//! What a verification finds.

use std::collections::BTreeMap;
use std::fmt;

use nm_exchange::network::Durability;
use schemars::JsonSchema;
use serde::Serialize;

/// Violations of each kind that are described in full.
pub(super) const EXAMPLES_MAX: usize = 10;

/// A violation of the exchange's guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Violation {
    /// A client has a reply to a request that no journal has.
    Lost,
    /// A request was executed more than once, or has two different replies.
    Twice,
    /// A request was executed before one that had its reply before this one was sent.
    RealTime,
    /// The log of a client contradicts itself, or lacks what a client that ends writes.
    ClientLog,
    /// Requests of a session on an instrument were executed in a different order than they were
    /// sent, or one was skipped.
    OutOfOrder,
    /// A reply differs from the result of the replay.
    WrongResult,
    /// A request was executed that no client sent.
    NotSent,
    /// A gap in the numbers of executed requests on an instrument, or of batches.
    Gap,
    /// States that must be equal are not.
    HashDiffers,
    /// Fewer replicas have an acknowledged request than the durability requires.
    TooFewCopies,
    /// Replicas have different batches at one index, and equal ones after it.
    Diverged,
    /// An event on a session's own order, such as a fill, was never delivered to it.
    NotDelivered,
    /// Two cells owned an instrument, or one executed requests on an instrument of another cell.
    WrongOwner,
    /// A cell released an instrument, and none adopted it.
    NoOwner,
    /// An order took effect that its gateway had marked as one that breaks a rule of the instrument
    /// master.
    RuleBroken,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::Lost => "lost",
            Violation::Twice => "twice",
            Violation::RealTime => "real-time order",
            Violation::ClientLog => "client log",
            Violation::OutOfOrder => "out of order",
            Violation::WrongResult => "wrong result",
            Violation::NotSent => "not sent",
            Violation::Gap => "gap",
            Violation::HashDiffers => "hash differs",
            Violation::TooFewCopies => "too few copies",
            Violation::Diverged => "diverged",
            Violation::NotDelivered => "not delivered",
            Violation::WrongOwner => "wrong owner",
            Violation::NoOwner => "no owner",
            Violation::RuleBroken => "rule broken",
        })
    }
}

/// What a recording shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything was kept.
    Proven,
    /// Nothing wrong was found, and evidence is missing.
    Doubtful,
    /// The recording is not as the run left it, and shows nothing.
    Damaged,
    /// A guarantee was violated.
    Violated,
}

/// Results of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Findings {
    /// When requests counted as done.
    pub durability: Durability,
    /// Requests that clients sent.
    pub sent: u64,
    /// Requests with a reply.
    pub answered: u64,
    /// Requests that were executed but have no reply.
    pub unanswered_executed: u64,
    /// Executed requests.
    pub executed: u64,
    /// Batches that were replayed.
    pub batches: u64,
    /// Journals that were read.
    pub journals: u64,
    /// State hashes that were compared.
    pub hashes: u64,
    /// Snapshots from which a replay was continued to the end.
    pub cuts: u64,
    /// Requests known to be executed only because a snapshot includes them.
    pub in_snapshots: u64,
    /// Moves of instruments to another cell.
    pub moves: u64,
    /// Moves whose states, before in one log and after in another, were compared.
    pub moved_states: u64,
    /// Number of violations by kind.
    pub violations: BTreeMap<Violation, u64>,
    /// Violations that the chosen durability allows, after a mediator without durability died.
    pub not_guaranteed: BTreeMap<Violation, u64>,
    /// How the recording differs from its manifest.
    pub damage: Vec<String>,
    /// Evidence that is missing.
    pub doubts: Vec<String>,
    /// Descriptions of the first violations of each kind.
    pub sentences: Vec<String>,
    /// Additional remarks.
    pub notes: Vec<String>,
    #[serde(skip)]
    described: BTreeMap<Violation, usize>,
}

impl Findings {
    /// Whether no violation was found in a recording that is as the run left it.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.damage.is_empty()
    }

    /// What they amount to.
    pub fn verdict(&self) -> Verdict {
        match self {
            Findings { damage, .. } if !damage.is_empty() => Verdict::Damaged,
            Findings { violations, .. } if !violations.is_empty() => Verdict::Violated,
            Findings { doubts, .. } if !doubts.is_empty() => Verdict::Doubtful,
            _ => Verdict::Proven,
        }
    }

    /// Number of violations of one kind.
    pub fn count(&self, violation: Violation) -> u64 {
        self.violations.get(&violation).copied().unwrap_or_default()
    }

    /// Adds a violation.
    pub fn add(&mut self, violation: Violation, sentence: impl FnOnce() -> String) {
        *self.violations.entry(violation).or_default() += 1;
        self.describe(violation, sentence);
    }

    /// Adds a violation, or one that the durability allows.
    pub fn add_if(
        &mut self,
        is_guaranteed: bool,
        violation: Violation,
        sentence: impl FnOnce() -> String,
    ) {
        if is_guaranteed {
            self.add(violation, sentence);
        } else {
            *self.not_guaranteed.entry(violation).or_default() += 1;
        }
    }

    fn describe(&mut self, violation: Violation, sentence: impl FnOnce() -> String) {
        let described = self.described.entry(violation).or_default();
        *described += 1;
        if *described <= EXAMPLES_MAX {
            self.sentences.push(format!("{violation}: {}", sentence()));
        }
    }
}
