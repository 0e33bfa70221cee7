//! Lets connections of other replicas in when they have authenticated, or have begun a frame where
//! there is no key.

use std::io::ErrorKind::{InvalidData, TimedOut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::log::LogEvent;
use crate::open_replicas::OpenReplicas;
use crate::requests::serve_connection;

/// Connections of one node whose peer has not proved yet that it has the key, or, where there is no
/// key, has sent nothing; further ones are closed at once.
const UNAUTHENTICATED_MAX: usize = 256;

/// Least time between two reports of refused connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// What all connections of a node pass.
pub struct Gate {
    node: Arc<OpenReplicas>,
    unauthenticated: Arc<Semaphore>,
    /// When a refusal was reported last, and how many there were since.
    reported: Mutex<(Option<Instant>, u64)>,
}

impl Gate {
    /// That of a node; nobody waits at it.
    pub fn new(node: Arc<OpenReplicas>) -> Arc<Gate> {
        let unauthenticated = Arc::new(Semaphore::new(UNAUTHENTICATED_MAX));
        Arc::new(Gate { node, unauthenticated, reported: Mutex::default() })
    }

    /// Serves a connection when its peer has authenticated.
    pub fn admit(self: &Arc<Gate>, mut connection: Connection) {
        let Ok(permit) = Arc::clone(&self.unauthenticated).try_acquire_owned() else {
            return self.report("too many have not completed their handshake");
        };
        let gate = Arc::clone(self);
        tokio::spawn(async move {
            let key = gate.node.key();
            if let Err(error) =
                connection.authenticate(key, |meant| gate.node.identity(meant)).await
            {
                // Without a key, an end before the hello is nothing to report.
                if key.is_some() || matches!(error.kind(), InvalidData | TimedOut) {
                    gate.report(&error.to_string());
                }
                return;
            }
            drop(permit);
            let end = serve_connection(connection, Arc::clone(&gate.node)).await;
            if end.kind() == InvalidData {
                gate.report(&end.to_string());
            }
        });
    }

    /// Reports refused connections, one line in an interval.
    fn report(&self, why: &str) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.1 += 1;
        if reported.0.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return;
        }
        let count = std::mem::take(&mut reported.1);
        reported.0 = Some(Instant::now());
        let message = format!("{count} connections to replicas were refused, the last one: {why}");
        // A node without replicas has nobody to tell.
        if let Some(replica) = self.node.all().first() {
            replica.events.send(LogEvent::Warning(message));
        }
    }
}
