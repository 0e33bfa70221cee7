//! The lines of a journal.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::{Device, Origin, Writer};
use nm_settings::SettingId;
use nm_settings::target::Target;
use nm_settings::value::Value;

pub use nm_settings::RunId;

/// Version of the format of journals. Version 1 knew no write without a known outcome.
pub const FORMAT: u32 = 2;

/// Oldest version that is read.
pub const FORMAT_OLDEST: u32 = 1;

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Record {
    /// First line: a run begins.
    Begin(Begin),
    /// A setting is about to be written.
    Intent(Intent),
    /// It was written and read back.
    Applied {
        /// Number of the change.
        seq: u64,
        /// What was read back; the kernel or a driver may have rounded.
        read: Value,
    },
    /// At the end of the run it still was what had been read back.
    Verified {
        /// Number of the change.
        seq: u64,
    },
    /// The kernel refused, and the setting is what it was.
    Failed {
        /// Number of the change.
        seq: u64,
        /// Why.
        reason: String,
    },
    /// The kernel had not finished writing it: it is what it was, or will be what was written.
    Unknown {
        /// Number of the change.
        seq: u64,
        /// The process that writes.
        writer: Writer,
        /// A sentence.
        reason: String,
    },
    /// All changes of the run are made.
    Complete,
    /// The user has confirmed the run, so that it is not undone at its deadline.
    Confirmed,
    /// The changes are about to be undone.
    UndoBegun,
    /// A setting is about to be restored.
    Undoing {
        /// Number of the change.
        seq: u64,
        /// Settings of the same link that must be the same afterwards.
        companions: Vec<Companion>,
    },
    /// A setting is what it was before the run.
    Undone {
        /// Number of the change.
        seq: u64,
        /// What somebody else had written, if the user chose to overwrite it.
        overwritten: Option<Value>,
    },
    /// A setting was left as somebody else has written it, because the user chose so.
    KeptTheirs {
        /// Number of the change.
        seq: u64,
    },
    /// A restart of the machine has reset the setting; nothing was written.
    Gone {
        /// Number of the change.
        seq: u64,
    },
    /// What an experiment decided about a step.
    Decision(Decision),
    /// Something that a reader of the journal should know.
    Note {
        /// A sentence.
        text: String,
    },
}

/// The first line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Version of the format.
    pub format: u32,
    /// Id of the run.
    pub run: RunId,
    /// Start, RFC 3339.
    pub started: String,
    /// The name that the user gave it, so that `undo` finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<RunId>,
    /// Version of the program.
    pub version: String,
    /// Folder in place of `/`.
    pub root: String,
    /// Boot and namespaces of the run.
    pub origin: Origin,
    /// Seconds after which the run is undone unless it is confirmed.
    pub confirm_within_s: Option<u64>,
}

/// A setting that is about to be written: all that is needed to put it back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// Number of the change within its run, from 1.
    pub seq: u64,
    /// The step that it belongs to.
    pub step: SettingId,
    /// The setting.
    pub target: Target,
    /// Its value before, exactly as it was read.
    pub old: Value,
    /// What is written.
    pub new: Value,
    /// Boot and namespaces.
    #[serde(flatten)]
    pub origin: Origin,
    /// The link that the setting belongs to.
    pub device: Option<Device>,
    /// Settings of the same link that must be the same afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub companions: Vec<Companion>,
}

/// A setting that a driver may reset when another one is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Companion {
    /// The setting.
    pub target: Target,
    /// Its value.
    pub value: Value,
}

/// The decision of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Decision {
    /// The step.
    #[schemars(with = "String")]
    pub step: SettingId,
    /// Whether it stays.
    pub kept: bool,
    /// Why, as a sentence.
    pub reason: String,
    /// Rounds without and with the step.
    pub rounds: [usize; 2],
    /// The figures, the decisive one first.
    pub figures: Vec<Figure>,
}

/// With the step divided by without it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// Name, such as `p99`.
    pub metric: String,
    /// The ratio; absent if there is none.
    pub ratio: Option<f64>,
    /// Its 95 % interval over rounds.
    pub interval: Option<[f64; 2]>,
    /// `better`, `worse`, `unclear` or `not measured`.
    pub relation: String,
}
