//! Arguments of what an operator directs while others trade: `nearmetal exchange halt` and the
//! like.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use nm_exchange::network::{NodeId, NodeIdError};

use crate::cli::access::AccessArgs;
use crate::cli::number::number;

/// Which instruments are meant.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct WhichArgs {
    /// Symbols of instruments; numbers where the network has no instrument master.
    #[arg(value_name = "SYMBOL", conflicts_with = "all")]
    pub symbols: Vec<String>,
    /// All instruments that are listed, or were traded.
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct DirectionArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct AuctionArgs {
    #[command(flatten)]
    pub which: WhichArgs,
    /// End the auction: what can trade at one price does, and continuous trading follows.
    #[arg(long)]
    pub end: bool,
    /// It is the closing auction: the orders that wait for it join. An auction that is on becomes
    /// it.
    #[arg(long, conflicts_with = "end")]
    pub closing: bool,
    #[command(flatten)]
    pub access: AccessArgs,
}

/// What goes on again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeTarget {
    /// A drained node.
    Node(NodeId),
    /// An instrument that is halted.
    Symbol(String),
}

impl FromStr for ResumeTarget {
    type Err = NodeIdError;

    fn from_str(text: &str) -> Result<ResumeTarget, NodeIdError> {
        match text.contains(':') {
            true => text.parse().map(ResumeTarget::Node),
            false => Ok(ResumeTarget::Symbol(text.to_string())),
        }
    }
}

#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// A drained node, such as mediator:0, or symbols of halted instruments.
    #[arg(
        value_name = "ROLE:INDEX|SYMBOL",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    pub targets: Vec<ResumeTarget>,
    /// All halted instruments.
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct FirmArgs {
    /// The firm's name.
    #[arg(value_name = "FIRM")]
    pub name: String,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct MassCancelArgs {
    /// The session.
    #[arg(long, value_name = "NUMBER", required_unless_present = "firm")]
    pub session: Option<u32>,
    /// The firm, by its name.
    #[arg(long, value_name = "NAME", conflicts_with = "session")]
    pub firm: Option<String>,
    /// Only on the instrument of this symbol; a number where the network has no instrument master.
    #[arg(long, value_name = "SYMBOL")]
    pub symbol: Option<String>,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct ScheduleArgs {
    /// The schedule, a TOML file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// When to end, s; without it, by Ctrl-C.
    #[arg(long, value_name = "S", value_parser = number(1_u64..=86_400))]
    pub seconds: Option<u64>,
    #[command(flatten)]
    pub access: AccessArgs,
}
