//! Programs that copy: rsync with its daemon, and socat between a socket and something else.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::nobody::is_root;
use super::{
    Place, Seen, Started, Way, alike, alike_by_halves, content, finish, finish_with, need, source,
};
use crate::support::free_port;

/// Files of no byte to many, in folders, and a symbolic link.
fn tree(at: &Path) {
    for folder in 0..12 {
        let folder = at.join(format!("folder-{folder}/deep"));
        fs::create_dir_all(&folder).unwrap();
        for number in 0..20 {
            let size = number * number * 301;
            fs::write(folder.join(format!("file-{number}")), content(size)).unwrap();
        }
    }
    fs::write(at.join("large"), content(12_000_000)).unwrap();
    symlink("large", at.join("link")).unwrap();
}

/// Every path of a tree in order, with its length and a sum of its bytes.
fn listed(at: &Path) -> Vec<String> {
    let mut lines = vec![];
    let mut folders = vec![at.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(at).unwrap().display().to_string();
            if path.is_symlink() {
                lines.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
            } else if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                let add = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
                lines.push(format!("{name} {} {}", bytes.len(), bytes.iter().fold(0, add)));
            }
        }
    }
    lines.sort();
    lines
}

/// A tree copied to the daemon and back, changed, and copied again: its client forks too, and both
/// of its halves use the connection.
fn rsync(way: Way) -> Seen {
    let program = need("rsync", "rsync");
    let folder = tempfile::tempdir().unwrap();
    let (at, port) = (folder.path(), free_port());
    for name in ["source", "kept", "back"] {
        fs::create_dir(at.join(name)).unwrap();
    }
    tree(&at.join("source"));
    // The daemon would give its processes to nobody, who may not read the folder.
    let user = if is_root() { "uid = root\ngid = root\n" } else { "" };
    let text = format!(
        "use chroot = no\nmunge symlinks = no\nreverse lookup = no\nread only = no\n{user}\
         [kept]\npath = {}/kept\n",
        at.display()
    );
    fs::write(at.join("rsyncd.conf"), text).unwrap();
    let mut command = way.server(&program);
    command.args(["--daemon", "--no-detach", "--address=127.0.0.1", &format!("--port={port}")]);
    let log = format!("--log-file={}/log", at.display());
    let config = format!("--config={}/rsyncd.conf", at.display());
    let server = Started::server(command.args([config, log]), port);
    let kept = format!("rsync://127.0.0.1:{port}/kept/");
    let local = |name: &str| format!("{}/{name}/", at.display());
    let mut seen = Seen::new();
    let mut copy = |options: &[&str], from: &str, to: &str| {
        seen.add(finish(way.client(&program).arg("-a").args(options).args([from, to])));
    };
    copy(&[], &local("source"), &kept);
    copy(&[], &kept, &local("back"));
    fs::write(at.join("source/folder-3/deep/file-9"), content(77_777)).unwrap();
    fs::remove_dir_all(at.join("source/folder-4")).unwrap();
    fs::write(at.join("source/large"), [content(5_000_000), content(9_000_000)].concat()).unwrap();
    copy(&["--delete", "--checksum", "-z"], &local("source"), &kept);
    copy(&["--delete", "--no-whole-file", "--checksum"], &kept, &local("back"));
    let wanted = listed(&at.join("source"));
    for name in ["kept", "back"] {
        let found = listed(&at.join(name));
        let differs: Vec<_> = found.iter().filter(|line| !wanted.contains(line)).collect();
        assert!(found == wanted, "{way:?}: {name} differs from the source by {differs:?}");
    }
    seen.words.extend(wanted);
    server.end_by("TERM");
    let log = fs::read_to_string(at.join("log")).unwrap();
    assert!(!log.contains("rsync error: ") || log.contains("SIGTERM"), "{log}");
    seen
}

#[test]
fn rsync_to_a_daemon_and_back() {
    alike_by_halves(Place::SharedMemory, rsync);
}

/// Longest wait of socat for the rest of the other direction after the end of one, s: without it,
/// half a second.
const REST: &str = "60";

/// Bytes that socat passes on at a time: a pipe that has room takes a page, and socat blocks for
/// ever when it writes more to a pipe that only itself reads and that is nearly full.
const PAGE: &str = "4096";

/// A listening socat that does `action` with each connection, and clients that send and compare.
fn socat(way: Way, action: &str, expected: impl Fn(&str) -> String) -> Seen {
    let program = need("socat", "socat");
    let port = free_port();
    let listening = format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork");
    let server = Started::server(way.server(&program).args(["-t", REST, &listening, action]), port);
    let seen = send_by_socat(way, port, expected);
    server.end_by("TERM");
    seen
}

fn send_by_socat(way: Way, port: u16, expected: impl Fn(&str) -> String) -> Seen {
    let program = need("socat", "socat");
    let mut seen = Seen::new();
    for lines in [1, 50, 400_000] {
        let text: String = (0..lines).map(|line| format!("line {line}\n")).collect();
        let mut command = way.client(&program);
        command.args(["-t", REST, "-", &format!("TCP:127.0.0.1:{port}")]);
        let ran = finish_with(&mut command, &text);
        let is_same = ran.stdout == expected(&text);
        assert!(is_same, "{way:?}: {} bytes, {} back", text.len(), ran.stdout.len());
        seen.add_as(ran, format!("{lines} lines"));
    }
    seen
}

/// As [`send_by_socat`] to something that returns what it receives; before it, a client that waits
/// for the return of each message.
fn echo_by_socat(way: Way, action: &str) -> Seen {
    let program = need("socat", "socat");
    let port = free_port();
    let listening = format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork");
    let words = ["-b", PAGE, "-t", REST, &listening, action];
    let server = Started::server(way.server(&program).args(words), port);
    let mut seen = send_by_socat(way, port, str::to_string);
    let mut command = way.client(&need("python3", "python3"));
    let client = ["blocking-client", &port.to_string()].map(str::to_string);
    seen.add(finish(command.arg(source("echo.py")).args(client)));
    server.end_by("TERM");
    seen
}

/// The bytes go through a pair of pipes to a program of its own.
#[test]
fn socat_with_a_program_for_each_connection() {
    alike_by_halves(Place::SharedMemory, |way| echo_by_socat(way, "EXEC:cat"));
    alike(Place::Kernel(""), |way| socat(way, "SYSTEM:tr a-z A-Z", str::to_ascii_uppercase));
}

/// The program gets the connection itself as its standard input and output.
#[test]
fn socat_gives_the_connection_to_a_program() {
    alike(Place::Kernel(""), |way| socat(way, "EXEC:cat,nofork", str::to_string));
}

#[test]
fn socat_returns_what_it_receives() {
    alike(Place::SharedMemory, |way| echo_by_socat(way, "PIPE"));
}

/// Bulk through a proxy: two connections of which one end is in the same process.
#[test]
fn socat_as_a_proxy() {
    alike(Place::SharedMemory, |way| {
        let program = need("socat", "socat");
        let (echo, proxy) = (free_port(), free_port());
        let listening = |port: u16| format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork");
        let words = ["-t", REST, &listening(echo), "EXEC:cat"];
        let _echo = Started::server(way.server(&program).args(words), echo);
        let words = ["-t", REST, &listening(proxy), &format!("TCP:127.0.0.1:{echo}")];
        let _proxy = Started::server(way.server(&program).args(words), proxy);
        let mut seen = send_by_socat(way, proxy, str::to_string);
        let mut command = way.client(&need("python3", "python3"));
        let client = ["blocking-client", &proxy.to_string()].map(str::to_string);
        seen.add(finish(command.arg(source("echo.py")).args(client)));
        seen
    });
}
