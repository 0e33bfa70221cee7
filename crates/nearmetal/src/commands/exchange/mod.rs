//! `nearmetal exchange`: the commands of the exchange, one file each.

pub mod add;
mod backup;
pub mod directions;
mod door;
mod feed;
pub mod firms;
mod host;
pub mod instruments;
mod live;
pub mod moves;
pub mod network;
mod node;
pub mod policy;
mod ramp;
mod ramp_text;
mod replay;
pub mod retire;
mod run;
mod schedule;
pub mod search;
mod secret;
mod serve;
mod setup;
pub mod status;
mod top;
pub mod torture;
pub mod verify;

use anyhow::Result;

use crate::cli::exchange::ExchangeCommand;
use crate::exit::Exit;

/// Runs one command of the exchange.
pub fn run(command: &ExchangeCommand) -> Result<Exit> {
    match command {
        ExchangeCommand::Run(args) => run::run(args),
        ExchangeCommand::Ramp(args) => ramp::run(args),
        ExchangeCommand::Search(args) => search::run(args),
        ExchangeCommand::Serve(args) => serve::run(args),
        ExchangeCommand::Network(command) => network::run(command),
        ExchangeCommand::Node(args) => node::run(args),
        ExchangeCommand::Host(args) => host::run(args),
        ExchangeCommand::Backup(args) => backup::run(args),
        ExchangeCommand::Restore(args) => backup::restore(args),
        ExchangeCommand::Recover(args) => backup::recover(args),
        ExchangeCommand::Verify(args) => verify::run(args),
        ExchangeCommand::Torture(args) => torture::run(args),
        ExchangeCommand::Status(args) => status::run(args),
        ExchangeCommand::Top(args) => live::run(args),
        ExchangeCommand::Move(args) => moves::run(args),
        ExchangeCommand::Grow(args) => moves::grow(args),
        ExchangeCommand::Shrink(args) => moves::shrink(args),
        ExchangeCommand::Add(args) => add::add(args),
        ExchangeCommand::Remove(args) => add::remove(args),
        ExchangeCommand::Drain(args) => moves::drain(args),
        ExchangeCommand::Replace(args) => moves::replace(args),
        ExchangeCommand::Retire(args) => retire::run(args),
        ExchangeCommand::Instruments(command) => instruments::run(command),
        ExchangeCommand::Firms(command) => firms::run(command),
        ExchangeCommand::Resume(args) => directions::resume(args),
        ExchangeCommand::Halt(args) => directions::halt(args),
        ExchangeCommand::Auction(args) => directions::auction(args),
        ExchangeCommand::EndOfDay(args) => directions::end_of_day(args),
        ExchangeCommand::KillFirm(args) => directions::kill_firm(args),
        ExchangeCommand::RestoreFirm(args) => directions::restore_firm(args),
        ExchangeCommand::MassCancel(args) => directions::mass_cancel(args),
        ExchangeCommand::Schedule(args) => schedule::run(args),
        ExchangeCommand::Policy(args) => policy::run(args),
        ExchangeCommand::Fix(args) => door::fix(args),
        ExchangeCommand::Ouch(args) => door::ouch(args),
        ExchangeCommand::FeedPublish(args) => feed::publish(args),
        ExchangeCommand::Feed(args) => feed::consume(args),
        ExchangeCommand::TopOfBook(args) => top::show(args),
        ExchangeCommand::Replay(args) => replay::run(args),
        ExchangeCommand::MakeDay(args) => replay::make_day(args),
        ExchangeCommand::Assign(args) => moves::assign(args),
        ExchangeCommand::Secret(command) => secret::run(command),
    }
}
