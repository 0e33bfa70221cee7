//! `nearmetal exchange search`: the highest rate of a network that keeps the limit.

use anyhow::Result;
use nm_exchange_lab::search::{self, Bracket, Plan, Tried};
use nm_exchange_lab::sla::Sla;
use nm_model::FailureKind;
use nm_model::result::{RoundData, RunState};
use nm_report::terminal;
use serde::Serialize;

use super::run::{self, Run, cancelled, of_round, row_of, setup};
use crate::cli::exchange::SearchArgs;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

/// Requests a second for each mediator that the published study found best.
const PUBLISHED_PER_MEDIATOR: f64 = 5_000.0;

pub fn run(args: &SearchArgs) -> Result<Exit> {
    let mediators = f64::from(args.network.nodes.mediators());
    let start_per_s = args.from.unwrap_or(PUBLISHED_PER_MEDIATOR * mediators);
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
    let ratio = 1.0 + args.within / 100.0;
    let repeats = args.rounds;
    let plan = Plan { start_per_s, most_per_s: args.to, ratio, repeats, ..Plan::default() };
    let base = setup(&args.network, start_per_s)?;
    let sla = Sla::of_ms(args.network.limit);
    // The bracket is the verdict: rates above it are meant to break the limit.
    let row = run::plan(&base, repeats, None)?;
    let mut run = Run::begin(&args.network, &base, row, false)?;
    let mut number = 0;
    let found = search::search(&plan, |rate_per_s| {
        if run.is_interrupted() {
            return Err(cancelled().into());
        }
        let mut setup = of_round(&base, &run.path, number);
        setup.spec.rate_per_s = rate_per_s;
        let (measured, trouble) =
            nm_lab::exchange::run(&setup, number, &run.options, &run.interrupted)?;
        number += 1;
        let judged = match &measured.round.data {
            RoundData::Latency(data) => sla.judge(data),
            RoundData::Throughput(_) => Err("it has no round trips".to_string()),
        };
        let words =
            judged.as_ref().err().map_or("kept".to_string(), |why| format!("broken: {why}"));
        output::message(&format!("{rate_per_s:.0}/s  {words}"));
        let row = row_of(&measured);
        run.recorder.add(vec![measured])?;
        for reason in trouble {
            run.recorder.failed(row.clone(), reason)?;
        }
        anyhow::Ok(judged.is_ok())
    });
    let (state, bracket) = match found {
        Ok(bracket) => (RunState::Complete, Some(bracket)),
        Err(error) => {
            let kind = error.downcast_ref::<nm_model::Failure>().map(|failure| failure.kind);
            match kind {
                Some(FailureKind::Cancelled) => (RunState::Interrupted, None),
                _ => return Err(error),
            }
        }
    };
    let sentence = bracket.as_ref().map(|bracket| sentence(bracket, args.network.limit));
    if let Some(sentence) = &sentence {
        run.recorder.note("search", sentence);
    }
    let result = run.recorder.finish(state, run.options.started.elapsed().as_secs_f64())?;
    let Some((bracket, sentence)) = bracket.zip(sentence) else { return Ok(Exit::Interrupted) };
    match args.network.format.format {
        Format::Json => output::json(&told(&bracket, args.network.limit))?,
        Format::Text => {
            let report = run.path.join(nm_report::folder::REPORT).display().to_string();
            let summary = terminal::summary(&result, &output::style(), Some(&report));
            output::data(&format!("{sentence}\n\n{summary}"))?;
        }
    }
    Ok(if bracket.carried.is_some() { Exit::Pass } else { Exit::Fail })
}

/// What was found, in words.
fn sentence(bracket: &Bracket, limit_ms: f64) -> String {
    let times = |tried: &Tried| format!("in {} of {} rounds", tried.kept, tried.rounds);
    let mut text = match (&bracket.carried, &bracket.broken) {
        (Some(low), Some(high)) => format!(
            "carried {:.0}/s under {limit_ms} ms {}, not {:.0}/s ({}); with 95 % confidence at \
             least {:.0} % of rounds at {:.0}/s keep it",
            low.rate_per_s,
            times(low),
            high.rate_per_s,
            times(high),
            low.sure() * 100.0,
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
        (None, None) => "no rate was tried".to_string(),
    };
    if !bracket.is_done {
        text += "; the search ran out of rounds before the bracket was as close and as often tried \
                 as asked for";
    }
    text
}

#[derive(Serialize)]
struct Told {
    limit_ms: f64,
    carried_per_s: Option<f64>,
    not_carried_per_s: Option<f64>,
    sure: Option<f64>,
    is_done: bool,
    tried: Vec<ToldRate>,
}

#[derive(Serialize)]
struct ToldRate {
    rate_per_s: f64,
    rounds: u32,
    kept: u32,
}

fn told(bracket: &Bracket, limit_ms: f64) -> Told {
    let rate = |tried: &Tried| ToldRate {
        rate_per_s: tried.rate_per_s,
        rounds: tried.rounds,
        kept: tried.kept,
    };
    Told {
        limit_ms,
        carried_per_s: bracket.carried.map(|tried| tried.rate_per_s),
        not_carried_per_s: bracket.broken.map(|tried| tried.rate_per_s),
        sure: bracket.carried.map(|tried| tried.sure()),
        is_done: bracket.is_done,
        tried: bracket.tried.iter().map(rate).collect(),
    }
}
