//! Guests that others made. Here they are network namespaces with boot ids of their own. They have
//! sshd, or an agent behind a serial line that socat makes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nm_sys::process::ChildProcess;
use serde_json::Value;

use crate::hosts::{Hosts, address, boot_id};
use crate::programs::need;
use crate::support::{
    BINARY, ProcessInfo, Run, Running, facts, finish, json, processes, signal, wait_for,
};

/// Ping-pong over TCP in guests for at most `ms`.
fn plan(hosts: &Hosts, stack: &str, ms: u32) -> PathBuf {
    let path = hosts.path("guests.toml");
    let text = format!(
        "name = \"guests\"\n[[trials]]\nenvironments = [\"vm-attached\"]\nstacks = [\"{stack}\"]\n\
         probe = \"pingpong\"\nsizes = [64]\nmax_ms = {ms}\nwarmup_ms = 2\nmin_iterations = 20\n\
         timeout_ms = 10000\n"
    );
    fs::write(&path, text).unwrap();
    path
}

fn qualify(hosts: &Hosts, plan: &Path, out: &str, guests: &[&str]) -> Command {
    let (plan, out) = (plan.display().to_string(), hosts.path(out).display().to_string());
    let mut words = vec!["qualify", "--plan", &plan, "--out", &out, "--rounds", "1"];
    words.extend(guests.iter().flat_map(|guest| ["--guest", guest]));
    hosts.nearmetal(&words)
}

/// All that a run wrote, without the breaks of its lines.
fn words_of(run: &Run) -> String {
    let all = format!("{} {}", run.stdout, run.stderr);
    all.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The only series of a result without failures.
fn series(hosts: &Hosts, out: &str, ended: &Run) -> Value {
    let result = json(&hosts.path(out).join("result.json"));
    assert_eq!(result["failures"].as_array().unwrap().len(), 0, "{result}");
    let all = result["series"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{} {}{}", ended.code, ended.stdout, ended.stderr);
    assert_eq!(all[0]["key"]["environment"], "vm-attached");
    all[0].clone()
}

/// What runs have left on two hosts.
fn left(hosts: &Hosts) -> Vec<String> {
    let folders = [1, 2].map(|number| fs::read_dir(hosts.path(&format!("tmp{number}"))).unwrap());
    let files = folders.into_iter().flatten().flatten().map(|it| it.path().display().to_string());
    let of_hosts = [1, 2].into_iter().flat_map(|number| hosts.host(number).processes());
    let is_agent = |words: &[String]| words.iter().any(|word| word == "--silence-limit");
    let agents = of_hosts.filter(|it| it.state != 'Z' && is_agent(&it.words));
    files.chain(agents.map(|it| format!("agent {}", it.pid))).collect()
}

/// A serial line between a guest and its host, the two ends of which are terminals.
struct Line {
    guest: PathBuf,
    host: PathBuf,
    socat: ChildProcess,
}

impl Line {
    fn new(hosts: &Hosts, name: &str) -> Line {
        let (guest, host) = (hosts.path(&format!("{name}-in")), hosts.path(&format!("{name}-out")));
        let mut command = Command::new(need("socat", "socat"));
        for end in [&guest, &host] {
            command.arg(format!("PTY,link={}", end.display()));
        }
        command.stderr(Stdio::null());
        let socat = ChildProcess::spawn(command).unwrap();
        wait_for("a serial line", || (guest.exists() && host.exists()).then_some(()));
        Line { guest, host, socat }
    }

    /// An agent in guest `number`, which is on the line.
    fn agent(&self, hosts: &Hosts, number: usize) -> ChildProcess {
        let mut command = hosts.host(number).within("unshare");
        let view = boot_id(&hosts.path(""), number);
        let script =
            format!("mount -t sysfs none /sys && {view} && exec \"$0\" agent --serve-on \"$1\"");
        command.args(["--mount", "sh", "-c", &script, BINARY]).arg(&self.guest);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ChildProcess::spawn(command).unwrap()
    }

    fn serial(&self, number: usize) -> String {
        format!("serial:{}={}", self.host.display(), address(number))
    }
}

#[test]
fn a_plan_measures_in_guests_that_ssh_reaches() {
    let hosts = Hosts::as_machines(2);
    let short = plan(&hosts, "tcp-blocking", 50);
    let both = ["ssh:h1", "ssh:root@h2:22=10.77.0.2"];
    let ended = finish(&mut qualify(&hosts, &short, "two", &both));
    let found = series(&hosts, "two", &ended);
    let result = json(&hosts.path("two/result.json"));
    assert_eq!(result["plan"]["attached"]["server"]["guest"], "ssh:ssh://root@h2:22");
    for (side, id) in [("client", "00000001"), ("server", "00000002")] {
        let boot_id = facts(&result, "vm-attached", side)["host"]["boot_id"].to_string();
        assert!(boot_id.contains(id), "{side}: {boot_id}");
    }
    // Nobody knows what such guests run on.
    assert_eq!(result["guests"].as_array().map_or(0, Vec::len), 0, "{}", result["guests"]);
    let layer = found["comparability"]["layer"].as_str().unwrap();
    assert!(!layer.starts_with("one host"), "{layer}");
    assert_eq!(left(&hosts), Vec::<String>::new());

    let refused = |guests: &[&str], code: i32, sentence: &str| {
        let ended = finish(&mut qualify(&hosts, &short, "refused", guests));
        let all = words_of(&ended);
        assert!(ended.code == code && all.contains(sentence), "{sentence}: {} {all}", ended.code);
        assert_eq!(left(&hosts), Vec::<String>::new(), "{sentence}");
        let _ = fs::remove_dir_all(hosts.path("refused"));
    };
    refused(&[], 2, "runs in a guest that others made, and no [attached]; name it by `--guest");
    refused(&["ssh:h1", "ssh:h1"], 2, "both guests are at ssh:h1; attach two, or one");
    refused(&["ssh:h1", "ssh:h2", "ssh:h3"], 2, "--guest was given 3 times; two are the most");
    refused(&["usb:h1"], 2, "`usb:h1` is no place of a guest; write ssh:USER@HOST[:PORT]");
    refused(&["socket:/x"], 2, "the guest at socket:/x needs the address of its link");
    refused(&["ssh:none.invalid"], 4, "host none.invalid cannot be reached: ssh says:");
    refused(
        &["socket:/no.sock=10.77.0.1"],
        4,
        "the guest at socket:/no.sock cannot be reached: No",
    );

    // A plan names its guests too. From here on the program is there already.
    let named = |client: &str, server: &str| {
        let path = plan(&hosts, "tcp-blocking", 20_000);
        let place = |to: &str| format!("{{ guest = \"ssh:{to}\", program = \"{BINARY}\" }}");
        let (client, server) = (place(client), place(server));
        let mut file = fs::File::options().append(true).open(&path).unwrap();
        writeln!(file, "[attached]\nclient = {client}\nserver = {server}").unwrap();
        path
    };
    let twice = named("h1", "root@h1");
    let all = words_of(&finish(&mut qualify(&hosts, &twice, "twice", &[])));
    assert!(all.contains("host h1 and host root@h1 are one machine; attach guests that"), "{all}");
    let long = named("h1", "h2");
    for (name, code) in [("INT", 130), ("KILL", -1)] {
        let running = Running(qualify(&hosts, &long, name, &[]).spawn().unwrap());
        wait_for("agents in both guests", || (left(&hosts).len() >= 2).then_some(()));
        signal(name, running.pid());
        assert_eq!(running.finish().code, code);
        wait_for("the end of all in the guests", || left(&hosts).is_empty().then_some(()));
    }
}

#[test]
fn a_plan_measures_in_guests_behind_a_socket_and_a_serial_line() {
    let hosts = Hosts::new(2);
    let lines = [Line::new(&hosts, "one"), Line::new(&hosts, "two")];
    // What the guest's kernel and its login say before the agent is there.
    let mut console = fs::File::options().write(true).open(&lines[0].guest).unwrap();
    console.write_all(b"[    0.000000] Linux\r\n\xff{\"answer\":\"bye\"}\r\nvm login: ").unwrap();
    drop(console);
    let mut agents = [lines[0].agent(&hosts, 1), lines[1].agent(&hosts, 2)];
    let short = plan(&hosts, "tcp-blocking", 50);
    let ended = finish(&mut qualify(&hosts, &short, "one", &[&lines[0].serial(1)]));
    series(&hosts, "one", &ended);
    let result = json(&hosts.path("one/result.json"));
    assert_eq!(result["audits"].as_array().unwrap().len(), 1, "the client is here");

    // A run that is killed leaves the agents, and the next one finds them.
    let socket = hosts.path("vm.sock");
    let mut command = Command::new(need("socat", "socat"));
    command.arg(format!("UNIX-LISTEN:{},fork", socket.display()));
    command.arg(format!("OPEN:{},rawer", lines[1].host.display())).stderr(Stdio::null());
    let port = ChildProcess::spawn(command).unwrap();
    wait_for("the socket", || socket.exists().then_some(()));
    let both = [lines[0].serial(1), format!("socket:{}={}", socket.display(), address(2))];
    let both = both.each_ref().map(String::as_str);
    let long = plan(&hosts, "tcp-blocking", 20_000);
    let killed = Running(qualify(&hosts, &long, "killed", &both).spawn().unwrap());
    wait_for("a task in guest 2", || has_thread(agents[1].pid(), "ponger").then_some(()));
    signal("KILL", killed.pid());
    killed.finish();
    // What copied the connection of that run takes bytes of the line until it has ended.
    let is_of_port = |it: &ProcessInfo| it.parent == port.pid() && it.state != 'Z';
    let disconnected = || {
        wait_for("the end of the copy", || (!processes().iter().any(is_of_port)).then_some(()));
    };
    disconnected();
    let short = plan(&hosts, "tcp-blocking", 50);
    let ended = finish(&mut qualify(&hosts, &short, "both", &both));
    series(&hosts, "both", &ended);

    // Launchers, versions, and lines that end.
    let onload = plan(&hosts, "onload+tcp-spin", 50);
    let ended = finish(&mut qualify(&hosts, &onload, "onload", &both));
    let all = words_of(&ended);
    assert!(all.contains("runs already, and not under onload; start it there"), "{all}");
    let long = plan(&hosts, "tcp-blocking", 20_000);
    disconnected();
    let running = Running(qualify(&hosts, &long, "cut", &both).spawn().unwrap());
    wait_for("a task in guest 1", || has_thread(agents[0].pid(), "task").then_some(()));
    let [mut one, _two] = lines;
    one.socat.kill();
    let ended = running.finish();
    let all = words_of(&ended);
    let sentence = format!("the agent of the guest at serial:{}", one.host.display());
    assert!(all.contains(&sentence) && ended.code != 0, "{} {all}", ended.code);
    // Without its line an agent has nothing to serve.
    wait_for("the end of an agent without a line", || agents[0].try_wait());
    assert!(agents[1].try_wait().is_none());
}

fn has_thread(pid: u32, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names = threads.filter_map(|one| fs::read_to_string(one.path().join("comm")).ok());
    names.any(|one| one.trim() == name)
}
