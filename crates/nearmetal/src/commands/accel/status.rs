//! `nearmetal accel status`: programs that run under the accelerator now, and the
//! data path of each of their connections.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use nm_lab::accelerator::LIBRARY;
use nm_lab::ledger::{Connection, Ledger};
use nm_report::style::clean;
use nm_ring::ledger::{SETTING_GROUP, SETTING_RINGS_FOR_FILES};
use nm_sys::hostfiles::HostFiles;
use schemars::JsonSchema;
use serde::Serialize;

use super::row::{Row, UNKNOWN, name_reasons_of_peers};
use super::summary::{Summary, share_in_memory};
use super::view::{left_out, table};
use super::{history, namespaces, program};
use crate::cli::accel::AccelStatusArgs;
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::Exit;
use crate::output;

/// What `status` shows.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Status {
    /// Fraction of the bytes of the open connections that went through shared memory; absent
    /// without bytes.
    share_in_memory: Option<f64>,
    /// Verdicts, waits and shares of the open connections.
    summary: Summary,
    /// Accelerated programs.
    programs: Vec<Program>,
    /// Their connections.
    connections: Vec<Row>,
}

impl Document for Status {
    const NAME: &'static str = "accel-status";
}

/// One process that was started under the accelerator.
#[derive(Debug, Serialize, JsonSchema)]
struct Program {
    pid: u32,
    program: String,
    /// Whether the library is in the process.
    loaded: bool,
    /// Settings other than the defaults.
    settings: String,
    /// Why it is not accelerated, or why some of its sockets stay on the kernel.
    note: Option<String>,
}

impl Program {
    /// The settings of the library, which decide whether rings of io_uring matter.
    fn set_settings(&mut self, settings: String) {
        if settings.contains(SETTING_RINGS_FOR_FILES) {
            self.note = None;
        }
        self.settings = settings;
    }

    /// Of so many connections nothing is known.
    fn note_left_out(&mut self, connections: u64) {
        if connections > 0 {
            let left_out = left_out(connections);
            self.note = Some(match self.note.take() {
                Some(note) => format!("{note}; {left_out}"),
                None => left_out,
            });
        }
    }
}

pub fn run(args: &AccelStatusArgs) -> Result<Exit> {
    let format = args.format.format;
    if let Some(seconds) = args.seconds {
        return history::run(seconds, format);
    }
    let status = inspect_all();
    match format {
        Format::Json => output::json(&status)?,
        Format::Text => output::text(&status.to_text())?,
    }
    Ok(Exit::Pass)
}

/// Inspects every process that this user may read.
fn inspect_all() -> Status {
    let files = HostFiles::default();
    let mut status = Status::default();
    let (mut known, mut open) = (BTreeSet::new(), vec![]);
    let pids = files.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let mut pids: Vec<u32> = pids.filter(|pid| *pid != std::process::id()).collect();
    pids.sort_unstable();
    for pid in pids {
        let Some(mut program) = inspect(&files, pid) else { continue };
        let ledgers = if program.loaded { Ledger::of_process(pid) } else { vec![] };
        for ledger in ledgers {
            program.set_settings(clean(&ledger.settings()));
            // Processes that fork share one ledger.
            if known.insert(ledger.id()) {
                program.note_left_out(ledger.left_out());
                let (name, user) = (ledger.program(), effective_user(&files, pid));
                let connections = ledger.connections().into_iter().filter(Connection::is_open);
                open.extend(connections.map(|connection| Open {
                    row: Row::new(&name, &connection),
                    waits: connection.waits_for_handshake(),
                    user: user.filter(|_| !program.settings.contains(SETTING_GROUP)),
                }));
            }
        }
        status.programs.push(program);
    }
    status.connections = explain_waits(open);
    name_reasons_of_peers(&mut status.connections);
    namespaces::explain(&files, &mut status.connections);
    status.summary = Summary::of(&status.connections);
    status.share_in_memory = share_in_memory(&status.connections);
    status
}

/// An open connection, with what decides whether its ends can share memory.
struct Open {
    row: Row,
    /// The handshake of both ends is not complete, and the library does not know why.
    waits: bool,
    /// Effective user of the process, if that decides: not in a group, whose members may be of
    /// different users.
    user: Option<u32>,
}

/// The effective user of a process.
fn effective_user(files: &HostFiles, pid: u32) -> Option<u32> {
    let status = files.text(&format!("/proc/{pid}/status"))?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

/// Says of connections that wait for the handshake what can be seen of their other ends.
fn explain_waits(open: Vec<Open>) -> Vec<Row> {
    let ends = open.iter().map(|one| ((one.row.local.clone(), one.row.peer.clone()), one.user));
    let users: BTreeMap<(String, String), Option<u32>> = ends.collect();
    // A connection that is expected to be short has not asked for its own address yet.
    let young = open.iter().filter(|one| one.row.local == UNKNOWN);
    let peers_of_young: BTreeSet<String> = young.map(|one| one.row.peer.clone()).collect();
    let explain = |Open { mut row, waits, user }: Open| {
        if !waits || row.local == UNKNOWN || peers_of_young.contains(&row.local) {
            return row;
        }
        match (users.get(&(row.peer.clone(), row.local.clone())), user) {
            (None, _) => {
                let reason = "no program under nearmetal accel is seen at its other end";
                row.set_reason(reason.to_string());
            }
            (Some(&Some(other)), Some(user)) if other != user => {
                row.set_reason(format!(
                    "its ends belong to two users, {user} and {other}: see --group"
                ));
            }
            _ => {}
        }
        row
    };
    open.into_iter().map(explain).collect()
}

/// A process in which the library is loaded or was meant to be loaded; none for all others, such as
/// the parents that only wait for an exit report.
fn inspect(files: &HostFiles, pid: u32) -> Option<Program> {
    let of = |name: &str| files.text(&format!("/proc/{pid}/{name}"));
    let loaded = of("maps").is_some_and(|maps| maps.contains(LIBRARY));
    let requested = of("environ").is_some_and(|environ| {
        environ
            .split('\0')
            .any(|variable| variable.starts_with("LD_PRELOAD=") && variable.contains(LIBRARY))
    });
    if !loaded && !requested {
        return None;
    }
    let program = clean(&of("comm").unwrap_or_else(|| "unknown".to_string()));
    let note = if loaded {
        uses_io_uring(files, pid).then(|| {
            "uses io_uring, which no library can intercept: its sockets stay on the kernel, unless \
             its rings serve files only (see --policy)"
                .to_string()
        })
    } else {
        let executable = files.path(&format!("/proc/{pid}/exe"));
        Some(not_loaded(&executable))
    };
    Some(Program { pid, program, loaded, settings: String::new(), note })
}

/// Why a process did not load the library although it was meant to.
fn not_loaded(executable: &Path) -> String {
    match program::not_accelerated(executable) {
        Some(reason) => format!("{reason}: it runs on the kernel"),
        None => "has not loaded the library; its error output may show the cause".to_string(),
    }
}

fn uses_io_uring(files: &HostFiles, pid: u32) -> bool {
    let folder = format!("/proc/{pid}/fd");
    files.names(&folder).iter().any(|name| {
        let target = std::fs::read_link(files.path(&format!("{folder}/{name}")));
        target.is_ok_and(|target| target.to_string_lossy().contains("[io_uring]"))
    })
}

impl Status {
    fn to_text(&self) -> String {
        if self.programs.is_empty() {
            return "no accelerated program is running\n".to_string();
        }
        let mut text = String::new();
        if self.connections.is_empty() {
            let some = self.programs.iter().filter(|program| program.loaded).count();
            let programs = nm_report::units::plural(some, "program", "programs");
            text += &format!("{programs} accelerated, no TCP connection open\n");
        } else {
            let count = self.connections.len();
            let connections =
                nm_report::units::plural(count, "open connection", "open connections");
            text += &self.summary.headline(self.share_in_memory, &connections);
            text.push('\n');
            text += &table(&self.connections, &output::style());
            text += &self.summary.details();
        }
        for program in &self.programs {
            let Program { pid, program, settings, .. } = program;
            if !settings.is_empty() {
                text += &format!("{program} ({pid}): {settings}\n");
            }
        }
        for program in &self.programs {
            if let Some(note) = &program.note {
                text += &format!("{} ({}) {note}\n", program.program, program.pid);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Traffic;
    use nm_lab::ledger::{Benefit, DataPath};

    use super::*;
    use std::fs;

    /// A `/proc` with one process.
    fn proc(maps: &str, environ: &str) -> (tempfile::TempDir, HostFiles) {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/7");
        fs::create_dir_all(folder.join("fd")).unwrap();
        fs::write(folder.join("maps"), maps).unwrap();
        fs::write(folder.join("environ"), environ).unwrap();
        fs::write(folder.join("comm"), "server\n").unwrap();
        let files = HostFiles::new(root.path());
        (root, files)
    }

    #[test]
    fn other_programs_are_ignored() {
        let (_root, files) = proc("7f00 r-xp /lib/libc.so.6", "HOME=/\0LD_PRELOAD=/x.so\0");
        assert!(inspect(&files, 7).is_none());
        let (_root, files) = proc("7f00 r-xp /x/libnm_accel.so", "");
        let program = inspect(&files, 7).unwrap();
        assert!(program.loaded && program.note.is_none() && program.program == "server");
    }

    #[test]
    fn reason_is_given_for_program_without_the_library() {
        let (root, files) = proc("", "A=b\0LD_PRELOAD=/x/libnm_accel.so:y.so\0");
        let program = inspect(&files, 7).unwrap();
        assert!(program.note.unwrap().contains("has not loaded the library"));
        // The ELF header of a program for another architecture.
        let mut head = [0_u8; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        fs::write(root.path().join("proc/7/exe"), head).unwrap();
        let note = inspect(&files, 7).unwrap().note.unwrap();
        assert!(
            note.contains("another machine architecture") && note.ends_with("on the kernel"),
            "{note}"
        );
    }

    #[test]
    fn use_of_io_uring_is_noted() {
        let (root, files) = proc("/x/libnm_accel.so", "");
        let link = root.path().join("proc/7/fd/5");
        std::os::unix::fs::symlink("anon_inode:[io_uring]", link).unwrap();
        let mut program = inspect(&files, 7).unwrap();
        program.set_settings("spin 5 us".to_string());
        assert!(program.note.as_ref().unwrap().contains("io_uring"));
        program.set_settings(format!("spin 5 us, {SETTING_RINGS_FOR_FILES}"));
        assert_eq!(program.note, None, "its sockets are in shared memory");
    }

    /// A connection whose ends have not met.
    fn row(local: &str, peer: &str) -> Row {
        Row {
            program: "p".into(),
            pid: 1,
            local: local.into(),
            peer: peer.into(),
            path: DataPath::KernelBeforeHandshake.name(),
            reason: Some("the handshake".into()),
            verdict: String::new(),
            benefit: Benefit::NotYet,
            peer_is_elsewhere: false,
            open: true,
            sent: Traffic::default(),
            received: Traffic::default(),
            sleeps: 0,
            failed_spins: 0,
            wakeups_sent: 0,
            wakeups_received: 0,
            fallbacks: 0,
            rejoins: 0,
        }
    }

    #[test]
    fn waiting_connections_say_what_is_seen_of_their_other_ends() {
        let open = |local, peer, user| Open { row: row(local, peer), waits: true, user };
        let reasons = |ends: [Open; 3]| {
            explain_waits(ends.into())
                .into_iter()
                .map(|row| row.reason.unwrap())
                .collect::<Vec<_>>()
        };
        let unseen = "no program under nearmetal accel is seen at its other end";
        let two =
            |user, other| format!("its ends belong to two users, {user} and {other}: see --group");
        let ends = |user, other| {
            [open("a:1", "b:2", user), open("b:2", "a:1", other), open("a:1", "c:3", user)]
        };
        assert_eq!(reasons(ends(Some(0), Some(99))), [two(0, 99), two(99, 0), unseen.into()]);
        assert_eq!(reasons(ends(Some(0), Some(0))), ["the handshake", "the handshake", unseen]);
        assert_eq!(reasons(ends(None, Some(99))), ["the handshake", "the handshake", unseen]);
        // One end has not asked for its own address yet.
        let young =
            [open(UNKNOWN, "b:2", None), open("b:2", "a:1", None), open("d:4", "a:1", None)];
        assert_eq!(reasons(young), ["the handshake", "the handshake", unseen]);
    }

    #[test]
    fn reason_of_the_peer_is_the_one_that_it_gives() {
        let mut rows = [row("a:1", "b:2"), row("b:2", "a:1"), row("c:3", "a:1")];
        rows[0].set_reason("the socket option SO_RCVLOWAT".to_string());
        for row in &mut rows[1..] {
            row.set_reason("at the peer: a socket option".to_string());
        }
        name_reasons_of_peers(&mut rows);
        let reasons = rows.map(|row| row.reason.unwrap());
        assert_eq!(
            reasons,
            [
                "the socket option SO_RCVLOWAT",
                "at the peer: the socket option SO_RCVLOWAT",
                "at the peer: a socket option"
            ]
        );
    }

    #[test]
    fn effective_user_is_read() {
        let (root, files) = proc("", "");
        fs::write(root.path().join("proc/7/status"), "Name:\tx\nUid:\t0\t65534\t0\t0\n").unwrap();
        assert_eq!((effective_user(&files, 7), effective_user(&files, 8)), (Some(65534), None));
    }

    #[test]
    fn empty_status_is_one_sentence() {
        let text = Status::default().to_text();
        assert_eq!(text, "no accelerated program is running\n");
    }
}
