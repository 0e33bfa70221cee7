//! Arguments of `nearmetal exchange`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use nm_auth::SESSIONS_MAX;
use nm_exchange::network::Role;
use nm_exchange_lab::load::Arrivals;
use nm_exchange_lab::run::Kill;
use nm_model::exchange::{Durability, NodeCounts, OrderMix};
use nm_model::link_transport::LinkTransport;

use crate::cli::format::{FormatArgs, ShowArgs};

#[derive(Debug, Subcommand)]
pub enum ExchangeCommand {
    /// Start a network, drive orders through it at a rate, and judge the round trips.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange run\n  \
        nearmetal exchange run --nodes 1-1-1-1 --rate 100000\n  \
        nearmetal exchange run --durability disk-quorum --kill mediator:0@2\n  \
        nearmetal exchange run --rounds 1 --record-flow day.flow\n  \
        nearmetal exchange run --nodes 4-4-4-4 --replay-flow day.flow\n  \
        nearmetal exchange run --nodes 4-4-4-4 --rate 20000 --hosts hosts.txt")]
    Run(RunArgs),
    /// Find the highest rate that keeps ES10 and p99 under the limit.
    #[command(after_help = "Examples:\n  nearmetal exchange search --nodes 1-1-1-1\n  \
        nearmetal exchange search --nodes 2-2-2-2 --durability memory-quorum --limit 5")]
    Search(SearchArgs),
    /// One node of a network, until its input ends; started by `exchange run`, or by hand.
    Node(NodeArgs),
    /// Check from client logs and journals that nothing was lost, duplicated or reordered.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange run --record --out DIR\n  nearmetal exchange verify DIR\n  \
        nearmetal exchange verify DIR --cuts 1000")]
    Verify(VerifyArgs),
    /// Kill nodes at random under load, again and again, and verify each time.
    Torture(TortureArgs),
    /// Show the members and leaders of a running network, and the cells of instruments.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange status --network network.toml\n  \
        nearmetal exchange status --folder nearmetal-out/RUN --format json\n\n\
        Exit code: 0 all nodes are up and lead as they should, 1 not all, 4 no node answers")]
    Status(StatusArgs),
    /// Assign an instrument that was never traded to another cell of a running network.
    #[command(after_help = "Example:\n  \
        nearmetal exchange assign 1000007 0 --network network.toml\n\n\
        Exit code: 0 done, 5 refused, such as of an instrument that has traded, 4 no node answers")]
    Assign(AssignArgs),
    /// Make the secret of a network, and the keys that clients and operators are given.
    #[command(subcommand)]
    Secret(SecretCommand),
}

#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Make a secret, in a new file that only its owner may read.
    #[command(after_help = "Example:\n  nearmetal exchange secret new secret\n\n\
        Give it to the nodes by `secret = \"FILE\"` in the network's file.")]
    New(NewSecretArgs),
    /// Derive keys from a secret, for a client, an observer or an operator.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange secret derive --secret secret --sessions 1-100 --out client\n  \
        nearmetal exchange secret derive --secret secret --operator --out operator")]
    Derive(DeriveArgs),
}

#[derive(Debug, Args)]
pub struct NewSecretArgs {
    /// The file, which must not exist.
    pub file: PathBuf,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("rights").required(true).multiple(true))]
pub struct DeriveArgs {
    /// The file of the secret.
    #[arg(long, value_name = "FILE")]
    pub secret: PathBuf,
    /// Keys for these sessions, such as 1-100.
    #[arg(long, value_name = "FIRST-LAST", value_parser = session_range, group = "rights")]
    pub sessions: Option<(u32, u32)>,
    /// The key to change the network and to halt trading (session 0).
    #[arg(long, group = "rights")]
    pub operator: bool,
    /// The key to see the status of the network.
    #[arg(long, group = "rights")]
    pub observer: bool,
    /// The file for the keys, which must not exist.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Sessions `FIRST-LAST`, or one.
fn session_range(text: &str) -> Result<(u32, u32), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last && last - first < SESSIONS_MAX => {
            Ok((first, last))
        }
        _ => Err(format!("write FIRST-LAST, such as 1-100, with at most {SESSIONS_MAX} sessions")),
    }
}

/// Selects a running network.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct RunningArgs {
    /// The network's file.
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

#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub running: RunningArgs,
    #[command(flatten)]
    pub credentials: CredentialsArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct AssignArgs {
    /// The instrument.
    pub instrument: u32,
    /// The new cell of the instrument.
    pub cell: u16,
    #[command(flatten)]
    pub running: RunningArgs,
    #[command(flatten)]
    pub credentials: CredentialsArgs,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// gateway, router, mediator or processor.
    #[arg(long)]
    pub role: Role,
    /// Which one of its class, from 0 on.
    #[arg(long)]
    pub index: usize,
    /// The network's file, the same for all of its nodes.
    #[arg(long, value_name = "FILE")]
    pub network: PathBuf,
}

/// The names of transports, which completions and help list as well.
fn transport_parser() -> impl TypedValueParser<Value = LinkTransport> {
    PossibleValuesParser::new(LinkTransport::ALL.iter().map(|transport| transport.name()))
        .try_map(|name| name.parse::<LinkTransport>())
}

/// The network and its load, for `run` and `search`.
#[derive(Debug, Args)]
pub struct NetworkArgs {
    /// Gateways, routers, mediators and transaction processors.
    #[arg(long, default_value = "2-2-2-2", value_name = "G-R-M-P")]
    pub nodes: NodeCounts,
    /// Measuring time of a round, s.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Load before each measurement, ms.
    #[arg(long, default_value_t = 500, value_name = "MS")]
    pub warmup: u64,
    /// When a request counts as done: none, memory-quorum or disk-quorum.
    #[arg(long, default_value = "none")]
    pub durability: Durability,
    /// What carries the links: TCP, Unix sockets, shared memory, or TCP between accelerated nodes.
    #[arg(long, default_value = "tcp", value_parser = transport_parser())]
    pub transport: LinkTransport,
    /// Orders of the load: default, exchange-core or monterey.
    #[arg(long, default_value = "default", value_name = "NAME")]
    pub mix: OrderMix,
    /// Seed of orders and schedule; the same seed gives the same orders.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Limit for ES10 and p99, ms.
    #[arg(long, default_value_t = nm_model::exchange::SLA_MS, value_name = "MS")]
    pub limit: f64,
    /// Let nodes and sessions authenticate by a secret made for each round; always with --hosts.
    #[arg(long)]
    pub authenticate: bool,
    /// Hosts for the nodes, reached by ssh; this machine if not given.
    #[arg(long, value_name = "FILE")]
    pub hosts: Option<PathBuf>,
    /// Folder on each of the hosts for journals.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/nearmetal-exchange")]
    pub host_data: PathBuf,
    /// Folder for the result, which is created.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Requests a second.
    #[arg(long, default_value_t = 10_000.0)]
    pub rate: f64,
    /// Rounds, each with a network of its own; five or more support a verdict.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// Kill a node in each round and start it again, such as mediator:0@2.5.
    #[arg(long, value_name = "ROLE:INDEX@SECONDS")]
    pub kill: Vec<Kill>,
    /// Keep the client's log and journals of each round, for `exchange verify`.
    #[arg(long)]
    pub record: bool,
    /// Arrival process of requests: even, poisson or bursts.
    #[arg(long, default_value = "poisson", value_name = "NAME")]
    pub arrivals: Arrivals,
    /// Record the requests of the first round, with their times, in a file.
    #[arg(long, value_name = "FILE")]
    pub record_flow: Option<PathBuf>,
    /// Replay the requests of such a file in each round.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "arrivals", "mix"])]
    pub replay_flow: Option<PathBuf>,
    /// Stall the load generator for this time in the middle of a round, ms: a test of the figures.
    #[arg(long, value_name = "MS")]
    pub stall: Option<f64>,
    /// Keep every sample, one ns value a line, in the folder's `samples/*.dat`.
    #[arg(long)]
    pub raw: bool,
    #[command(flatten)]
    pub network: NetworkArgs,
}

#[derive(Debug, Args)]
pub struct SearchArgs {
    /// First rate that is tried, requests a second; 5000 for each mediator if not given.
    #[arg(long, value_name = "RATE")]
    pub from: Option<f64>,
    /// Highest rate that is tried.
    #[arg(long, default_value_t = 1e6, value_name = "RATE")]
    pub to: f64,
    /// Rounds at each end of the bracket.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Largest distance between the ends of the bracket, %.
    #[arg(long, default_value_t = 8.0, value_name = "PERCENT")]
    pub within: f64,
    #[command(flatten)]
    pub network: NetworkArgs,
}

#[derive(Debug, Args)]
pub struct TortureArgs {
    /// Trials.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub trials: u32,
    /// Seed of everything random: sizes, durabilities, victims, times.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Requests a second.
    #[arg(long, default_value_t = 2_000.0)]
    pub rate: f64,
    /// Load of one trial, s.
    #[arg(long, default_value_t = 2.5)]
    pub seconds: f64,
    /// Only this durability; all in turn if not given.
    #[arg(long)]
    pub durability: Option<Durability>,
    /// Only nodes of this class; all in turn if not given.
    #[arg(long)]
    pub role: Option<Role>,
    /// Folder for logs and journals of trials; those of trials without violations are removed.
    #[arg(long, value_name = "DIR", default_value = "nearmetal-torture")]
    pub out: PathBuf,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folder of a run that was recorded, or of one of its rounds.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Replay each cell's journal also from snapshots at this number of random positions.
    #[arg(long, default_value_t = 0, value_name = "N",
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub cuts: u32,
    /// Seed of these positions.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub format: FormatArgs,
}
