//! `nearmetal exchange fix`: lets FIX clients trade on a running network. Each thing that an
//! operator should know is a line.

use std::io;

use anyhow::Result;
use nm_doors::gateway::GatewayError;
use nm_doors::server::{self, Options, ServerError};
use nm_doors::settings::Settings;
use nm_sys::process;

use crate::campaign::interrupt;
use crate::cli::exchange::FixArgs;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// Runs a door until Ctrl-C.
pub fn run(args: &FixArgs) -> Result<Exit> {
    let interrupted = interrupt::flag()?;
    let settings =
        Settings::read(&args.sessions).map_err(|error| Stop::usage(error.to_string()))?;
    let options = Options {
        network: status::file(&args.running)?,
        credentials: args.credentials.credentials.clone(),
        listen: args.listen,
        store: args.store.clone(),
        settings,
    };
    // With the limit of the shell, 1024 on most systems, a door accepts nobody at 1024 clients.
    let _ = process::raise_file_limit();
    let mut note = |line: &str| {
        // Whoever reads the lines may have gone.
        let _ = output::data(&format!("{line}\n"));
    };
    let ended = server::run(options, &interrupted, &mut note);
    ended.map_err(|error| Stop::with(exit(&error), error.to_string()))?;
    Ok(Exit::Pass)
}

fn exit(error: &ServerError) -> Exit {
    match error {
        ServerError::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
            Exit::Conflict
        }
        ServerError::InUse(_) => Exit::Conflict,
        ServerError::LostSymbol { .. }
        | ServerError::Gateway(GatewayError::Network(_) | GatewayError::Credentials(_)) => {
            Exit::Usage
        }
        _ => Exit::Environment,
    }
}
