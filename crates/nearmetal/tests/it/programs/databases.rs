//! Servers that hold data: Redis, memcached and PostgreSQL, each with clients of its own package.

use std::path::PathBuf;
use std::process::Command;

use super::nobody::User;
use super::{Place, Seen, Started, Way, alike, alike_by_halves, finish, finish_with, need};
use crate::support::{free_port, wait_for};

struct Redis {
    way: Way,
    port: String,
    server: Started,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start(way: Way) -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let at = port.to_string();
        let mut command = way.server(&need("redis-server", "redis-server"));
        command.args(["--bind", "127.0.0.1", "--port", &at, "--save", "", "--dir"]);
        let server = Started::server(command.arg(folder.path()), port);
        Redis { way, port: at, server, _folder: folder }
    }

    fn client(&self, program: &str) -> Command {
        let mut command = self.way.client(&need(program, "redis-tools"));
        command.args(["-h", "127.0.0.1", "-p", &self.port]);
        command
    }
}

#[test]
fn redis_answers_commands_and_pipelines() {
    alike_by_halves(Place::SharedMemory, |way| {
        let redis = Redis::start(way);
        let mut seen = Seen::new();
        let mut script = String::new();
        for number in 0..2000 {
            let value = "x".repeat(number * 7 % 3000);
            script += &format!("SET key:{number} {value}\nINCR count\nGET key:{number}\n");
        }
        script += "DBSIZE\nLRANGE none 0 -1\nNOSUCH command\nSTRLEN key:1999\n";
        seen.add(finish_with(&mut redis.client("redis-cli"), &script));
        // Raw protocol in bulk: all commands are sent before the answers are read.
        let bulk: String = (0..50_000)
            .map(|number| format!("*2\r\n$4\r\nINCR\r\n${}\r\nn{number}\r\n", 1 + digits(number)))
            .collect();
        seen.add(finish_with(redis.client("redis-cli").arg("--pipe"), &bulk));
        seen.add(finish(redis.client("redis-cli").arg("DBSIZE")));
        redis.server.end_by("TERM");
        seen
    });
}

fn digits(number: u32) -> usize {
    number.to_string().len()
}

#[test]
fn redis_serves_fifty_clients() {
    alike(Place::SharedMemory, |way| {
        let redis = Redis::start(way);
        let mut seen = Seen::new();
        for depth in ["1", "16"] {
            let words = ["-q", "-n", "4800", "-c", "50", "-P", depth, "-t"];
            let tests = "ping,set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,lrange_100,mset";
            let ran = finish(redis.client("redis-benchmark").args(words).arg(tests));
            let names: Vec<&str> = ran
                .stdout
                .split(['\r', '\n'])
                .filter(|line| line.contains("requests per second"))
                .filter_map(|line| line.split(':').next())
                .collect();
            let names = names.join(", ");
            assert!(!ran.stdout.contains("Error") && !ran.stderr.contains("Error"), "{ran:?}");
            seen.add_as(ran, names);
        }
        // Every increment arrived once: benchmarks of two depths, 4 800 each, a multiple of both.
        let count = finish(redis.client("redis-cli").args(["GET", "counter:__rand_int__"]));
        assert_eq!(count.stdout.trim(), "9600");
        seen.add(count);
        seen
    });
}

#[test]
fn redis_publishes_to_subscribers() {
    alike(Place::SharedMemory, |way| {
        let redis = Redis::start(way);
        let out = tempfile::NamedTempFile::new().unwrap();
        let mut command = redis.client("redis-cli");
        command.args(["SUBSCRIBE", "news"]).stdout(out.reopen().unwrap());
        let received = || std::fs::read_to_string(out.path()).unwrap();
        let subscriber = Started::new(&mut command);
        wait_for("the subscription", || received().contains("subscribe").then_some(()));
        let mut seen = Seen::new();
        let script: String =
            (0..500).map(|number| format!("PUBLISH news item-{number}\n")).collect();
        seen.add(finish_with(&mut redis.client("redis-cli"), &script));
        wait_for("the last message", || received().contains("item-499").then_some(()));
        seen.words.push(received());
        subscriber.end_by("TERM");
        seen
    });
}

#[test]
fn memcached_passes_its_protocol_tests() {
    let server = need("memcached", "memcached");
    let client = need("memccapable", "libmemcached-tools");
    alike(Place::SharedMemory, |way| {
        let port = free_port();
        let at = port.to_string();
        let mut command = way.server(&server);
        command.args(["-l", "127.0.0.1", "-p", &at, "-t", "2", "-U", "0", "-u", "root"]);
        let _server = Started::server(&mut command, port);
        let mut seen = Seen::new();
        let mut command = way.client(&client);
        // The binary and the ASCII protocol, each command of both, quiet ones and pipelines too.
        let ran = finish(command.args(["-h", "127.0.0.1", "-p", &at]));
        assert!(ran.stdout.contains("[pass]") && !ran.stdout.contains("[FAIL]"), "{ran:?}");
        seen.add(ran);
        seen
    });
}

/// A PostgreSQL server of our own in a temporary folder. It refuses to run as root.
struct Postgres {
    way: Way,
    port: String,
    user: User,
    server: Started,
    folder: tempfile::TempDir,
}

impl Postgres {
    fn start(way: Way) -> Postgres {
        let folder = tempfile::tempdir().unwrap();
        let user = User::not_root();
        user.own(folder.path());
        let data = folder.path().join("data");
        std::fs::create_dir(&data).unwrap();
        user.own(&data);
        let port = free_port();
        let mut init = Command::new(postgres_program("initdb"));
        init.args(["-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8", "--locale=C", "-D"]);
        finish(user.of(init.arg(&data), folder.path()));
        let program = postgres_program("postgres");
        let mut command = way.server_from(&program, folder.path());
        command.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        for setting in ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"] {
            command.args(["-c", setting]);
        }
        let server = Started::server(user.of(&mut command, folder.path()), port);
        let postgres = Postgres { way, port: port.to_string(), user, server, folder };
        wait_for("PostgreSQL to be ready", || postgres.answers().then_some(()));
        postgres
    }

    fn answers(&self) -> bool {
        let mut command = Command::new(postgres_program("pg_isready"));
        command.args(["-q", "-h", "127.0.0.1", "-p", &self.port]);
        command.status().is_ok_and(|status| status.success())
    }

    fn client(&self, program: &str) -> Command {
        let mut command = self.way.client_from(&postgres_program(program), self.folder.path());
        command.args(["-h", "127.0.0.1", "-p", &self.port, "-U", "tester"]);
        self.user.of(&mut command, self.folder.path());
        command
    }
}

/// A program of the newest PostgreSQL installed: Debian keeps them beside each other.
fn postgres_program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|one| one.path().join("bin").join(name))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| need(name, "postgresql"))
}

#[test]
fn postgres_keeps_its_sums_under_pgbench() {
    // A backend is forked for each connection before a byte of it is sent.
    alike(Place::SharedMemory, |way| {
        let postgres = Postgres::start(way);
        let mut seen = Seen::new();
        let init = finish(postgres.client("pgbench").args(["-q", "-i", "-s", "1", "postgres"]));
        seen.add_as(init, "filled");
        let words = ["-n", "-c", "8", "-j", "2", "-t", "100", "postgres"];
        let ran = finish(postgres.client("pgbench").args(words));
        let count = ran.stdout.lines().find(|line| line.contains("actually processed"));
        let count = count.unwrap_or_else(|| panic!("{ran:?}")).to_string();
        assert!(count.contains("800/800"), "{count}");
        seen.add_as(ran, count);
        let sums = "SELECT count(*) FROM pgbench_history; SELECT count(*) FROM pgbench_accounts; \
            SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM \
            pgbench_branches) AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(delta) \
            FROM pgbench_history)";
        let ran = finish(postgres.client("psql").args(["-AtX", "-c", sums, "postgres"]));
        assert_eq!(ran.stdout, "800\n100000\nt\n");
        seen.add(ran);
        let long = "SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 20000) i";
        seen.add(finish(postgres.client("psql").args(["-AtX", "-c", long, "postgres"])));
        postgres.server.end_by("INT");
        seen
    });
}
