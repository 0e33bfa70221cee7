//! A certificate: what a run has shown of its hosts, in a form that others can test again.
//!
//! It is a file, signed as a whole by a signature beside it.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::baseline::{Baseline, FigureKey};
use crate::verdict::{Interval, Outcome, Relation};

/// Version of the format. Readers refuse another one.
pub const SCHEMA_VERSION: u32 = 1;

/// Most bytes of a certificate as a file.
pub const BYTES_MAX: u64 = 1 << 20;

/// Facts by name, each with its values at the ends of the run.
pub type CertifiedFacts = BTreeMap<String, BTreeSet<String>>;

/// What is signed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Certificate {
    /// [`SCHEMA_VERSION`].
    pub schema: u32,
    /// The signer's public key, as minisign writes it.
    pub key: String,
    /// When it ends, RFC 3339 in UTC.
    pub expires: String,
    /// Ratio that counts as equal when a run is tested against it, %.
    pub margin_percent: f64,
    /// The program that made it; the run was measured by one of the same version.
    pub program: CertifiedProgram,
    /// The hosts.
    pub hosts: Vec<CertifiedHost>,
    /// The run: its start, plan, verdict and primary figures with the value of each round.
    pub run: Baseline,
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CertifiedProgram {
    /// Version of nearmetal.
    pub version: String,
    /// SHA-256 of its file, hexadecimal.
    pub sha256: String,
}

/// What was known of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CertifiedHost {
    /// Its name.
    pub name: String,
    /// SHA-256 of all its facts in the result, as JSON, hexadecimal.
    pub sha256: String,
    /// Facts that may explain a latency.
    pub facts: CertifiedFacts,
}

/// What a check of a certificate found.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CertificateCheck {
    /// Pass if it holds, fail if it does not.
    pub outcome: Outcome,
    /// Sentences, the deciding one first.
    pub reasons: Vec<String>,
    /// When it ends, RFC 3339 in UTC; absent if its signature does not hold.
    pub expires: Option<String>,
    /// Facts of the hosts that are others now.
    pub drift: Vec<Drift>,
    /// The figures against those of another run, if there was one.
    pub equivalence: Option<Equivalence>,
}

/// A fact that is another one now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Drift {
    /// Name of the host.
    pub host: String,
    /// The fact.
    pub fact: String,
    /// What the certificate says.
    pub certified: String,
    /// What it is; absent if it cannot be read.
    pub now: Option<String>,
}

/// Whether the figures of a run are those of a certificate.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Equivalence {
    /// Pass if each figure is shown to lie within the margin, fail if one is shown to lie beyond.
    pub outcome: Outcome,
    /// Ratio that counts as equal, %.
    pub margin_percent: f64,
    /// Standard deviation between runs of one system that is assumed or stated, %.
    pub run_deviation_percent: f64,
    /// The figures.
    pub figures: Vec<EquivalenceFigure>,
    /// Sentences, the deciding one first.
    pub reasons: Vec<String>,
}

/// A figure of a certificate in another run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EquivalenceFigure {
    /// What it is of.
    pub key: FigureKey,
    /// Median over rounds in the certificate, in the metric's unit.
    pub certified: Option<f64>,
    /// Median over rounds of the run.
    pub value: Option<f64>,
    /// The run divided by the certificate.
    pub ratio: Option<f64>,
    /// Interval of the ratio; each of its ends is exceeded in at most 5 of 100 cases.
    pub interval: Option<Interval>,
    /// Equivalent within the margin, worse or better beyond it, or unclear.
    pub relation: Relation,
}
