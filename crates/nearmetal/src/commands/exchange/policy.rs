//! `nearmetal exchange policy`: lets policies activate cells and move instruments of a running
//! network. Each decision is a line: in JSON for programs, as a sentence for people. So are the
//! latencies between sites that the decisions are based on, whenever they have changed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use nm_operate::policy_runner::{Decided, PolicyRunner, Settings};
use nm_operate::sites::{LatencyInUse, LatencyOrigin, SiteLatency};
use nm_report::units;
use nm_sys::{clock, text_file};
use schemars::JsonSchema;
use serde::Serialize;

use crate::campaign::interrupt;
use crate::cli::exchange::PolicyArgs;
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// Longest sleep between two looks at Ctrl-C.
const NAP: Duration = Duration::from_millis(50);

/// Most bytes of a file of settings.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// A line that is printed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum PolicyLine<'a> {
    /// A decision.
    Decided(&'a Decided),
    /// The latencies between sites that the policies take from now on.
    Latencies {
        /// When, ns on this machine's monotonic clock.
        at_ns: u64,
        /// Each pair of sites.
        latencies: &'a [LatencyInUse],
    },
}

impl Document for PolicyLine<'_> {
    const NAME: &'static str = "exchange-policy";
}

/// Runs policies until they are stopped.
pub fn run(args: &PolicyArgs) -> Result<Exit> {
    let interrupted = interrupt::flag()?;
    let network = status::network(&args.access)?;
    let settings = args.settings.as_deref().map_or_else(|| Ok(Settings::default()), read)?;
    let mut runner = PolicyRunner::new(&network, &settings, args.dry_run)?;
    let every = Duration::from_millis(args.every_ms);
    let end_ns = args.seconds.map(|seconds| clock::monotonic_ns() + seconds * 1_000_000_000);
    let is_over = || {
        interrupted.load(Ordering::Relaxed)
            || end_ns.is_some_and(|end_ns| clock::monotonic_ns() >= end_ns)
    };
    let begin_ns = clock::monotonic_ns();
    let (mut last_ns, mut latencies) = (begin_ns, vec![]);
    while !is_over() {
        let now_ns = clock::monotonic_ns();
        let decided = runner.step(now_ns, Duration::from_nanos(now_ns - last_ns), None)?;
        if !LatencyInUse::are_alike(runner.latencies(), &latencies) {
            latencies = runner.latencies().to_vec();
            show_latencies(&latencies, (begin_ns, now_ns), args.access.format.format)?;
        }
        for decided in decided {
            show(&decided, begin_ns, args.access.format.format)?;
        }
        last_ns = now_ns;
        let next_ns = now_ns + every.as_nanos() as u64;
        while !is_over() && clock::monotonic_ns() < next_ns {
            std::thread::sleep(NAP.min(every));
        }
    }
    let pending = runner.finish(|| interrupted.load(Ordering::Relaxed));
    if args.access.format.format == Format::Text {
        let (moved, failed) = (runner.moved, runner.failed);
        output::text(&format!("{moved} instruments moved, {failed} moves failed\n"))?;
    }
    if pending > 0 {
        let moves = units::plural(pending, "move", "moves");
        output::message(&format!("{moves} had not ended; the network carries on with them"));
    }
    Ok(Exit::Pass)
}

/// Reads a file of settings.
pub fn read(path: &std::path::Path) -> Result<Settings> {
    let wrong = |why: String| Stop::usage(format!("{}: {why}", path.display()));
    let text = text_file::read(path, SETTINGS_BYTES_MAX).map_err(|e| wrong(e.to_string()))?;
    toml::from_str(&text).map_err(|error| wrong(error.message().to_string()))
}

fn show(decided: &Decided, begin_ns: u64, format: Format) -> Result<()> {
    if format == Format::Json {
        return output::json_line(&PolicyLine::Decided(decided));
    }
    let at_s = decided.at_ns.saturating_sub(begin_ns) as f64 / 1e9;
    let dry = if decided.is_executed { "" } else { "would " };
    let what = &decided.decision.action;
    output::text(&format!("{at_s:8.1} s  {dry}{what}: {}\n", decided.sentence))
}

fn show_latencies(
    latencies: &[LatencyInUse],
    (begin_ns, at_ns): (u64, u64),
    format: Format,
) -> Result<()> {
    if format == Format::Json {
        return output::json_line(&PolicyLine::Latencies { at_ns, latencies });
    }
    let at_s = at_ns.saturating_sub(begin_ns) as f64 / 1e9;
    latencies.iter().try_for_each(|known| output::text(&sentence(at_s, known)))
}

/// A latency and its origin, as a line for people.
fn sentence(at_s: f64, known: &LatencyInUse) -> String {
    let SiteLatency { from, to, latency_us } = known.latency;
    let origin = match known.origin {
        LatencyOrigin::Measured => "measured",
        LatencyOrigin::Settings => "from the settings",
    };
    format!("{at_s:8.1} s  latency from site {from} to site {to}: {latency_us:.1} µs, {origin}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_shown_with_its_origin() {
        let latency = SiteLatency { from: 0, to: 2, latency_us: 1_109.52 };
        let text = |origin| sentence(0.04, &LatencyInUse { latency, origin });
        let expected = "     0.0 s  latency from site 0 to site 2: 1109.5 µs, measured\n";
        assert_eq!(text(LatencyOrigin::Measured), expected);
        assert!(text(LatencyOrigin::Settings).ends_with(": 1109.5 µs, from the settings\n"));
    }
}
