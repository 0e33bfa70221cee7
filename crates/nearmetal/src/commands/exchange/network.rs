//! `nearmetal exchange network`: writes and checks the file of a network.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use nm_exchange::network::{Durability, Network};
use nm_run::layout::{self, Wanted};
use nm_run::serve::nodes_here;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::format::Format;
use crate::cli::service::{CheckNetworkArgs, NetworkCommand, NewNetworkArgs};
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// What the file of a network says.
#[derive(Debug, Serialize, JsonSchema)]
pub struct CheckedNetwork {
    /// Which file.
    file: PathBuf,
    /// When requests count as executed.
    durability: Durability,
    /// The nodes by the address of their host; those with sockets in the file system under `here`.
    hosts: BTreeMap<String, Vec<String>>,
    /// Nodes that `exchange serve` would run on this host.
    here: Vec<String>,
    /// What the loss of one host would end.
    single_failures: Vec<String>,
    /// What whoever starts nodes has to know.
    warnings: Vec<String>,
}

impl Document for CheckedNetwork {
    const NAME: &'static str = "exchange-network-checked";
}

/// Runs one of the commands.
pub fn run(command: &NetworkCommand) -> Result<Exit> {
    match command {
        NetworkCommand::New(args) => new(args),
        NetworkCommand::Check(args) => check(args),
    }
}

fn new(args: &NewNetworkArgs) -> Result<Exit> {
    let NewNetworkArgs { file, nodes, durability, hosts, first_port: port } = args;
    let wanted =
        Wanted { counts: *nodes, durability: *durability, hosts: hosts.clone(), port: *port };
    let network = layout::network(&wanted).map_err(|error| Stop::usage(error.to_string()))?;
    let text = network.to_toml().map_err(|error| Stop::usage(error.to_string()))?;
    let create = || File::create_new(file).and_then(|mut new| new.write_all(text.as_bytes()));
    create().map_err(|error| output::file_error(file, &error))?;
    let mut next = format!("{} has a new network\n", file.display());
    if network.secret.is_some() {
        let _ = writeln!(
            next,
            "next: nearmetal exchange secret new secret, beside it; then copy both to each host"
        );
    }
    let _ = writeln!(next, "next: nearmetal exchange serve --network {}", file.display());
    output::data(&next)?;
    Ok(Exit::Pass)
}

fn check(args: &CheckNetworkArgs) -> Result<Exit> {
    let network = Network::read(&args.file).map_err(|error| Stop::usage(error.to_string()))?;
    network.secret_of_nodes().map_err(|error| Stop::usage(error.to_string()))?;
    let names = |nodes: Vec<_>| nodes.iter().map(ToString::to_string).collect();
    let hosts = layout::by_host(&network).into_iter().map(|(host, nodes)| {
        let host = host.map_or("here".to_string(), |host| host.to_string());
        (host, names(nodes))
    });
    let checked = CheckedNetwork {
        file: args.file.clone(),
        durability: network.durability,
        hosts: hosts.collect(),
        here: names(nodes_here(&network)),
        single_failures: layout::single_failures(&network),
        warnings: network.exposure().into_iter().collect(),
    };
    match args.format.format {
        Format::Json => output::json(&checked)?,
        Format::Text => output::text(&text(&checked))?,
    }
    Ok(Exit::Pass)
}

fn text(checked: &CheckedNetwork) -> String {
    let CheckedNetwork { file, durability, hosts, here, single_failures, warnings } = checked;
    let mut text = format!("{} can be used; durability {durability}\n", file.display());
    for (host, nodes) in hosts {
        let _ = writeln!(text, "  {host:<16}{}", nodes.join(", "));
    }
    let _ = match here.len() {
        0 => writeln!(text, "no node listens on this host"),
        count => writeln!(text, "{count} of them would be served on this host"),
    };
    for sentence in single_failures.iter().chain(warnings) {
        let _ = writeln!(text, "  {}", output::warning(sentence));
    }
    text
}
