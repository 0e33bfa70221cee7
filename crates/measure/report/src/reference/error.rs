//! Why the data of a published run could not be loaded.

use super::table::TableError;

/// Damage of a published run's data.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// The table is damaged.
    #[error("table: {0}")]
    Table(#[from] TableError),
    /// The description is not JSON.
    #[error("description: {0}")]
    Json(#[from] serde_json::Error),
    /// The description is JSON of another shape.
    #[error("the description is not a JSON object")]
    NotAnObject,
    /// A figure has a unit that is not known.
    #[error("{id}: unknown unit `{unit}`")]
    UnknownUnit {
        /// Identifier of the figure.
        id: String,
        /// Its unit.
        unit: String,
    },
    /// A flow pattern that is not `N-to-N`.
    #[error("unknown pattern `{0}`")]
    UnknownPattern(String),
    /// A direction that is neither `A->B` nor `B->A`.
    #[error("unknown direction `{0}`")]
    UnknownDirection(String),
    /// Pairs count from 1.
    #[error("pair 0; pairs count from 1")]
    PairZero,
}
