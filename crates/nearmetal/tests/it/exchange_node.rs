//! One node of the exchange: what is at its address already, an output that nobody reads, and its
//! limit of descriptors.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use nm_exchange::network::{Durability, Role};
use nm_sys::process::ChildProcess;

use crate::exchange_net::{Load, Net};
use crate::exchange_stopped::full_pipe;
use crate::support::{BINARY, finish, wait_for};

const ROLES: [Role; 4] = [Role::Router, Role::Mediator, Role::Processor, Role::Gateway];

#[test]
fn a_node_removes_nothing_at_its_address_but_its_own_dead_socket() {
    let net = Net::new("1-1-1-1", Durability::None);
    let file = net.path().join("network.toml");
    // A node that took the address would go on for ever.
    let start = || {
        let mut limited = Command::new("timeout");
        limited.args(["20", BINARY, "exchange", "node", "--role", "gateway", "--index", "0"]);
        finish(limited.arg("--network").arg(&file))
    };
    let address = net.path().join("gateway-0");
    fs::write(&address, "valuable").unwrap();
    let of_file = start();
    assert_eq!(fs::read_to_string(&address).unwrap(), "valuable");
    fs::remove_file(&address).unwrap();
    let _live = UnixListener::bind(&address).unwrap();
    let of_live = start();
    assert!(address.exists());
    for (run, why) in [
        (of_file, "there is something that is not a socket; remove it, or name another path"),
        (of_live, "another process listens there; end it, or name another path"),
    ] {
        assert_eq!(run.code, 5, "{run:?}");
        assert!(run.stderr.starts_with("nearmetal: gateway 0 cannot listen at unix:"), "{run:?}");
        assert!(run.stderr.trim_end().ends_with(why), "{run:?}");
        assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
    }
    let mut shm = net.network.clone();
    shm.classes[Role::Gateway].nodes[0].address =
        format!("shm:{}", file.display()).parse().unwrap();
    let text = shm.to_toml().unwrap();
    fs::write(&file, &text).unwrap();
    assert_eq!(start().code, 5);
    assert_eq!(fs::read_to_string(&file).unwrap(), text, "the network's own file is still there");
}

/// Runs the node by a shell that does this before.
fn by_shell(script: &str, node: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, BINARY]).args(node.get_args());
    shell
}

/// Its stderr is full as well, and it has a sentence to write there.
#[test]
fn a_host_whose_output_nobody_reads_ends_its_nodes_and_removes_its_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, parent) = (folder.path().join("pipe"), folder.path().join("of runs"));
    let unread = full_pipe(&pipe);
    let to_pipe = || File::options().write(true).open(&pipe).unwrap();
    let mut host = Command::new(BINARY);
    host.args(["exchange", "host", "--data"]).arg(&parent);
    host.stdin(Stdio::piped()).stdout(to_pipe()).stderr(to_pipe());
    let mut host = ChildProcess::spawn(host).unwrap();
    let mut input = host.take_stdin().unwrap();
    let requests = "{\"ask\":\"files\",\"network\":\"\",\"secret\":\"key\"}\n\
                    {\"ask\":\"start\",\"slot\":0,\"start\":1,\"role\":\"router\",\"index\":0}\n";
    input.write_all(requests.as_bytes()).unwrap();
    let secrets = || {
        let folders = fs::read_dir(&parent).into_iter().flatten().map(|it| it.unwrap().path());
        folders.filter(|folder| folder.join("secret").exists()).count()
    };
    wait_for("the secret", || (secrets() == 1).then_some(()));
    // What it cannot carry out ends it with a sentence.
    let again = "{\"ask\":\"files\",\"network\":\"\",\"secret\":\"key\"}\n";
    input.write_all(again.as_bytes()).unwrap();
    let ended = host.wait_timeout(Duration::from_secs(60)).expect("it ends");
    assert_eq!((ended.code(), secrets()), (Some(4), 0));
    assert_eq!(fs::read_dir(&parent).unwrap().count(), 0);
    drop(unread);
}

#[test]
fn a_gateway_whose_events_nobody_reads_goes_on_answering_and_ends() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    let pipe = net.path().join("pipe");
    let _unread = full_pipe(&pipe);
    let script = format!("exec \"$0\" \"$@\" > '{}'", pipe.display());
    for role in ROLES {
        net.start(role.node(0), |node| match role {
            Role::Gateway => by_shell(&script, &node),
            _ => node,
        });
    }
    for role in [Role::Router, Role::Mediator, Role::Processor] {
        net.wait_for_output(role.node(0), "\"event\":\"ready\"", 1);
    }
    let mut load = Load::new(&net, 4, 64);
    load.all_answered("with a full pipe", 200);
    load.finish(&mut net);
}

#[test]
fn a_node_raises_its_limit_of_descriptors() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    net.start(Role::Gateway.node(0), |node| {
        by_shell("ulimit -S -n 64 && ulimit -H -n 300 && exec \"$0\" \"$@\"", &node)
    });
    net.wait_for_output(Role::Gateway.node(0), "\"event\":\"listening\"", 1);
    let pid = net.pid(Role::Gateway.node(0));
    let limits = wait_for("its limits", || fs::read_to_string(format!("/proc/{pid}/limits")).ok());
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = files.split_whitespace().collect();
    assert_eq!(words[3..5], ["300", "300"], "{files}");
    net.stop();
}
