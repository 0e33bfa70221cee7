//! Servers that hold data: Redis, memcached, PostgreSQL and MariaDB, under the loads of their own
//! packages.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bench::NotInstalled;
use crate::bench_programs::case::Case;
use crate::bench_programs::launch::{
    Launcher, Outcome, Service, User, free_port, is_root, number_after, require,
};

pub fn cases() -> Vec<Case> {
    let mut list = vec![];
    for (clients, depth) in [("1", "1"), ("50", "1"), ("50", "16")] {
        let name = format!("Redis, redis-benchmark -t get -c {clients} -P {depth}");
        list.push(Case::new(name, "requests/s", move |launcher| redis(launcher, clients, depth)));
    }
    for clients in ["1", "16"] {
        let name = format!("memcached, memcslap --concurrency={clients}");
        list.push(Case::new(name, "gets/s", move |launcher| memcached(launcher, clients)));
    }
    for clients in ["1", "8"] {
        let name = format!("PostgreSQL, pgbench -S -c {clients}");
        let unit = "transactions/s";
        list.push(Case::new(name, unit, move |launcher| postgres(launcher, clients)));
    }
    for clients in ["1", "8"] {
        let name = format!("MariaDB, mariadb-slap --concurrency={clients}");
        list.push(Case::new(name, "queries/s", move |launcher| mariadb(launcher, clients)));
    }
    list
}

fn redis(launcher: &Launcher<'_>, clients: &str, depth: &str) -> Result<Outcome> {
    require(&[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")])?;
    let port = free_port()?;
    let at = port.to_string();
    let words = ["redis-server", "--bind", "127.0.0.1", "--port", &at, "--save", ""];
    let _service = Service::start(&mut launcher.server(&words), port, "TERM")?;
    let count = if clients == "1" { "30000" } else { "100000" };
    let words = ["redis-benchmark", "-h", "127.0.0.1", "-p", &at, "-q", "-t", "get"];
    let mut command = launcher.client(&words);
    command.args(["-n", count, "-c", clients, "-P", depth]);
    // Progress is written over with carriage returns; the last figure counts.
    launcher.measure(&mut command, |text| {
        let line = text.split(['\r', '\n']).rfind(|line| line.contains("requests per second"))?;
        number_after(line, ":")
    })
}

fn memcached(launcher: &Launcher<'_>, clients: &str) -> Result<Outcome> {
    require(&[("memcached", "memcached"), ("memcslap", "libmemcached-tools")])?;
    let port = free_port()?;
    let at = port.to_string();
    let mut words = vec!["memcached", "-l", "127.0.0.1", "-p", &at, "-U", "0", "-t", "2"];
    if is_root() {
        words.extend(["-u", "root"]);
    }
    let _service = Service::start(&mut launcher.server(&words), port, "TERM")?;
    let count = if clients == "1" { "6000" } else { "1000" };
    let mut command = launcher.client(&["memcslap", "--test=get"]);
    command.arg(format!("--servers=127.0.0.1:{port}")).arg(format!("--initial-load={count}"));
    command.arg(format!("--concurrency={clients}")).arg(format!("--execute-number={count}"));
    launcher.measure(&mut command, |text| {
        let line = text.lines().find(|line| line.contains("Time to get"))?;
        let seconds = number_after(line, "threads:").filter(|time| *time > 0.0)?;
        Some(number_after(line, "Time to get")? / seconds)
    })
}

/// A program of the newest PostgreSQL installed: Debian keeps them beside each other.
fn postgres_program(name: &str) -> Result<String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|one| one.path().join("bin").join(name))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    let missing = || NotInstalled { program: name.to_string(), package: "postgresql" };
    let path = found.pop().ok_or_else(missing)?;
    Ok(path.display().to_string())
}

/// Runs a program that prepares a server's files.
fn prepare(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let output = command.output().with_context(|| shown.clone())?;
    if !output.status.success() {
        bail!("{shown}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn postgres(launcher: &Launcher<'_>, clients: &str) -> Result<Outcome> {
    let user = User::not_root();
    let (folder, is_new) = launcher.folder.subfolder("postgres", user)?;
    let data = folder.display().to_string();
    if is_new {
        let mut init = Command::new(postgres_program("initdb")?);
        init.args(["-A", "trust", "-U", "tester", "--no-sync", "-D", &data]).current_dir(&folder);
        prepare(user.of(&mut init))?;
    }
    let port = free_port()?;
    let at = port.to_string();
    let program = postgres_program("postgres")?;
    let words = [&program, "-D", &data, "-p", &at, "-c", "listen_addresses=127.0.0.1", "-c"];
    let mut command = launcher.server(&words);
    command.args(["unix_socket_directories=", "-c", "fsync=off"]);
    let _service = Service::start(user.of(&mut command), port, "INT")?;
    let pgbench = postgres_program("pgbench")?;
    let base = [&pgbench, "-h", "127.0.0.1", "-p", &at, "-U", "tester"];
    // In the round's first run its tables are empty; filling them is not measured.
    let mut fill = Command::new(&pgbench);
    fill.args(&base[1..]).args(["-i", "-q", "-s", "1", "postgres"]).current_dir(&folder);
    let is_ready = || prepare(user.of(&mut fill)).is_ok();
    if !std::iter::repeat_with(is_ready).take(20).any(|is_ready| is_ready) {
        bail!("pgbench cannot fill its tables");
    }
    let mut command = launcher.client(&base);
    command.args(["-n", "-S", "-T", "1", "-c", clients, "postgres"]);
    launcher.measure(user.of(&mut command), |text| number_after(text, "tps ="))
}

fn mariadb(launcher: &Launcher<'_>, clients: &str) -> Result<Outcome> {
    require(&[
        ("mariadbd", "mariadb-server-core"),
        ("mariadb-install-db", "mariadb-server-core"),
        ("mariadb-slap", "mariadb-client"),
    ])?;
    let user = if is_root() { &["--user=root"][..] } else { &[] };
    let (folder, is_new) = launcher.folder.subfolder("mariadb", User::OWN)?;
    let data = format!("--datadir={}", folder.display());
    if is_new {
        let mut init = Command::new("mariadb-install-db");
        init.args(["--no-defaults", "--auth-root-authentication-method=normal"]);
        prepare(init.arg(&data).args(user))?;
    }
    let port = free_port()?;
    let mut command = launcher.server(&["mariadbd", "--no-defaults", "--skip-name-resolve"]);
    command.args(["--bind-address=127.0.0.1", "--innodb-buffer-pool-size=32M"]);
    command.arg(format!("--port={port}")).arg(data).args(user);
    command.arg(format!("--socket={}/socket", folder.display()));
    command.arg(format!("--tmpdir={}", folder.display()));
    let _service = Service::start(&mut command, port, "TERM")?;
    let count = 8000.0;
    let mut command = launcher.client(&["mariadb-slap", "--no-defaults", "--protocol=tcp"]);
    command.args(["-h127.0.0.1", "-uroot", "--create-schema=load"]);
    // Without a table it makes no schema, and its clients cannot connect.
    command.arg("--create=CREATE TABLE t (id INT)");
    command.arg(format!("-P{port}")).arg(format!("--concurrency={clients}"));
    command.arg("--query=SELECT REPEAT('abcdefgh', 20)");
    command.arg(format!("--number-of-queries={count}"));
    let outcome = launcher.measure(&mut command, |text| {
        Some(count / number_after(text, "Average number of seconds to run all queries:")?)
    })?;
    // mariadb-slap reports a rate even if its clients could not connect.
    let mut status = Command::new("mariadb");
    status.args(["--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-uroot", "-N"]);
    status.arg(format!("-P{port}")).args(["-e", "SHOW GLOBAL STATUS LIKE 'Com_select'"]);
    let text = String::from_utf8_lossy(&status.output()?.stdout).into_owned();
    let served = number_after(&text, "Com_select").unwrap_or(0.0);
    if served < count {
        bail!("the server has answered {served} of {count} queries");
    }
    Ok(outcome)
}
