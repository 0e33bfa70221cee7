//! `nearmetal agent`: an agent on stdin and stdout, on a port of a guest, or one that connects out.

pub mod outward;

use std::io::{self, Read, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nm_lab::environment::SILENCE_LIMIT;
use nm_model::Failure;
use nm_sys::clock::monotonic_ns;

use crate::cli::controller::AgentArgs;
use crate::exit::Exit;
use crate::output;

/// Runs an agent until its input ends, or has been silent for its limit. One that connects out, or
/// serves on a port, runs until it is ended; on a port the silence ends a controller's task.
pub fn run(args: &AgentArgs) -> Result<Exit> {
    if let Some(to) = &args.connect {
        return outward::run(to, args);
    }
    if let Some(port) = &args.serve_on {
        let silence_limit = args.silence_limit.map_or(SILENCE_LIMIT, Duration::from_secs);
        let notice = |failure: &Failure| output::message(&failure.to_string());
        nm_lab::agent::serve_on_port(port, silence_limit, notice)?;
        return Ok(Exit::Pass);
    }
    match args.silence_limit {
        None => nm_lab::agent::serve(stdin(), stdout())?,
        Some(seconds) => {
            let input =
                Watched { input: stdin(), last_ns: Arc::new(AtomicU64::new(monotonic_ns())) };
            input.end_when_silent(Duration::from_secs(seconds))?;
            nm_lab::agent::serve(input, stdout())?;
        }
    }
    Ok(Exit::Pass)
}

/// An input that remembers when it was read last.
struct Watched<R> {
    input: R,
    /// On the monotonic clock.
    last_ns: Arc<AtomicU64>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.last_ns.store(monotonic_ns(), Ordering::Relaxed);
        Ok(count)
    }
}

impl<R> Watched<R> {
    /// Ends this process when nothing has been read for `limit`.
    ///
    /// The host may be cut off from the controller: then a task can go on, and an answer can wait
    /// in a pipe that nobody empties, so the process ends without either. The kernel takes back all
    /// that it has.
    fn end_when_silent(&self, limit: Duration) -> Result<()> {
        let last_ns = self.last_ns.clone();
        let watch = move || {
            loop {
                let silent_ns = monotonic_ns().saturating_sub(last_ns.load(Ordering::Relaxed));
                match limit.checked_sub(Duration::from_nanos(silent_ns)) {
                    Some(left) if !left.is_zero() => thread::sleep(left),
                    _ => end(limit),
                }
            }
        };
        thread::Builder::new().name("silence".into()).spawn(watch)?;
        Ok(())
    }
}

fn end(limit: Duration) -> ! {
    let seconds = limit.as_secs();
    output::message(&format!("the controller was silent for {seconds} s, so this agent ends"));
    // No other thread of an agent that is stuck would end it.
    #[allow(clippy::exit)]
    std::process::exit(i32::from(Exit::Environment.code()))
}
