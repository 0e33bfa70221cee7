//! `nearmetal exchange status`: whether a running network trades, its members and leaders, as its
//! nodes answer themselves.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use nm_exchange::network::Network;
use nm_operate::admin::{self, ControlStatus, MapException, NetworkStatus, NodeStatus};
use nm_operate::health::{self, Trading};
use nm_report::style::Tone;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::exchange::{AccessArgs, CredentialsArgs, RunningArgs, StatusArgs};
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// Instruments of one cell that are listed; `--format json` has all.
const LISTED_MAX: usize = 16;

/// How long one node may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// The status of a network.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusDocument {
    /// Whether the network does what it is for.
    trading: Trading,
    /// Which instruments cannot be traded, and why.
    not_traded: Vec<String>,
    #[serde(flatten)]
    status: NetworkStatus,
    /// What waits because nobody takes the place of nodes that do not answer.
    waits: Vec<String>,
}

impl Document for StatusDocument {
    const NAME: &'static str = "exchange-status";
}

/// Shows the status of a network.
pub fn run(args: &StatusArgs) -> Result<Exit> {
    let network = network(&args.access)?;
    let status = health::ask(&network, ANSWER_LIMIT)?;
    let trading = status.trading();
    if status.nodes.iter().all(|node| node.answers == Some(false)) {
        output::message(
            "no node of the network answers: is the network running, and with this version of \
             nearmetal?",
        );
    }
    match args.access.format.format {
        Format::Json => {
            let (waits, not_traded) = (status.waits(), status.not_traded());
            output::json(&StatusDocument { trading, not_traded, waits, status })?;
        }
        Format::Text => output::text(&text(&status))?,
    }
    Ok(exit(trading))
}

/// The exit code that says whether a network trades.
pub fn exit(trading: Trading) -> Exit {
    match trading {
        Trading::Healthy => Exit::Pass,
        Trading::Degraded => Exit::Inconclusive,
        Trading::NotTrading => Exit::Fail,
    }
}

/// The running network that is asked for.
pub fn network(access: &AccessArgs) -> Result<Network> {
    network_of(&access.running, &access.credentials)
}

/// The running network, and the credentials that are to be used for it.
pub fn network_of(running: &RunningArgs, credentials: &CredentialsArgs) -> Result<Network> {
    let mut network =
        Network::read(&file(running)?).map_err(|error| Stop::usage(error.to_string()))?;
    if let Some(credentials) = &credentials.credentials {
        network.secret = Some(credentials.clone());
    }
    Ok(network)
}

/// The running network that is asked for, with the mediators that were added to it.
pub fn current(access: &AccessArgs) -> Result<Network> {
    let network = network(access)?;
    match network.has_control() {
        true => Ok(admin::status(&network, ANSWER_LIMIT)?.network),
        false => Ok(network),
    }
}

/// The file of the running network that is asked for.
pub fn file(running: &RunningArgs) -> Result<PathBuf> {
    match (&running.network, &running.folder) {
        (Some(file), _) => Ok(file.clone()),
        (None, Some(folder)) => newest(folder),
        (None, None) => Err(Stop::usage("give --network or --folder")),
    }
}

/// The network file of the current round of a run: the newest one.
fn newest(run: &Path) -> Result<PathBuf> {
    let file = |folder: &Path| Some(folder.join("network.toml")).filter(|file| file.is_file());
    if let Some(file) = file(run) {
        return Ok(file);
    }
    let entries = fs::read_dir(run)
        .map_err(|error| Stop::usage(format!("{} cannot be read: {error}", run.display())))?;
    let written = |path: &PathBuf| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let files = entries.filter_map(|entry| file(&entry.ok()?.path()));
    files.max_by_key(written).ok_or_else(|| {
        Stop::usage(format!(
            "no round in {} has a network.toml: the run has ended, or not begun",
            run.display()
        ))
    })
}

fn text(status: &NetworkStatus) -> String {
    let style = output::style();
    let not_traded = status.not_traded();
    let (tone, verdict) = match (status.trading(), not_traded.is_empty()) {
        (Trading::Healthy, _) => (Tone::Good, "healthy: all instruments can be traded"),
        (Trading::Degraded, true) => (
            Tone::Unsure,
            "degraded: all instruments can be traded, and not all is as it should be",
        ),
        (Trading::Degraded, false) => (Tone::Bad, "degraded: some instruments cannot be traded"),
        (Trading::NotTrading, _) => (Tone::Bad, "not trading: no instrument can be traded"),
    };
    let mut text = format!("{}\n", style.tone(tone, verdict));
    for sentence in not_traded {
        let _ = writeln!(text, "  {sentence}");
    }
    let _ = writeln!(text, "\ndurability {}", status.durability);
    let _ = match &status.control {
        None => writeln!(
            text,
            "control    none: its replicas have no addresses, so nothing can be moved"
        ),
        Some(control) => writeln!(text, "control    {}", control_line(control, status)),
    };
    let _ = writeln!(text, "map        {}\n", map_line(status));
    node_lines(status, &mut text);
    let led = status.cells.iter().filter(|cell| cell.leader.is_some()).count();
    let _ = writeln!(text, "\n{led} of {} cells have a leader", status.cells.len());
    for cell in &status.cells {
        let leader = match cell.leader {
            Some(leader) => format!("mediator {leader}"),
            None => style.tone(Tone::Bad, "nobody"),
        };
        let _ = write!(text, "  cell {:<9}{leader}, term {}", cell.cell, cell.term);
        let _ = match cell.voters.is_empty() {
            true => writeln!(text),
            false => writeln!(text, "; replicas at {}", cell.voters.join(", ")),
        };
    }
    let waits = status.waits();
    if !waits.is_empty() {
        let _ = writeln!(text, "\n{}", style.tone(Tone::Bad, "waiting"));
    }
    for wait in waits {
        let _ = writeln!(text, "  {wait}");
    }
    text
}

/// A line for each node: what it answers itself, before what control knows of it.
fn node_lines(status: &NetworkStatus, text: &mut String) {
    let style = output::style();
    let up = status.nodes.iter().filter(|node| node.works()).count();
    let _ = writeln!(text, "{up} of {} nodes are up", status.nodes.len());
    let width = status.nodes.iter().map(|node| node.address.len()).max().unwrap_or(0);
    for node in &status.nodes {
        let name = node.id.to_string();
        let word = match (node.answers, node.is_up, node.is_drained) {
            (Some(false), ..) if node.is_gone => "not up: nothing listens at its address",
            (Some(false), ..) => "does not answer: it stands still, or its host is lost",
            (_, true, false) => "up",
            (_, true, true) => "up, drained",
            (Some(true), false, _) => "answers, and control does not know that it is up",
            (None, false, false) => "not up",
            (None, false, true) => "not up, drained",
        };
        let tone = if node.works() { Tone::Good } else { Tone::Bad };
        let (address, word) = (&node.address, style.tone(tone, word));
        let _ = writeln!(text, "  {name:<14}{address:<width$}  {word}{}", history(node));
    }
}

fn control_line(control: &ControlStatus, status: &NetworkStatus) -> String {
    let mut line = match (control.leader, control.term) {
        (Some(leader), Some(term)) => format!("mediator {leader} leads, term {term}"),
        _ => "nobody leads".to_string(),
    };
    if let Some(age_ms) = control.age_ms {
        let age = nm_report::units::duration(age_ms as f64 / 1e3);
        let _ = write!(line, "; map, terms and starts are its last ones, up to {age} old");
    }
    if control.stalled_ms > 0 {
        let seconds = control.stalled_ms as f64 / 1e3;
        let _ = write!(line, "; no majority for {seconds:.0} s");
        if status.trading() != Trading::NotTrading {
            line += ": nothing can be moved, and trading goes on with this map";
        }
    }
    let _ = write!(line, "; replicas at {}", control.voters.join(", "));
    line
}

fn map_line(status: &NetworkStatus) -> String {
    let cells = status.active_cells;
    let mut line = format!("version {}, cell = instrument % {cells}", status.map_version);
    let exceptions = by_cell(&status.exceptions, "in cell");
    if !exceptions.is_empty() {
        let _ = write!(line, " but {exceptions}");
    }
    let pending = by_cell(&status.pending_moves, "on the way to cell");
    if !pending.is_empty() {
        let _ = write!(line, "; {pending}");
    }
    line
}

/// Instruments by their cells, the first few of each.
fn by_cell(exceptions: &[MapException], place: &str) -> String {
    let mut cells: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for exception in exceptions {
        cells.entry(exception.cell).or_default().push(exception.instrument.to_string());
    }
    let of_cell = |(cell, instruments): (u16, Vec<String>)| {
        let (listed, rest) = instruments.split_at(instruments.len().min(LISTED_MAX));
        let rest =
            if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        format!("{}{rest} {place} {cell}", listed.join(", "))
    };
    cells.into_iter().map(of_cell).collect::<Vec<_>>().join("; ")
}

/// Number of starts of a node, and since when it is up or not. Since when it is drained is unknown.
fn history(node: &NodeStatus) -> String {
    let since = node.since_unix_ms.and_then(|ms| Timestamp::from_millisecond(ms as i64).ok());
    let what = match (node.is_drained, node.is_up) {
        // Control says so, and the node does not.
        (_, true) if node.answers == Some(false) => "; control has it as up",
        (_, false) if node.answers == Some(false) => "; control has it as not up",
        (false, _) => "",
        (true, true) => ", up",
        (true, false) => ", not up",
    };
    let since = since.map(|at| format!("{what} since {}", at.strftime("%Y-%m-%dT%H:%M:%SZ")));
    let starts = node.starts.filter(|starts| *starts > 0).map(|starts| format!(", start {starts}"));
    since.unwrap_or_default() + &starts.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruments_are_listed_by_cell_up_to_a_number() {
        let exception = |instrument, cell| MapException { instrument, cell };
        let few = [exception(7, 2), exception(8, 0), exception(9, 2)];
        assert_eq!(by_cell(&few, "in cell"), "8 in cell 0; 7, 9 in cell 2");
        let many: Vec<MapException> = (0..20).map(|instrument| exception(instrument, 1)).collect();
        assert!(by_cell(&many, "in cell").ends_with(", 14, 15 and 4 more in cell 1"));
        assert_eq!(by_cell(&[], "in cell"), "");
    }
}
