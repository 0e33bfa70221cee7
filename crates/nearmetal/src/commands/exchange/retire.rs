//! `nearmetal exchange retire`: what a session or an owner has in a running network goes.

use anyhow::Result;
use nm_exchange::control::{Holdings, Retired};
use nm_exchange::firms::Firm;
use nm_operate::retire;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::exchange::RetireArgs;
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::Exit;
use crate::output;

use super::{directions, status};

/// What was removed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RetiredDocument {
    /// Of which session; absent if of an owner.
    session: Option<u32>,
    /// Of which owner; absent if of a session.
    owner: Option<String>,
    cells: Vec<RetiredOfCell>,
}

/// What was removed of a cell.
#[derive(Debug, Serialize, JsonSchema)]
struct RetiredOfCell {
    cell: u16,
    /// Instruments that the owner had made.
    instruments: u64,
    /// Sessions, counted once on each instrument.
    sessions: u64,
    /// Live orders.
    orders: u64,
}

impl Document for RetiredDocument {
    const NAME: &'static str = "exchange-retired";
}

/// Removes what a session or an owner has.
pub fn run(args: &RetireArgs) -> Result<Exit> {
    let network = status::current(&args.access)?;
    let of_firm = args.firm.as_deref().map(|name| directions::firm(&network, name)).transpose()?;
    let of_firm = of_firm.map(Firm::owner);
    let args_owner = of_firm.or(args.owner);
    let (retired, name) = match (args.session, args_owner) {
        (Some(session), _) => (Retired::Session { session }, format!("session {session}")),
        (None, owner) => {
            let owner = owner.unwrap_or_default();
            (Retired::Owner { owner }, owner.to_string())
        }
    };
    let cells = retire::retire(&network, retired)?;
    match args.access.format.format {
        Format::Json => {
            let of_cell = |(cell, Holdings { instruments, sessions, orders })| RetiredOfCell {
                cell,
                instruments,
                sessions,
                orders,
            };
            output::json(&RetiredDocument {
                session: args.session,
                owner: args_owner.filter(|_| args.session.is_none()).map(|it| it.to_string()),
                cells: cells.into_iter().map(of_cell).collect(),
            })?;
        }
        Format::Text => {
            let sum = |of: fn(&Holdings) -> u64| cells.iter().map(|(_, all)| of(all)).sum::<u64>();
            output::data(&format!(
                "{name} is removed: {} sessions on instruments, {} live orders, {} instruments \
                 that it had made\n",
                sum(|all| all.sessions),
                sum(|all| all.orders),
                sum(|all| all.instruments)
            ))?;
        }
    }
    Ok(Exit::Pass)
}
