//! What the stand-alone servers and clients have in common: an agent that listens, and a run of one
//! probe between an agent in this process and one elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use jiff::Timestamp;
use nm_lab::affinity::Affinity;
use nm_lab::agent::{self, Handle, Notice};
use nm_lab::pair::Pair;
use nm_lab::trial::{self, Options};
use nm_model::result::RunState;
use nm_model::{
    Failure, FailureKind, Mode, ProbeSpec, Protocol, RunResult, Side, Stack, StackPair,
};
use nm_report::folder::ResultFolder;
use nm_report::terminal;

use crate::cli::format::Format;
use crate::cli::standalone::{ClientArgs, Muxer, ServerArgs};
use crate::exit::{Exit, Stop};
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::{interrupt, output};

/// Serves clients until it is ended by a signal, or after one client with `--once`.
pub fn serve(args: &ServerArgs) -> Result<Exit> {
    let every: IpAddr = match std::fs::metadata("/proc/net/if_inet6").is_ok() {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let bind = SocketAddr::new(args.bind.unwrap_or(every), args.port);
    agent::listen(bind, args.once, |notice| match notice {
        Notice::Listening(address) => {
            output::message(&format!("listening on {address}; Ctrl-C ends it"));
        }
        Notice::Connected(peer) => output::message(&format!("client {peer}")),
        Notice::Refused(peer) => output::message(&format!("sent {peer} away: busy with another")),
        Notice::Ended(peer, Ok(())) => output::message(&format!("client {peer} has gone")),
        Notice::Ended(peer, Err(failure)) => output::message(&format!("client {peer}: {failure}")),
    })?;
    Ok(Exit::Pass)
}

/// The way of waiting that the flags name.
pub fn mode(args: &ClientArgs) -> Mode {
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

/// An argument that is there unless a subcommand was given.
///
/// # Errors
/// Usage, if it is not there.
pub fn given<T>(argument: Option<T>) -> Result<T> {
    argument.ok_or_else(|| Stop::usage("name the server's address; see --help"))
}

/// Both ends' stacks: `protocol` with the mode that the flags name.
pub fn stacks(protocol: Protocol, args: &ClientArgs) -> StackPair {
    let client = Stack::new(protocol, mode(args));
    with_server_mode(client, args)
}

/// Both ends' stacks: the server's is the client's unless the flags say otherwise.
pub fn with_server_mode(client: Stack, args: &ClientArgs) -> StackPair {
    let server = Stack::new(client.protocol, args.server_mode.unwrap_or(client.mode));
    StackPair { client, server }
}

/// Measures `probe` in `rounds` rounds against the server at `address`. The second value is whether
/// every round was completed; if not, the user ended it.
pub fn measure(
    args: &ClientArgs,
    address: IpAddr,
    stacks: StackPair,
    probe: &ProbeSpec,
    rounds: u32,
) -> Result<(RunResult, Option<String>)> {
    if let Some(reason) = nm_lab::resolve::stack_unavailable_reason(&stacks.client) {
        return Err(Stop::usage(format!("{}: {reason}", stacks.client)));
    }
    let affinity: Option<Affinity> =
        args.affinity.as_deref().map(str::parse).transpose().map_err(Failure::from)?;
    let folder = args.out.as_ref().map(|out| ResultFolder::at(out)).transpose()?;
    let report = folder.as_ref().map(|folder| folder.report().display().to_string());
    let interrupted = interrupt::flag()?;
    let server = Handle::connect("the server", SocketAddr::new(address, args.port))?;
    let client = Handle::local("the client")?;
    let own = server.connection().map_or(address, |(own, _)| own.ip());
    let environment = address.to_string();
    let mut pair = Pair::over_network(&environment, (client, server), (own, address))?;
    let started = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut recorder = Recorder::new(&format!("{} to {address}", probe.kind()), &started, folder);
    for side in [Side::Client, Side::Server] {
        recorder.facts(environment.as_str(), side, pair.facts(side).clone());
    }
    let options = Options { affinity, raw_samples: args.raw, ..Options::new(1) };
    let mut progress = Progress::new(probe.duration_s() * f64::from(rounds));
    let mut state = RunState::Complete;
    for round in 0..rounds {
        progress.begin_named(&format!("round {}/{rounds}  {stacks}", round + 1));
        let mut show = |now: trial::Progress| progress.estimate(now.statistic, now.value);
        match trial::run(&mut pair, &stacks, probe, round, &options, &mut show, &interrupted) {
            Ok(outcome) => {
                for (case, reason) in &outcome.skipped {
                    progress.message(&format!("{case}: not available: {reason}"));
                }
                recorder.add(outcome.measured)?;
            }
            Err(ended) => {
                recorder.add(ended.completed.measured)?;
                if ended.failure.kind != FailureKind::Cancelled {
                    progress.finish();
                    return Err(ended.failure.into());
                }
                state = RunState::Interrupted;
                break;
            }
        }
        progress.advance(probe.duration_s());
    }
    progress.finish();
    pair.close();
    let result = recorder.finish(state, options.started.elapsed().as_secs_f64())?;
    Ok((result, report))
}

/// Writes a result the way that the flags ask for, and answers the exit code.
pub fn show(result: &RunResult, report: Option<&str>, format: Format) -> Result<Exit> {
    match format {
        Format::Json => output::json(result)?,
        Format::Text => output::data(&terminal::summary(result, &output::style(), report))?,
    }
    Ok(exit(result))
}

/// Without targets there is no verdict: what was measured to its end is a success.
pub fn exit(result: &RunResult) -> Exit {
    match result.state {
        RunState::Complete => Exit::Pass,
        RunState::Interrupted | RunState::Running => Exit::Interrupted,
    }
}
