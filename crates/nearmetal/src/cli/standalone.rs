//! Arguments of the stand-alone servers and clients: `pingpong`, `stream` and `rr`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nm_model::Pattern;
use nm_model::limits;
use nm_model::probe::{Preset, RrSize};

use crate::cli::format::ShowArgs;
use crate::cli::number::number;
use crate::cli::server_address::ServerAddress;
use crate::cli::shared::{AffinityArgs, OUT, ROUNDS, TargetArgs};

/// Default port of the stand-alone servers.
pub const DEFAULT_PORT: u16 = 4810;

#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Address to listen on; all addresses if not given.
    #[arg(long)]
    pub bind: Option<IpAddr>,
    /// TCP port of the server's control connection [default: 4810]
    #[arg(long, default_value_t = DEFAULT_PORT, hide_default_value = true)]
    pub port: u16,
    /// End after one client.
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Wait for clients; any of pingpong, stream and rr.
    Server(ServerArgs),
}

/// What the three stand-alone clients have in common.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// TCP port of the server's control connection [default: 4810]
    #[arg(long)]
    pub port: Option<u16>,
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub affinity: AffinityArgs,
    /// Receive without sleeping, at both ends.
    #[arg(long, conflicts_with = "busy_poll")]
    pub spin: bool,
    /// Wait with `select`, `poll` or `epoll` before each receive.
    #[arg(long, value_enum, default_value = "none")]
    pub muxer: Muxer,
    /// Let the kernel spin on the device before it sleeps (`SO_BUSY_POLL`).
    #[arg(long)]
    pub busy_poll: bool,
    /// Ways of waiting of the server, if not the client's.
    #[arg(long, value_name = "MODE")]
    pub server_mode: Option<nm_model::Mode>,
    #[arg(long, value_name = "DIR", help = OUT)]
    pub out: Option<PathBuf>,
    /// Keep every sample, one ns value a line, in the folder's `samples/*.dat`.
    #[arg(long, requires = "out")]
    pub raw: bool,
    #[command(flatten)]
    pub show: ShowArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Muxer {
    /// Receive at once.
    None,
    /// select(2)
    Select,
    /// poll(2)
    Poll,
    /// epoll(7)
    Epoll,
}

#[derive(Debug, Args)]
pub struct PingpongArgs {
    #[command(subcommand)]
    pub server: Option<ServerCommand>,
    #[command(flatten)]
    pub client: PingpongClientArgs,
}

#[derive(Debug, Args)]
pub struct PingpongClientArgs {
    /// tcp, udp, mcast, shm (both ends on one host), or a whole stack such as `tcp-epoll-spin`.
    #[arg(required = true)]
    pub stack: Option<String>,
    /// The server: HOST or IP address, also with :PORT.
    #[arg(required = true)]
    pub address: Option<ServerAddress>,
    /// Message sizes in bytes, such as `64,1024`; powers of two from 1 by default.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub sizes: Vec<String>,
    /// Percentiles to record, also beside the usual ones (50, 90, 99, 99.9, …), which the tables
    /// then show; with --sfnt the first is the %ile column.
    #[arg(
        long,
        visible_alias = "percentiles",
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "99"
    )]
    pub percentile: Vec<f64>,
    /// Longest time for each size, ms.
    #[arg(long, default_value_t = 3000, value_name = "MS",
        value_parser = number(1..=limits::MS_MAX))]
    pub maxms: u64,
    /// Most samples for each size.
    #[arg(long, default_value_t = 1_000_000, value_name = "N",
        value_parser = number(1..=limits::ITERATIONS_MAX))]
    pub maxiter: u64,
    /// Fewest samples for each size.
    #[arg(long, default_value_t = 1_000, value_name = "N",
        value_parser = number(0..=limits::ITERATIONS_MAX))]
    pub miniter: u64,
    /// Warm-up before each size, ms.
    #[arg(long, default_value_t = 100, value_name = "MS",
        value_parser = number(0..=limits::MS_MAX))]
    pub warmupms: u64,
    /// A message that is not back after this time is lost, ms.
    #[arg(long, default_value_t = 1000, value_name = "MS",
        value_parser = number(1..=limits::MS_MAX))]
    pub timeout: u64,
    #[arg(long, help = ROUNDS, value_parser = number(1_u32..=1000))]
    pub rounds: Option<u32>,
    /// Write sfnt-pingpong's columns.
    #[arg(long, conflicts_with_all = ["summary", "quiet", "format"])]
    pub sfnt: bool,
    #[command(flatten)]
    pub common: ClientArgs,
}

#[derive(Debug, Args)]
pub struct StreamArgs {
    #[command(subcommand)]
    pub server: Option<ServerCommand>,
    #[command(flatten)]
    pub client: StreamClientArgs,
}

#[derive(Debug, Args)]
pub struct StreamClientArgs {
    /// The server: HOST or IP address, also with :PORT.
    #[arg(required = true)]
    pub address: Option<ServerAddress>,
    /// Flows: N-uni-N from client to server, N-bi-N half in each direction.
    #[arg(long, value_delimiter = ',', default_value = "1-uni-1")]
    pub pattern: Vec<Pattern>,
    /// tcp, udp or mcast (multicast).
    #[arg(long, default_value = "tcp")]
    pub protocol: nm_model::Protocol,
    /// Measuring time of a round, s.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Time from the start that is not counted, ms.
    #[arg(long, default_value_t = 200, value_name = "MS",
        value_parser = number(0..=limits::MS_MAX))]
    pub omit: u64,
    /// Rounds; five or more give intervals and verdicts [default: 1, or 5 with --target]
    #[arg(long, value_parser = number(1_u32..=1000))]
    pub repeat: Option<u32>,
    /// Bytes of one write.
    #[arg(long, value_name = "BYTES", value_parser = number(1..=limits::SIZE_BYTES_MAX))]
    pub write: Option<u32>,
    /// Congestion control by name.
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Socket buffers, bytes.
    #[arg(long, value_name = "BYTES", value_parser = number(0..=limits::BUFFER_BYTES_MAX))]
    pub buffer: Option<u32>,
    /// Take the defaults of another tool.
    #[arg(long = "as", value_name = "TOOL")]
    pub preset: Option<Preset>,
    /// Largest coefficient of variation that counts as stable, %.
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    pub max_cv: f64,
    #[command(flatten)]
    pub common: ClientArgs,
}

#[derive(Debug, Args)]
pub struct RrArgs {
    #[command(subcommand)]
    pub server: Option<ServerCommand>,
    #[command(flatten)]
    pub client: RrClientArgs,
}

#[derive(Debug, Args)]
pub struct RrClientArgs {
    /// The server: HOST or IP address, also with :PORT.
    #[arg(required = true)]
    pub address: Option<ServerAddress>,
    /// Requests a second.
    #[arg(long, default_value_t = 1000.0, conflicts_with = "closed")]
    pub rate: f64,
    /// Closed loop: the next request when the answer is in.
    #[arg(long)]
    pub closed: bool,
    /// tcp, udp or mcast (multicast).
    #[arg(long, default_value = "tcp")]
    pub protocol: nm_model::Protocol,
    /// Sizes: `64`, or `REQUEST,RESPONSE`; several are separated by blanks.
    #[arg(long, value_delimiter = ' ', default_value = "64")]
    pub sizes: Vec<RrSize>,
    /// Measuring time of a round, s.
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    pub seconds: f64,
    /// An answer later than this is lost, ms.
    #[arg(long, default_value_t = 1000, value_name = "MS",
        value_parser = number(1..=limits::MS_MAX))]
    pub deadline: u64,
    /// Rounds; five or more give intervals and verdicts [default: 1, or 5 with --target]
    #[arg(long, value_parser = number(1_u32..=1000))]
    pub repeat: Option<u32>,
    #[command(flatten)]
    pub common: ClientArgs,
}
