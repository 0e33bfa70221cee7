//! nginx with two workers, under wrk and under curl.

use std::path::Path;

use super::{Place, Ran, Seen, Started, Way, alike, alike_by_halves, content, finish, need};
use crate::support::free_port;

/// Sizes of the files served, bytes: none, one segment, more than a pipe holds, large.
const SIZES: [usize; 5] = [0, 1, 1400, 300_000, 24_000_000];

pub struct Nginx {
    server: Started,
    pub url: String,
    folder: tempfile::TempDir,
}

impl Nginx {
    pub fn start(way: Way) -> Nginx {
        let program = need("nginx", "nginx-light");
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let port = free_port();
        for size in SIZES {
            std::fs::write(at.join(format!("file-{size}")), content(size)).unwrap();
        }
        std::fs::write(at.join("nginx.conf"), configuration(at, port)).unwrap();
        let mut command = way.server(&program);
        command.arg("-p").arg(at).arg("-e").arg(at.join("error.log"));
        let server = Started::server(command.arg("-c").arg(at.join("nginx.conf")), port);
        Nginx { server, url: format!("http://127.0.0.1:{port}"), folder }
    }

    /// Ends it as its users do, and looks at what it logged. It is its own upstream: a worker that
    /// ends closes idle connections, on which the other one may just have sent a request that wrk
    /// left behind.
    pub fn stop(self) {
        let Nginx { server, folder, .. } = self;
        assert_no_error(folder.path(), None);
        server.end_by("QUIT");
        assert_no_error(folder.path(), Some("upstream prematurely closed connection"));
    }
}

/// Looks at what nginx has logged; lines with the words `allowed` do not count.
fn assert_no_error(folder: &Path, allowed: Option<&str>) {
    let log = std::fs::read_to_string(folder.join("error.log")).unwrap();
    let is_error = |line: &&str| {
        ["[error]", "[alert]", "[crit]", "[emerg]"].iter().any(|word| line.contains(word))
    };
    let is_allowed = |line: &&str| allowed.is_some_and(|words| line.contains(words));
    let errors: Vec<&str> = log.lines().filter(is_error).filter(|line| !is_allowed(line)).collect();
    assert!(errors.is_empty(), "nginx logged: {errors:?}");
}

/// Two workers, sendfile, an upstream that is nginx itself, and nothing outside the folder.
fn configuration(at: &Path, port: u16) -> String {
    let at = at.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("  {name}_temp_path {at}/{name};\n"))
        .collect();
    // Started as root it would give its workers to another user, who may not read the folder.
    format!(
        "daemon off;\nworker_processes 2;\nuser root;\npid {at}/pid;\nerror_log {at}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n{temporary}  access_log off;\n  log_not_found off;\n  sendfile on;\n  \
         tcp_nopush on;\n  \
         keepalive_requests 100000;\n  upstream own {{ server 127.0.0.1:{port}; keepalive 8; }}\n  \
         server {{\n    listen 127.0.0.1:{port} reuseport;\n    root {at};\n    \
         location /through/ {{ proxy_pass http://own/; proxy_http_version 1.1; \
         proxy_set_header Connection \"\"; }}\n  }}\n}}\n"
    )
}

/// The faults that wrk counted, as a list; it must have made requests.
pub fn wrk_faults(ran: &Ran) -> String {
    let requests = ran.stdout.lines().find(|line| line.contains(" requests in "));
    let requests = requests.unwrap_or_else(|| panic!("{ran:?}")).trim();
    assert!(super::number_after(requests, "") > 20, "{requests}");
    let is_fault = |line: &&str| line.contains("Socket errors") || line.contains("Non-2xx");
    format!("{:?}", ran.stdout.lines().filter(is_fault).collect::<Vec<_>>())
}

#[test]
fn nginx_under_wrk() {
    let wrk = need("wrk", "wrk");
    alike(Place::SharedMemory, |way| {
        let nginx = Nginx::start(way);
        let mut seen = Seen::new();
        for file in ["file-1400", "file-300000", "through/file-1400"] {
            let mut command = way.client(&wrk);
            command.args(["-t", "2", "-c", "20", "-d", "1s", &format!("{}/{file}", nginx.url)]);
            let ran = finish(&mut command);
            let faults = wrk_faults(&ran);
            assert_eq!(faults, "[]", "{file}");
            seen.add_as(ran, faults);
        }
        nginx.stop();
        seen
    });
}

#[test]
fn curl_gets_equal_bodies() {
    let curl = need("curl", "curl");
    alike_by_halves(Place::SharedMemory, |way| {
        let nginx = Nginx::start(way);
        let mut seen = Seen::new();
        let got = nginx.folder.path().join("got");
        std::fs::create_dir(&got).unwrap();
        // All files over one connection, directly and through the proxy.
        for base in ["", "/through"] {
            let mut command = way.client(&curl);
            command.args([
                "-sS",
                "--fail",
                "-w",
                "%{http_code} %{size_download} %{num_connects}\n",
            ]);
            for size in SIZES {
                command.arg("-o").arg(got.join(format!("file-{size}")));
                command.arg(format!("{}{base}/file-{size}", nginx.url));
            }
            seen.add(finish(&mut command));
            for size in SIZES {
                let body = std::fs::read(got.join(format!("file-{size}"))).unwrap();
                assert!(body == content(size), "{way:?}: file-{size} came as {}", body.len());
            }
        }
        // Ranges, a header only, and twelve at once.
        let mut range = way.client(&curl);
        range.args(["-sS", "-r", "999-1010", &format!("{}/file-1400", nginx.url), "-o"]);
        seen.add(finish(range.arg(got.join("range"))));
        assert_eq!(std::fs::read(got.join("range")).unwrap(), content(1400)[999..1011]);
        let mut head = way.client(&curl);
        let format = "%{http_code} %{size_header}\n";
        head.args(["-sS", "-I", "-o", "/dev/null", "-w", format]);
        seen.add(finish(head.arg(format!("{}/missing", nginx.url))));
        let mut parallel = way.client(&curl);
        parallel.args(["-sS", "--fail", "-Z", "--parallel-max", "6", "-o"]);
        parallel.arg(got.join("many-#1")).arg(format!("{}/file-300000?[1-12]", nginx.url));
        seen.add(finish(&mut parallel));
        for number in 1..=12 {
            let body = std::fs::read(got.join(format!("many-{number}"))).unwrap();
            assert!(body == content(300_000), "{way:?}: body {number} differs");
        }
        nginx.stop();
        seen
    });
}
