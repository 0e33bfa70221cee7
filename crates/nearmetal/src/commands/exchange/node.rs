//! `nearmetal exchange node`: one node, which writes its events as lines of JSON and ends when its
//! input does.

use std::io::stdin;
use std::os::fd::AsFd;

use anyhow::Result;
use nm_exchange::network::Network;
use nm_exchange::node::{self, NodeEvent};
use nm_sys::private_folder;

use crate::cli::exchange::NodeArgs;
use crate::exit::{Exit, Stop};
use crate::output;

/// Runs a node until its input ends.
pub fn run(args: &NodeArgs) -> Result<Exit> {
    let network = Network::read(&args.network).map_err(|error| Stop::usage(error.to_string()))?;
    if let Some(data) = &network.data {
        // On other hosts it is in a place that all users may write to.
        private_folder::claim(data).map_err(|error| Stop::usage(error.to_string()))?;
    }
    let mut report = |event: &NodeEvent| {
        if let Ok(line) = serde_json::to_string(event) {
            // Whoever started it may have gone; then its input has ended, too.
            let _ = output::data(&(line + "\n"));
        }
    };
    let stop = stdin();
    let ended = node::run(&network, args.role, args.index, stop.as_fd(), &mut report)?;
    report(&NodeEvent::Stopped(ended));
    Ok(Exit::Pass)
}
