//! A unit of systemd that runs `exchange serve`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nm_exchange::link::Address;
use nm_exchange::network::{Network, ReplicaAddress};

use crate::cli::service::ServeArgs;

/// Seconds without a sign of life after which the service manager starts the supervisor again.
const WATCHDOG_S: u32 = 30;

/// What no node needs: each of these lines takes it away.
const HARDENING: &str = "\
NoNewPrivileges=yes
CapabilityBoundingSet=
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictSUIDSGID=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
UMask=0077
";

/// The unit, for a program that serves this file with logs in `folder`.
pub fn text(
    program: &Path,
    file: &Path,
    folder: &Path,
    network: &Network,
    args: &ServeArgs,
) -> String {
    let page = args.page.map(|page| format!(" --page {page}")).unwrap_or_default();
    let follow =
        args.follow.iter().map(|it| format!(" --follow {}", quoted(Path::new(&it.to_string()))));
    let page = follow.fold(page, |page, follow| page + &follow);
    let nodes: String =
        args.nodes.iter().map(|it| format!(" --node {}:{}", it.class, it.index)).collect();
    let user = args.user.as_ref().map(|user| format!("User={user}\n")).unwrap_or_default();
    let written: Vec<String> = written(folder, network).iter().map(|it| quoted(it)).collect();
    format!(
        "[Unit]\n\
         Description=Exchange of nearmetal\n\
         Wants=network-online.target\n\
         After=network-online.target\n\
         \n\
         [Service]\n\
         Type=notify\n\
         {user}\
         ExecStart={} exchange serve --network {} --logs {}{nodes}{page}\n\
         # Reads the network's file again.\n\
         ExecReload=/bin/kill -HUP $MAINPID\n\
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
         # These folders must exist, and the user must be allowed to write to them.\n\
         ReadWritePaths={}\n\
         {HARDENING}\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        quoted(program),
        quoted(file),
        quoted(folder),
        written.join(" "),
    )
}

/// Folders that nodes write to: of logs, of data, and of their sockets.
fn written(folder: &Path, network: &Network) -> BTreeSet<PathBuf> {
    let sockets = network.all().flat_map(|(_, node)| {
        let own = match &node.address {
            Address::Unix(path) | Address::Shm(path) => Some(path.as_path()),
            Address::Tcp(_) => None,
        };
        let replication = match &node.replication {
            Some(ReplicaAddress::Unix(path)) => Some(path.as_path()),
            _ => None,
        };
        [own, replication]
    });
    let folders = sockets.flatten().filter_map(Path::parent).map(Path::to_path_buf);
    folders.chain([folder.to_path_buf()]).chain(network.data.clone()).collect()
}

/// A path as a word of a unit.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%"))
}
