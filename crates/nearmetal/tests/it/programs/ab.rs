//! Apache's `ab` with connections kept alive, against nginx and lighttpd. It waits by epoll with as
//! many events as it has connections, and stops reading when a response is complete.

use std::process::Command;

use super::web::Nginx;
use super::{
    Place, Ran, Seen, Started, Way, alike, alike_mostly_in_memory, content, finish, need,
    number_after,
};
use crate::support::free_port;

/// Concurrencies of the runs.
const CONCURRENCIES: [u32; 4] = [1, 4, 8, 64];

/// Size of the file that is asked for, bytes.
const SIZE: usize = 1400;

/// `ab -k` as a client, without its progress.
pub fn command(way: Way) -> Command {
    let mut command = way.client(&need("ab", "apache2-utils"));
    command.args(["-q", "-k"]);
    command
}

/// What ab counted, where all requests must have been answered with the file.
pub fn counted(way: Way, ran: &Ran) -> String {
    let complete = number_after(&ran.stdout, "Complete requests:");
    let failed = number_after(&ran.stdout, "Failed requests:");
    assert_eq!(failed, 0, "{way:?}: {ran:?}");
    assert!(complete > 0, "{ran:?}");
    assert!(!ran.stdout.contains("Non-2xx"), "{ran:?}");
    assert_eq!(number_after(&ran.stdout, "Document Length:"), SIZE as u64);
    format!("{complete} complete, {failed} failed")
}

/// As many requests as `count` over each number of connections; `url` is of a file of [`SIZE`].
fn at_each_concurrency(way: Way, url: &str, count: u32) -> Seen {
    let mut seen = Seen::new();
    for concurrency in CONCURRENCIES {
        let numbers = [count, concurrency].map(|number| number.to_string());
        let ran = finish(command(way).args(["-n", &numbers[0], "-c", &numbers[1], url]));
        let words = counted(way, &ran);
        assert_eq!(words, format!("{count} complete, 0 failed"));
        seen.add_as(ran, words);
    }
    seen
}

#[test]
fn ab_keeps_connections_to_nginx_alive() {
    alike_mostly_in_memory(0.0, |way| {
        let nginx = Nginx::start(way);
        let seen = at_each_concurrency(way, &format!("{}/file-{SIZE}", nginx.url), 8000);
        nginx.stop();
        seen
    });
}

/// The load under which connections that had joined stood still beside others that had not.
#[test]
fn ab_over_64_connections_for_seconds() {
    alike_mostly_in_memory(0.0, |way| {
        let nginx = Nginx::start(way);
        let mut seen = Seen::new();
        let url = format!("{}/file-{SIZE}", nginx.url);
        // -t alone would mean at most 50 000 requests.
        let ran = finish(command(way).args(["-c", "64", "-t", "6", "-n", "100000000", &url]));
        let words = counted(way, &ran);
        assert!(number_after(&words, "") > 64, "{words}");
        // None of its requests was over a connection that had been made for it alone.
        let kept = number_after(&ran.stdout, "Keep-Alive requests:");
        assert_eq!(kept, number_after(&words, ""), "{ran:?}");
        seen.add_as(ran, "no request failed");
        nginx.stop();
        seen
    });
}

/// A connection for each request: what is in shared memory for a moment, or never.
#[test]
fn ab_without_keep_alive() {
    alike(Place::Kernel(""), |way| {
        let nginx = Nginx::start(way);
        let mut seen = Seen::new();
        for concurrency in ["1", "16"] {
            let mut command = way.client(&need("ab", "apache2-utils"));
            let url = format!("{}/file-{SIZE}", nginx.url);
            let ran = finish(command.args(["-q", "-n", "3000", "-c", concurrency, &url]));
            let words = counted(way, &ran);
            seen.add_as(ran, words);
        }
        nginx.stop();
        seen
    });
}

struct Lighttpd {
    server: Started,
    url: String,
    folder: tempfile::TempDir,
}

impl Lighttpd {
    fn start(way: Way, handler: &str) -> Lighttpd {
        let program = need("lighttpd", "lighttpd");
        let folder = tempfile::tempdir().unwrap();
        let (at, port) = (folder.path(), free_port());
        std::fs::write(at.join("file"), content(SIZE)).unwrap();
        let shown = at.display();
        let text = format!(
            "server.document-root = \"{shown}\"\nserver.bind = \"127.0.0.1\"\n\
             server.port = {port}\nserver.errorlog = \"{shown}/error.log\"\n\
             server.event-handler = \"{handler}\"\nserver.upload-dirs = ( \"{shown}\" )\n\
             mimetype.assign = ( \"\" => \"application/octet-stream\" )\n"
        );
        std::fs::write(at.join("lighttpd.conf"), text).unwrap();
        let mut command = way.server(&program);
        let server =
            Started::server(command.arg("-D").arg("-f").arg(at.join("lighttpd.conf")), port);
        Lighttpd { server, url: format!("http://127.0.0.1:{port}/file"), folder }
    }

    /// Ends it gently: it closes what is open, and logs no fault.
    fn stop(self) {
        self.server.end_by("INT");
        let log = std::fs::read_to_string(self.folder.path().join("error.log")).unwrap();
        let is_usual =
            |line: &&str| line.contains("server started") || line.contains("server stop");
        let faults: Vec<&str> = log.lines().filter(|line| !is_usual(line)).collect();
        assert!(faults.iter().all(|line| line.contains("graceful shutdown")), "{faults:?}");
    }
}

/// lighttpd ends each connection after some hundred requests; ab makes another one.
#[test]
fn ab_keeps_connections_to_lighttpd_alive() {
    for handler in ["linux-sysepoll", "poll"] {
        alike_mostly_in_memory(0.0, |way| {
            let lighttpd = Lighttpd::start(way, handler);
            let seen = at_each_concurrency(way, &lighttpd.url, 8000);
            lighttpd.stop();
            seen
        });
    }
}
