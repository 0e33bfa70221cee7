//! What the options ask for, and how long it takes.

use std::io::{self, Read};
use std::path::Path;

use anyhow::Result;
use nm_campaign::schedule::Schedule;
use nm_fleet::hosts::{self, FleetHost, TEXT_BYTES_MAX};
use nm_fleet::pairs;
use nm_fleet::result::FleetRequest;
use nm_model::HostsSpec;
use nm_model::plan::EnvironmentKind;
use nm_sys::text_file;

use super::agents;
use crate::cli::fleet::FleetRunArgs;
use crate::commands::qualify;
use crate::exit::Stop;
use crate::plans;

/// The word for hosts on stdin.
const STDIN: &str = "-";

/// Time that a pair takes beside its plan, s: two logins, and copying the program.
const START_S: f64 = 4.0;

/// What the options ask for.
pub fn request(args: &FleetRunArgs) -> Result<FleetRequest> {
    let (hosts, controller) = match (&args.controller, &args.hosts) {
        (Some(socket), _) => {
            // A run that is resumed may be started in another folder.
            let socket = std::path::absolute(socket)?;
            (agents::hosts(&socket, args.agents)?, Some(socket))
        }
        (None, Some(hosts)) => (read_hosts(hosts)?, None),
        (None, None) => return Err(Stop::usage("name the hosts by --hosts")),
    };
    if args.plan == STDIN {
        return Err(Stop::usage("--plan - cannot be read again for each pair; write it to a file"));
    }
    let request = FleetRequest {
        plan: args.plan.clone(),
        pairs: args.pairs.to_string(),
        both_ways: args.both_ways,
        seed: args.seed,
        parallel: args.parallel,
        controller,
        hosts,
    };
    pairs::rounds(request.hosts.len(), args.pairs, args.both_ways, args.seed)
        .map_err(|fault| Stop::usage(fault.to_string()))?;
    trial_s(&args.plan, &request)?;
    Ok(request)
}

/// The hosts of a file, of stdin, or of a list: a word that is the name of no file is a list,
/// unless it has a slash.
pub fn read_hosts(word: &str) -> Result<Vec<FleetHost>> {
    let refused =
        |from: &str, fault: &dyn std::fmt::Display| Stop::usage(format!("{from}: {fault}"));
    if word == STDIN {
        let mut text = String::new();
        let mut stdin = io::stdin().take(TEXT_BYTES_MAX as u64 + 1);
        stdin.read_to_string(&mut text).map_err(|error| refused("hosts on stdin", &error))?;
        return hosts::parse_file(&text).map_err(|fault| refused("hosts on stdin", &fault));
    }
    let path = Path::new(word);
    if path.is_file() || (word.contains('/') && !word.contains("://")) {
        let text = text_file::read(path, TEXT_BYTES_MAX as u64)
            .map_err(|error| Stop::usage(format!("cannot read the hosts in {word}: {error}")))?;
        return hosts::parse_file(&text).map_err(|fault| refused(word, &fault));
    }
    hosts::parse_list(word).map_err(|fault| refused("--hosts", &fault))
}

/// How long one pair takes, s. The plan must be one of two hosts.
pub fn trial_s(word: &str, request: &FleetRequest) -> Result<f64> {
    let mut plan = plans::load(word)?;
    let is_other = |kind: EnvironmentKind| kind != EnvironmentKind::Ssh;
    if let Some(row) = plan.rows().iter().find(|row| is_other(row.environment)) {
        return Err(Stop::usage(format!(
            "plan {} has the row {}, and a fleet measures between hosts: take a plan whose rows \
             are all of the environment ssh, such as two-hosts, or such a part of it",
            plan.name,
            row.path()
        )));
    }
    let spec = |host: &FleetHost| {
        host.spec().parse().map_err(|fault: nm_model::hosts::HostsFault| {
            Stop::usage(format!("host {}: {fault}", host.name))
        })
    };
    let [client, server] = [&request.hosts[0], &request.hosts[1]];
    let controller = request.controller.clone();
    plan.hosts = Some(HostsSpec { client: spec(client)?, server: spec(server)?, controller });
    let campaign = qualify::resolve(plan, None);
    Ok(START_S + Schedule::of_campaign(&campaign).promised_s())
}
