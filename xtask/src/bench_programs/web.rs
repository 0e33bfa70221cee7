//! Web servers: nginx, lighttpd and Apache httpd, under ab and wrk.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::bench_programs::case::Case;
use crate::bench_programs::launch::{
    Launcher, Outcome, Service, User, free_port, number_after, require,
};

/// Size of the file that is asked for, bytes.
const SIZE: usize = 1400;

/// Size of the large one, bytes.
const LARGE_SIZE: usize = 100_000;

/// Requests after which a server closes a connection, if it closes any.
const REQUESTS_OF_SHORT: u32 = 16;

/// Requests after which the others do.
const REQUESTS_OF_LONG: u32 = 10_000_000;

#[derive(Clone, Copy)]
enum Server {
    Nginx,
    /// nginx that keeps the files it serves open.
    NginxOpenFiles,
    /// nginx that closes a connection after [`REQUESTS_OF_SHORT`] requests.
    NginxShort,
    /// nginx in front of itself.
    NginxProxy,
    Lighttpd,
    ApachePrefork,
    ApacheEvent,
}

/// A load of requests for a second or so.
#[derive(Clone, Copy)]
enum Load {
    /// ab with so many connections that are kept alive.
    Ab(u32),
    /// ab with a connection for each request, so many at the same time.
    AbClosing(u32),
    /// wrk with so many connections.
    Wrk(u32),
    /// wrk with so many connections, for the large file.
    WrkLarge(u32),
}

pub fn cases() -> Vec<Case> {
    use Load::{Ab, AbClosing, Wrk, WrkLarge};
    let list: [(Server, &[Load]); 7] = [
        (Server::Nginx, &[Ab(1), Ab(8), Ab(64), AbClosing(8), Wrk(1), Wrk(20), WrkLarge(8)]),
        (Server::NginxOpenFiles, &[Ab(8), Ab(64)]),
        (Server::NginxShort, &[Ab(8)]),
        (Server::NginxProxy, &[Wrk(20), WrkLarge(8)]),
        (Server::Lighttpd, &[Ab(1), Ab(8), Wrk(20)]),
        (Server::ApachePrefork, &[Ab(1), Ab(8), AbClosing(8), Wrk(8)]),
        (Server::ApacheEvent, &[Ab(1), Ab(8), AbClosing(8), Wrk(8)]),
    ];
    let case = |server: Server, load: Load| {
        let name = format!("{}, {}", server.name(), load.name());
        Case::new(name, "requests/s", move |launcher| measure(launcher, server, load))
    };
    list.into_iter()
        .flat_map(|(server, loads)| loads.iter().map(move |load| case(server, *load)))
        .collect()
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Server::Nginx => "nginx",
            Server::NginxOpenFiles => "nginx with open_file_cache",
            Server::NginxShort => "nginx with 16 requests a connection",
            Server::NginxProxy => "nginx as a proxy of itself",
            Server::Lighttpd => "lighttpd",
            Server::ApachePrefork => "Apache httpd, prefork",
            Server::ApacheEvent => "Apache httpd, event",
        }
    }

    fn user(self) -> User {
        match self {
            Server::ApachePrefork | Server::ApacheEvent => User::not_root(),
            _ => User::OWN,
        }
    }

    fn configuration(self, folder: &str, port: u16) -> String {
        match self {
            Server::Nginx | Server::NginxProxy => nginx(folder, port, REQUESTS_OF_LONG, ""),
            Server::NginxOpenFiles => {
                nginx(folder, port, REQUESTS_OF_LONG, "  open_file_cache max=16;\n")
            }
            Server::NginxShort => nginx(folder, port, REQUESTS_OF_SHORT, ""),
            Server::Lighttpd => format!(
                "server.document-root = \"{folder}\"\nserver.bind = \"127.0.0.1\"\n\
                 server.port = {port}\nserver.max-keep-alive-requests = 100000\n\
                 mimetype.assign = ( \"\" => \"application/octet-stream\" )\n"
            ),
            Server::ApachePrefork => apache(folder, port, "prefork"),
            Server::ApacheEvent => apache(folder, port, "event"),
        }
    }

    fn start(self, launcher: &Launcher<'_>, folder: &Path, port: u16) -> Result<Service> {
        let at = folder.display().to_string();
        let file = format!("{at}/server.conf");
        std::fs::write(&file, self.configuration(&at, port))?;
        let (words, signal): (Vec<&str>, _) = match self {
            Server::Nginx | Server::NginxOpenFiles | Server::NginxShort | Server::NginxProxy => {
                (vec!["nginx", "-p", &at, "-e", "stderr", "-c", &file], "QUIT")
            }
            Server::Lighttpd => (vec!["lighttpd", "-D", "-f", &file], "INT"),
            Server::ApachePrefork | Server::ApacheEvent => {
                (vec!["apache2", "-D", "FOREGROUND", "-f", &file], "TERM")
            }
        };
        Service::start(self.user().of(&mut launcher.server(&words)), port, signal)
    }
}

/// `more`: further settings of its web server, a line each.
fn nginx(folder: &str, port: u16, requests: u32, more: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("  {name}_temp_path {folder}/{name};\n"))
        .collect();
    format!(
        "daemon off;\nworker_processes 2;\nuser root;\npid {folder}/pid;\nerror_log stderr;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n{temporary}  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  \
         keepalive_requests {requests};\n{more}  upstream own {{ server \
         127.0.0.1:{port}; keepalive 8; }}\n  server {{\n    \
         listen 127.0.0.1:{port} reuseport;\n    root {folder};\n    \
         location /through/ {{ proxy_pass http://own/; proxy_http_version 1.1; \
         proxy_set_header Connection \"\"; }}\n  }}\n}}\n"
    )
}

fn apache(folder: &str, port: u16, model: &str) -> String {
    let modules: String = [&format!("mpm_{model}")[..], "authz_core"]
        .iter()
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
        .collect();
    format!(
        "{modules}ServerName localhost\nServerRoot {folder}\nDocumentRoot {folder}\n\
         DefaultRuntimeDir {folder}\nPidFile {folder}/pid\nErrorLog {folder}/error.log\n\
         Listen 127.0.0.1:{port}\nKeepAlive On\nMaxKeepAliveRequests 0\n"
    )
}

impl Load {
    fn name(self) -> String {
        match self {
            Load::Ab(count) => format!("ab -k -c {count}"),
            Load::AbClosing(count) => format!("ab -c {count}"),
            Load::Wrk(count) => format!("wrk -c {count}"),
            Load::WrkLarge(count) => format!("wrk -c {count}, 100 kB"),
        }
    }

    fn command(self, launcher: &Launcher<'_>, url: &str) -> Command {
        let (words, count): (&[&str], u32) = match self {
            Load::Ab(count) => (&["ab", "-q", "-k", "-t", "1", "-n", "10000000"], count),
            // Many more would leave no port free: each stays in TIME_WAIT.
            Load::AbClosing(count) => (&["ab", "-q", "-n", "10000"], count),
            Load::Wrk(count) | Load::WrkLarge(count) => (&["wrk", "-t", "1", "-d", "1s"], count),
        };
        let mut command = launcher.client(words);
        command.arg("-c").arg(count.to_string()).arg(url);
        command
    }

    /// Requests a second, if none failed.
    fn rate(self, text: &str) -> Result<Option<f64>> {
        let key = match self {
            Load::Wrk(_) | Load::WrkLarge(_) => {
                if text.contains("Socket errors") || text.contains("Non-2xx") {
                    bail!("wrk counted faults: {text}");
                }
                "Requests/sec:"
            }
            Load::Ab(_) | Load::AbClosing(_) => {
                let failed = number_after(text, "Failed requests:").unwrap_or(0.0);
                if failed > 0.0 || text.contains("Non-2xx") {
                    bail!("{failed} requests failed");
                }
                "Requests per second:"
            }
        };
        Ok(number_after(text, key))
    }
}

fn measure(launcher: &Launcher<'_>, server: Server, load: Load) -> Result<Outcome> {
    require(&[
        ("nginx", "nginx-light"),
        ("lighttpd", "lighttpd"),
        ("apache2", "apache2-bin"),
        ("ab", "apache2-utils"),
        ("wrk", "wrk"),
    ])?;
    let name = server.name().replace([' ', ','], "-");
    let (folder, _) = launcher.folder.subfolder(&name, server.user())?;
    let (file, size) = match load {
        Load::WrkLarge(_) => ("large", LARGE_SIZE),
        _ => ("file", SIZE),
    };
    std::fs::write(folder.join(file), vec![b'x'; size])?;
    let port = free_port()?;
    let _service = server.start(launcher, &folder, port)?;
    let through = if matches!(server, Server::NginxProxy) { "through/" } else { "" };
    let mut command = load.command(launcher, &format!("http://127.0.0.1:{port}/{through}{file}"));
    let (stdout, reports) = launcher.finish(server.user().of(&mut command))?;
    match load.rate(&stdout)? {
        Some(rate) => Ok(Outcome { rate, reports }),
        None => bail!("no rate in: {stdout}"),
    }
}
