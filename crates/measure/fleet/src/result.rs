//! The result of a fleet: what each pair measured, what stands out, and the verdicts.

use std::collections::BTreeSet;
use std::path::PathBuf;

use nm_model::Outcome;
use nm_model::result::RunState;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::effects::{self, Observation, Outlier};
use crate::facts::{self, HostFacts};
use crate::hosts::FleetHost;
use crate::pairs::Pair;
use crate::schedule::Fate;

/// The figures that are judged for outliers.
pub const METRICS: [&str; 2] = ["median", "p99"];

/// What a run of a fleet was asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetRequest {
    /// The plan of each pair.
    pub plan: String,
    /// Which pairs: `all`, `ring`, `star` or `sample:K`.
    pub pairs: String,
    /// Whether each pair is measured in both directions.
    pub both_ways: bool,
    /// Seed of the sample and of simulated fleets.
    pub seed: u64,
    /// Most trials at once.
    pub parallel: usize,
    /// Socket of the controller at which the hosts' agents are; they are reached by ssh if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<PathBuf>,
    /// The hosts.
    pub hosts: Vec<FleetHost>,
}

/// What one pair has measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The series of the figures, such as `ssh/tcp-spin pingpong 64 B`.
    pub series: String,
    /// The figures of [`METRICS`], ns.
    pub figures_ns: [Option<f64>; 2],
    /// Verdict of its plan.
    pub outcome: Outcome,
    /// Facts of the client's and of the server's host.
    pub facts: [Option<HostFacts>; 2],
}

/// The result of a fleet, `fleet.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetResult {
    /// Version of nearmetal.
    pub nearmetal_version: String,
    /// What was asked for; its hosts are in `hosts`.
    pub plan: String,
    /// Which pairs.
    pub pairs_chosen: String,
    /// Whether each pair was measured in both directions.
    pub both_ways: bool,
    /// Seed of the sample and of simulated fleets.
    pub seed: u64,
    /// Whether every pair was tried.
    pub state: RunState,
    /// Verdict of the fleet: that of all pairs, and inconclusive if one has no result.
    pub outcome: Outcome,
    /// The hosts, in the order of the list.
    pub hosts: Vec<HostResult>,
    /// The trials, in the order of the rounds.
    pub pairs: Vec<PairResult>,
    /// The figures that were judged for outliers.
    pub figures: Vec<FigureResult>,
}

/// A host of a fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostResult {
    /// The host.
    pub host: FleetHost,
    /// Verdict: pass if all its pairs pass, fail if more than half of them fail. Pairs with a host
    /// that was set aside do not count.
    pub outcome: Outcome,
    /// Why it was set aside, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<String>,
    /// Its pairs with a result.
    pub n_measured: usize,
    /// Its effect on each figure, by name; absent without pairs.
    pub ratios: Vec<Ratio>,
    /// Facts by name, as one of its pairs found them.
    pub facts: HostFacts,
}

/// How many times as long as with the median host a figure is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ratio {
    /// Which figure.
    pub metric: String,
    /// The ratio.
    pub ratio: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
}

/// A trial of a fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairResult {
    /// Name of the host that sends first.
    pub client: String,
    /// Name of the host that answers.
    pub server: String,
    /// Verdict of the plan; absent without a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Why there is no result, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Median, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_ns: Option<f64>,
    /// 99th percentile, ns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
}

/// A figure over the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FigureResult {
    /// Which figure.
    pub metric: String,
    /// Of which series.
    pub series: String,
    /// The median pair, ns.
    pub fleet_ns: f64,
    /// Standard deviation of what hosts do not explain, %.
    pub scale_percent: f64,
    /// Hosts that stand out, the slowest first.
    pub hosts: Vec<OutlierResult>,
    /// Pairs that stand out, the slowest first.
    pub pairs: Vec<OutlierResult>,
}

/// A host or a pair that stands out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutlierResult {
    /// The host, or both hosts of the pair.
    pub names: Vec<String>,
    /// How many times as long as without its effect.
    pub ratio: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end of the 95 % interval.
    pub high: f64,
    /// That, and what sets it apart, in sentences.
    pub sentence: String,
}

/// A trial's end, as the schedule and its result tell it.
pub type Trial = (Pair, Fate, Option<Measured>);

/// Makes the result of what was measured. `aside` has the hosts that were set aside.
pub fn result(
    request: &FleetRequest,
    version: &str,
    state: RunState,
    trials: &[Trial],
    aside: &[(usize, String)],
) -> FleetResult {
    let names: Vec<&str> = request.hosts.iter().map(|host| host.name.as_str()).collect();
    let facts = facts_of(request.hosts.len(), trials);
    let mut ratios = vec![vec![]; names.len()];
    let mut figures = vec![];
    for metric in 0..METRICS.len() {
        figures.extend(figure(request, metric, trials, &facts, &mut ratios));
    }
    let pairs: Vec<PairResult> = trials.iter().map(|trial| pair(&names, trial)).collect();
    let outcomes = |is_counted: &dyn Fn(&Pair, &Fate) -> bool| -> Vec<Outcome> {
        let counted =
            trials.iter().zip(&pairs).filter(|((pair, fate, _), _)| is_counted(pair, fate));
        counted.map(|(_, pair)| pair.outcome.unwrap_or(Outcome::Inconclusive)).collect()
    };
    // That another host was set aside says nothing about this one.
    let of_host = |host: usize| {
        outcomes(&|pair, fate| {
            let is_others = matches!(fate, Fate::NotTried(aside) if *aside != host);
            pair.ends().contains(&host) && !is_others
        })
    };
    let host = |(at, host): (usize, &FleetHost)| HostResult {
        host: host.clone(),
        outcome: outcome_of_host(&of_host(at)),
        set_aside: aside.iter().find(|(it, _)| *it == at).map(|(_, reason)| reason.clone()),
        n_measured: trials.iter().filter(|it| it.2.is_some() && it.0.ends().contains(&at)).count(),
        ratios: std::mem::take(&mut ratios[at]),
        facts: facts[at].clone().unwrap_or_default(),
    };
    FleetResult {
        nearmetal_version: version.to_string(),
        plan: request.plan.clone(),
        pairs_chosen: request.pairs.clone(),
        both_ways: request.both_ways,
        seed: request.seed,
        state,
        outcome: Outcome::all(outcomes(&|_, _| true)),
        hosts: request.hosts.iter().enumerate().map(host).collect(),
        pairs,
        figures,
    }
}

/// A slow host fails; one whose partner fails does not. Nothing is known of one without pairs.
fn outcome_of_host(outcomes: &[Outcome]) -> Outcome {
    if outcomes.is_empty() {
        return Outcome::Inconclusive;
    }
    let n_failed = outcomes.iter().filter(|one| **one == Outcome::Fail).count();
    match Outcome::all(outcomes.iter().copied()) {
        Outcome::Fail if n_failed * 2 <= outcomes.len() => Outcome::Inconclusive,
        outcome => outcome,
    }
}

fn pair(names: &[&str], (pair, fate, measured): &Trial) -> PairResult {
    let reason = match fate {
        Fate::Measured => None,
        Fate::Failed(reason) => Some(reason.clone()),
        Fate::NotTried(host) => Some(format!("not tried, as {} was set aside", names[*host])),
        Fate::Waiting | Fate::Running => Some("not tried, as the run was ended before".to_string()),
    };
    let figure = |metric: usize| measured.as_ref().and_then(|one| one.figures_ns[metric]);
    PairResult {
        client: names[pair.client].to_string(),
        server: names[pair.server].to_string(),
        outcome: measured.as_ref().map(|one| one.outcome),
        reason,
        median_ns: figure(0),
        p99_ns: figure(1),
    }
}

fn facts_of(n_hosts: usize, trials: &[Trial]) -> Vec<Option<HostFacts>> {
    let mut facts = vec![None; n_hosts];
    for (pair, _, measured) in trials {
        let Some(measured) = measured else { continue };
        for (end, found) in pair.ends().into_iter().zip(&measured.facts) {
            if facts[end].is_none() {
                facts[end].clone_from(found);
            }
        }
    }
    facts
}

/// The figures of unordered pairs: both directions are one observation, their mean. A pair that
/// lacks the series is left out.
fn observations(
    request: &FleetRequest,
    metric: usize,
    trials: &[Trial],
    series: &str,
) -> Vec<Observation> {
    let mut of_pair: std::collections::BTreeMap<[usize; 2], Vec<f64>> = Default::default();
    for (pair, _, measured) in trials {
        let of_series = measured.as_ref().filter(|one| one.series == series);
        let figure_ns = of_series.and_then(|one| one.figures_ns[metric]);
        let Some(figure_ns) = figure_ns.filter(|ns| ns.is_finite() && *ns > 0.0) else { continue };
        let mut ends = pair.ends();
        ends.sort_unstable();
        of_pair.entry(ends).or_default().push(figure_ns.ln());
    }
    let group = |host: usize| request.hosts[host].groups.first();
    let one = |(ends, logs): ([usize; 2], Vec<f64>)| Observation {
        ends,
        is_across: group(ends[0]) != group(ends[1]),
        log: logs.iter().sum::<f64>() / logs.len() as f64,
    };
    of_pair.into_iter().map(one).collect()
}

/// One figure over the fleet; none without pairs. Adds each host's ratio.
fn figure(
    request: &FleetRequest,
    metric: usize,
    trials: &[Trial],
    facts: &[Option<HostFacts>],
    ratios: &mut [Vec<Ratio>],
) -> Option<FigureResult> {
    let n_hosts = request.hosts.len();
    let series = trials.iter().find_map(|trial| trial.2.as_ref()).map(|one| one.series.clone())?;
    let all = observations(request, metric, trials, &series);
    let mut logs: Vec<f64> = all.iter().map(|one| one.log).collect();
    logs.sort_by(f64::total_cmp);
    let middle = nm_stats::describe::median_of_sorted(&logs)?;
    let fit = effects::fit(n_hosts, &all);
    let limits = effects::limits(n_hosts, &all, request.seed);
    let found = effects::outliers(&all, &fit, limits);
    for (host, ratios) in ratios.iter_mut().enumerate() {
        if let Some((ratio, [low, high])) = fit.ratio(host, limits) {
            ratios.push(Ratio { metric: METRICS[metric].to_string(), ratio, low, high });
        }
    }
    let slow: BTreeSet<usize> = found.hosts.iter().map(|one| one.at).collect();
    let of_host = |one: &Outlier| {
        let sentence = host_sentence(request, METRICS[metric], one, facts, &slow);
        outlier(one, vec![request.hosts[one.at].name.clone()], sentence)
    };
    let of_pair = |one: &Outlier| {
        let names = all[one.at].ends.map(|end| request.hosts[end].name.clone());
        let sentence = format!(
            "between {} and {} the {} is {}, while both do well with others: check what joins them",
            names[0],
            names[1],
            METRICS[metric],
            times(one, "what both hosts explain")
        );
        outlier(one, names.to_vec(), sentence)
    };
    Some(FigureResult {
        metric: METRICS[metric].to_string(),
        series,
        fleet_ns: middle.exp(),
        scale_percent: fit.scale.exp_m1() * 100.0,
        hosts: found.hosts.iter().map(of_host).collect(),
        pairs: found.pairs.iter().map(of_pair).collect(),
    })
}

fn outlier(one: &Outlier, names: Vec<String>, sentence: String) -> OutlierResult {
    let [low, high] = one.interval;
    OutlierResult { names, ratio: one.ratio, low, high, sentence }
}

/// `1.40 times the fleet's median (95 %: 1.31 to 1.50)`.
fn times(one: &Outlier, of: &str) -> String {
    let [low, high] = one.interval;
    format!("{:.2} times {of} (95 %: {low:.2} to {high:.2})", one.ratio)
}

fn host_sentence(
    request: &FleetRequest,
    metric: &str,
    one: &Outlier,
    facts: &[Option<HostFacts>],
    slow: &BTreeSet<usize>,
) -> String {
    let name = |host: usize| request.hosts[host].name.as_str();
    let mut sentence =
        format!("{}: its {metric} is {}", name(one.at), times(one, "the fleet's median"));
    for found in facts::differences(facts, one.at, slow) {
        let also: Vec<&str> = found.also.iter().map(|host| name(*host)).collect();
        let who = match also.as_slice() {
            [] => "it alone has".to_string(),
            also => format!("it and {} alone have", also.join(", ")),
        };
        sentence += &format!(
            "; {who} {} `{}`, where {} of {} others have `{}`",
            found.fact, found.value, found.n_usual, found.n_others, found.usual
        );
    }
    sentence
}

impl FleetResult {
    /// Hosts that were set aside, with the reason of each.
    pub fn set_aside(&self) -> impl Iterator<Item = (&str, &str)> {
        let of = |one: &'_ HostResult| -> bool { one.set_aside.is_some() };
        let all = self.hosts.iter().filter(move |one| of(one));
        all.map(|one| (one.host.name.as_str(), one.set_aside.as_deref().unwrap_or_default()))
    }

    /// Pairs with a result.
    pub fn n_measured(&self) -> usize {
        self.pairs.iter().filter(|pair| pair.outcome.is_some()).count()
    }

    /// What stands out, in sentences: hosts, then pairs, of each figure.
    pub fn sentences(&self) -> Vec<&str> {
        let all = self.figures.iter().flat_map(|one| one.hosts.iter().chain(&one.pairs));
        all.map(|one| one.sentence.as_str()).collect()
    }

    /// The hosts by their effect on the first figure, the slowest first.
    pub fn ranking(&self) -> Vec<&HostResult> {
        let mut all: Vec<&HostResult> =
            self.hosts.iter().filter(|host| !host.ratios.is_empty()).collect();
        all.sort_by(|a, b| b.ratios[0].ratio.total_cmp(&a.ratios[0].ratio));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;
    use crate::pairs::{Pairs, rounds};

    fn request(n: usize) -> FleetRequest {
        FleetRequest {
            plan: "two-hosts".into(),
            pairs: "all".into(),
            both_ways: false,
            seed: 1,
            parallel: 4,
            controller: None,
            hosts: parse_list(&format!("h[1-{n}]")).unwrap(),
        }
    }

    fn facts(governor: &str) -> Option<HostFacts> {
        Some([("governor".to_string(), governor.to_string())].into())
    }

    /// All pairs; those of host 4 take 1.5 times as long, and that host saves power.
    fn trials(n: usize) -> Vec<Trial> {
        let all = rounds(n, Pairs::All, false, 0).unwrap().concat();
        let trial = |pair: Pair| {
            let slow = if pair.ends().contains(&4) { 1.5 } else { 1.0 };
            let noise = 1.0 + ((pair.client * 7 + pair.server * 13) % 11) as f64 / 300.0;
            let of = |end: usize| facts(if end == 4 { "powersave" } else { "performance" });
            let measured = Measured {
                series: "ssh/tcp-spin pingpong 64 B".into(),
                figures_ns: [Some(10_000.0 * slow * noise), Some(20_000.0 * noise)],
                outcome: if slow > 1.0 { Outcome::Fail } else { Outcome::Pass },
                facts: pair.ends().map(of),
            };
            (pair, Fate::Measured, Some(measured))
        };
        all.into_iter().map(trial).collect()
    }

    #[test]
    fn a_slow_host_is_a_sentence_with_its_interval_and_what_it_alone_has() {
        let found = result(&request(12), "1", RunState::Complete, &trials(12), &[]);
        let sentences = found.sentences();
        assert_eq!(sentences.len(), 1, "{sentences:?}");
        assert!(sentences[0].starts_with("h5: its median is 1.5"), "{sentences:?}");
        assert!(sentences[0].contains("times the fleet's median (95 %: 1.4"), "{sentences:?}");
        let fact = "it alone has governor `powersave`, where 11 of 11 others have `performance`";
        assert!(sentences[0].contains(fact), "{sentences:?}");
        assert_eq!(found.ranking()[0].host.name, "h5");
        assert_eq!((found.outcome, found.hosts[4].outcome), (Outcome::Fail, Outcome::Fail));
        assert_eq!(found.hosts[0].outcome, Outcome::Inconclusive);
    }

    #[test]
    fn a_host_that_was_set_aside_never_passes() {
        let mut all = trials(6);
        all.retain(|trial| !trial.0.ends().contains(&4));
        let absent = |client| (Pair { client, server: 4 }, Fate::NotTried(4), None);
        all.extend([0, 1, 2, 3, 5].map(absent));
        let aside = [(4, "no route".to_string())];
        let found = result(&request(6), "1", RunState::Complete, &all, &aside);
        assert_eq!(found.outcome, Outcome::Inconclusive);
        assert_eq!(found.set_aside().collect::<Vec<_>>(), [("h5", "no route")]);
        assert_eq!((found.n_measured(), found.hosts[4].n_measured), (10, 0));
        let outcomes: Vec<Outcome> = found.hosts.iter().map(|host| host.outcome).collect();
        let [pass, none] = [Outcome::Pass, Outcome::Inconclusive];
        assert_eq!(outcomes, [pass, pass, pass, pass, none, pass], "it says nothing of others");
        let reason = found.pairs.last().unwrap().reason.as_deref();
        assert_eq!(reason, Some("not tried, as h5 was set aside"));
        let nothing = result(&request(6), "1", RunState::Interrupted, &[], &[]);
        assert_eq!((nothing.outcome, nothing.figures.len()), (Outcome::Inconclusive, 0));
    }
}
