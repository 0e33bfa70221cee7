//! Arguments of `nearmetal exchange firms`: who may trade on a running network, and how much.

use std::str::FromStr;

use clap::{Args, Subcommand};

use crate::cli::access::AccessArgs;

#[derive(Debug, Subcommand)]
pub enum FirmsCommand {
    /// Show the firms: their sessions, what they may have at most, and what they have.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange firms list --network network.toml\n  \
        nearmetal exchange firms list --folder nearmetal-out/RUN --format json\n\n\
        Exit code: 0 done, 2 the network has no firms, 4 a cell does not answer")]
    List(FirmsArgs),
    /// Add a firm, or change its name, its sessions and its limits; what is not given stays.
    #[command(after_help = "Examples:\n  \
        nearmetal exchange firms set 8 --name \"Borealis\" --sessions 9101-9110 \
        --network network.toml\n  \
        nearmetal exchange firms set 8 --order-quantity 1000 --position 20000 \
        --folder nearmetal-out/RUN\n  \
        nearmetal exchange firms set 8 --position none --folder nearmetal-out/RUN\n\n\
        Limits hold in each cell. One that is lowered cancels nothing: what would make more\n\
        is rejected until there is room. Values are in ticks times lots.\n\
        Exit code: 0 done, or it was so, 2 it is not possible, 4 a cell does not answer")]
    Set(SetFirmArgs),
    /// Remove a firm: its sessions are refused, and their memory comes back.
    #[command(after_help = "Example:\n  \
        nearmetal exchange firms remove \"Borealis\" --cancel --folder nearmetal-out/RUN\n\n\
        Exit code: 0 done, 2 there is no such firm, or no other one, 4 a cell does not answer,\n\
        5 it has live orders")]
    Remove(RemoveFirmArgs),
}

#[derive(Debug, Args)]
pub struct FirmsArgs {
    #[command(flatten)]
    pub access: AccessArgs,
}

/// A limit as it is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitArg(pub Option<u64>);

/// A text that is no limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be a number without a fraction from 0 to {}, or none", i64::MAX)]
pub struct NoLimit;

impl FromStr for LimitArg {
    type Err = NoLimit;

    fn from_str(text: &str) -> Result<LimitArg, NoLimit> {
        match text {
            "none" => Ok(LimitArg(None)),
            text => {
                let number: u64 = text.parse().map_err(|_| NoLimit)?;
                if number > i64::MAX as u64 { Err(NoLimit) } else { Ok(LimitArg(Some(number))) }
            }
        }
    }
}

#[derive(Debug, Args)]
pub struct SetFirmArgs {
    /// Number of the firm.
    #[arg(value_name = "NUMBER")]
    pub number: u32,
    /// Its name; a firm that is new needs one.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Its sessions: numbers and ranges, such as 9001-9010,9050; a firm that is new needs some.
    #[arg(long, value_name = "RANGES", value_delimiter = ',')]
    pub sessions: Vec<String>,
    /// Largest quantity of an order, lots, or none.
    #[arg(long, value_name = "LOTS|none")]
    pub order_quantity: Option<LimitArg>,
    /// Largest value of an order: limit price times quantity, ticks times lots, or none.
    #[arg(long, value_name = "VALUE|none")]
    pub order_value: Option<LimitArg>,
    /// Most live orders in a cell, or none.
    #[arg(long, value_name = "N|none")]
    pub orders: Option<LimitArg>,
    /// Largest value of all live orders in a cell, ticks times lots, or none.
    #[arg(long, value_name = "VALUE|none")]
    pub value: Option<LimitArg>,
    /// Largest position on an instrument, long or short, with what live orders add, lots, or none.
    #[arg(long, value_name = "LOTS|none")]
    pub position: Option<LimitArg>,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Args)]
pub struct RemoveFirmArgs {
    /// Its name.
    #[arg(value_name = "FIRM")]
    pub name: String,
    /// Cancel its live orders.
    #[arg(long)]
    pub cancel: bool,
    #[command(flatten)]
    pub access: AccessArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_none() {
        let read = |text: &str| text.parse::<LimitArg>();
        assert_eq!((read("0"), read("none")), (Ok(LimitArg(Some(0))), Ok(LimitArg(None))));
        assert_eq!(read("9223372036854775807"), Ok(LimitArg(Some(i64::MAX as u64))));
        for text in ["9223372036854775808", "-1", "1.5", "", "all"] {
            assert_eq!(read(text), Err(NoLimit), "{text}");
        }
    }
}
