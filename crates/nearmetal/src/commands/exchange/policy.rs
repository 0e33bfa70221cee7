//! `nearmetal exchange policy`: lets policies activate cells and move instruments of a running
//! network. Each decision is a line: in JSON for programs, as a sentence for people.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use nm_exchange_lab::policy_runner::{Decided, PolicyRunner, Settings};
use nm_report::units;
use nm_sys::clock;

use crate::campaign::interrupt;
use crate::cli::exchange::PolicyArgs;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

use super::status;

/// Longest sleep between two looks at Ctrl-C.
const NAP: Duration = Duration::from_millis(50);

/// Most bytes of a file of settings.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;

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
    let mut last_ns = begin_ns;
    while !is_over() {
        let now_ns = clock::monotonic_ns();
        for decided in runner.step(now_ns, Duration::from_nanos(now_ns - last_ns), None)? {
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
        output::data(&format!("{moved} instruments moved, {failed} moves failed\n"))?;
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
    let length = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if length > SETTINGS_BYTES_MAX {
        return Err(wrong(format!("it has {length} bytes, at most {SETTINGS_BYTES_MAX} are read")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    toml::from_str(&text).map_err(|error| wrong(error.message().to_string()))
}

fn show(decided: &Decided, begin_ns: u64, format: Format) -> Result<()> {
    if format == Format::Json {
        return output::data(&format!("{}\n", serde_json::to_string(decided)?));
    }
    let at_s = decided.at_ns.saturating_sub(begin_ns) as f64 / 1e9;
    let dry = if decided.is_executed { "" } else { "would " };
    let what = &decided.decision.action;
    output::data(&format!("{at_s:8.1} s  {dry}{what}: {}\n", decided.sentence))
}
