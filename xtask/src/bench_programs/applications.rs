//! Servers whose receivers mostly sleep, under wrk. They are a web server with its own loop (h2o),
//! and a proxy of streams (nginx). Applications are behind a web server (PHP) or in one (uvicorn).

use std::path::Path;

use anyhow::{Result, bail};

use crate::bench::NotInstalled;
use crate::bench_programs::case::Case;
use crate::bench_programs::launch::{
    Launcher, Outcome, Service, User, free_port, is_root, number_after, require, require_file,
    source,
};

/// Size of an answer, bytes.
const SIZE: usize = 1400;

/// Where Debian keeps nginx's module for streams.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Where Debian keeps uvicorn.
const UVICORN: &str = "/usr/lib/python3/dist-packages/uvicorn";

pub fn cases() -> Vec<Case> {
    let rate = "requests/s";
    let mut list = vec![];
    for count in ["1", "20"] {
        let name = |server: &str| format!("{server}, wrk -c {count}");
        list.push(Case::new(name("h2o, a file"), rate, move |it| h2o(it, count)));
        list.push(Case::new(name("nginx as a proxy of streams"), rate, move |it| {
            stream_proxy(it, count)
        }));
        list.push(Case::new(name("PHP-FPM behind nginx"), rate, move |it| php(it, count)));
        list.push(Case::new(name("uvicorn"), rate, move |it| uvicorn(it, count)));
    }
    list
}

/// Requests a second of wrk, if none failed.
fn load(launcher: &Launcher<'_>, port: u16, path: &str, count: &str) -> Result<Outcome> {
    let mut command = launcher.client(&["wrk", "-t", "1", "-d", "1s", "-c", count]);
    command.arg(format!("http://127.0.0.1:{port}/{path}"));
    let (text, reports) = launcher.finish(&mut command)?;
    if text.contains("Socket errors") || text.contains("Non-2xx") {
        bail!("wrk counted faults: {text}");
    }
    match number_after(&text, "Requests/sec:") {
        Some(rate) => Ok(Outcome { rate, reports }),
        None => bail!("no rate in: {text}"),
    }
}

/// Starts a server that reads its settings from a file, which it finds by the last word.
fn start(
    launcher: &Launcher<'_>,
    words: &[&str],
    folder: &Path,
    settings: &str,
    (port, signal): (u16, &'static str),
) -> Result<Service> {
    let name = words[0].replace('/', "_");
    let file = folder.join(format!("{name}-{port}.conf"));
    std::fs::write(&file, settings)?;
    Service::start(launcher.server(words).arg(&file), port, signal)
}

fn folder_with_file(launcher: &Launcher<'_>, name: &str) -> Result<std::path::PathBuf> {
    let (folder, _) = launcher.folder.subfolder(name, User::OWN)?;
    std::fs::write(folder.join("file"), vec![b'x'; SIZE])?;
    Ok(folder)
}

fn h2o(launcher: &Launcher<'_>, count: &str) -> Result<Outcome> {
    require(&[("h2o", "h2o"), ("wrk", "wrk")])?;
    let folder = folder_with_file(launcher, "h2o")?;
    let (at, port) = (folder.display(), free_port()?);
    let user = if is_root() { "user: root\n" } else { "" };
    let settings = format!(
        "{user}num-threads: 1\nlisten: {{ host: 127.0.0.1, port: {port} }}\nhosts: {{ default: \
         {{ paths: {{ /: {{ file.dir: {at} }} }} }} }}\n"
    );
    let words = ["h2o", "-c"];
    let _service = start(launcher, &words, &folder, &settings, (port, "TERM"))?;
    load(launcher, port, "file", count)
}

/// The beginning of nginx's settings.
fn nginx_settings(folder: &str) -> String {
    let user = if is_root() { "user root;\n" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("  {name}_temp_path {folder}/{name};\n"))
        .collect();
    format!(
        "daemon off;\n{user}worker_processes 1;\npid {folder}/pid;\nerror_log stderr;\nevents {{ \
         worker_connections 512; }}\nhttp {{\n{temporary}  access_log off;\n  keepalive_requests \
         10000000;\n"
    )
}

fn start_nginx(
    launcher: &Launcher<'_>,
    folder: &Path,
    settings: &str,
    port: u16,
) -> Result<Service> {
    let at = folder.display().to_string();
    let words = ["nginx", "-p", &at, "-e", "stderr", "-c"];
    start(launcher, &words, folder, settings, (port, "QUIT"))
}

fn stream_proxy(launcher: &Launcher<'_>, count: &str) -> Result<Outcome> {
    require(&[("nginx", "nginx-light"), ("wrk", "wrk")])?;
    require_file(STREAM_MODULE, "libnginx-mod-stream")?;
    let folder = folder_with_file(launcher, "nginx-streams")?;
    let (at, behind, port) = (folder.display().to_string(), free_port()?, free_port()?);
    let settings = format!(
        "load_module {STREAM_MODULE};\n{}  server {{ listen 127.0.0.1:{behind}; root {at}; }}\n}}\n\
         stream {{ server {{ listen 127.0.0.1:{port}; proxy_pass 127.0.0.1:{behind}; }} }}\n",
        nginx_settings(&at)
    );
    let _service = start_nginx(launcher, &folder, &settings, port)?;
    load(launcher, port, "file", count)
}

/// The program of the newest PHP-FPM installed: Debian names it by its version.
fn php_program() -> Result<String> {
    let entries = std::fs::read_dir("/usr/sbin").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match names.filter(|name| name.starts_with("php-fpm")).max() {
        Some(name) => Ok(format!("/usr/sbin/{name}")),
        None => Err(NotInstalled { program: "php-fpm".to_string(), package: "php-fpm" }.into()),
    }
}

fn php(launcher: &Launcher<'_>, count: &str) -> Result<Outcome> {
    require(&[("nginx", "nginx-light"), ("wrk", "wrk")])?;
    let program = php_program()?;
    let folder = folder_with_file(launcher, "php")?;
    let page = format!("<?php echo str_repeat('x', {SIZE});\n");
    std::fs::write(folder.join("page.php"), page)?;
    let (at, behind, port) = (folder.display().to_string(), free_port()?, free_port()?);
    let user = if is_root() { "user = root\ngroup = root\n" } else { "" };
    let settings = format!(
        "[global]\nerror_log = {at}/log\ndaemonize = no\n[www]\n{user}listen = 127.0.0.1:{behind}\n\
         pm = static\npm.max_children = 8\n"
    );
    let words = if is_root() { vec![&program[..], "-R", "-y"] } else { vec![&program[..], "-y"] };
    let _php = start(launcher, &words, &folder, &settings, (behind, "TERM"))?;
    let settings = format!(
        "{}  upstream php {{ server 127.0.0.1:{behind}; keepalive 8; }}\n  server {{\n    listen \
         127.0.0.1:{port};\n    location / {{ fastcgi_pass php; fastcgi_keep_conn on; \
         fastcgi_param REQUEST_METHOD GET; fastcgi_param SCRIPT_FILENAME {at}/page.php; }}\n  \
         }}\n}}\n",
        nginx_settings(&at)
    );
    let _service = start_nginx(launcher, &folder, &settings, port)?;
    load(launcher, port, "page.php", count)
}

fn uvicorn(launcher: &Launcher<'_>, count: &str) -> Result<Outcome> {
    require(&[("wrk", "wrk")])?;
    require_file(UVICORN, "python3-uvicorn")?;
    let port = free_port()?;
    let at = port.to_string();
    let file = source("answer.py");
    let folder = Path::new(&file).parent().unwrap_or(Path::new("/")).display().to_string();
    let words = ["/usr/bin/python3", "-m", "uvicorn", "--no-access-log", "--log-level", "warning"];
    let mut command = launcher.server(&words);
    command.args(["--host", "127.0.0.1", "--port", &at, "--app-dir", &folder, "answer:app"]);
    let _service = Service::start(command.env("PYTHONDONTWRITEBYTECODE", "1"), port, "INT")?;
    load(launcher, port, "", count)
}
