//! `nearmetal exchange serve`: keeps this host's nodes running until SIGTERM or Ctrl-C.

mod metrics;

use std::env;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as SocketName, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;
use nm_exchange::network::{Network, NodeId};
use nm_operate::live::{NodeSight, Sight};
use nm_run::page::Page;
use nm_run::place;
use nm_run::serve::{self, Serve, ServeEvent};
use nm_sys::clock::Deadline;
use nm_sys::process::own_program;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::service::ServeArgs;
use crate::exit::{Exit, Stop};
use crate::output;

/// How often the service manager hears that the supervisor goes on.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Seconds without that after which the service manager starts it again.
const WATCHDOG_S: u32 = 30;

/// Serves, or prints the unit that does.
pub fn run(args: &ServeArgs) -> Result<Exit> {
    let usage = |error: &dyn std::fmt::Display| Stop::usage(error.to_string());
    // Nodes are told another file, so its paths must not depend on where that is.
    let file = std::path::absolute(&args.network).map_err(|error| usage(&error))?;
    let network = Network::read(&file).map_err(|error| usage(&error))?;
    network.secret_of_nodes().map_err(|error| usage(&error))?;
    let beside = || file.parent().unwrap_or(Path::new("/")).join("serve");
    let folder = args.logs.clone().map_or_else(|| Ok(beside()), std::path::absolute);
    let folder = folder.map_err(|error| usage(&error))?;
    let program = own_program().map_err(|error| {
        Stop::with(Exit::Environment, format!("cannot find this program's own file: {error}"))
    })?;
    if args.unit {
        output::data(&unit(&program, &file, &folder, &network, args))?;
        return Ok(Exit::Pass);
    }
    let nodes = nodes(&network, &args.nodes)?;
    if let Some(exposure) = network.exposure() {
        output::message(&output::warning(&exposure));
    }
    let is_told_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_told_to_end))?;
    }
    let page = args.page.map(|address| page(address, &network)).transpose()?;
    let mut manager = Manager::of_environment();
    let what = Serve { network: &network, program: &program, folder: &folder, nodes };
    serve::serve(&what, &is_told_to_end, &mut |event| {
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

/// A page that shows the network, with the figures of this host's nodes.
fn page(address: SocketAddr, network: &Network) -> Result<Arc<Page>> {
    const DOCUMENT: &str = include_str!("serve/page.html");
    let is_here = |sight: &Sight, node: &NodeSight| {
        let known = sight.status.network.node(node.status.id);
        known.is_some_and(|node| place::is_here(&node.address))
    };
    let metrics = move |sight: &Sight| metrics::text(sight, |node| is_here(sight, node));
    let page = Page::serve(address, network, DOCUMENT, Box::new(metrics))?;
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
        ServeEvent::Stopping => "ending: gateways first, then routers, then cells".to_string(),
        ServeEvent::Killed(node) => format!("{node} did not end in time and was killed"),
    })
}

/// The service manager, if it has started this process: sd_notify(3).
struct Manager {
    socket: Option<(UnixDatagram, SocketName)>,
    next: Deadline,
}

impl Manager {
    fn of_environment() -> Manager {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|name| {
            let address = address(name)?;
            Some((UnixDatagram::unbound().ok()?, address))
        });
        Manager { socket, next: Deadline::after(Duration::ZERO) }
    }

    fn hear(&mut self, event: &ServeEvent) {
        match event {
            ServeEvent::AllReady => self.tell("READY=1"),
            ServeEvent::Stopping => self.tell("STOPPING=1"),
            ServeEvent::Alive if self.next.passed() => {
                self.next = Deadline::after(ALIVE_INTERVAL);
                self.tell("WATCHDOG=1");
            }
            _ => {}
        }
    }

    /// One that does not read is no reason to end.
    fn tell(&self, what: &str) {
        if let Some((socket, address)) = &self.socket {
            let _ = socket.send_to_addr(what.as_bytes(), address);
        }
    }
}

fn address(name: OsString) -> Option<SocketName> {
    match name.to_str().and_then(|name| name.strip_prefix('@')) {
        Some(name) => SocketName::from_abstract_name(name).ok(),
        None => SocketName::from_pathname(PathBuf::from(name)).ok(),
    }
}

/// A unit of systemd.
fn unit(program: &Path, file: &Path, folder: &Path, network: &Network, args: &ServeArgs) -> String {
    let quoted = |path: &Path| {
        let text = path.display().to_string();
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%"))
    };
    let page = args.page.map(|page| format!(" --page {page}")).unwrap_or_default();
    let nodes: String =
        args.nodes.iter().map(|it| format!(" --node {}:{}", it.class, it.index)).collect();
    let mut written = quoted(folder);
    if let Some(data) = &network.data {
        written += &format!(" {}", quoted(data));
    }
    format!(
        "[Unit]\n\
         Description=Exchange of nearmetal\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         \n\
         [Service]\n\
         Type=notify\n\
         ExecStart={} exchange serve --network {} --logs {}{nodes}{page}\n\
         # It has this time to say that it goes on.\n\
         WatchdogSec={WATCHDOG_S}\n\
         Restart=always\n\
         RestartSec=1\n\
         # SIGTERM goes to the supervisor alone, which ends the nodes in their order.\n\
         KillMode=mixed\n\
         TimeoutStopSec=90\n\
         TimeoutStartSec=infinity\n\
         LimitNOFILE=1048576\n\
         LimitMEMLOCK=infinity\n\
         NoNewPrivileges=yes\n\
         ProtectSystem=strict\n\
         # These folders must exist.\n\
         ReadWritePaths={written}\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        quoted(program),
        quoted(file),
        quoted(folder),
    )
}
