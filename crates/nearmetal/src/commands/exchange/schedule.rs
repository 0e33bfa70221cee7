//! `nearmetal exchange schedule`: the phases of the day begin at their times.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use nm_model::FailureKind;
use nm_operate::schedule::Schedule;
use nm_operate::scheduler::{self, Begun};
use nm_sys::clock;

use crate::campaign::interrupt;
use crate::cli::directions::ScheduleArgs;
use crate::exit::{Exit, Stop};
use crate::output;

use super::{directions, status};

/// Pause between two looks at the time.
const NAP: Duration = Duration::from_millis(200);

/// Begins what is due until it is stopped.
pub fn run(args: &ScheduleArgs) -> Result<Exit> {
    let interrupted = interrupt::flag()?;
    let schedule = Schedule::read(&args.file).map_err(|error| Stop::usage(error.to_string()))?;
    let end_ns = args.seconds.map(|seconds| clock::monotonic_ns() + seconds * 1_000_000_000);
    let is_over = || {
        interrupted.load(Ordering::Relaxed)
            || end_ns.is_some_and(|end_ns| clock::monotonic_ns() >= end_ns)
    };
    let mut why = None;
    while !is_over() {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut all = vec![];
        let network = status::current(&args.access)?;
        let stepped = scheduler::step(&network, &schedule, now_s, |begun| all.push(begun));
        for Begun { due, group, cells } in &all {
            let name = format!("{} of {group}", due.phase.name());
            directions::show(&name, &args.access, None, cells)?;
        }
        why = match stepped {
            Ok(()) => None,
            Err(failure) if failure.kind == FailureKind::BadRequest => return Err(failure.into()),
            // It is due still, and begins when the network answers.
            Err(failure) => {
                if why.as_ref() != Some(&failure.message) {
                    output::message(&failure.message);
                }
                Some(failure.message)
            }
        };
        std::thread::sleep(NAP);
    }
    Ok(Exit::Pass)
}
