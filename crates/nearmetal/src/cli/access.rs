//! Which running network is asked, and by whom.

use std::path::PathBuf;

use clap::Args;

use crate::cli::format::FormatArgs;

/// Selects a running network.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct RunningArgs {
    /// The network's file, the same for all of its nodes.
    #[arg(long, value_name = "FILE")]
    pub network: Option<PathBuf>,
    /// Result folder of an `exchange run` that is still running.
    #[arg(long, value_name = "RUN")]
    pub folder: Option<PathBuf>,
}

/// Proves who asks a network that has a secret.
#[derive(Debug, Args)]
pub struct CredentialsArgs {
    /// File of keys, or of the secret; the one that the network's file names if not given.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
}

/// A running network, who asks it, and the form of the answer.
#[derive(Debug, Args)]
pub struct AccessArgs {
    #[command(flatten)]
    pub running: RunningArgs,
    #[command(flatten)]
    pub credentials: CredentialsArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}
