//! `nearmetal fleet hunt`: which hosts are the best, each measured by this program as a child.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread::sleep;

use anyhow::Result;
use nm_fleet::FleetHost;
use nm_fleet::hunt::{Hunt, HuntResult, HuntRules};
use nm_fleet::pairs::Pair;
use nm_fleet::result::FleetRequest;
use nm_fleet::schedule::{Ended, Trial};
use nm_model::Outcome;
use nm_model::result::RunState;
use nm_report::units;
use nm_sys::clock::Moment;

use super::children::{Children, LINES_EVERY, NAP};
use super::folder::FleetFolder;
use super::input;
use crate::campaign::interrupt;
use crate::cli::fleet::{FleetHuntArgs, HuntFigure};
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

/// The word for the trials of a hunt in the request of its folder.
pub const HUNT: &str = "hunt";

impl HuntFigure {
    fn name(self) -> &'static str {
        match self {
            HuntFigure::Median => "median",
            HuntFigure::P99 => "p99",
        }
    }
}

pub fn run(args: &FleetHuntArgs) -> Result<Exit> {
    let hosts = input::read_hosts(&args.hosts)?;
    if hosts.len() <= args.keep {
        return Err(Stop::usage(format!(
            "--keep {} of {}: nobody would be stopped; name more hosts or keep fewer",
            args.keep,
            units::plural(hosts.len(), "host", "hosts")
        )));
    }
    let request = request(args, hosts);
    let trial_s = input::trial_s(&args.plan, &request)?;
    let folder = FleetFolder::create(args.out.as_deref(), &request)?;
    let rules =
        HuntRules { keep: args.keep, rounds: args.rounds, indifference_percent: args.indifference };
    output::message(&promise(&request, rules, trial_s));
    let mut children = Children::new(&folder, &request, trial_s, BTreeMap::new());
    let mut trials = Trials {
        hunt: Hunt::new(request.hosts.len(), rules, args.parallel),
        figure: args.figure,
        series: None,
    };
    let state = trials.run(&mut children)?;
    let found = trials.found(&request, rules, state);
    folder.write_hunt(&found)?;
    show(args, &found)?;
    match (found.state, found.n_trials) {
        (RunState::Complete, 0) => {
            let message =
                format!("nothing could be measured; the reasons are in {}", folder.shown());
            Err(Stop::with(Exit::Environment, message))
        }
        (RunState::Complete, _) => Ok(found.outcome.into()),
        _ => Ok(Exit::Interrupted),
    }
}

fn request(args: &FleetHuntArgs, hosts: Vec<FleetHost>) -> FleetRequest {
    FleetRequest {
        plan: args.plan.clone(),
        pairs: HUNT.to_string(),
        both_ways: false,
        seed: 1,
        parallel: args.parallel,
        controller: None,
        hosts,
    }
}

/// `hunt of 3 among 20 hosts, plan two-hosts: at most 240 trials, 8 at once, in at most 8 min`.
fn promise(request: &FleetRequest, rules: HuntRules, trial_s: f64) -> String {
    let n_all = request.hosts.len() * rules.rounds as usize;
    let at_once = request.parallel.min(request.hosts.len());
    format!(
        "hunt of {} among {}, plan {}: at most {}, {at_once} at once, in about {} at most",
        rules.keep,
        units::plural(request.hosts.len(), "host", "hosts"),
        request.plan,
        units::plural(n_all, "trial", "trials"),
        units::duration((n_all.div_ceil(at_once) as f64 * trial_s).round())
    )
}

fn show(args: &FleetHuntArgs, found: &HuntResult) -> Result<()> {
    match args.format.format {
        Format::Json => output::json(found),
        Format::Text => output::text(&nm_report::hunt::text(found, &output::style())),
    }
}

/// The trials of a hunt.
struct Trials {
    hunt: Hunt,
    figure: HuntFigure,
    /// The series of the first trial, which all others must have.
    series: Option<String>,
}

impl Trials {
    /// The result so far.
    fn found(&self, request: &FleetRequest, rules: HuntRules, state: RunState) -> HuntResult {
        let is_enough = state == RunState::Complete && self.hunt.kept().len() == rules.keep;
        HuntResult {
            nearmetal_version: nm_ssh::VERSION.to_string(),
            plan: request.plan.clone(),
            figure: self.figure.name().to_string(),
            series: self.series.clone(),
            rules,
            state,
            outcome: if is_enough { Outcome::Pass } else { Outcome::Inconclusive },
            n_trials: self.hunt.n_trials(),
            n_trials_alike: request.hosts.len() * rules.rounds as usize,
            candidates: self.hunt.found(&request.hosts, self.figure.name()),
        }
    }

    /// Starts trials and takes their ends, until the hunt or the user ends it.
    fn run(&mut self, children: &mut Children<'_>) -> Result<RunState> {
        let interrupted = interrupt::flag()?;
        let mut last_line = Moment::now();
        while !self.hunt.is_done() {
            if interrupted.load(Ordering::Relaxed) {
                children.end();
                return Ok(RunState::Interrupted);
            }
            for at in self.hunt.start() {
                let trial = Trial { id: at, pair: Pair { client: at, server: at } };
                if let Some(ended) = children.start(trial)? {
                    self.take(at, &ended, children);
                }
            }
            sleep(NAP);
            for (trial, ended) in children.ended() {
                self.take(trial.id, &ended, children);
            }
            if last_line.elapsed() >= LINES_EVERY {
                last_line = Moment::now();
                let (n_live, round) = self.hunt.live();
                output::message(&format!(
                    "round {round}: {} left, {} done",
                    units::plural(n_live, "candidate", "candidates"),
                    units::plural(self.hunt.n_trials(), "trial", "trials")
                ));
            }
        }
        Ok(RunState::Complete)
    }

    fn take(&mut self, at: usize, ended: &Ended, children: &mut Children<'_>) {
        let reason = match ended {
            Ended::Failed { reason, .. } => return self.hunt.failed(at, reason),
            Ended::Measured => "it has no such figure",
        };
        let known = children.measured.remove(&Pair { client: at, server: at });
        let Some(known) = known else { return self.hunt.failed(at, reason) };
        let series = self.series.get_or_insert_with(|| known.series.clone());
        if *series != known.series {
            let reason = format!("its first series is {}, that of others {series}", known.series);
            return self.hunt.failed(at, &reason);
        }
        match known.figures_ns[self.figure as usize] {
            Some(figure) => self.hunt.measured(at, figure),
            None => self.hunt.failed(at, reason),
        }
    }
}
