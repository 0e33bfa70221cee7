//! A thread that keeps the client's core busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};

use nm_model::FactorEvidence;
use nm_sys::clock::Moment;
use nm_sys::{counters, cpu};

use crate::affinity::Affinity;

/// Least share of the time that the neighbour must have run to count as busy.
const BUSY_SHARE_MIN: f64 = 0.1;

/// Turns of the loop between two looks at the flag that ends it.
const TURNS: u32 = 1_000;

/// Why there is no neighbour.
#[derive(Debug, thiserror::Error)]
pub enum NeighbourError {
    /// Nobody is pinned.
    #[error("the client is not pinned to a CPU, so it has no neighbour")]
    NotPinned,
    /// The thread cannot be started or pinned.
    #[error("a thread on CPU {cpu} cannot be started: {error}")]
    Thread {
        /// The CPU.
        cpu: u32,
        /// Why.
        error: std::io::Error,
    },
}

/// A spinning thread; dropping it ends it.
pub struct BusyNeighbour {
    cpu: u32,
    is_sibling: bool,
    ends: Arc<AtomicBool>,
    started: Moment,
    /// Gives back the CPU time of the thread, ns.
    thread: Option<JoinHandle<u64>>,
}

impl BusyNeighbour {
    /// Starts a thread beside the client's: on the other thread of its core, or on its own CPU if
    /// the core has no other that the server leaves free.
    pub fn begin(
        affinity: &Affinity,
        siblings: &[Vec<u32>],
    ) -> Result<BusyNeighbour, NeighbourError> {
        let (cpu, is_sibling) =
            neighbour_cpu(affinity, siblings).ok_or(NeighbourError::NotPinned)?;
        let failed = |error| NeighbourError::Thread { cpu, error };
        let ends = Arc::new(AtomicBool::new(false));
        let (answer, pinned) = sync_channel(1);
        let flag = ends.clone();
        let body = move || {
            let result = cpu::pin_current_thread(cpu);
            let is_pinned = result.is_ok();
            let _ = answer.send(result);
            while is_pinned && !flag.load(Ordering::Relaxed) {
                for _ in 0..TURNS {
                    std::hint::spin_loop();
                }
            }
            counters::thread_cpu_ns()
        };
        let thread = Builder::new().name("neighbour".into()).spawn(body).map_err(failed)?;
        let mut neighbour =
            BusyNeighbour { cpu, is_sibling, ends, started: Moment::now(), thread: Some(thread) };
        match pinned.recv() {
            Ok(Ok(())) => Ok(neighbour),
            Ok(Err(error)) => {
                neighbour.end();
                Err(failed(error))
            }
            Err(_) => Err(failed(std::io::Error::other("it ended at once"))),
        }
    }

    /// Ends the thread. It was in force if it ran for a good part of the time.
    pub fn finish(mut self) -> (Option<bool>, Vec<FactorEvidence>) {
        let elapsed_ns = self.started.elapsed().as_nanos().max(1);
        let busy_ns = self.end();
        let share = busy_ns as f64 / elapsed_ns as f64;
        let place =
            if self.is_sibling { "the other thread of the core" } else { "the client's CPU" };
        let source = format!("busy thread on CPU {} ({place})", self.cpu);
        let value = format!("ran {:.0} % of the time", share * 100.0);
        (Some(share >= BUSY_SHARE_MIN), vec![FactorEvidence::new(source, value)])
    }

    fn end(&mut self) -> u64 {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or(0)
    }
}

impl Drop for BusyNeighbour {
    fn drop(&mut self) {
        self.end();
    }
}

/// The CPU of the neighbour, and whether it is another thread of the client's core.
fn neighbour_cpu(affinity: &Affinity, siblings: &[Vec<u32>]) -> Option<(u32, bool)> {
    let client = *affinity.client.first()?;
    let core = siblings.iter().find(|group| group.contains(&client));
    let is_free = |cpu: &&u32| **cpu != client && !affinity.server.contains(cpu);
    match core.and_then(|group| group.iter().find(is_free)) {
        Some(sibling) => Some((*sibling, true)),
        None => Some((client, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbour_is_on_the_core_of_the_client() {
        let affinity = |text: &str| text.parse::<Affinity>().unwrap();
        let siblings = [vec![0, 4], vec![1, 5]];
        assert_eq!(neighbour_cpu(&affinity("1;0"), &siblings), Some((5, true)));
        assert_eq!(neighbour_cpu(&affinity("1;5"), &siblings), Some((1, false)));
        assert_eq!(neighbour_cpu(&affinity("2;3"), &siblings), Some((2, false)));
        assert_eq!(neighbour_cpu(&affinity("any;any"), &siblings), None);
    }

    #[test]
    fn the_thread_runs_until_it_is_ended_and_a_missing_cpu_is_named() {
        let own = *cpu::allowed().last().unwrap();
        let affinity = Affinity { client: vec![own], server: vec![] };
        let neighbour = BusyNeighbour::begin(&affinity, &[]).unwrap();
        let ends = Arc::downgrade(&neighbour.ends);
        let (shown, evidence) = neighbour.finish();
        assert!(shown.is_some() && evidence[0].source.contains("the client's CPU"));
        assert!(ends.upgrade().is_none(), "the thread has ended");
        let missing = Affinity { client: vec![1_000], server: vec![] };
        let error = BusyNeighbour::begin(&missing, &[]).err().unwrap().to_string();
        assert!(error.starts_with("a thread on CPU 1000 cannot be started: "), "{error}");
    }
}
