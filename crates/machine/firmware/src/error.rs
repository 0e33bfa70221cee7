//! Why the settings of a firmware cannot be read or staged.

use std::io;

/// Why a controller did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum FirmwareError {
    /// `curl` is not there.
    #[error("`curl` cannot be started: {0}; install it")]
    NoCurl(#[source] io::Error),
    /// The controller does not answer, or without an end.
    #[error("the management controller {host} gives no usable answer: {reason}")]
    Unreachable {
        /// The controller.
        host: String,
        /// What `curl` says.
        reason: String,
    },
    /// A change was sent, and no answer came.
    #[error(
        "the management controller {host} did not answer a change, which may have been made: \
         {reason}; look with `nearmetal firmware show`"
    )]
    Unknown {
        /// The controller.
        host: String,
        /// What `curl` says.
        reason: String,
    },
    /// The controller's certificate is not trusted.
    #[error(
        "the certificate of the management controller {host} is not trusted: {reason}; name its \
         authority with --bmc-ca, or its key with --bmc-pin"
    )]
    Certificate {
        /// The controller.
        host: String,
        /// What `curl` says.
        reason: String,
    },
    /// The login is wrong, or may not do that.
    #[error("the management controller refuses the login for {path} (status {status})")]
    Login {
        /// What was asked for.
        path: String,
        /// Status of HTTP.
        status: u16,
    },
    /// There is no such service.
    #[error("{path} is answered with status {status}: there is no Redfish service")]
    NoRedfish {
        /// What was asked for.
        path: String,
        /// Status of HTTP.
        status: u16,
    },
    /// An answer that is no document.
    #[error("the management controller answers {path} with status {status}{}", shown(.message))]
    Status {
        /// What was asked for.
        path: String,
        /// Status of HTTP.
        status: u16,
        /// What the controller says about it.
        message: String,
    },
    /// A document that cannot be used.
    #[error("the answer of the management controller to {path} cannot be used: {what}")]
    Document {
        /// What was asked for.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// The controller has several hosts.
    #[error(
        "the management controller has the systems {}; name one with --bmc-system",
        .0.join(", ")
    )]
    SeveralSystems(Vec<String>),
    /// The controller has no such host.
    #[error("the management controller has no system `{wanted}`, but {}", .known.join(", "))]
    NoSystem {
        /// The name that was given.
        wanted: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// It does not tell settings of the firmware.
    #[error(
        "the management controller tells no settings of the firmware (status {status} for {path})"
    )]
    NoSettings {
        /// What was asked for.
        path: String,
        /// Status of HTTP.
        status: u16,
    },
    /// Settings can be read and not changed.
    #[error(
        "the management controller does not take changes of settings: it names no place for them"
    )]
    ReadOnly,
    /// A setting that the firmware does not have.
    #[error("the firmware has no setting `{name}`{}", did_you_mean(.nearest))]
    NoAttribute {
        /// The name that was given.
        name: String,
        /// One that differs in case only.
        nearest: Option<String>,
    },
    /// A value of another kind than the one in force.
    #[error("`{name}` is {kind}, and `{value}` is none")]
    Kind {
        /// The setting.
        name: String,
        /// What it is.
        kind: &'static str,
        /// What was given.
        value: String,
    },
    /// Somebody else has changed the settings meanwhile.
    #[error("the settings were changed by somebody else meanwhile; look at them and try again")]
    Changed,
}

fn shown(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

fn did_you_mean(name: &Option<String>) -> String {
    name.as_ref().map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}
