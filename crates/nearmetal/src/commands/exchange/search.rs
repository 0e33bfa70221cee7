//! `nearmetal exchange search`: the highest rate of a network that keeps the limit.

use std::fmt::Write as _;
use std::path::Path;
use std::result::Result as StdResult;

use anyhow::Result;
use nm_campaign::trial::{Completed, TrialResult};
use nm_campaign::{Runner, exchange_round};
use nm_model::result::RoundData;
use nm_run::round::Setup;
use nm_run::search::{self, Bracket, Plan, RoundResult, Tried};
use nm_run::sla::{Sla, SlaViolation};
use nm_stats::quantile::samples_needed;
use schemars::JsonSchema;
use serde::Serialize;

use crate::campaign::finished::FinishedRun;
use crate::campaign::show::Show;
use crate::cli::exchange::SearchArgs;
use crate::cli::format::Format;
use crate::commands::exchange::setup;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// Requests a second for each mediator that the published study found best.
const PUBLISHED_PER_MEDIATOR: f64 = 5_000.0;

/// Requests of a round as a multiple of the samples that p99 needs: their number is random.
const SAMPLES_SPARE: f64 = 1.1;

pub fn run(args: &SearchArgs) -> Result<Exit> {
    let plan = search_plan(args)?;
    let base = setup::from_args(&args.network, plan.start_per_s, args.seconds)?;
    // Without targets: rates above the bracket are expected to break the limit.
    let row = setup::plan(&base, None, plan.repeats, None)?;
    let mut runner = setup::begin(&args.network, &base, row, false)?;
    let limit_ms = args.network.limit;
    let bracket = run_rounds(&mut runner, &plan, &base, limit_ms, |setup, rate_per_s| {
        setup.spec.rate_per_s = rate_per_s;
    })?;
    let sentence = sentence(&bracket, args.network.limit);
    runner.recorder.note("search", &sentence);
    let run = FinishedRun::of(runner, Show::of(&args.network.show)?)?;
    match run.show.format {
        Format::Json => output::json(&report(&bracket, args.network.limit))?,
        Format::Text => output::text(&format!("{}\n{sentence}\n", run.summary()))?,
    }
    run.check_aborted()?;
    Ok(exit(&bracket))
}

/// The exit code of a search.
pub fn exit(bracket: &Bracket) -> Exit {
    match bracket.carried {
        _ if bracket.is_interrupted => Exit::Interrupted,
        _ if bracket.too_late.is_some() => Exit::Inconclusive,
        Some(_) => Exit::Pass,
        None => Exit::Fail,
    }
}

fn search_plan(args: &SearchArgs) -> Result<Plan> {
    let mediators = f64::from(args.network.nodes.mediators());
    let least_per_s = least_per_s(args.seconds);
    let usual_per_s = (PUBLISHED_PER_MEDIATOR * mediators).max(least_per_s).min(args.to);
    let start_per_s = args.from.unwrap_or(usual_per_s);
    if !(start_per_s >= 10.0 && args.to >= start_per_s && args.to <= 1e7) {
        return Err(Stop::usage(format!(
            "a search from {start_per_s} to {} requests a second is not possible: both must lie in \
             10 to 1e7, --from not above --to",
            args.to
        )));
    }
    if !(0.5..=100.0).contains(&args.within) {
        return Err(Stop::usage(format!("--within {} is not possible: 0.5 to 100 %", args.within)));
    }
    if start_per_s < least_per_s {
        return Err(Stop::usage(format!(
            "a search from {start_per_s} requests a second with rounds of {} s is not possible: \
             p99 needs {} samples; search from {least_per_s:.0} (--from), or measure for {:.1} s \
             (--seconds)",
            args.seconds,
            samples_needed(99.0),
            SAMPLES_SPARE * samples_needed(99.0) as f64 / start_per_s
        )));
    }
    let ratio = 1.0 + args.within / 100.0;
    let (most_per_s, repeats) = (args.to, args.rounds);
    Ok(Plan { start_per_s, least_per_s, most_per_s, ratio, repeats, ..Plan::default() })
}

/// The lowest rate at which a round of so many seconds has a p99.
fn least_per_s(seconds: f64) -> f64 {
    (SAMPLES_SPARE * samples_needed(99.0) as f64 / seconds).ceil().max(Plan::default().least_per_s)
}

/// Runs the rounds of a search, until the user ends it. `prepare` gives a round its rate.
pub fn run_rounds(
    runner: &mut Runner,
    plan: &Plan,
    base: &Setup,
    limit_ms: f64,
    prepare: impl Fn(&mut Setup, f64),
) -> Result<Bracket> {
    let sla = Sla::of_ms(limit_ms);
    let mut round = 0;
    search::search(plan, |rate_per_s| {
        let mut found = RoundResult::Beyond;
        let row = exchange_round::row(base, round);
        let goes_on = runner.trial("", &row, |context| {
            let folder = context.folder.unwrap_or(Path::new(""));
            let mut setup = setup::of_round(base, folder, round);
            prepare(&mut setup, rate_per_s);
            let result = exchange_round::run(&setup, round, context);
            if let TrialResult::Completed(completed) = &result {
                let judged = judge(&sla, completed);
                found = result_of(&sla, completed, judged.as_ref().err());
                let text = match (&judged, found) {
                    (Err(_), RoundResult::Late { by_ns }) => {
                        format!("does not count: the generator was {:.1} ms late", by_ns / 1e6)
                    }
                    (Err(why), _) => format!("broken: {why}"),
                    (Ok(()), _) => "kept".to_string(),
                };
                context.message(&format!("{rate_per_s:.0}/s  {text}"));
            }
            result
        })?;
        round += 1;
        Ok(goes_on.then_some(found))
    })
}

/// Why a round is not within the limit.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
enum OutsideLimit {
    /// It has figures, and one is beyond the limit.
    #[error(transparent)]
    Limit(#[from] SlaViolation),
    /// It has no figures.
    #[error("it has no round trips")]
    NoRoundTrips,
}

/// Whether the only round that was measured keeps the limit, or why not.
fn judge(sla: &Sla, completed: &Completed) -> StdResult<(), OutsideLimit> {
    match completed.measured.first().map(|measured| &measured.round.data) {
        Some(RoundData::Latency(data)) => Ok(sla.judge(data)?),
        _ => Err(OutsideLimit::NoRoundTrips),
    }
}

/// What a round shows that is within the limit, or outside for this reason.
fn result_of(sla: &Sla, completed: &Completed, outside: Option<&OutsideLimit>) -> RoundResult {
    let Some(outside) = outside else { return RoundResult::Within };
    let data = match completed.measured.first().map(|measured| &measured.round.data) {
        Some(RoundData::Latency(data)) => data,
        _ => return RoundResult::Beyond,
    };
    let is_lost = matches!(outside, OutsideLimit::Limit(SlaViolation::Lost { .. }));
    let figures = data.exchange.as_deref().filter(|_| !is_lost);
    let (es10_ns, p99_ns) =
        figures.map_or((None, None), |it| (it.lateness_es10_ns, it.lateness_p99_ns));
    match sla.is_late(es10_ns, p99_ns) {
        true => {
            let by_ns = es10_ns.unwrap_or(0.0).max(p99_ns.unwrap_or(0.0));
            RoundResult::Late { by_ns }
        }
        false => RoundResult::Beyond,
    }
}

/// The bracket as a sentence.
pub fn sentence(bracket: &Bracket, limit_ms: f64) -> String {
    let times = |tried: &Tried| format!("in {} of {} rounds", tried.within_limit, tried.rounds);
    let mut text = match (&bracket.carried, &bracket.not_carried) {
        (Some(low), Some(high)) => format!(
            "carried {:.0}/s under {limit_ms} ms {}, not {:.0}/s ({}); with 95 % confidence at \
             least {:.0} % of rounds at {:.0}/s keep it",
            low.rate_per_s,
            times(low),
            high.rate_per_s,
            times(high),
            low.share_lower_bound() * 100.0,
            low.rate_per_s
        ),
        (Some(low), None) => format!(
            "carried every rate up to {:.0}/s, the highest that was tried ({})",
            low.rate_per_s,
            times(low)
        ),
        (None, Some(high)) => {
            format!("did not even carry {:.0}/s under {limit_ms} ms", high.rate_per_s)
        }
        (None, None) => "no rate was carried, and none was not".to_string(),
    };
    if let Some(late) = &bracket.too_late {
        let Tried { rate_per_s, rounds, late, late_ns, .. } = *late;
        text = format!(
            "inconclusive: the generator needs a processor of its own, or another host than the \
             network, to send {rate_per_s:.0}/s on time: it was up to {:.1} ms late in {late} of \
             {} rounds there, too much for {limit_ms} ms; so far: {text}",
            late_ns / 1e6,
            rounds + late
        );
    } else if let (Some(low), Some(high)) = bracket.interval() {
        let _ = write!(text, "; all rounds up to {low:.0}/s keep it, none from {high:.0}/s on");
    }
    if bracket.is_interrupted {
        text += "; the search was interrupted";
    } else if !bracket.is_done && bracket.too_late.is_none() {
        text += "; the search ran out of rounds before the bracket was as close and as often tried \
                 as asked for";
    }
    text
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct SearchReport {
    limit_ms: f64,
    carried_per_s: Option<f64>,
    not_carried_per_s: Option<f64>,
    sure: Option<f64>,
    is_done: bool,
    is_interrupted: bool,
    /// From where on not every round keeps the limit, and from where on none does.
    interval_per_s: [Option<f64>; 2],
    /// The rate that the load generator did not manage, which ended the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    too_late_per_s: Option<f64>,
    tried: Vec<RateReport>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct RateReport {
    rate_per_s: f64,
    rounds: u32,
    kept: u32,
    /// Rounds that do not count, because the load generator was late.
    late: u32,
}

impl Document for SearchReport {
    const NAME: &'static str = "exchange-search";
}

pub fn report(bracket: &Bracket, limit_ms: f64) -> SearchReport {
    let rate = |tried: &Tried| RateReport {
        rate_per_s: tried.rate_per_s,
        rounds: tried.rounds,
        kept: tried.within_limit,
        late: tried.late,
    };
    let (low, high) = bracket.interval();
    SearchReport {
        interval_per_s: [low, high],
        too_late_per_s: bracket.too_late.map(|late| late.rate_per_s),
        limit_ms,
        carried_per_s: bracket.carried.map(|tried| tried.rate_per_s),
        not_carried_per_s: bracket.not_carried.map(|tried| tried.rate_per_s),
        sure: bracket.carried.map(|tried| tried.share_lower_bound()),
        is_done: bracket.is_done,
        is_interrupted: bracket.is_interrupted,
        tried: bracket.tried.iter().map(rate).collect(),
    }
}
