//! `nearmetal exchange serve`: keeps this host's nodes running until SIGTERM or Ctrl-C.

mod manager;
mod metrics;
mod unit;

use std::fs;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use nm_exchange::network::{Network, NodeId};
use nm_operate::live::{NodeSight, Sight};
use nm_run::page::Page;
use nm_run::place;
use nm_run::reload::Reload;
use nm_run::serve::{self, Asked, Serve, ServeEvent};
use nm_sys::process::own_program;
use nm_sys::user::User;
use rustix::fs::{Access, access};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::manager::Manager;
use crate::cli::service::ServeArgs;
use crate::exit::{Exit, Stop};
use crate::output;

/// Serves, or prints the unit that does.
pub fn run(args: &ServeArgs) -> Result<Exit> {
    let usage = |error: &dyn std::fmt::Display| Stop::usage(error.to_string());
    // Nodes are told another file, so its paths must not depend on where that is.
    let file = std::path::absolute(&args.network).map_err(|error| usage(&error))?;
    let network = Network::read(&file).map_err(|error| usage(&error))?;
    let user = args.user.as_deref().map(User::named).transpose().map_err(|error| usage(&error))?;
    let beside = || file.parent().unwrap_or(Path::new("/")).join("serve");
    let folder = args.logs.clone().map_or_else(|| Ok(beside()), std::path::absolute);
    let folder = folder.map_err(|error| usage(&error))?;
    let program = own_program().map_err(|error| {
        Stop::with(Exit::Environment, format!("cannot find this program's own file: {error}"))
    })?;
    if args.unit {
        network.secret_of_nodes().map_err(|error| usage(&error))?;
        output::data(&unit::text(&program, &file, &folder, &network, args))?;
        return Ok(Exit::Pass);
    }
    let nodes = nodes(&network, &args.nodes)?;
    if let Some(user) = &user {
        become_user(user, &network, &folder)?;
    }
    network.secret_of_nodes().map_err(|error| usage(&error))?;
    if let Some(exposure) = network.exposure() {
        output::message(&output::warning(&exposure));
    }
    let asked = asked_by_signals()?;
    let page = args.page.map(|address| page(address, &network, args)).transpose()?;
    let mut manager = Manager::of_environment();
    let what = Serve { file: &file, network: &network, program: &program, folder: &folder, nodes };
    serve::serve(&what, &asked, &mut |event| {
        manager.hear(&event);
        if let Some(sentence) = sentence(&event) {
            output::message(&sentence);
            if let Some(page) = &page {
                page.note(&sentence);
            }
        }
    })?;
    Ok(Exit::Pass)
}

/// Goes on as a user, to whom the folders belong that nodes write to. Nothing that comes after
/// needs root, and no thread has begun yet.
fn become_user(user: &User, network: &Network, folder: &Path) -> Result<()> {
    let name = user.name();
    if !user.is_possible() {
        let why = format!("only root can serve as another user: start it as root, or as {name}");
        return Err(Stop::with(Exit::Environment, why));
    }
    let stop = |error: String| Stop::with(Exit::Environment, error);
    let folders = [Some(folder), network.data.as_deref()];
    for folder in folders.iter().copied().flatten() {
        user.make_folder(folder)
            .map_err(|error| stop(format!("{} cannot be made: {error}", folder.display())))?;
    }
    user.become_it().map_err(|error| stop(format!("cannot go on as {name}: {error}")))?;
    let inside = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<PathBuf>>()
    };
    let all = folders.iter().copied().flatten();
    let all = all.flat_map(|folder| [vec![folder.to_path_buf()], inside(folder)].concat());
    let is_closed = |path: &PathBuf| access(path, Access::WRITE_OK | Access::EXEC_OK).is_err();
    match all.into_iter().find(is_closed) {
        None => Ok(()),
        Some(path) => Err(stop(format!(
            "{name} cannot write to {path}: give it to that user, as with `chown -R {name} {path}`",
            path = path.display()
        ))),
    }
}

/// SIGTERM and Ctrl-C ask for the end, and SIGHUP for the network's file to be read again. Started
/// from a terminal, SIGHUP asks for the end as well: a terminal that is closed sends it.
fn asked_by_signals() -> Result<Asked> {
    let asked = Asked::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked.end))?;
    }
    let hang_up = if io::stdin().is_terminal() { &asked.end } else { &asked.reload };
    signal_hook::flag::register(SIGHUP, Arc::clone(hang_up))?;
    Ok(asked)
}

/// A page that shows the network, with the figures of this host's nodes.
fn page(address: SocketAddr, network: &Network, args: &ServeArgs) -> Result<Arc<Page>> {
    const DOCUMENT: &str = include_str!("serve/page.html");
    let is_here = |sight: &Sight, node: &NodeSight| {
        let known = sight.status.network.node(node.status.id);
        known.is_some_and(|node| place::is_here(&node.address))
    };
    let metrics = move |sight: &Sight| metrics::text(sight, |node| is_here(sight, node));
    let page = Page::serve(address, network, DOCUMENT, Box::new(metrics), args.follow.clone())?;
    let at = SocketAddr::new(address.ip(), page.port());
    output::message(&format!("the page is at http://{at}/"));
    Ok(page)
}

/// The nodes that are asked for, or all that listen on this host.
fn nodes(network: &Network, asked: &[NodeId]) -> Result<Vec<NodeId>> {
    if let Some(unknown) = asked.iter().find(|node| network.node(**node).is_none()) {
        return Err(Stop::usage(format!("the network has no {unknown}")));
    }
    let nodes = if asked.is_empty() { serve::nodes_here(network) } else { asked.to_vec() };
    if nodes.is_empty() {
        return Err(Stop::usage(
            "no node of the network listens on this host; name some with --node, or see \
             `exchange network check`",
        ));
    }
    Ok(nodes)
}

fn sentence(event: &ServeEvent) -> Option<String> {
    Some(match event {
        ServeEvent::Ready { node, start: 0 } => format!("{node} is ready"),
        ServeEvent::Ready { node, start } => format!("{node} is ready, start {}", start + 1),
        ServeEvent::AllReady => "all nodes of this host are ready".to_string(),
        ServeEvent::Ended { node, why: Some(why) } => {
            format!("{node} has ended and is started again; it wrote: {why}")
        }
        ServeEvent::Ended { node, why: None } => {
            format!("{node} has ended and is started again; it wrote nothing")
        }
        ServeEvent::Failed(why) => why.clone(),
        ServeEvent::Alive => return None,
        ServeEvent::Reloaded(reload) => reloaded(reload),
        ServeEvent::NotReloaded(why) => format!("nothing changes: {why}"),
        ServeEvent::Stopping => "ending: gateways first, then routers, then cells".to_string(),
        ServeEvent::Killed(node) => format!("{node} did not end in time and was killed"),
    })
}

/// What a file that was read again changes, and what it does not.
fn reloaded(reload: &Reload) -> String {
    let logs = reload.logs.map(|logs| {
        format!("a log is {} bytes long now, and {} full ones are kept", logs.bytes, logs.files)
    });
    let mut text = format!(
        "the network's file was read again: {}",
        logs.as_deref().unwrap_or("nothing that may change has changed")
    );
    for ignored in &reload.ignored {
        let field = ignored.field;
        text += &match ignored.commands {
            Some(commands) => {
                format!("; `{field}` is ignored: of a running network, {commands} change it")
            }
            None => format!("; `{field}` is ignored until a restart"),
        };
    }
    text
}
