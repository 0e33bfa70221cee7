//! MariaDB, whose storage engine uses io_uring for its files, with clients of its own package.

use std::process::Command;

use super::nobody::is_root;
use super::{Place, Seen, Started, Way, alike, alike_mostly_in_memory, finish, finish_with, need};
use crate::support::{free_port, wait_for};

/// A server of our own in a temporary folder.
struct MariaDb {
    way: Way,
    port: String,
    server: Started,
    _folder: tempfile::TempDir,
}

impl MariaDb {
    fn start(way: Way) -> MariaDb {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("data");
        let user = if is_root() { &["--user=root"][..] } else { &[] };
        let data = format!("--datadir={}", at.display());
        let mut init = Command::new(need("mariadb-install-db", "mariadb-server-core"));
        init.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        finish(init.arg(&data).args(user));
        let port = free_port();
        let mut command = way.server(&need("mariadbd", "mariadb-server-core"));
        command.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"]);
        command.args(["--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0"]);
        // Servers that share a folder for temporary tables remove each other's when they start.
        command.arg(format!("--tmpdir={}", at.display()));
        command.arg(format!("--socket={}", at.join("socket").display()));
        command.arg(format!("--pid-file={}", at.join("pid").display()));
        command.arg(format!("--port={port}")).arg(data).args(user);
        let server = Started::server(&mut command, port);
        let mariadb = MariaDb { way, port: port.to_string(), server, _folder: folder };
        wait_for("MariaDB to be ready", || mariadb.answers().then_some(()));
        mariadb
    }

    fn answers(&self) -> bool {
        let mut command = Command::new(need("mariadb-admin", "mariadb-client"));
        let words = ["--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-uroot", "-s", "ping"];
        command.args(words).arg(format!("-P{}", self.port));
        command.output().is_ok_and(|output| output.status.success())
    }

    fn client(&self, program: &str) -> Command {
        let mut command = self.way.client(&need(program, "mariadb-client"));
        command.args(["--no-defaults", "--protocol=tcp", "-h127.0.0.1", "-uroot"]);
        command.arg(format!("-P{}", self.port));
        command
    }

    /// mariadb-slap with `clients` connections that together insert `count` rows into a new table.
    fn insert(&self, clients: u32, count: u32, seen: &mut Seen) {
        let mut command = self.client("mariadb-slap");
        command.args(["--create-schema=inserts", "--no-drop", "--silent"]);
        command.arg("--create=CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, v TEXT)");
        command.arg("--query=INSERT INTO t (v) VALUES (REPEAT('abcdefgh', 20))");
        command.arg(format!("--concurrency={clients}"));
        let ran = finish(command.arg(format!("--number-of-queries={count}")));
        assert!(!ran.stderr.contains("rror"), "{ran:?}");
        seen.add_as(ran, format!("{count} by {clients}"));
        let sums = "SELECT COUNT(*), SUM(LENGTH(v)), COUNT(DISTINCT v) FROM inserts.t; \
            CHECKSUM TABLE inserts.t; DROP SCHEMA inserts";
        let ran = finish(self.client("mariadb").args(["-N", "-e", sums]));
        assert!(ran.stdout.starts_with(&format!("{count}\t{}\t1\n", count * 160)), "{ran:?}");
        seen.words.push(ran.stdout);
    }
}

/// Tables of all kinds of content, and what queries say about them.
fn queries() -> String {
    let mut script = String::from(
        "CREATE SCHEMA test; USE test; CREATE TABLE t (id INT PRIMARY KEY, a INT, v TEXT);\n",
    );
    for number in 0..500 {
        let text = "y".repeat(number * 13 % 2000);
        script += &format!("INSERT INTO t VALUES ({number}, {}, '{text}');\n", number % 7);
    }
    script += "SELECT a, COUNT(*), SUM(LENGTH(v)), SHA2(GROUP_CONCAT(v ORDER BY id), 256) FROM t \
        GROUP BY a; CHECKSUM TABLE t;\n\
        SELECT seq, REPEAT(MD5(seq), 20) FROM seq_1_to_20000;\n\
        SELECT LENGTH(REPEAT('long', 3000000)), MD5(REPEAT('long', 3000000));\n\
        SELECT REPEAT('long', 1000000);\nUPDATE t SET a = a + 1; SELECT SUM(a) FROM t;\n";
    script
}

#[test]
fn mariadb_answers_queries_and_keeps_its_sums() {
    alike(Place::SharedMemory, |way| {
        let mariadb = MariaDb::start(way);
        let mut seen = Seen::new();
        seen.add(finish_with(mariadb.client("mariadb").arg("-N"), &queries()));
        mariadb.insert(8, 4000, &mut seen);
        mariadb.insert(40, 4000, &mut seen);
        let mut command = mariadb.client("mariadb-slap");
        command.args(["--auto-generate-sql", "--auto-generate-sql-load-type=mixed", "--silent"]);
        command.args(["--concurrency=4,16", "--number-of-queries=1600"]);
        seen.add(finish(&mut command));
        seen.add(finish(mariadb.client("mariadb-dump").args(["--skip-dump-date", "test"])));
        mariadb.server.end_by("TERM");
        seen
    });
}

/// How much of it depends on how often an end sleeps: the server thinks longer than an end spins.
#[test]
fn mariadb_serves_a_client_from_shared_memory() {
    alike_mostly_in_memory(0.0, |way| {
        let mariadb = MariaDb::start(way);
        let mut seen = Seen::new();
        mariadb.insert(1, 20_000, &mut seen);
        mariadb.server.end_by("TERM");
        seen
    });
}
