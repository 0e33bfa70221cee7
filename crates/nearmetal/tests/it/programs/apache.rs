//! Apache httpd under ab and under wrk. Its processes each serve one connection (prefork), or its
//! threads do, of which one waits for all idle connections (event).

use std::path::Path;
use std::process::Command;

use super::nobody::User;
use super::{Place, Ran, Seen, Started, Way, alike, content, finish, need};
use crate::support::free_port;

/// Size of the file that is asked for, bytes; ab's module knows it too.
const SIZE: usize = 1400;

/// A file that is sent in several pieces, bytes.
const LARGE: usize = 300_000;

struct Apache {
    way: Way,
    user: User,
    server: Started,
    port: u16,
    folder: tempfile::TempDir,
}

impl Apache {
    fn start(way: Way, model: &str) -> Apache {
        let program = need("apache2", "apache2-bin");
        let folder = tempfile::tempdir().unwrap();
        let (at, port) = (folder.path(), free_port());
        // It refuses to serve as root; and both ends must be the same user to share memory.
        let user = User::not_root();
        user.own(at);
        for size in [SIZE, LARGE] {
            std::fs::write(at.join(format!("file-{size}")), content(size)).unwrap();
        }
        std::fs::write(at.join("httpd.conf"), configuration(at, port, model)).unwrap();
        let mut command = way.server_from(&program, at);
        command.args(["-D", "FOREGROUND", "-f"]).arg(at.join("httpd.conf"));
        let server = Started::server(user.of(&mut command, at), port);
        Apache { way, user, server, port, folder }
    }

    fn client(&self, program: &str, package: &str) -> Command {
        let mut command = self.way.client_from(&need(program, package), self.folder.path());
        self.user.of(&mut command, self.folder.path());
        command
    }

    fn url(&self, size: usize) -> String {
        format!("http://127.0.0.1:{}/file-{size}", self.port)
    }

    /// What it has logged so far.
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }

    /// Ends it, and looks at what it logged: no fault, and no process that crashed.
    fn stop(self) {
        self.server.end_by("TERM");
        let log = self.folder.path().join("error.log");
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.contains("caught SIGTERM, shutting down"), "{log}");
        for word in [":warn]", ":error]", ":crit]", ":alert]", ":emerg]", "exit signal"] {
            assert!(!log.contains(word), "apache2 logged: {log}");
        }
    }
}

/// All of it in the folder, and connections that may live as long as their client wants.
fn configuration(at: &Path, port: u16, model: &str) -> String {
    let at = at.display();
    let modules: String = [&format!("mpm_{model}")[..], "authz_core"]
        .iter()
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
        .collect();
    let processes = match model {
        "prefork" => "StartServers 8\nMaxRequestWorkers 100\nMinSpareServers 4\n",
        // Spare threads are never too few, which it would log, nor too many, which it would end.
        _ => {
            "StartServers 2\nThreadsPerChild 64\nMaxRequestWorkers 256\nMinSpareThreads 32\n\
             MaxSpareThreads 256\n"
        }
    };
    format!(
        "{modules}ServerName localhost\nServerRoot {at}\nDocumentRoot {at}\n\
         DefaultRuntimeDir {at}\nPidFile {at}/pid\nErrorLog {at}/error.log\nLogLevel warn\n\
         Listen 127.0.0.1:{port}\nKeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\n\
         {processes}"
    )
}

/// Requests over a few connections and over many, kept alive and not, small files and large ones.
fn under_load(way: Way, model: &str) -> Seen {
    let apache = Apache::start(way, model);
    let mut seen = Seen::new();
    for options in [&["-k", "-c", "1"][..], &["-k", "-c", "8"], &["-k", "-c", "40"], &["-c", "8"]] {
        let mut command = apache.client("ab", "apache2-utils");
        let ran = finish(command.args(["-q", "-n", "4000"]).args(options).arg(apache.url(SIZE)));
        let words = format!("{options:?}: {}", super::ab::counted(way, &ran));
        assert!(words.ends_with("4000 complete, 0 failed"), "{words}");
        seen.add_as(ran, words);
    }
    for (connections, size) in [("2", SIZE), ("16", SIZE), ("8", LARGE)] {
        let mut command = apache.client("wrk", "wrk");
        let words = ["-t", "2", "-c", connections, "-d", "2s"];
        let ran: Ran = finish(command.args(words).arg(apache.url(size)));
        let faults = super::web::wrk_faults(&ran);
        let log = apache.log();
        assert_eq!(faults, "[]", "{way:?}, {model}, {connections} connections, {size} B: {log}");
        seen.add_as(ran, faults);
    }
    apache.stop();
    seen
}

#[test]
fn apache_prefork() {
    alike(Place::SharedMemory, |way| under_load(way, "prefork"));
}

#[test]
fn apache_event() {
    alike(Place::SharedMemory, |way| under_load(way, "event"));
}

/// Each request has a connection of its own: one that is kept alive may be closed by the old
/// processes just as a request comes.
#[test]
fn apache_event_that_is_restarted_gracefully_under_load() {
    alike(Place::Kernel(""), |way| {
        let apache = Apache::start(way, "event");
        let mut seen = Seen::new();
        for _ in 0..3 {
            let mut load = apache.client("ab", "apache2-utils");
            load.args(["-q", "-c", "8", "-n", "3000"]).arg(apache.url(SIZE));
            let ran = std::thread::scope(|scope| {
                let load = scope.spawn(|| finish(&mut load));
                apache.server.signal("USR1");
                load.join().expect("the load ends")
            });
            let words = super::ab::counted(way, &ran);
            seen.add_as(ran, words);
        }
        apache.stop();
        seen
    });
}
