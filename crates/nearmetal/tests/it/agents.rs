//! Agents that connect out: a controller, two agents beside it, and one behind a NAT.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nm_controller::hello::{Refusal, Word};
use nm_controller::link::Link;
use nm_controller::tls;
use nm_sys::clock::Deadline;
use serde_json::Value;

use crate::hosts::Namespace;
use crate::programs::need;
use crate::support::{BINARY, Run, Running, command, finish, json, run, signal, wait_for};

/// A controller's place, agents `a` and `b` beside it, and `c` behind a router that translates.
struct Net {
    folder: tempfile::TempDir,
    bridge: Namespace,
    a: Namespace,
    b: Namespace,
    _router: Namespace,
    c: Namespace,
}

impl Net {
    fn new() -> Net {
        assert!(nm_sys::namespace::privileged(), "this test makes namespaces: run it as root");
        let nft = need("nft", "nftables");
        let [bridge, a, b, router, c] = std::array::from_fn(|_| Namespace::new());
        bridge.shell(
            "ip link add bridge0 type bridge && ip addr add 10.77.0.254/24 dev bridge0 && \
             ip link set bridge0 up",
        );
        for (name, host, address) in [("a", &a, 1), ("b", &b, 2), ("r", &router, 9)] {
            bridge.shell(&format!(
                "ip link add port{name} type veth peer name lan0 netns {} && \
                 ip link set port{name} master bridge0 up",
                host.pid()
            ));
            let set = "dev lan0 && ip link set lan0 up";
            host.shell(&format!("ip addr add 10.77.0.{address}/24 {set}"));
        }
        router.shell(&format!(
            "ip link add lan1 type veth peer name lan0 netns {} && \
             ip addr add 10.78.0.1/24 dev lan1 && ip link set lan1 up && \
             echo 1 >/proc/sys/net/ipv4/ip_forward && nft={} && \
             $nft add table ip nat && \
             $nft 'add chain ip nat out {{ type nat hook postrouting priority 100; }}' && \
             $nft add rule ip nat out oifname lan0 masquerade",
            c.pid(),
            nft.display()
        ));
        c.shell(
            "ip addr add 10.78.0.2/24 dev lan0 && ip link set lan0 up && \
             ip route add default via 10.78.0.1",
        );
        let net = Net { folder: tempfile::tempdir().unwrap(), bridge, a, b, _router: router, c };
        secret(&net.path("token"), "0123456789abcdef\n");
        secret(&net.path("other-token"), "0123456789abcdeF\n");
        net
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// nearmetal in a namespace, with the test's folder as its own.
    fn nearmetal(&self, at: &Namespace, words: &[&str]) -> Command {
        let mut command = at.within(BINARY);
        command.args(words).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn controller(&self) -> Running {
        let words = ["controller", "--listen", "10.77.0.254:4850", "--token-file", "token"];
        let words = [&words[..], &["--key", "key", "--socket", "socket"]].concat();
        let mut process = Running(self.nearmetal(&self.bridge, &words).spawn().unwrap());
        wait_for("the controller", || {
            assert!(process.0.try_wait().unwrap().is_none(), "the controller has ended");
            (self.path("key").exists() && self.agents().is_some()).then_some(())
        });
        process
    }

    /// The names of the agents at the controller.
    fn agents(&self) -> Option<Vec<String>> {
        let words = ["fleet", "agents", "--controller", "socket", "--format", "json"];
        let listed = finish(&mut self.nearmetal(&self.bridge, &words));
        let document: Value = serde_json::from_str(&listed.stdout).ok()?;
        let name = |agent: &Value| agent["card"]["name"].as_str().map(str::to_string);
        document["agents"].as_array()?.iter().map(name).collect()
    }

    fn agent(&self, at: &Namespace, name: &str, token: &str) -> Command {
        let key = fs::read_to_string(self.path("key")).unwrap();
        let pin = tls::server(&key, None).unwrap().1.unwrap().to_string();
        let words = ["agent", "--connect", "10.77.0.254:4850", "--token-file", token, "--name"];
        self.nearmetal(at, &[&words[..], &[name, "--label", "zone=x", "--pin", &pin]].concat())
    }

    /// Agents in the middle of a session.
    fn at_work(&self) -> usize {
        let all = [&self.a, &self.b, &self.c].map(Namespace::processes);
        let is_child = |words: &[String]| words.iter().any(|word| word == "--silence-limit");
        all.iter().flatten().filter(|it| it.state != 'Z' && is_child(&it.words)).count()
    }
}

fn secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn ended(running: Running, name: &str) -> Run {
    signal(name, running.pid());
    running.finish()
}

#[test]
fn agents_connect_out_and_a_killed_controller_and_run_lose_nothing() {
    let net = Net::new();
    let controller = net.controller();
    let start = |at, name| Running(net.agent(at, name, "token").spawn().unwrap());
    let agents = [start(&net.a, "a"), start(&net.b, "b"), start(&net.c, "c")];
    let refused = finish(&mut net.agent(&net.a, "d", "other-token"));
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("the controller has another token"), "{}", refused.stderr);

    let plan = "name = \"out\"\nrounds = 5\n[[trials]]\nenvironments = [\"ssh\"]\n\
        stacks = [\"tcp-blocking\"]\nprobe = \"pingpong\"\nsizes = [64]\nmax_ms = 150\n\
        warmup_ms = 2\nmin_iterations = 20\ntimeout_ms = 10000\n";
    fs::write(net.path("out.toml"), plan).unwrap();
    let words = ["fleet", "run", "--controller", "socket", "--agents", "3", "--plan", "./out.toml"];
    let words = [&words[..], &["--out", "out"]].concat();
    let mut running = Running(net.nearmetal(&net.bridge, &words).spawn().unwrap());
    wait_for("a session", || {
        assert!(running.0.try_wait().unwrap().is_none(), "the run has ended");
        (net.at_work() >= 2).then_some(())
    });
    assert_eq!(ended(controller, "KILL").code, -1);
    assert_eq!(ended(running, "KILL").code, -1);
    wait_for("the end of all sessions", || (net.at_work() == 0).then_some(()));

    let controller = net.controller();
    wait_for("the agents", || (net.agents()? == ["a", "b", "c"]).then_some(()));
    let words = ["fleet", "run", "--resume", "out", "--format", "json"];
    let resumed = finish(&mut net.nearmetal(&net.bridge, &words));
    assert_eq!(resumed.code, 3, "{}{}", resumed.stdout, resumed.stderr);
    let found = json(&net.path("out/fleet.json"));
    let aside = |host: usize| found["hosts"][host]["set_aside"].as_str().unwrap_or_default();
    assert_eq!((aside(0), aside(1)), ("", ""), "{found}");
    let reason = "host c has the address 10.78.0.2 and the controller sees 10.77.0.9, so a NAT is";
    assert!(aside(2).contains(reason), "{found}");
    assert_eq!(found["hosts"][0]["n_measured"], 1, "{found}");
    assert_eq!(found["hosts"][1]["host"]["labels"]["zone"], "x", "{found}");

    assert_eq!(net.at_work(), 0);
    for agent in agents {
        assert_eq!(ended(agent, "TERM").code, 130);
    }
    assert_eq!(ended(controller, "TERM").code, 130);
    assert!(!net.path("socket").exists());
    let gone =
        finish(&mut net.nearmetal(&net.bridge, &["fleet", "agents", "--controller", "socket"]));
    assert_eq!(gone.code, 4, "{}", gone.stderr);
    assert!(gone.stderr.contains("no controller is at socket"), "{}", gone.stderr);
    for place in [&net.bridge, &net.a, &net.b, &net.c] {
        assert_eq!(place.processes().len(), 0);
    }
}

/// The controller is this test, and says that it has another version.
#[test]
fn an_agent_of_another_version_ends_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    secret(&token, "0123456789abcdef\n");
    let (config, pin) = tls::server(&tls::new_key([7; 32]), None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let controller = thread::spawn(move || {
        let soon = Deadline::after(Duration::from_secs(30));
        let mut link = Link::server(listener.accept().unwrap().0, &Arc::new(config)).unwrap();
        link.line(Some(soon)).unwrap();
        let refusal = Refusal::Version { controller: "9.9.9".into(), agent: "0.1.0".into() };
        let line = serde_json::to_string(&Word::Refused(refusal)).unwrap();
        link.send(&line, soon).unwrap();
    });
    let words = ["agent", "--connect", &at, "--token-file", token.to_str().unwrap(), "--pin"];
    let ended = finish(&mut command(&[&words[..], &[&pin.unwrap().to_string()]].concat()));
    controller.join().unwrap();
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    assert!(ended.stderr.contains("the controller is nearmetal 9.9.9, this agent"), "{ended:?}");
}

#[test]
fn what_cannot_be_used_is_refused_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    let (open, short, good) = (path("open"), path("short"), path("good"));
    fs::write(&open, "0123456789abcdef").unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    secret(Path::new(&short), "short");
    secret(Path::new(&good), "0123456789abcdef");
    let pin = "0".repeat(64);
    let agent = |token: &str, more: &[&str]| {
        let words = ["agent", "--connect", "127.0.0.1:9", "--token-file", token];
        run(&[&words[..], more].concat())
    };
    let key = path("open");
    let listen = ["controller", "--listen", "127.0.0.1:0", "--token-file", &good, "--key"];
    secret(Path::new(&path("no-key")), "nothing");
    for (run, sentence) in [
        (agent(&open, &["--pin", &pin]), "others may read or change"),
        (agent(&short, &["--pin", &pin]), "it holds no token: write one line"),
        (agent(&good, &["--pin", "12"]), "a pin has 64 hexadecimal digits"),
        (agent(&good, &[]), "--pin"),
        (agent(&good, &["--pin", &pin, "--name", "a b"]), "`a b` is no name of an agent"),
        (agent(&good, &["--pin", &pin, "--label", "x"]), "write NAME=VALUE"),
        (agent(&good, &["--ca", &good]), "it holds no certificate in PEM"),
        (run(&[&listen[..], &[&key]].concat()), "others may read or change"),
        (run(&[&listen[..], &[&path("no-key")]].concat()), "it holds no private key"),
    ] {
        assert_eq!(run.code, 2, "{sentence}: {run:?}");
        assert!(run.stderr.contains(sentence), "{sentence}: {}", run.stderr);
    }
}
