//! The plan of `lab run`: the same probes in every environment.

use std::collections::BTreeSet;

use anyhow::Result;
use nm_model::limits::SpecError;
use nm_model::plan::{EnvironmentKind, TrialBlock};
use nm_model::probe::{Pattern, PingpongSpec, RrSpec, StreamSpec};
use nm_model::{
    Campaign, ComputeSpec, GuestSpec, JitterSpec, Layout, Plan, ProbeSpec, Stack, StackPair,
};

use crate::cli::lab::run::{LabRunArgs, RunEnvironment};
use crate::exit::Stop;

/// Jobs of the compute probe are as long as they are, so their number does not follow the time.
const COMPUTE_REPEATS: u32 = 2;

/// The environment of a word.
fn kind(environment: RunEnvironment) -> EnvironmentKind {
    match environment {
        RunEnvironment::Bare => EnvironmentKind::Netns,
        RunEnvironment::Wire => EnvironmentKind::VmWire,
        RunEnvironment::Vswitch => EnvironmentKind::VmSwitch,
        RunEnvironment::Vhost => EnvironmentKind::VmVhost,
        RunEnvironment::Sriov => EnvironmentKind::VmSriov,
    }
}

/// The plan.
///
/// # Errors
/// A number beyond its limits.
pub fn plan(args: &LabRunArgs) -> Result<Plan> {
    let every = [
        RunEnvironment::Bare,
        RunEnvironment::Wire,
        RunEnvironment::Vswitch,
        RunEnvironment::Vhost,
        RunEnvironment::Sriov,
    ];
    let chosen = if args.env.is_empty() { &every[..] } else { &args.env[..] };
    let environments: Vec<EnvironmentKind> = chosen.iter().copied().map(kind).collect();
    let guests = GuestSpec {
        execution: args.execution,
        pairs: args.pairs,
        cpus: args.guest_cpus,
        memory_mib: args.memory_mib,
        kernel: args.kernel.clone(),
        nics: args.nic.clone(),
        ..GuestSpec::default()
    };
    guests.check().map_err(|error| Stop::usage(error.to_string()))?;
    let blocks = trials(&environments, args)?;
    let plan = Plan {
        name: "lab".to_string(),
        summary: "the same probes on the host and in pairs of virtual machines".to_string(),
        rounds: args.rounds,
        seed: 1,
        references: vec![],
        trials: blocks,
        targets: vec![],
        comparisons: vec![],
        machine: None,
        guests: Some(guests),
        hosts: None,
        attached: None,
        factors: vec![],
        subplans: vec![],
    };
    check(&plan).map_err(|error| Stop::usage(error.to_string()))?;
    Ok(plan)
}

fn check(plan: &Plan) -> Result<(), SpecError> {
    let rows = plan.rows();
    rows.iter().try_for_each(|row| row.probe().check(row.stacks.wire_protocol()))
}

/// The trials of every environment. Rows of environments that were not asked for are left out where
/// they cannot run.
fn trials(environments: &[EnvironmentKind], args: &LabRunArgs) -> Result<Vec<TrialBlock>> {
    let seconds = args.seconds;
    let stacks = |names: &[&str]| -> Result<Vec<StackPair>> {
        names.iter().map(|name| Ok(name.parse::<StackPair>()?)).collect()
    };
    let optional = args.env.is_empty();
    let block = |stacks: Vec<StackPair>, probe: ProbeSpec| TrialBlock {
        environments: environments.to_vec(),
        stacks,
        optional,
        primary: false,
        probe,
    };
    let sizes = vec![64, 1024];
    // Both sizes together take the time of a trial.
    let max_ms = ((seconds * 1e3 / sizes.len() as f64) as u64).max(1);
    let pingpong = PingpongSpec { sizes, max_ms, min_iterations: 10, ..PingpongSpec::default() };
    let one_way = Pattern { flows: 1, bidirectional: false };
    let both_ways = Pattern { flows: 2 * args.pairs, bidirectional: true };
    let stream = StreamSpec {
        patterns: vec![if args.pairs > 1 { both_ways } else { one_way }],
        seconds,
        omit_ms: (seconds * 200.0) as u64,
        max_cv_percent: 20.0,
        ..StreamSpec::default()
    };
    let rr = RrSpec { seconds, ..RrSpec::default() };
    let one: Layout = "1x1".parse()?;
    let compute =
        ComputeSpec { layouts: vec![one], repeats: COMPUTE_REPEATS, ..ComputeSpec::default() };
    let jitter = JitterSpec { seconds, ..JitterSpec::default() };
    let cpu = vec![StackPair::same(Stack::CPU)];
    Ok(vec![
        block(stacks(&["tcp-spin", "udp-spin", "shm-spin"])?, ProbeSpec::Pingpong(pingpong)),
        block(stacks(&["tcp-blocking"])?, ProbeSpec::Stream(stream)),
        block(stacks(&["tcp-blocking"])?, ProbeSpec::Rr(rr)),
        block(cpu.clone(), ProbeSpec::Compute(compute)),
        block(cpu, ProbeSpec::Jitter(jitter)),
    ])
}

/// Why environments of the plan are left out, a clause for each.
pub fn reasons(campaign: &Campaign) -> BTreeSet<String> {
    let rows = campaign.not_available.iter();
    rows.map(|row| format!("{}: not available: {}", row.environment, row.reason)).collect()
}
