//! `nearmetal qualify`: plan, campaign, verdict, report.

use anyhow::Result;
use nm_campaign::environments::EnvironmentPool;
use nm_campaign::recorder::GateFn;
use nm_campaign::schedule::Schedule;
use nm_campaign::{Destination, OnFailure, RunName, Runner};
use nm_host::snapshot::{self, SnapshotOptions};
use nm_lab::affinity::Affinity;
use nm_lab::trial::Options;
use nm_lab::{environment, resolve};
use nm_model::environment::Distance;
use nm_model::finding::Audit;
use nm_model::plan::{EnvironmentKind, PlanRow};
use nm_model::snapshot::Workload;
use nm_model::{
    AttachedSpec, Campaign, Failure, HostsSpec, Plan, PlanPart, ProbeKind, RowFilter, RowId, Trial,
};
use nm_report::folder::ResultFolder;
use nm_report::units;

use crate::campaign;
use crate::campaign::finished::FinishedRun;
use crate::campaign::show::Show;
use crate::cli::QualifyArgs;
use crate::commands::{baseline, dry_run};
use crate::exit::{Exit, Stop};
use crate::plans;

pub fn run(args: &QualifyArgs) -> Result<Exit> {
    let show = Show::of(&args.show)?;
    check_label(args.label.as_deref())?;
    let mut plan = plans::load(&args.plan)?;
    if let Some(rounds) = args.rounds {
        plan.rounds = rounds;
    }
    plan.hosts = hosts_of(&plan, args)?;
    plan.attached = attached_of(&plan, args)?;
    let affinity: Option<Affinity> =
        args.affinity.affinity.as_deref().map(str::parse).transpose().map_err(Failure::from)?;
    let is_here = |row: &PlanRow<'_>| row.environment.distance() != Distance::Hosts;
    if let (Some(affinity), true) = (&affinity, plan.rows().iter().any(is_here)) {
        // Both ends run on this machine.
        let allowed = nm_sys::cpu::allowed();
        affinity.check_allowed(&allowed, Some(&allowed)).map_err(Failure::from)?;
    }
    let part = part_of(&plan, args)?;
    if !args.dry_run {
        check_hosts(&plan, part.as_ref())?;
    }
    let campaign = resolve(plan, part);
    let gate = gate_of(args)?;
    if args.dry_run {
        dry_run::show(&campaign, show.format)?;
        if let Some(out) = &args.out {
            ResultFolder::check_unoccupied(out)?;
        }
        return Ok(Exit::Pass);
    }
    let name = RunName::WithTime(nm_host::facts().host.name);
    let destination = Destination::folder_or_new(args.out.as_deref());
    let options = Options { affinity, raw_samples: args.raw, ..Options::new(campaign.plan.seed) };
    let mut runner = campaign::begin(name, &destination, options, OnFailure::Continue, show)?;
    runner.recorder.plan(&campaign);
    runner.recorder.label(args.label.clone());
    runner.recorder.gate(gate);
    if has_end_here(&campaign) {
        runner.recorder.audit(audit_of_this_machine());
    }
    let pool = EnvironmentPool::new(args.ipv6)
        .changing_machine(args.change_machine)
        .with_guests(campaign.plan.guests.as_ref())
        .with_hosts(campaign.plan.hosts.as_ref())
        .with_attached(campaign.plan.attached.as_ref());
    run_trials(&mut runner, &campaign, pool)?;
    let run = FinishedRun::of(runner, show)?;
    run.show()?;
    run.check_measured()?;
    Ok(run.exit())
}

/// The gate of `--baseline`, whose files are read before anything is measured.
fn gate_of(args: &QualifyArgs) -> Result<Option<GateFn>> {
    let Some(from) = &args.baseline else { return Ok(None) };
    let accepted = baseline::accepted(from)?;
    let options = baseline::gate_options(&args.gate);
    Ok(Some(Box::new(move |run| accepted.gate(&baseline::of_run(run), &options))))
}

/// Most characters of a label.
const LABEL_CHARS_MAX: usize = 80;

/// A label is shown in a line of text, so it must fit one and must not change the terminal.
fn check_label(label: Option<&str>) -> Result<()> {
    let Some(label) = label else { return Ok(()) };
    let n_chars = label.chars().count();
    let fault = if label.chars().any(char::is_control) {
        "has a control character; use letters, digits and signs".to_string()
    } else if label.trim().is_empty() {
        "is empty; name the site, or leave it out".to_string()
    } else if n_chars > LABEL_CHARS_MAX {
        format!("has {n_chars} characters; {LABEL_CHARS_MAX} are the most")
    } else {
        return Ok(());
    };
    Err(Stop::usage(format!("--label {fault}")))
}

/// The campaign of a plan on this machine.
pub fn resolve(plan: Plan, part: Option<PlanPart>) -> Campaign {
    let guests = plan.guests.clone().unwrap_or_default();
    Campaign::resolve_part(plan, part, |environment, stacks, probe| {
        let of_row = resolve::unavailable_reason(environment, stacks, probe);
        let of_guests = || match environment.has_guests() {
            true => environment::spec_unavailable_reason(environment, &guests),
            false => None,
        };
        of_row.map(|reason| reason.to_string()).or_else(|| of_guests().map(|r| r.to_string()))
    })
}

/// Whether an end of a trial runs on this machine.
fn has_end_here(campaign: &Campaign) -> bool {
    let Plan { hosts, attached, .. } = &campaign.plan;
    let is_here = |trial: &Trial| match trial.environment {
        EnvironmentKind::Ssh => hosts.as_ref().is_none_or(|hosts| hosts.client.ssh.is_none()),
        EnvironmentKind::VmAttached => attached.as_ref().is_none_or(|it| it.client.is_none()),
        _ => true,
    };
    campaign.trials.iter().any(is_here)
}

/// The audit at the start of a run with an end on this machine; the threads that measure are taken
/// to run on the CPUs that agents choose by themselves.
pub fn audit_of_this_machine() -> Audit {
    let workload = Workload { cpus: nm_sys::cpu::default_pair(), ..Workload::default() };
    let options = SnapshotOptions { workload, ..SnapshotOptions::default() };
    nm_audit::audit(&snapshot::take(&options))
}

/// Runs every trial, unless the user ends the run.
pub fn run_trials(
    runner: &mut Runner,
    campaign: &Campaign,
    mut environments: EnvironmentPool,
) -> Result<()> {
    let trials = units::plural(campaign.trials.len(), "trial", "trials");
    let what = format!("plan {}, {trials}", campaign.plan.name);
    runner.show_progress(&what, Schedule::of_campaign(campaign));
    for trial in &campaign.trials {
        let Trial { environment, stack, probe, round, factor } = trial;
        let (round, rounds) = (round + 1, campaign.plan.rounds);
        let with = factor.as_ref().map_or(String::new(), |factor| format!(" with {}", factor.name));
        let label = format!("round {round}/{rounds}  {environment}/{stack} {}{with}", probe.kind());
        let mut row = RowId::of_trial(trial);
        if probe.kind() == ProbeKind::Exchange {
            row = row.with_case(probe.cases().first().copied());
        }
        let goes_on = runner.trial(&label, &row, |context| environments.run(trial, context))?;
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// The hosts of the environment `ssh`: those of the plan, and instead of them those of the command
/// line.
fn hosts_of(plan: &Plan, args: &QualifyArgs) -> Result<Option<HostsSpec>> {
    if args.server.is_none() && args.client.is_none() && args.controller.is_none() {
        return Ok(plan.hosts.clone());
    }
    if !plan.rows().iter().any(|row| row.environment == EnvironmentKind::Ssh) {
        return Err(Stop::usage(format!(
            "--server, --client and --controller are for rows of the environment ssh, and plan \
             {} has none; plan two-hosts has some",
            plan.name
        )));
    }
    let of_plan = plan.hosts.clone();
    let server = args.server.clone().or_else(|| of_plan.as_ref().map(|all| all.server.clone()));
    let server = server.ok_or_else(|| {
        Stop::usage(format!("--client needs --server, as plan {} has no [hosts]", plan.name))
    })?;
    let controller = args.controller.clone();
    let controller = controller.or_else(|| of_plan.as_ref()?.controller.clone());
    let client = args.client.clone().or_else(|| of_plan.map(|all| all.client));
    let hosts = HostsSpec { client: client.unwrap_or_default(), server, controller };
    hosts.check().map_err(|fault| Stop::usage(fault.to_string()))?;
    Ok(Some(hosts))
}

/// The guests of the environment `vm-attached`: those of the plan, and instead of them those of the
/// command line.
fn attached_of(plan: &Plan, args: &QualifyArgs) -> Result<Option<AttachedSpec>> {
    let Some(attached) = AttachedSpec::of_guests(&args.guest) else {
        return Ok(plan.attached.clone());
    };
    if args.guest.len() > 2 {
        let n_guests = args.guest.len();
        return Err(Stop::usage(format!("--guest was given {n_guests} times; two are the most")));
    }
    if !plan.rows().iter().any(|row| row.environment == EnvironmentKind::VmAttached) {
        return Err(Stop::usage(format!(
            "--guest is for rows of the environment vm-attached, and plan {} has none; plan \
             attached has some",
            plan.name
        )));
    }
    attached.check().map_err(|fault| Stop::usage(fault.to_string()))?;
    Ok(Some(attached))
}

/// Checks that rows of the environments `ssh` and `vm-attached` have hosts and guests.
fn check_hosts(plan: &Plan, part: Option<&PlanPart>) -> Result<()> {
    let rows = plan.rows();
    let find = |kind: EnvironmentKind| {
        let is_taken = |row: &&PlanRow<'_>| part.is_none_or(|part| row.is_taken_by(&part.only));
        rows.iter().filter(is_taken).find(|row| row.environment == kind)
    };
    if let (Some(row), None) = (find(EnvironmentKind::Ssh), &plan.hosts) {
        return Err(Stop::usage(format!(
            "plan {} has the row {}, which runs on two hosts, and no [hosts]; name them by \
             `--server DEST[=ADDRESS]` and `--client DEST[=ADDRESS]`, or write [hosts] into it",
            plan.name,
            row.path()
        )));
    }
    if let (Some(row), None) = (find(EnvironmentKind::VmAttached), &plan.attached) {
        return Err(Stop::usage(format!(
            "plan {} has the row {}, which runs in a guest that others made, and no [attached]; \
             name it by `--guest PLACE[=ADDRESS]`, or write [attached] into it",
            plan.name,
            row.path()
        )));
    }
    Ok(())
}

/// The part of the plan that `--only` chooses; none if that is all of it.
fn part_of(plan: &Plan, args: &QualifyArgs) -> Result<Option<PlanPart>> {
    let only = RowFilter::parse(&args.only)
        .map_err(|unknown| Stop::usage(format!("--only: {unknown}")))?;
    let rows = plan.rows();
    let n_taken = rows.iter().filter(|row| row.is_taken_by(&only)).count();
    if n_taken == 0 {
        return Err(Stop::usage(format!(
            "--only {only} leaves no row of plan {}; `--dry-run` without it lists them",
            plan.name
        )));
    }
    let is_part = n_taken < rows.len();
    Ok(is_part.then_some(PlanPart { only, is_judged_alone: args.only_targets }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// The campaign of plan quick with `--only`, every row being available.
    fn campaign(words: &str) -> Result<Campaign> {
        let cli = Cli::try_parse_from(["nearmetal", "qualify", "--only", words]).unwrap();
        let Command::Qualify(args) = cli.command else { panic!("not qualify") };
        let plan = plans::load("quick")?;
        let part = part_of(&plan, &args)?;
        Ok(Campaign::resolve_part(plan, part, |_, _, _| None))
    }

    fn rows(words: &str) -> Vec<String> {
        let campaign = campaign(words).unwrap();
        let first = campaign.trials.iter().filter(|trial| trial.round == 0);
        first.map(|t| format!("{}/{} {}", t.environment, t.stack, t.probe.kind())).collect()
    }

    #[test]
    fn filters_of_one_kind_add_up_and_kinds_intersect() {
        assert_eq!(rows("netns,tcp-spin,pingpong"), ["netns/tcp-spin pingpong"]);
        let udp = rows("udp,netns,bridge");
        assert!(udp.len() >= 2 && udp.iter().all(|row| row.contains("/udp-")), "{udp:?}");
        let accel = rows("accel,loopback");
        assert!(!accel.is_empty() && accel.iter().all(|row| row.contains("/accel+")), "{accel:?}");
    }

    #[test]
    fn filter_of_all_rows_is_no_part() {
        assert!(campaign("netns").unwrap().part.is_some());
        let all = campaign("loopback,netns,bridge,guests").unwrap();
        assert_eq!((all.part, all.not_available.len()), (None, 0));
    }

    #[test]
    fn a_label_fits_one_line() {
        for good in [None, Some("rack 7, Zürich"), Some(&*"x".repeat(LABEL_CHARS_MAX))] {
            check_label(good).unwrap();
        }
        let long = "x".repeat(LABEL_CHARS_MAX + 1);
        for (bad, words) in [("a\nb", "control"), ("\u{1b}[2J", "control"), (" ", "empty")]
            .into_iter()
            .chain([(long.as_str(), "81 characters; 80 are the most")])
        {
            let error = check_label(Some(bad)).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(crate::exit::of_error(&error), Exit::Usage);
        }
    }

    #[test]
    fn filter_without_rows_is_refused() {
        assert!(campaign("ssh").unwrap_err().to_string().contains("leaves no row"));
        let error = campaign("tcp-spn").unwrap_err().to_string();
        assert!(error.ends_with("`tcp-spn`, did you mean `tcp-spin`?"), "{error}");
    }
}
