//! `nearmetal exchange fix` and `ouch`: let clients of these protocols trade on a running network.
//! Each thing that an operator should know is a line.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nm_auth::Right;
use nm_doors::gateway::GatewayError;
use nm_doors::limits::LINES_BYTES_MAX;
use nm_doors::line::Line;
use nm_doors::market::Board;
use nm_doors::server::{self, Options, ServerError};
use nm_doors::settings::{self, Settings, SettingsError};
use nm_doors::symbols::Symbols;
use nm_doors::{fix, ouch};
use nm_exchange::master::Master;
use nm_exchange::network::Network;
use nm_exchange::output_queue::OutputQueue;
use nm_feed::market;
use nm_feed::node_link::NetworkFile;
use nm_operate::instruments;
use nm_sys::process;

use crate::campaign::interrupt;
use crate::cli::exchange::{CredentialsArgs, DoorArgs, FixArgs, OuchArgs, RunningArgs};
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// How often the network is asked what may be traded.
const MASTER_PAUSE: Duration = Duration::from_secs(1);

/// Files for which the kernel has room from the start: with more, a door stands still for a moment
/// each time that twice as many clients have come.
const FILES: u64 = 8_192;

/// How long a door that ends waits for the reader of its lines.
const LINES_LIMIT: Duration = Duration::from_secs(1);

/// Runs a door for FIX until Ctrl-C.
pub fn fix(args: &FixArgs) -> Result<Exit> {
    let FixArgs { door, store, market_credentials } = args;
    let master = master(&door.running, &door.credentials)?;
    let settings = fix::settings::read(&door.sessions, master.as_deref()).map_err(wrong)?;
    let symbols =
        master.map(|master| watch(&door.running, &door.credentials, &master)).transpose()?;
    let board = Arc::new(Board::new()?);
    let key = market_credentials.clone().or(door.credentials.credentials.clone());
    let network = NetworkFile { path: status::file(&door.running)?, credentials: key };
    if let Some(line) = without_books(&network) {
        output::message(&line);
    }
    let over = Arc::new(AtomicBool::new(false));
    market::start(network, Arc::clone(&board), Arc::clone(&over))?;
    let ended = run::<fix::line::Line>(door, store, settings, symbols, Some(board));
    over.store(true, Ordering::Relaxed);
    ended
}

/// What an operator should know of a door whose keys are of sessions alone, if they are.
fn without_books(file: &NetworkFile) -> Option<String> {
    let keys = file.read().ok()?.credentials().ok()??;
    keys.key(Right::Operator).is_none().then(|| {
        let why = "its keys are those of sessions, and only an operator may follow books";
        let what = "requests for market data are refused, and a trading status is known once a \
                    change of it is announced";
        format!("this door has no market data: {why}; {what} (--market-credentials FILE)")
    })
}

/// Runs a door for OUCH until Ctrl-C.
pub fn ouch(args: &OuchArgs) -> Result<Exit> {
    let OuchArgs { door, store } = args;
    let master = master(&door.running, &door.credentials)?;
    let settings = ouch::settings::read(&door.sessions, master.as_deref()).map_err(wrong)?;
    let symbols =
        master.map(|master| watch(&door.running, &door.credentials, &master)).transpose()?;
    run::<ouch::line::Line>(door, store, settings, symbols, None)
}

/// What may be traded now, if the network has an instrument master. The file of a network that
/// cannot be asked, such as one that is not up yet, has what it begins with.
pub fn master(running: &RunningArgs, credentials: &CredentialsArgs) -> Result<Option<Arc<Master>>> {
    let file = status::file(running)?;
    let mut network = Network::read(&file).map_err(|error| Stop::usage(error.to_string()))?;
    let Some(first) = network.master.clone() else { return Ok(None) };
    if let Some(credentials) = &credentials.credentials {
        network.secret = Some(credentials.clone());
    }
    Ok(Some(match instruments::master(&network) {
        Ok(master) => Arc::new(master),
        Err(failure) => {
            let why = failure.message;
            output::message(&format!("what is traded is taken from the network's file: {why}"));
            first
        }
    }))
}

/// Asks the network now and then what may be traded, in a thread of its own, and tells what has
/// changed. A network that cannot be asked is asked again.
pub fn watch(
    running: &RunningArgs,
    credentials: &CredentialsArgs,
    first: &Master,
) -> Result<Receiver<Symbols>> {
    let file = status::file(running)?;
    let credentials = credentials.credentials.clone();
    let mut known = settings::symbols_of_master(first).map_err(Stop::usage)?;
    let (sender, receiver) = channel();
    let look = move || {
        loop {
            thread::sleep(MASTER_PAUSE);
            let Ok(mut network) = Network::read(&file) else { continue };
            network.secret = credentials.clone().or(network.secret);
            let Ok(master) = instruments::master(&network) else { continue };
            let Ok(symbols) = settings::symbols_of_master(&master) else { continue };
            if symbols != known {
                known = symbols.clone();
                if sender.send(symbols).is_err() {
                    return;
                }
            }
        }
    };
    thread::Builder::new().name("instruments".to_string()).spawn(look)?;
    Ok(receiver)
}

fn wrong(error: SettingsError) -> anyhow::Error {
    Stop::usage(error.to_string())
}

fn run<L: Line>(
    door: &DoorArgs,
    store: &Path,
    settings: Settings<L::Profile>,
    symbols: Option<Receiver<Symbols>>,
    market: Option<Arc<Board>>,
) -> Result<Exit> {
    let DoorArgs { running, credentials, listen, .. } = door;
    let interrupted = interrupt::flag()?;
    let options = Options {
        network: status::file(running)?,
        credentials: credentials.credentials.clone(),
        listen: *listen,
        store: store.into(),
        settings,
        market,
        symbols,
    };
    // With the limit of the shell, 1024 on most systems, a door accepts nobody at 1024 clients.
    let _ = process::raise_file_limit();
    let _ = process::reserve_files(FILES);
    // Whoever reads the lines may have stopped or gone, and strangers cause lines.
    let write = |line: &String| drop(output::text(&format!("{line}\n")));
    let dropped = |n_dropped| format!("{n_dropped} lines were dropped: nobody read them");
    let lines = OutputQueue::start(LINES_BYTES_MAX, write, dropped)?;
    let mut note = |line: &str| lines.push(line.to_string(), line.len());
    let ended = server::run::<L>(options, &interrupted, &mut note);
    lines.end(LINES_LIMIT);
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
