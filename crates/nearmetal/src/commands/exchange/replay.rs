//! `nearmetal exchange replay` and `make-day`: a day of another venue as load, and synthetic days.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use nm_model::ExchangeSpec;
use nm_replay::make::{self, DaySettings};
use nm_replay::{Day, Window, csv_day, itch_day};
use nm_run::search::{Bracket, Plan};
use nm_stats::quantile::samples_needed;

use crate::campaign::finished::FinishedRun;
use crate::campaign::show::Show;
use crate::cli::exchange::{MakeDayArgs, ReplayArgs};
use crate::cli::format::Format;
use crate::commands::exchange::{search, setup};
use crate::exit::{Exit, Stop};
use crate::output;

/// Requests of a window as a multiple of the samples that p99 needs.
const SAMPLES_SPARE: f64 = 1.1;

/// Rest of the window behind its last request, s.
const AFTER_S: f64 = 0.01;

/// Finds the largest multiple of a day's speed that a network carries.
pub fn run(args: &ReplayArgs) -> Result<Exit> {
    let day = read(args)?;
    let least = SAMPLES_SPARE * samples_needed(99.0) as f64;
    if (day.requests as f64) < least {
        return Err(Stop::usage(format!(
            "this part of the day has {} requests, and p99 needs {least:.0}: take a longer one",
            day.requests
        )));
    }
    let (seconds, mean_per_s) = (day.seconds().max(0.001), day.flow_rate());
    let (from, to) = (args.speed.from, args.speed.to);
    if seconds / from > 3_500.0 {
        return Err(Stop::usage("a round lasts at most 3500 s: take a shorter part of the day"));
    }
    let base = at_speed(&setup::from_args(&args.network, mean_per_s, seconds)?, &day, from);
    let plan = Plan {
        start_per_s: mean_per_s * from,
        least_per_s: mean_per_s * from,
        most_per_s: mean_per_s * to,
        ratio: 1.0 + args.within / 100.0,
        repeats: args.rounds,
        ..Plan::default()
    };
    let limit_ms = args.network.limit;
    let row = setup::plan(&base, None, plan.repeats, None)?;
    let mut runner = setup::begin(&args.network, &base, row, false)?;
    let bracket = search::run_rounds(&mut runner, &plan, &base, limit_ms, |setup, rate_per_s| {
        *setup = at_speed(setup, &day, rate_per_s / mean_per_s);
    })?;
    let sentence = sentence(&day, &bracket, limit_ms, mean_per_s);
    runner.recorder.note("replay", &sentence);
    let run = FinishedRun::of(runner, Show::of(&args.network.show)?)?;
    match run.show.format {
        Format::Json => output::json(&search::report(&bracket, limit_ms))?,
        Format::Text => output::text(&format!("{}\n{sentence}\n", run.summary()))?,
    }
    run.check_aborted()?;
    Ok(search::exit(&bracket))
}

fn read(args: &ReplayArgs) -> Result<Day> {
    let length_ns = (args.seconds * 1e9) as u64;
    let window = Window { from_ns: args.from, length_ns };
    let is_table = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.trim_end_matches(".gz").ends_with(".csv")
    };
    let day = match is_table(&args.file) {
        true => csv_day::read(&args.file, window),
        false => itch_day::read(&args.file, window),
    };
    day.map_err(|error| Stop::usage(error.to_string()))
}

/// A setup whose load is the day so many times as fast.
fn at_speed(setup: &nm_run::round::Setup, day: &Day, speed: f64) -> nm_run::round::Setup {
    let spec = ExchangeSpec {
        rate_per_s: day.flow_rate() * speed,
        seconds: day.seconds() / speed + AFTER_S,
        warmup_ms: day.begin_ns / 1_000_000,
        ..setup.spec.clone()
    };
    let flow = Some(Arc::new(day.at_speed(speed)));
    nm_run::round::Setup { spec, replay_flow: flow, ..setup.clone() }
}

/// What a search has found, in multiples of the day.
fn sentence(day: &Day, bracket: &Bracket, limit_ms: f64, mean_per_s: f64) -> String {
    let times = |rate_per_s: f64| format!("{:.2}x", rate_per_s / mean_per_s);
    let found = match (&bracket.carried, &bracket.not_carried) {
        (Some(low), Some(high)) => format!(
            "the network carries {} of it under {limit_ms} ms (in {} of {} rounds), not {} ({} of \
             {})",
            times(low.rate_per_s),
            low.within_limit,
            low.rounds,
            times(high.rate_per_s),
            high.within_limit,
            high.rounds
        ),
        (Some(low), None) => format!(
            "the network carries every speed up to {} of it under {limit_ms} ms, the highest that \
             was tried ({} of {} rounds)",
            times(low.rate_per_s),
            low.within_limit,
            low.rounds
        ),
        (None, Some(high)) => format!(
            "the network does not even carry {} of it under {limit_ms} ms",
            times(high.rate_per_s)
        ),
        (None, None) => "no speed was carried, and none was not".to_string(),
    };
    let found = match &bracket.too_late {
        None => found,
        Some(late) => format!(
            "inconclusive: the generator needs a processor of its own, or another host than the \
             network, to send {} of it on time: it was up to {:.1} ms late there; so far: {found}",
            times(late.rate_per_s),
            late.late_ns / 1e6
        ),
    };
    let left_out = match day.left_out {
        0 => String::new(),
        count => format!(", {count} messages were left out"),
    };
    format!(
        "this part of the day has {} requests in {:.1} s: {mean_per_s:.0} a second on average, {} \
         in the busiest second{left_out}; {found}",
        day.requests,
        day.seconds(),
        day.peak_per_s
    )
}

/// Writes a synthetic day.
pub fn make_day(args: &MakeDayArgs) -> Result<Exit> {
    let MakeDayArgs { file, seconds, rate, stocks, caused, seed } = args;
    if !(*rate > 0.0 && *rate <= 1e6 && (0.0..0.95).contains(caused)) {
        return Err(Stop::usage("--rate must be above 0 and at most 1e6, --caused 0 to 0.95"));
    }
    let settings = DaySettings {
        seed: *seed,
        seconds: seconds.div_ceil(7) * 7,
        rate_per_s: *rate,
        stocks: *stocks,
        caused: *caused,
    };
    let context = || format!("{} cannot be written", file.display());
    let mut plain = BufWriter::new(File::create(file).with_context(context)?);
    let counts = if file.extension().is_some_and(|it| it == "gz") {
        let mut packed = GzEncoder::new(plain, Compression::fast());
        let counts = make::write(&settings, &mut packed).with_context(context)?;
        packed.finish().and_then(|mut file| file.flush()).with_context(context)?;
        counts
    } else {
        let counts = make::write(&settings, &mut plain).with_context(context)?;
        plain.flush().with_context(context)?;
        counts
    };
    output::text(&format!(
        "a synthetic day, of no venue: {} messages in {} s, {} orders shown, {} trades, {} \
         orders cancelled\n",
        counts.messages, settings.seconds, counts.adds, counts.trades, counts.deletes
    ))?;
    Ok(Exit::Pass)
}
