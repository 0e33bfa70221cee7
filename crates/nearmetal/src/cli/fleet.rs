//! Options of `fleet`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nm_fleet::Pairs;

use super::format::FormatArgs;
use super::number::number;
use super::percent::percent;
use super::shared;

#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Measure pairs of hosts by a plan, and say which host or pair stands out.
    #[command(after_help = "Examples:\n  \
        nearmetal fleet run --hosts 'node[01-16]' --dry-run\n  \
        nearmetal fleet run --hosts rack.txt --plan two-hosts:latency --out rack\n  \
        ansible-inventory --list | nearmetal fleet run --hosts - --pairs sample:8 --out rack\n  \
        nearmetal fleet run --resume rack\n\n\
        A line of a file of hosts: NAME[=ADDRESS] [label=value ...], where NAME is what ssh takes \
        and may hold ranges such as node[01-16]; [group] begins a group.\n\n\
        Exit codes: 0 every pair passes · 1 a pair fails · 2 usage or bad input · 3 a pair has no \
        result or no verdict · 4 nothing could be measured · 5 the folder holds another run · \
        130 interrupted")]
    Run(FleetRunArgs),
    /// Which of many hosts are the best: bad ones are stopped early, the best are kept.
    #[command(after_help = "Examples:\n  \
        nearmetal fleet hunt --hosts 'cand[01-20]' --keep 3\n  \
        nearmetal fleet hunt --hosts offers.txt --keep 1 --figure p99 --out hunt\n\n\
        A trial measures both ends of the plan on one host, over its own address.\n\n\
        Exit codes: 0 as many are kept as were wanted · 2 usage or bad input · 3 fewer could be \
        measured · 4 nothing could be measured · 5 the folder holds another run · 130 interrupted")]
    Hunt(FleetHuntArgs),
    /// The agents at a controller.
    Agents(FleetAgentsArgs),
}

#[derive(Debug, Args)]
pub struct FleetAgentsArgs {
    #[arg(long, value_name = "SOCKET", help = shared::CONTROLLER)]
    pub controller: PathBuf,
    #[command(flatten)]
    pub format: FormatArgs,
}

/// The figure that a hunt decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HuntFigure {
    /// Median.
    Median,
    /// 99th percentile.
    P99,
}

#[derive(Debug, Args)]
pub struct FleetHuntArgs {
    /// Candidates: a file, a list such as `node[01-16],other=192.0.2.9`, or `-` for stdin.
    #[arg(long, value_name = "FILE|LIST|-")]
    pub hosts: String,
    /// How many hosts are kept.
    #[arg(long, value_name = "K", value_parser = number(1_usize..=64))]
    pub keep: usize,
    /// Plan of each trial, whose rows are all of the environment `ssh`: a built-in one, or a file;
    /// with `:PART` a part that it defines.
    #[arg(long, default_value = "two-hosts:latency", value_name = "NAME|FILE[:PART]")]
    pub plan: String,
    /// Figure of the plan's first series that decides.
    #[arg(long, value_enum, default_value = "median")]
    pub figure: HuntFigure,
    /// Most trials of a host.
    #[arg(long, default_value_t = 12, value_parser = number(2_u32..=100))]
    pub rounds: u32,
    /// Ratio of figures within which it does not matter which host is kept, such as `5%`.
    #[arg(long, default_value = "5%", value_parser = percent)]
    pub indifference: f64,
    /// Most trials at once; no host is ever in two.
    #[arg(long, default_value_t = 8, value_parser = number(1_usize..=64))]
    pub parallel: usize,
    /// Folder for the results, which is created; `nearmetal-fleet` without it.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub format: FormatArgs,
}

#[derive(Debug, Args)]
pub struct FleetRunArgs {
    /// Hosts: a file, a list such as `node[01-16],other=192.0.2.9`, or `-` for stdin. Files and
    /// stdin may be what `ansible-inventory --list` prints.
    #[arg(
        long,
        value_name = "FILE|LIST|-",
        required_unless_present_any = ["resume", "controller"],
        conflicts_with = "controller"
    )]
    pub hosts: Option<String>,
    #[arg(long, value_name = "SOCKET", help = shared::CONTROLLER)]
    pub controller: Option<PathBuf>,
    /// Wait until this many agents are at the controller; without this, those that are there are
    /// measured.
    #[arg(long, requires = "controller", value_name = "N", value_parser = number(2_usize..=1024))]
    pub agents: Option<usize>,
    /// Plan of each pair, whose rows are all of the environment `ssh`: a built-in one, or a file;
    /// with `:PART` a part that it defines.
    #[arg(long, default_value = "two-hosts", value_name = "NAME|FILE[:PART]")]
    pub plan: String,
    /// Which pairs: each host with each other one, with the next of the list, the first with each
    /// other one, or K rounds drawn from those of `all`.
    #[arg(long, default_value = "all", value_name = "all|ring|star|sample:K")]
    pub pairs: Pairs,
    /// Measure each pair in both directions.
    #[arg(long)]
    pub both_ways: bool,
    /// Most trials at once; no host is ever in two.
    #[arg(long, default_value_t = 8, value_parser = number(1_usize..=64))]
    pub parallel: usize,
    /// Seed of everything random; the same seed gives the same draws.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Folder for the results, which is created; `nearmetal-fleet` without it.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with the run in DIR where it was ended, also by kill -9: its own hosts, plan and
    /// pairs.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["hosts", "controller", "plan", "pairs", "both_ways", "seed", "out"]
    )]
    pub resume: Option<PathBuf>,
    /// Only show what would be done.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub format: FormatArgs,
}
