//! The stand-alone servers and clients: an agent that listens, and a run of one probe between an
//! agent in this process and a server's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use nm_lab::affinity::Affinity;
use nm_lab::agent::{self, Handle, Notice};
use nm_lab::pair::Pair;
use nm_lab::trial::{self, Options};
use nm_model::{Failure, Mode, ProbeSpec, Protocol, RowId, Side, Stack, StackPair};

use crate::campaign::finished::FinishedRun;
use crate::campaign::trial::{Completed, TrialContext, TrialResult};
use crate::campaign::{Destination, Name, OnFailure, Runner};
use crate::cli::standalone::{ClientArgs, Muxer, ServerArgs};
use crate::exit::{Exit, Stop};
use crate::output;

/// Serves clients until it is ended by a signal, or after one client with `--once`.
pub fn serve(args: &ServerArgs) -> Result<Exit> {
    let all_addresses: IpAddr = match std::fs::metadata("/proc/net/if_inet6").is_ok() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let bind = SocketAddr::new(args.bind.unwrap_or(all_addresses), args.port);
    agent::listen(bind, args.once, |notice| match notice {
        Notice::Listening(address) => {
            output::message(&format!("listening on {address}; Ctrl-C ends it"));
        }
        Notice::Connected(peer) => output::message(&format!("client {peer}")),
        Notice::Refused(peer) => {
            output::message(&format!("refused client {peer}: busy with another one"))
        }
        Notice::Ended(peer, Ok(())) => output::message(&format!("client {peer} has disconnected")),
        Notice::Ended(peer, Err(failure)) => output::message(&format!("client {peer}: {failure}")),
    })?;
    Ok(Exit::Pass)
}

/// The mode that the flags select.
fn mode(args: &ClientArgs) -> Mode {
    match (args.muxer, args.spin) {
        (Muxer::None, false) if args.busy_poll => Mode::BusyPoll,
        (Muxer::None, false) => Mode::Blocking,
        (Muxer::None, true) => Mode::Spin,
        (Muxer::Select, false) => Mode::Select,
        (Muxer::Select, true) => Mode::SelectSpin,
        (Muxer::Poll, false) => Mode::Poll,
        (Muxer::Poll, true) => Mode::PollSpin,
        (Muxer::Epoll, false) => Mode::Epoll,
        (Muxer::Epoll, true) => Mode::EpollSpin,
    }
}

/// An argument that is required without a subcommand.
///
/// # Errors
/// Usage, if it is absent.
pub fn required<T>(argument: Option<T>) -> Result<T> {
    argument.ok_or_else(|| Stop::usage("name the server's address; see --help"))
}

/// Both ends' stacks: `protocol` with the mode that the flags select.
pub fn stacks(protocol: Protocol, args: &ClientArgs) -> StackPair {
    let client = Stack::new(protocol, mode(args));
    with_server_mode(client, args)
}

/// Both ends' stacks: the server has the client's mode unless `--server-mode` is given.
pub fn with_server_mode(client: Stack, args: &ClientArgs) -> StackPair {
    let server = Stack::new(client.protocol, args.server_mode.unwrap_or(client.mode));
    StackPair { client, server }
}

/// Measures `probe` in `rounds` rounds against the server at `address`.
pub fn measure(
    args: &ClientArgs,
    address: IpAddr,
    stacks: StackPair,
    probe: &ProbeSpec,
    rounds: u32,
) -> Result<FinishedRun> {
    if let Some(reason) = nm_lab::resolve::stack_unavailable_reason(&stacks.client) {
        return Err(Stop::usage(format!("{}: {reason}", stacks.client)));
    }
    let affinity = args.affinity.as_deref().map(str::parse::<Affinity>).transpose();
    let affinity = affinity.map_err(Failure::from)?;
    let options = Options { affinity, raw_samples: args.raw, ..Options::new(1) };
    let name = Name::Fixed(format!("{} to {address}", probe.kind()));
    let destination = args.out.as_deref().map_or(Destination::Memory, Destination::Folder);
    let mut runner = Runner::begin(name, destination, options, OnFailure::Abort)?;
    let mut pair = connect(address, args.port)?;
    for side in [Side::Client, Side::Server] {
        runner.recorder.facts(pair.environment.as_str(), side, pair.facts(side).clone());
    }
    runner.show_progress(probe.duration_s() * f64::from(rounds));
    for round in 0..rounds {
        let label = format!("round {}/{rounds}  {stacks}", round + 1);
        let row = RowId {
            environment: pair.environment.clone(),
            stack: stacks.to_string(),
            probe: probe.kind(),
            case: None,
            round: Some(round),
        };
        let goes_on = runner.trial(&label, &row, probe.duration_s(), |context| {
            run_round(&mut pair, &stacks, probe, round, context)
        })?;
        if !goes_on {
            break;
        }
    }
    pair.close();
    runner.finish()
}

/// An agent in this process and the server's agent.
fn connect(address: IpAddr, port: u16) -> Result<Pair> {
    let server = Handle::connect("the server", SocketAddr::new(address, port))?;
    let client = Handle::local("the client")?;
    let own = server.connection().map_or(address, |(own, _)| own.ip());
    Ok(Pair::over_network(&address.to_string(), (client, server), (own, address))?)
}

fn run_round(
    pair: &mut Pair,
    stacks: &StackPair,
    probe: &ProbeSpec,
    round: u32,
    context: &TrialContext<'_>,
) -> TrialResult {
    let mut show = |now| context.estimate(now);
    let (options, interrupted) = (context.options, context.interrupted);
    match trial::run(pair, stacks, probe, round, options, &mut show, interrupted) {
        Ok(outcome) => {
            for (case, reason) in &outcome.skipped {
                context.message(&format!("{case}: not available: {reason}"));
            }
            let measured = outcome.measured;
            TrialResult::Completed(Completed { measured, ..Completed::default() })
        }
        Err(ended) => {
            let trial::Interrupted { completed, case, failure } = *ended;
            TrialResult::Failed { measured: completed.measured, case, failure }
        }
    }
}
