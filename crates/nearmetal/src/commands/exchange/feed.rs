//! `nearmetal exchange feed-publish` and `feed`: market data of a running network, and its
//! consumer.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Result;
use nm_doors::settings;
use nm_doors::symbols::Symbols;
use nm_feed::check::Check;
use nm_feed::consume::{self, ConsumeError, Consumer};
use nm_feed::displayed::Side;
use nm_feed::node_link::NetworkFile;
use nm_feed::publish::{self, PublishError};
use nm_sys::clock::Deadline;

use crate::campaign::interrupt;
use crate::cli::exchange::{CredentialsArgs, FeedArgs, FeedPublishArgs, RunningArgs};
use crate::exit::{Exit, Stop};
use crate::output;

use super::{door, status};

/// How long books may take to be equal.
const CHECK_LIMIT: Duration = Duration::from_secs(30);

/// How long a consumer takes to catch up before a book is compared.
const CATCH_UP_LIMIT: Duration = Duration::from_millis(20);

/// Publishes until Ctrl-C.
pub fn publish(args: &FeedPublishArgs) -> Result<Exit> {
    let FeedPublishArgs { running, credentials, lines, keep_mib, top_of_book, top_interval } = args;
    let interrupted = interrupt::flag()?;
    let options = publish::Options {
        network: network(running, credentials)?,
        symbols: symbols(lines.symbols.as_deref(), running, credentials)?,
        lines: [lines.line_a, lines.line_b],
        interface: lines.interface,
        requests: lines.requests,
        snapshots: lines.snapshots,
        kept_bytes: keep_mib << 20,
        top: top_of_book.map(|to| (to, top_interval * 1_000_000)),
        listed: listed(lines.symbols.as_deref(), running, credentials)?,
    };
    let mut note = |line: &str| drop(output::data(&format!("{line}\n")));
    let ended = publish::run(options, &interrupted, &mut note);
    ended.map_err(|error| Stop::with(publish_exit(&error), error.to_string()))?;
    Ok(Exit::Pass)
}

fn network(running: &RunningArgs, credentials: &CredentialsArgs) -> Result<NetworkFile> {
    let credentials = credentials.credentials.clone();
    Ok(NetworkFile { path: status::file(running)?, credentials })
}

/// Those of the file, else those of the network's instrument master, if it has one.
fn symbols(
    file: Option<&Path>,
    running: &RunningArgs,
    credentials: &CredentialsArgs,
) -> Result<Option<Symbols>> {
    if let Some(file) = file {
        let read = settings::read_symbols(file);
        return read.map(Some).map_err(|error| Stop::usage(error.to_string()));
    }
    let master = door::master(running, credentials)?;
    master.map(|master| settings::symbols_of_master(&master).map_err(Stop::usage)).transpose()
}

/// What the network's instrument master lists later, if it says what is shown.
fn listed(
    file: Option<&Path>,
    running: &RunningArgs,
    credentials: &CredentialsArgs,
) -> Result<Option<Receiver<Symbols>>> {
    if file.is_some() {
        return Ok(None);
    }
    let master = door::master(running, credentials)?;
    master.map(|master| door::watch(running, credentials, &master)).transpose()
}

fn publish_exit(error: &PublishError) -> Exit {
    match error {
        PublishError::Address { source, .. } => address_exit(source),
        PublishError::Follow(_) => Exit::Usage,
        PublishError::Thread(_) => Exit::Environment,
    }
}

pub fn consume_exit(error: &ConsumeError) -> Exit {
    match error {
        ConsumeError::Listen { source, .. } => address_exit(source),
        ConsumeError::Thread(_) => Exit::Environment,
    }
}

fn address_exit(source: &io::Error) -> Exit {
    match source.kind() {
        io::ErrorKind::AddrInUse => Exit::Conflict,
        _ => Exit::Environment,
    }
}

/// The default interface of an address.
fn any(address: SocketAddr) -> IpAddr {
    match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Of 1 000.
fn per_mille(percent: f64) -> u32 {
    (percent * 10.0).round() as u32
}

/// Receives, shows and checks.
pub fn consume(args: &FeedArgs) -> Result<Exit> {
    let FeedArgs { lines, seconds, drop, double, seed, top, check, running, credentials } = args;
    let interrupted = interrupt::flag()?;
    let check = match check {
        true => {
            let symbols = symbols(lines.symbols.as_deref(), running, credentials)?;
            Some(Check::new(network(running, credentials)?, symbols))
        }
        false => None,
    };
    let options = consume::Options {
        lines: [lines.line_a, lines.line_b],
        interface: lines.interface.unwrap_or(any(lines.line_a)),
        requests: lines.requests,
        snapshots: lines.snapshots,
        lost: per_mille(*drop),
        doubled: per_mille(*double),
        seed: *seed,
    };
    let over = Arc::new(AtomicBool::new(false));
    let mut consumer = Consumer::start(options, &over)
        .map_err(|error| Stop::with(consume_exit(&error), error.to_string()))?;
    let deadline = seconds.map(|seconds| Deadline::after(Duration::from_secs(seconds)));
    while !interrupted.load(Ordering::Relaxed)
        && deadline.is_none_or(|deadline| !deadline.passed())
        && !consumer.receiver().has_ended()
    {
        consumer.turn();
        show_notes(&mut consumer)?;
    }
    let is_good = match check {
        Some(check) => compare(check, &mut consumer)?,
        None => true,
    };
    over.store(true, Ordering::Relaxed);
    show_notes(&mut consumer)?;
    output::data(&summary(&consumer, *top))?;
    let is_received = consumer.counts().messages + consumer.counts().snapshots > 0;
    Ok(if is_good && is_received && consumer.wrong == 0 { Exit::Pass } else { Exit::Fail })
}

fn show_notes(consumer: &mut Consumer) -> Result<()> {
    for line in std::mem::take(&mut consumer.notes) {
        output::data(&format!("{line}\n"))?;
    }
    Ok(())
}

/// Whether each book was that of its cell.
fn compare(mut check: Check, consumer: &mut Consumer) -> Result<bool> {
    let deadline = Deadline::after(CHECK_LIMIT);
    let mut are_equal = false;
    while !are_equal && !deadline.passed() {
        let compared = check.compare(|stock| {
            consumer.catch_up(CATCH_UP_LIMIT);
            consumer.books.hash_of(stock)
        });
        are_equal = compared.map_err(|error| Stop::usage(error.to_string()))?;
        show_notes(consumer)?;
    }
    let open: Vec<String> = check.open().collect();
    output::data(&match (are_equal, open.is_empty()) {
        (true, _) => format!("{} books are equal to those of their cells\n", check.equal()),
        (false, true) => "no cell has a book to compare with\n".to_string(),
        (false, false) => format!(
            "{} books are equal to those of their cells, {} are not: {}\n",
            check.equal(),
            open.len(),
            open.join(" ")
        ),
    })?;
    Ok(are_equal)
}

fn summary(consumer: &Consumer, top: usize) -> String {
    let counts = consumer.counts();
    let mut text = format!(
        "{} messages in {} packets, {} packets lost on purpose, {} doubles, {} messages asked for \
         in {} requests, {} snapshots, {} contradictions\n",
        counts.messages,
        counts.packets,
        consumer.dropped,
        counts.doubles,
        counts.missing,
        counts.requests,
        counts.snapshots,
        consumer.wrong
    );
    let books = &consumer.books;
    let stocks = books.stocks().count();
    let _ = writeln!(text, "{stocks} stocks, {} orders", books.orders());
    for (locate, stock) in books.stocks().take(top) {
        let side = |side| match books.best(locate, side) {
            Some((price, shares)) => format!("{shares} at {}", price_text(price)),
            None => "none".to_string(),
        };
        let last = stock.last.map_or("none".to_string(), price_text);
        let _ = writeln!(
            text,
            "{} {}: bid {}, offer {}, last {last}, volume {}",
            String::from_utf8_lossy(&stock.stock),
            char::from(stock.state),
            side(Side::Buy),
            side(Side::Sell),
            stock.volume
        );
    }
    text
}

pub fn price_text(price: u32) -> String {
    format!("{}.{:04}", price / 10_000, price % 10_000)
}
