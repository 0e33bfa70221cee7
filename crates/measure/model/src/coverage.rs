//! What of a plan was judged: the part that `--only` chose, and the targets and comparisons
//! without a verdict on all of their rows.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named_enum::named_enum;
use crate::row_filter::RowFilter;

/// The part of a plan that was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanPart {
    /// The words that choose its rows.
    pub only: RowFilter,
    /// Whether the user asked to judge this part by itself (`--only-targets`). Otherwise the run
    /// is judged as the whole plan, which a part can fail, but not pass.
    pub is_judged_alone: bool,
}

named_enum!(
    /// What a plan asks to be judged.
    PlanItem, "item of a plan", {
        /// A target.
        Target = "target",
        /// A comparison of two parts of the result.
        Comparison = "comparison",
    }
);

/// A target or comparison that was not judged, or not on all of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotJudged {
    /// What it is.
    pub item: PlanItem,
    /// The target with what it applies to, or `B against A` of a comparison.
    pub text: String,
    /// Why.
    pub reason: NotJudgedReason,
}

/// Why a target or comparison was not judged, or not on all of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum NotJudgedReason {
    /// `--only` leaves out all of its rows, or all of one side of a comparison.
    RowsLeftOut,
    /// `--only` leaves out some of its rows; it is judged on the others.
    SomeRowsLeftOut {
        /// Rows that were judged.
        n_judged: u32,
        /// Rows that the plan has for it.
        n_planned: u32,
    },
    /// All of its rows are optional, and none can run here.
    NotAvailable {
        /// Which rows, and why, as a clause.
        reason: String,
    },
    /// All of its rows are optional, and those that ran did so in emulated guests.
    Emulated {
        /// Which rows, and what executed their guests, as a clause.
        reason: String,
    },
}

impl NotJudged {
    /// Whether there is a verdict, on a part of the rows.
    pub fn is_partial(&self) -> bool {
        matches!(self.reason, NotJudgedReason::SomeRowsLeftOut { .. })
    }

    /// Whether `--only` is the reason.
    pub fn is_left_out(&self) -> bool {
        use NotJudgedReason::{Emulated, NotAvailable};
        !matches!(self.reason, NotAvailable { .. } | Emulated { .. })
    }
}

/// `target `p99 < 10ms on netns/tcp-spin, rr` is not judged: --only leaves out all of its rows`.
impl fmt::Display for NotJudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}` ", self.item, self.text)?;
        match &self.reason {
            NotJudgedReason::RowsLeftOut => {
                let what = match self.item {
                    PlanItem::Target => "all of its rows",
                    PlanItem::Comparison => "all rows of a side",
                };
                write!(f, "is not judged: --only leaves out {what}")
            }
            NotJudgedReason::SomeRowsLeftOut { n_judged, n_planned } => write!(
                f,
                "is judged on {n_judged} of its {n_planned} rows: --only leaves out the others"
            ),
            NotJudgedReason::NotAvailable { reason } | NotJudgedReason::Emulated { reason } => {
                write!(f, "is not judged: {reason}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_a_sentence() {
        let sentence = |reason| {
            let text = "p99 < 10ms on netns/tcp-spin, rr".to_string();
            NotJudged { item: PlanItem::Target, text, reason }.to_string()
        };
        assert_eq!(
            sentence(NotJudgedReason::RowsLeftOut),
            "target `p99 < 10ms on netns/tcp-spin, rr` is not judged: \
             --only leaves out all of its rows"
        );
        assert_eq!(
            sentence(NotJudgedReason::SomeRowsLeftOut { n_judged: 1, n_planned: 4 }),
            "target `p99 < 10ms on netns/tcp-spin, rr` is judged on 1 of its 4 rows: \
             --only leaves out the others"
        );
    }
}
