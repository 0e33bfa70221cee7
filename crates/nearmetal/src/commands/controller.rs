//! `nearmetal controller`: takes agents that connect out.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use nm_controller::registry::Known;
use nm_controller::serve::{Controller, Notice, ServeError};
use nm_controller::tls;
use nm_sys::clock::Moment;
use nm_sys::random;

use super::agent::outward::{pem, token};
use crate::campaign::interrupt;
use crate::cli::controller::ControllerArgs;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &ControllerArgs) -> Result<Exit> {
    let token = token(&args.token_file)?;
    let key = key(&args.key)?;
    let certificate = args.certificate.as_deref().map(pem).transpose()?;
    let (config, pin) = tls::server(&key, certificate.as_deref()).map_err(|error| {
        let file = match (&error, &args.certificate) {
            (tls::TlsError::Certificate(_), Some(file)) => file,
            _ => &args.key,
        };
        Stop::usage(format!("{}: {error}", file.display()))
    })?;
    let controller = Controller::bind(args.listen, &args.socket, config, token, sayer())
        .map_err(|error| Stop::with(exit_of(&error), error.to_string()))?;
    let socket = args.socket.clone();
    interrupt::end_at_once(move || drop(fs::remove_file(&socket)))?;
    let trust = match pin {
        Some(pin) => format!("agents need --pin {pin}"),
        None => "agents need --ca with the authority of its certificate".to_string(),
    };
    output::message(&format!(
        "controller at {}, socket {}; {trust}",
        controller.address()?,
        args.socket.display()
    ));
    controller.run().map_err(|error| Stop::with(exit_of(&error), error.to_string()))?;
    Ok(Exit::Pass)
}

/// The text of the private key; a new one if there is none.
fn key(file: &Path) -> Result<String> {
    let refused = |error: nm_auth::FileError| Stop::usage(error.to_string());
    if !file.exists() {
        let text = tls::new_key(random::bytes()?);
        nm_auth::create_private(file, &text).map_err(refused)?;
    }
    nm_auth::read_private(file).map_err(refused)
}

fn exit_of(error: &ServeError) -> Exit {
    match error {
        ServeError::Conflict { .. } => Exit::Conflict,
        ServeError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            Exit::Conflict
        }
        _ => Exit::Environment,
    }
}

/// Shortest time between two lines about those who are refused.
const REFUSED_EVERY: Duration = Duration::from_secs(1);

/// When somebody who was refused was named last, and how many were not named since.
struct Refused {
    last: Option<Moment>,
    unnamed: u64,
}

impl Refused {
    /// The line about one more, unless strangers would fill the log by it.
    fn line(&mut self, what: &str) -> Option<String> {
        if self.last.is_some_and(|last| last.elapsed() < REFUSED_EVERY) {
            self.unnamed += 1;
            return None;
        }
        self.last = Some(Moment::now());
        match std::mem::take(&mut self.unnamed) {
            0 => Some(what.to_string()),
            n => Some(format!("{what}; and {n} others before")),
        }
    }
}

/// Tells what happens.
fn sayer() -> impl Fn(Notice) + Send + Sync {
    let refused = Mutex::new(Refused { last: None, unnamed: 0 });
    move |notice| match &notice {
        Notice::Refused(from, why) => {
            let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(line) = refused.line(&format!("refused {from}: {why}")) {
                output::message(&line);
            }
        }
        Notice::Came(known) => output::message(&came(known)),
        Notice::Gone(name) => output::message(&format!("agent {name} has gone")),
    }
}

fn came(known: &Known) -> String {
    match known.is_translated() {
        true => format!(
            "agent {} at {} waits, behind {}",
            known.card.name, known.card.address, known.seen
        ),
        false => format!("agent {} at {} waits", known.card.name, known.seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_do_not_fill_the_log() {
        let mut refused = Refused { last: None, unnamed: 0 };
        let n_lines = (0..1000).filter_map(|_| refused.line("refused x")).count();
        assert!(n_lines < 1000, "{n_lines}");
        assert_eq!(n_lines as u64 + refused.unnamed, 1000);
        refused.last = None;
        assert!(refused.line("refused x").unwrap().contains("others before"));
        assert_eq!(refused.unnamed, 0);
    }
}
