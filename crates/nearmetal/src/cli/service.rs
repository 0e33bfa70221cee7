//! Arguments of `nearmetal exchange serve` and `exchange network`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use nm_exchange::network::NodeId;
use nm_model::exchange::{Durability, NodeCounts};
use nm_run::follow::Followed;

use crate::cli::format::FormatArgs;

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The network's file, the same for all of its nodes.
    #[arg(long, value_name = "FILE")]
    pub network: PathBuf,
    /// Folder for the nodes' logs; `serve` beside the network's file without this.
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
    /// Nodes to run, such as mediator:0; without this, all that listen on this host.
    #[arg(long = "node", value_name = "ROLE:INDEX")]
    pub nodes: Vec<NodeId>,
    /// User under which the nodes run, in its groups and without capabilities; root or that user
    /// can ask for it.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Address of this host's loopback at which a page shows the network live: /, /metrics and
    /// /healthz.
    #[arg(long, value_name = "IP:PORT")]
    pub page: Option<SocketAddr>,
    /// A file to which another program writes, such as `exchange policy`: the page shows its new
    /// lines under this name.
    #[arg(long, value_name = "NAME=FILE", requires = "page")]
    pub follow: Vec<Followed>,
    /// Print a unit of systemd that does this, and end.
    #[arg(long)]
    pub unit: bool,
}

#[derive(Debug, Subcommand)]
pub enum NetworkCommand {
    /// Write the file of a network that is to run until it is ended.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange network new network.toml --nodes 1-1-1-1\n  \
        nearmetal exchange network new network.toml --nodes 3-3-3-3 --durability disk-quorum \
        --hosts 10.0.0.1,10.0.0.2,10.0.0.3")]
    New(NewNetworkArgs),
    /// Check the file of a network: whether nodes can use it, where each runs, and which host is
    /// one too many to lose.
    #[command(after_help = "Example:\n  nearmetal exchange network check network.toml\n\n\
        Exit code: 0 it can be used, 2 it cannot")]
    Check(CheckNetworkArgs),
}

#[derive(Debug, Args)]
pub struct NewNetworkArgs {
    /// The file, which must not exist.
    pub file: PathBuf,
    /// Gateways, routers, mediators and transaction processors.
    #[arg(long, value_name = "G-R-M-P", default_value = "1-1-1-1")]
    pub nodes: NodeCounts,
    /// When a request counts as done: none, memory-quorum or disk-quorum.
    #[arg(long, default_value = "none")]
    pub durability: Durability,
    /// Addresses of the hosts, at which nodes take turns.
    #[arg(long, value_name = "IP", value_delimiter = ',', default_value = "127.0.0.1")]
    pub hosts: Vec<IpAddr>,
    /// First port on each host.
    #[arg(long, default_value_t = 7000, value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..))]
    pub first_port: u16,
}

#[derive(Debug, Args)]
pub struct CheckNetworkArgs {
    /// The file.
    pub file: PathBuf,
    #[command(flatten)]
    pub format: FormatArgs,
}
