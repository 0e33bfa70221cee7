//! HAProxy with two threads between `ab` or curl and nginx. Each thread has an epoll set of its
//! own, and the proxy is server and client at once.

use std::path::Path;

use super::ab::{command, counted};
use super::web::Nginx;
use super::{Place, Seen, Started, Way, alike_by_halves, content, finish, need};
use crate::support::free_port;

/// Size of a large file that nginx serves, bytes.
const LARGE: usize = 24_000_000;

/// A proxy of `mode`, which is `http` or `tcp`.
fn configuration(mode: &str, port: u16, upstream: &str) -> String {
    format!(
        "global\n  maxconn 400\n  nbthread 2\n\
         defaults\n  mode {mode}\n  timeout connect 30s\n  timeout client 60s\n  \
         timeout server 60s\n\
         listen proxy\n  bind 127.0.0.1:{port}\n  server upstream {upstream}\n"
    )
}

fn start(way: Way, mode: &str, upstream: &str, folder: &Path) -> (Started, String) {
    let port = free_port();
    let file = folder.join("haproxy.cfg");
    std::fs::write(&file, configuration(mode, port, upstream)).unwrap();
    let mut command = way.server(&need("haproxy", "haproxy"));
    let proxy = Started::server(command.arg("-db").arg("-f").arg(&file), port);
    (proxy, format!("http://127.0.0.1:{port}"))
}

/// Requests on few and on many connections, and a large body several times on one.
fn through(way: Way, mode: &str) -> Seen {
    let folder = tempfile::tempdir().unwrap();
    let nginx = Nginx::start(way);
    let upstream = nginx.url.strip_prefix("http://").unwrap();
    let (proxy, url) = start(way, mode, upstream, folder.path());
    let mut seen = Seen::new();
    for concurrency in ["4", "64"] {
        let file = format!("{url}/file-1400");
        let ran = finish(command(way).args(["-n", "2000", "-c", concurrency, &file]));
        let words = counted(way, &ran);
        seen.add_as(ran, words);
    }
    let mut curl = way.client(&need("curl", "curl"));
    let got = folder.path().join("got-#1");
    curl.args(["-sS", "--fail", "-o"]).arg(got).arg(format!("{url}/file-{LARGE}?[1-2]"));
    seen.add(finish(&mut curl));
    for number in 1..=2 {
        let body = std::fs::read(folder.path().join(format!("got-{number}"))).unwrap();
        assert!(body == content(LARGE), "{way:?}: body {number} differs");
    }
    proxy.end_by("TERM");
    nginx.stop();
    seen
}

#[test]
fn haproxy_between_http_connections() {
    alike_by_halves(Place::SharedMemory, |way| through(way, "http"));
}

#[test]
fn haproxy_between_tcp_connections() {
    alike_by_halves(Place::SharedMemory, |way| through(way, "tcp"));
}
