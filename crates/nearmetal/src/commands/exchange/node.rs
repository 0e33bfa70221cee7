//! `nearmetal exchange node`: one node, which writes its events as lines of JSON and ends when its
//! input does.

use std::io::stdin;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;
use nm_exchange::network::Network;
use nm_exchange::node::{self, EventQueue, NodeEvent};
use nm_sys::{private_folder, process};

use crate::cli::exchange::NodeArgs;
use crate::exit::{Exit, Stop};
use crate::output;

/// How long a node that ends waits until its last events are read.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// Runs a node until its input ends.
pub fn run(args: &NodeArgs) -> Result<Exit> {
    let id = args.role.node(args.index);
    let network = Network::read(&args.network).map_err(|error| Stop::usage(error.to_string()))?;
    if let Some(data) = &network.data {
        // On other hosts it is in a place that all users may write to.
        private_folder::claim(data).map_err(|error| Stop::usage(error.to_string()))?;
    }
    // With the limit of the shell, 1024 on most systems, a node accepts nobody at 1024 links.
    let _ = process::raise_file_limit();
    let write = |event: &NodeEvent| {
        if let Ok(line) = serde_json::to_string(event) {
            // Whoever started it may have gone; then its input has ended, too.
            let _ = output::data(&(line + "\n"));
        }
    };
    let no_thread = |error| Stop::with(Exit::Environment, format!("no thread for events: {error}"));
    let events = EventQueue::start(id, write).map_err(no_thread)?;
    let stop = stdin();
    let ended = node::run(&network, id, stop.as_fd(), &events);
    if let Ok(ended) = &ended {
        events.push(NodeEvent::Stopped(ended.clone()));
    }
    events.end(WRITE_LIMIT);
    Ok(output::ended_in_time(ended.map(drop).map_err(Into::into)))
}
