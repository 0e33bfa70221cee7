//! From the findings of a target to its outcome: each of them must meet it, or for each case one.

use nm_model::class::{Bypass, StackClass};
use nm_model::plan::{PlanTarget, Scope};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{SeriesKey, Statistic};
use nm_model::stack::{Mode, Stack, StackPair};
use nm_model::verdict::Outcome;

use crate::finding::{Finding, subject_of, tightest};
use crate::planned::NAMED_MAX;
use crate::wording::{at_case, count, list};

/// The outcome of a target with its reason.
pub(crate) struct Decision {
    pub outcome: Outcome,
    pub reason: String,
    /// Whether the target is met, but only by stacks that need both ends on one host.
    pub is_same_host_only: bool,
    /// The series that decides.
    pub decisive: Option<String>,
}

impl Decision {
    /// No series and no row that counts.
    pub(crate) fn nothing_covered(reason: String) -> Decision {
        Decision::new(Outcome::Inconclusive, reason)
    }

    fn new(outcome: Outcome, reason: String) -> Decision {
        Decision { outcome, reason, is_same_host_only: false, decisive: None }
    }

    fn by(mut self, decisive: Option<&Finding>) -> Decision {
        self.decisive = decisive.map(|finding| finding.evidence.series.clone());
        self
    }
}

/// Decides a target by its scope.
pub(crate) fn decide(wanted: &PlanTarget, findings: &[Finding]) -> Decision {
    match wanted.scope {
        Scope::Every => every(wanted, findings),
        Scope::Any => any(wanted, findings),
    }
}

fn every(wanted: &PlanTarget, findings: &[Finding]) -> Decision {
    let outcome = Outcome::all(findings.iter().map(|finding| finding.evidence.outcome));
    let decisive: Vec<&Finding> =
        findings.iter().filter(|finding| finding.evidence.outcome == outcome).collect();
    let Some(first) = tightest(decisive.iter().copied()) else {
        return Decision::new(Outcome::Inconclusive, "nothing was judged".to_string());
    };
    let (subject, found) = (subject_of(wanted, &first.key), &first.evidence.reason);
    let sentence = match first.is_missing {
        true => format!("{subject} has no figure: {found}"),
        false if first.evidence.value.is_none() => format!("{subject}: {found}"),
        false => format!("{subject} is {found}"),
    };
    let all = count(findings.len(), "series", "series");
    let reason = match (outcome, decisive.len()) {
        (_, 1) if findings.len() == 1 => sentence,
        (Outcome::Pass, _) => format!("all {all} meet it; the nearest: {sentence}"),
        (_, 1) => sentence,
        (Outcome::Fail, n) => format!("{sentence}; {n} of {all} fail"),
        (Outcome::Inconclusive, n) => format!("{sentence}; {n} of {all} show nothing"),
    };
    let is_same_host_only = outcome == Outcome::Pass && findings.iter().all(is_same_host);
    let reason = match is_same_host_only {
        true => format!("{reason}; on this host only"),
        false => reason,
    };
    Decision { is_same_host_only, ..Decision::new(outcome, reason) }.by(Some(first))
}

fn is_same_host(finding: &Finding) -> bool {
    finding.key.class() == Some(StackClass::SameHost)
}

/// The findings of one case.
type OfCase<'a> = Vec<&'a Finding>;

/// The findings by case. Each statistic of a case (service time, from intended send) is judged on
/// its own.
fn by_case<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Vec<OfCase<'a>> {
    type CaseId = (ProbeKind, Case, Statistic);
    let mut cases: Vec<(CaseId, OfCase<'a>)> = vec![];
    for finding in findings {
        let key = &finding.key;
        let case = (key.probe, key.case, key.statistic);
        match cases.iter_mut().find(|(known, _)| *known == case) {
            Some((_, of_case)) => of_case.push(finding),
            None => cases.push((case, vec![finding])),
        }
    }
    cases.into_iter().map(|(_, of_case)| of_case).collect()
}

/// The outcome of a case of which one finding is enough.
fn outcome_of(of_case: &[&Finding]) -> Outcome {
    Outcome::any(of_case.iter().map(|finding| finding.evidence.outcome))
}

fn any(wanted: &PlanTarget, findings: &[Finding]) -> Decision {
    let cases = by_case(findings);
    let outcome = Outcome::all(cases.iter().map(|of_case| outcome_of(of_case)));
    if outcome == Outcome::Pass {
        return met(wanted, findings, &cases);
    }
    let Some(worst) = decisive(&cases, outcome) else {
        return Decision::new(Outcome::Inconclusive, "nothing was judged".to_string());
    };
    let (subject, found) = (subject_of(wanted, &worst.key), &worst.evidence.reason);
    let (stacks, case) = (stacks_of(wanted), at_case(&worst.key));
    let reason = match outcome {
        Outcome::Fail => format!("no {stacks} meets it {case}; the best: {subject} is {found}"),
        _ => format!("no {stacks} is shown to meet it {case}; {subject}: {found}"),
    };
    Decision::new(outcome, reason).by(Some(worst))
}

/// Of the cases with this outcome, each by the finding that comes nearest to the target, the one
/// that is furthest from it.
fn decisive<'a>(cases: &[OfCase<'a>], outcome: Outcome) -> Option<&'a Finding> {
    let headroom = |finding: &Finding| finding.headroom.unwrap_or(0.0);
    let best =
        cases.iter().filter(|of_case| outcome_of(of_case) == outcome).filter_map(|of_case| {
            let decided = of_case.iter().filter(|finding| finding.evidence.outcome == outcome);
            decided.max_by(|a, b| headroom(a).total_cmp(&headroom(b)))
        });
    tightest(best.copied())
}

/// ``kernel stack of `netns/*` ``.
fn stacks_of(wanted: &PlanTarget) -> String {
    let classes: Vec<&str> = wanted.classes.iter().map(|class| class.name()).collect();
    let stack = match classes.is_empty() {
        true => "stack".to_string(),
        false => format!("{} stack", classes.join(" or ")),
    };
    format!("{stack} of `{}`", wanted.on)
}

/// A target that is met: by which stack, and whether it is met between hosts too.
fn met(wanted: &PlanTarget, findings: &[Finding], cases: &[OfCase<'_>]) -> Decision {
    let cheapest_of_all = cheapest(wanted, cases);
    let between = by_case(findings.iter().filter(|finding| !is_same_host(finding)));
    let is_met_between = between.len() == cases.len()
        && between.iter().all(|of_case| outcome_of(of_case) == Outcome::Pass);
    let needs_same_host = cheapest_of_all.is_same_host;
    let (sentence, decisive) = (cheapest_of_all.sentence, cheapest_of_all.decisive);
    if is_met_between {
        let reason = match needs_same_host {
            true => {
                let other = cheapest(wanted, &between).sentence;
                format!("{sentence}; it works on this host only, between hosts {other}")
            }
            false => sentence,
        };
        return Decision::new(Outcome::Pass, reason).by(decisive);
    }
    let is_meant = wanted.classes == [StackClass::SameHost];
    let reason = match is_meant {
        true => format!("{sentence}; on this host only"),
        false => format!(
            "met only by stacks that need both ends on one host: {sentence}; {}",
            best_between(wanted, &between)
        ),
    };
    Decision { is_same_host_only: true, ..Decision::new(Outcome::Pass, reason) }.by(decisive)
}

/// How near the stacks that work between hosts come to the target.
fn best_between(wanted: &PlanTarget, between: &[OfCase<'_>]) -> String {
    let found = [Outcome::Fail, Outcome::Inconclusive]
        .into_iter()
        .find_map(|outcome| decisive(between, outcome));
    match found {
        Some(best) => format!(
            "between hosts the best is: {} is {}",
            subject_of(wanted, &best.key),
            best.evidence.reason
        ),
        None => "no stack that works between hosts was measured in each case".to_string(),
    }
}

/// What the two ends of a stack need of the machine, the end that needs more first. Stacks are
/// compared by bypass before waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Needs {
    bypass: [Bypass; 2],
    waiting: [Waiting; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Waiting {
    Sleeping,
    Multiplexed,
    KernelSpins,
    Spinning,
}

impl Waiting {
    fn of_end(stack: &Stack) -> Waiting {
        match stack.mode {
            Mode::Blocking => Waiting::Sleeping,
            Mode::Poll | Mode::Select | Mode::Epoll => Waiting::Multiplexed,
            Mode::BusyPoll => Waiting::KernelSpins,
            Mode::Spin | Mode::SelectSpin | Mode::PollSpin | Mode::EpollSpin => Waiting::Spinning,
        }
    }
}

impl Needs {
    /// Those of a stack by its name; none if it is not known, as of another tool's.
    fn of_stack(stack: &str) -> Option<Needs> {
        let pair: StackPair = stack.parse().ok()?;
        let ends = [pair.client, pair.server];
        let mut needs = Needs {
            bypass: ends.map(|end| end.bypass()),
            waiting: ends.map(|end| Waiting::of_end(&end)),
        };
        needs.bypass.sort_by(|a, b| b.cmp(a));
        needs.waiting.sort_by(|a, b| b.cmp(a));
        Some(needs)
    }

    /// `no bypass, no spinning`.
    fn words(self) -> String {
        let bypass = match self.bypass[0] {
            Bypass::None => "no bypass",
            Bypass::SharedMemory => "shared memory of one host",
            Bypass::AfXdp => "AF_XDP",
            Bypass::Launcher => "a launcher that replaces its sockets",
        };
        let waiting = match self.waiting[0] {
            Waiting::Sleeping | Waiting::Multiplexed => "no spinning",
            Waiting::KernelSpins => "busy polling by the kernel",
            Waiting::Spinning => "a CPU that spins",
        };
        format!("{bypass}, {waiting}")
    }
}

/// The stack that meets a target at least cost.
struct Cheapest<'a> {
    sentence: String,
    /// Of its cases the one nearest to the limit.
    decisive: Option<&'a Finding>,
    /// Whether it needs both ends on one host, in a case at least.
    is_same_host: bool,
}

/// The stack of least cost that meets a target: one for all cases if there is one, else one for
/// each.
fn cheapest<'a>(wanted: &PlanTarget, cases: &[OfCase<'a>]) -> Cheapest<'a> {
    let is_same_stack =
        |a: &SeriesKey, b: &SeriesKey| a.environment == b.environment && a.stack == b.stack;
    let has_passed = |finding: &&&Finding| finding.evidence.outcome == Outcome::Pass;
    let passing = |of_case: &[&Finding], key: &SeriesKey| {
        of_case.iter().filter(has_passed).any(|finding| is_same_stack(&finding.key, key))
    };
    let mut candidates: Vec<&'a Finding> =
        cases.iter().flatten().filter(has_passed).copied().collect();
    candidates.sort_by_key(|finding| {
        let needs = Needs::of_stack(&finding.key.stack);
        (needs.is_none(), needs, finding.key.stack.clone())
    });
    let is_for_all =
        |finding: &&&Finding| cases.iter().all(|of_case| passing(of_case, &finding.key));
    let Some(winner) = candidates.iter().find(is_for_all) else {
        let of_each: Vec<&'a Finding> = cases
            .iter()
            .filter_map(|of_case| {
                let is_of_case = |finding: &&&Finding| finding.key.case == of_case[0].key.case;
                candidates.iter().find(is_of_case).copied()
            })
            .collect();
        let each: Vec<String> = of_each
            .iter()
            .map(|finding| format!("{} {}", finding.key.path(), at_case(&finding.key)))
            .collect();
        return Cheapest {
            sentence: format!("each case has a stack that meets it: {}", list(&each, NAMED_MAX)),
            decisive: tightest(of_each.iter().copied()),
            is_same_host: of_each.into_iter().any(is_same_host),
        };
    };
    let key = &winner.key;
    let of_winner = cases.iter().flatten().copied().filter(|one| is_same_stack(&one.key, key));
    let decisive = tightest(of_winner);
    let nearest = decisive.map_or_else(String::new, |finding| {
        format!(": {} is {}", subject_of(wanted, &finding.key), finding.evidence.reason)
    });
    let needs = Needs::of_stack(&key.stack).map(Needs::words);
    let needs = needs
        .map_or_else(String::new, |words| format!(" and needs least of the machine ({words})"));
    Cheapest {
        sentence: format!("{} meets it{needs}{nearest}", key.path()),
        decisive,
        is_same_host: is_same_host(winner),
    }
}
