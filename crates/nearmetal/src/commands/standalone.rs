//! The stand-alone servers and clients: an agent that listens, and a run of one probe between an
//! agent in this process and a server's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use nm_campaign::schedule::Schedule;
use nm_campaign::trial::{Completed, TrialContext, TrialResult};
use nm_campaign::{Destination, OnFailure, RunName};
use nm_lab::affinity::Affinity;
use nm_lab::agent::{self, Handle, IDLE_MAX, Notice};
use nm_lab::pair::Pair;
use nm_lab::trial::{self, Options};
use nm_model::capability::case_obstacle;
use nm_model::plan::EnvironmentKind;
use nm_model::{
    Campaign, Failure, FailureKind, Mode, ProbeKind, ProbeSpec, Protocol, RowId, Side, Stack,
    StackPair,
};
use nm_report::units;

use crate::campaign;
use crate::campaign::finished::FinishedRun;
use crate::campaign::show::Show;
use crate::cli::server_address::ServerAddress;
use crate::cli::standalone::{ClientArgs, DEFAULT_PORT, Muxer, ServerArgs};
use crate::commands::targets;
use crate::exit::{Exit, Stop};
use crate::output;

/// Serves clients until it is ended by a signal, or after one client with `--once`.
pub fn serve(args: &ServerArgs) -> Result<Exit> {
    let all_addresses: IpAddr = match std::fs::metadata("/proc/net/if_inet6").is_ok() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let bind = SocketAddr::new(args.bind.unwrap_or(all_addresses), args.port);
    agent::listen(bind, args.once, IDLE_MAX, |notice| match notice {
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

/// Measures `probe` against the server at `address`, in `rounds` rounds if the user gave them, and
/// judges the targets.
pub fn measure(
    args: &ClientArgs,
    address: &ServerAddress,
    stacks: StackPair,
    probe: &ProbeSpec,
    rounds: Option<u32>,
) -> Result<FinishedRun> {
    let show = Show::of(&args.show)?;
    if stacks.client.protocol == Protocol::Unix {
        return Err(Stop::usage(
            "Unix sockets do not reach another machine; choose another protocol, or measure them \
             within this machine with `nearmetal qualify`",
        ));
    }
    if let Some(reason) = nm_lab::resolve::stack_unavailable_reason(&stacks.client) {
        return Err(Stop::usage(format!("{}: {reason}", stacks.client)));
    }
    check_cases(&stacks, probe)?;
    let rounds = rounds.unwrap_or(if args.target.target.is_empty() { 1 } else { targets::ROUNDS });
    let plan = targets::plan(&args.target.target, probe, &stacks, rounds)
        .map_err(|fault| Stop::usage(fault.to_string()))?;
    let affinity = affinity(args)?;
    let options = Options { affinity, raw_samples: args.raw, ..Options::new(1) };
    let name = RunName::Fixed(format!("{} to {address}", probe.kind()));
    let destination = args.out.as_deref().map_or(Destination::Memory, Destination::Folder);
    let mut runner = campaign::begin(name, &destination, options, OnFailure::Abort, show)?;
    if let Some(plan) = plan {
        runner.recorder.plan(&Campaign::without_rows(plan));
    }
    let mut pair = connect(address, args.port)?;
    if let Some(affinity) = runner.affinity() {
        affinity
            .check(pair.facts(Side::Client), pair.facts(Side::Server))
            .map_err(Failure::from)?;
    }
    for side in [Side::Client, Side::Server] {
        runner.recorder.facts(pair.environment.as_str(), side, pair.facts(side).clone());
    }
    let what = format!("{}, {}", probe.kind(), units::plural(rounds as usize, "round", "rounds"));
    runner.show_progress(&what, Schedule::of_rounds(probe, EnvironmentKind::Ssh, rounds));
    for round in 0..rounds {
        let label = format!("round {}/{rounds}  {stacks}", round + 1);
        let row = RowId {
            environment: pair.environment.clone(),
            stack: stacks.to_string(),
            probe: probe.kind(),
            case: None,
            round: Some(round),
            factor: None,
        };
        let goes_on = runner
            .trial(&label, &row, |context| run_round(&mut pair, &stacks, probe, round, context))?;
        if !goes_on {
            break;
        }
    }
    pair.close();
    FinishedRun::of(runner, show)
}

/// Refuses cases that these stacks cannot carry: here, unlike in a plan, each was asked for, and
/// a run that leaves one out would have measured less than it seems.
fn check_cases(stacks: &StackPair, probe: &ProbeSpec) -> Result<()> {
    let option = if probe.kind() == ProbeKind::Stream { "--pattern" } else { "--sizes" };
    match probe.cases().iter().find_map(|case| Some((case, case_obstacle(stacks, case)?))) {
        Some((case, reason)) => Err(Stop::usage(format!("{option}: {case}: {reason}"))),
        None => Ok(()),
    }
}

/// The CPUs that the user gave, if this process may use the client's.
fn affinity(args: &ClientArgs) -> Result<Option<Affinity>> {
    let affinity = args.affinity.affinity.as_deref().map(str::parse::<Affinity>).transpose();
    let affinity = affinity.map_err(Failure::from)?;
    if let Some(affinity) = &affinity {
        affinity.check_allowed(&nm_sys::cpu::allowed(), None).map_err(Failure::from)?;
    }
    Ok(affinity)
}

/// An agent in this process and the server's agent.
pub fn connect(address: &ServerAddress, port: Option<u16>) -> Result<Pair> {
    let port = match (address.port, port) {
        (Some(one), Some(other)) if one != other => {
            let message = format!("port {one} of {address} and --port {other} are not the same");
            return Err(Stop::usage(message));
        }
        (one, other) => one.or(other).unwrap_or(DEFAULT_PORT),
    };
    let unknown = |why: &str| {
        Failure::new(FailureKind::Peer, format!("cannot find the host {address}: {why}"))
            .hint("check the name, or give an IP address")
    };
    let found = address.resolve(port).map_err(|error| unknown(&error.to_string()))?;
    let mut connected = Err(unknown("it has no address"));
    for one in found {
        connected = Handle::connect("the server", one).map(|server| (server, one.ip()));
        if connected.is_ok() {
            break;
        }
    }
    let (server, ip) = connected?;
    let client = Handle::local("the client")?;
    let own = server.connection().map_or(ip, |(own, _)| own.ip());
    Ok(Pair::over_network(&address.to_string(), (client, server), (own, ip))?)
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
            let trial::Outcome { measured, skipped, .. } = outcome;
            TrialResult::Completed(Completed { measured, skipped, ..Completed::default() })
        }
        Err(ended) => {
            let trial::Interrupted { completed, case, mut failure } = *ended;
            if failure.kind == FailureKind::Peer && failure.hint.is_none() {
                failure = failure.hint("see why at the server, start it again, and repeat");
            }
            TrialResult::Failed { measured: completed.measured, case, failure }
        }
    }
}
