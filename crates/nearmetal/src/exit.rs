//! Exit codes, and how an error becomes one.

use nm_model::{Failure, FailureKind, Outcome};

/// What the process tells its caller. Scripts rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Every target is met, or there was none and the work was done.
    Pass,
    /// A target failed, or a comparison found a regression.
    Fail,
    /// Usage or bad input, or a stdout that takes no more.
    Usage,
    /// The evidence supports no verdict.
    Inconclusive,
    /// An environment could not be made or kept, or a file could not be written.
    Environment,
    /// Conflict: port taken, another run's result in the folder.
    Conflict,
    /// Ended by the user.
    Interrupted,
    /// A program that was run for the user: its own, as a shell gives it.
    Program(u8),
}

impl Exit {
    /// A program's file cannot be executed.
    pub const NOT_EXECUTABLE: Exit = Exit::Program(126);
    /// A program is not there.
    pub const NOT_FOUND: Exit = Exit::Program(127);

    /// The number.
    pub fn code(self) -> u8 {
        match self {
            Exit::Pass => 0,
            Exit::Fail => 1,
            Exit::Usage => 2,
            Exit::Inconclusive => 3,
            Exit::Environment => 4,
            Exit::Conflict => 5,
            Exit::Interrupted => 130,
            Exit::Program(code) => code,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit.code())
    }
}

impl From<Outcome> for Exit {
    fn from(outcome: Outcome) -> Exit {
        match outcome {
            Outcome::Pass => Exit::Pass,
            Outcome::Fail => Exit::Fail,
            Outcome::Inconclusive => Exit::Inconclusive,
        }
    }
}

/// An error with the exit code that it stands for.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Stop {
    /// The exit code.
    pub exit: Exit,
    /// One sentence.
    pub message: String,
}

impl Stop {
    /// An error of usage or input.
    pub fn usage(message: impl Into<String>) -> anyhow::Error {
        Stop { exit: Exit::Usage, message: message.into() }.into()
    }

    /// An error with a given exit code.
    pub fn with(exit: Exit, message: impl Into<String>) -> anyhow::Error {
        Stop { exit, message: message.into() }.into()
    }
}

/// The exit code of an error: the one that it names, or that of its kind of failure.
pub fn of_error(error: &anyhow::Error) -> Exit {
    if let Some(stop) = error.downcast_ref::<Stop>() {
        return stop.exit;
    }
    match error.downcast_ref::<Failure>().map(|failure| failure.kind) {
        Some(FailureKind::BadRequest) => Exit::Usage,
        Some(FailureKind::AddressInUse | FailureKind::Conflict) => Exit::Conflict,
        Some(FailureKind::Cancelled) => Exit::Interrupted,
        Some(
            FailureKind::Peer
            | FailureKind::Permission
            | FailureKind::NotAvailable
            | FailureKind::System,
        ) => Exit::Environment,
        None => Exit::Usage,
    }
}
