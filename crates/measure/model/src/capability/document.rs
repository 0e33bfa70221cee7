//! `docs/stacks.md`: what can run where, written from the tables.

use super::*;
use crate::class::StackClass;
use crate::launcher::LauncherRow;
use crate::protocol::ProtocolRow;

const HEAD: &str = "# What can run where

<!-- A test writes this page from the tables: UPDATE=1 cargo test -p nm-model docs_stacks -->

A stack is `PROTOCOL-MODE`, such as `tcp-spin`: what carries the bytes, and how an end waits for
them. A launcher may stand in front of it: `onload+tcp-spin`. The two ends may differ, written
`CLIENT:SERVER`, if they have one protocol on the wire. A row of a plan that cannot run is reported
as not available, with its reason; so is what the machine lacks, which `nearmetal doctor` lists.
";

/// The reasons of a page, each with its number.
#[derive(Default)]
struct Reasons(Vec<String>);

impl Reasons {
    /// `no (3)`.
    fn no(&mut self, reason: String) -> String {
        let known = self.0.iter().position(|known| *known == reason);
        let at = known.unwrap_or_else(|| {
            self.0.push(reason);
            self.0.len() - 1
        });
        format!("no ({})", at + 1)
    }

    fn list(&self) -> String {
        let lines = self.0.iter().enumerate();
        lines.map(|(at, reason)| format!("{}. {reason}.\n", at + 1)).collect()
    }
}

fn protocols() -> impl Iterator<Item = (Protocol, &'static ProtocolRow)> {
    let is_for_users = |protocol: &&Protocol| protocol.name() != "sample";
    Protocol::ALL.iter().filter(is_for_users).map(|protocol| (*protocol, protocol.row()))
}

fn environments(distance: Distance) -> Vec<EnvironmentKind> {
    let is_there = |kind: &&EnvironmentKind| kind.distance() == distance;
    EnvironmentKind::ALL.iter().filter(is_there).copied().collect()
}

fn code_list<T: fmt::Display>(words: &[T]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    words.join(", ")
}

/// `| protocol | … | `loopback` | `netns`, `bridge` | … |`, and the line below it.
fn head(first: &[&str]) -> String {
    let places = Distance::ALL.map(|distance| code_list(&environments(distance)));
    let cells: Vec<String> = first.iter().map(|cell| (*cell).to_string()).chain(places).collect();
    format!("| {} |\n|{}\n", cells.join(" | "), " --- |".repeat(cells.len()))
}

/// What a stack without a launcher can do at a distance.
fn cell(protocol: Protocol, distance: Distance, reasons: &mut Reasons) -> String {
    match protocol.row().reach(distance) {
        Reach::Yes => "yes".to_string(),
        Reach::Only(waits) => {
            let stacks: Vec<String> =
                waits.modes.iter().map(|mode| format!("{protocol}-{mode}")).collect();
            format!("only {}", code_list(&stacks))
        }
        Reach::No(why) => {
            let environment = environments(distance)[0];
            reasons.no(Obstacle::NoPath { why, environment }.to_string())
        }
    }
}

fn protocol_table(reasons: &mut Reasons) -> String {
    let mut table = head(&["protocol", "what it is", "messages", "`stream`"]);
    for (protocol, row) in protocols() {
        let bytes_max = protocol.datagram_bytes_max().unwrap_or(SIZE_BYTES_MAX);
        let messages = match row.payload {
            Payload::Nothing => "none".to_string(),
            _ => format!("{} to {bytes_max} B", protocol.message_bytes_min()),
        };
        let streams = match (row.payload, row.streams) {
            (Payload::Nothing, _) => reasons.no(Obstacle::NoBytes(protocol).to_string()),
            (_, Streams::Any) => "yes".to_string(),
            (_, Streams::OneFlow(why)) => format!("one flow: {why}"),
            (_, Streams::No(why)) => reasons.no(why.to_string()),
        };
        let places = Distance::ALL.map(|distance| cell(protocol, distance, reasons)).join(" | ");
        let title = row.title;
        table += &format!("| `{protocol}` | {title} | {messages} | {streams} | {places} |\n");
    }
    table
}

fn launcher_table(reasons: &mut Reasons) -> String {
    let mut table = head(&["launcher", "for"]);
    for launcher in Launcher::ALL {
        let LauncherRow { purpose, .. } = launcher.row();
        let places = Distance::ALL.map(|distance| match launcher.reach(distance) {
            None => "if installed".to_string(),
            Some(LauncherReach::IfInstalledThere) => "if installed there".to_string(),
            Some(LauncherReach::No(why)) => {
                reasons.no(Obstacle::NoLauncher { why, launcher: *launcher }.to_string())
            }
        });
        table += &format!("| `{launcher}` | {purpose} | {} |\n", places.join(" | "));
    }
    table
}

fn mode_table() -> String {
    let mut table =
        "| protocol | ways of waiting | why no others |\n| --- | --- | --- |\n".to_string();
    for (protocol, row) in protocols() {
        let Waits { modes, why_not, .. } = row.waits;
        table += &format!("| `{protocol}` | {} | {why_not} |\n", code_list(modes));
    }
    table
}

fn class_table() -> String {
    let mut table =
        "| `class` | stacks | can its ends be on two hosts? |\n| --- | --- | --- |\n".to_string();
    for class in StackClass::ALL.iter().filter(|class| **class != StackClass::NoNetwork) {
        let own = protocols().filter(|(_, row)| row.class == *class);
        let own = own.map(|(protocol, _)| format!("`{protocol}`"));
        let under = Launcher::ALL.iter().filter(|launcher| launcher.row().class == *class);
        let under = under.map(|launcher| format!("`{launcher}+…`"));
        let stacks: Vec<String> = own.chain(under).collect();
        let hosts = if *class == StackClass::SameHost { "no" } else { "yes" };
        table += &format!("| `{class}` | {} | {hosts} |\n", stacks.join(", "));
    }
    table
}

fn probe_table() -> String {
    let mut table = "| probe | stacks |\n| --- | --- |\n".to_string();
    for probe in ProbeKind::ALL {
        let stacks = match probe {
            ProbeKind::Exchange => {
                let stacks: Vec<Stack> = LinkTransport::ALL.iter().map(|one| one.stack()).collect();
                format!(
                    "{}, on loopback; see [the exchange](guides/exchange.md)",
                    code_list(&stacks)
                )
            }
            probe if !probe.uses_network() => format!("`{}`", Stack::CPU),
            ProbeKind::Stream => "all that carry streams, see above".to_string(),
            _ => "all but `cpu`".to_string(),
        };
        table += &format!("| `{probe}` | {stacks} |\n");
    }
    table
}

#[test]
fn docs_stacks_says_what_the_tables_say() {
    let mut reasons = Reasons::default();
    let protocols = protocol_table(&mut reasons);
    let launchers = launcher_table(&mut reasons);
    let page = [
        HEAD.to_string(),
        format!("## Protocols\n\n{protocols}"),
        format!("## Launchers\n\nA launcher replaces IP sockets.\n\n{launchers}"),
        format!("## Why not\n\n{}", reasons.list()),
        format!("## Ways of waiting\n\n{}", mode_table()),
        format!("## Probes\n\n{}", probe_table()),
        format!("## Classes\n\nA target may name a class of stacks.\n\n{}", class_table()),
    ]
    .join("\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/stacks.md");
    if std::env::var_os("UPDATE").is_some() {
        return std::fs::write(path, page).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(kept == page, "UPDATE=1 cargo test -p nm-model docs_stacks writes docs/stacks.md anew");
}
