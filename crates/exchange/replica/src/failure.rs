//! Errors as one sentence for people, as agents and nodes report them.

use std::error::Error;

use nm_model::agent::{Failure, FailureKind};

use crate::error::ReplicaError;
use crate::journal::JournalError;

/// The error and its sources in one sentence.
fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn failure(kind: FailureKind, error: &dyn Error, hint: Option<&'static str>) -> Failure {
    let failure = Failure::new(kind, sentence(error));
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

impl From<ReplicaError> for Failure {
    fn from(error: ReplicaError) -> Failure {
        let kind = match &error {
            ReplicaError::Listen { .. } => FailureKind::AddressInUse,
            _ => FailureKind::System,
        };
        failure(kind, &error, error.hint())
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Failure {
        failure(FailureKind::System, &error, error.hint())
    }
}
