//! Ctrl-C: the first one ends the run and keeps its result so far, the second ends the process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::exit::Exit;

/// A flag that is set by SIGINT and SIGTERM.
pub fn flag() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Handlers run in this order: the shutdown reads the flag before the same signal sets it.
        let code = i32::from(Exit::Interrupted.code());
        flag::register_conditional_shutdown(signal, code, Arc::clone(&interrupted))?;
        flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Ends this process on SIGINT and SIGTERM, after `last`: for commands that run until then. A
/// process that is the first one of its container would ignore the signals without this.
pub fn end_at_once(last: impl FnOnce() + Send + 'static) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let wait = move || {
        if signals.forever().next().is_some() {
            last();
            // Other threads wait for agents, and no signal would wake them.
            #[allow(clippy::exit)]
            std::process::exit(i32::from(Exit::Interrupted.code()))
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(())
}
