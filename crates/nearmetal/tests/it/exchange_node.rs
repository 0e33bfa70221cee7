//! One node of the exchange: what is at its address already, an output that nobody reads, and its
//! limit of descriptors.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::process::Command;

use nm_exchange::network::{Durability, Role};

use crate::exchange_net::{Load, Net};
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

#[test]
fn a_gateway_whose_events_nobody_reads_goes_on_answering_and_ends() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    let pipe = net.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let mut both_ends = File::options().read(true).write(true).open(&pipe).unwrap();
    let size = rustix::pipe::fcntl_getpipe_size(both_ends.as_fd()).unwrap();
    both_ends.write_all(&vec![b'x'; size]).unwrap();
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

/// In the first line of each node, so that nobody takes proofs for secrecy.
#[test]
fn a_network_with_a_secret_that_spans_hosts_warns_that_frames_are_not_encrypted() {
    let mut net = Net::new("1-1-1-1", Durability::None);
    let secret = net.path().join("secret");
    nm_auth::Secret::random().unwrap().create(&secret).unwrap();
    net.network.secret = Some(secret);
    let start = |net: &mut Net, address: &str| {
        net.network.classes[Role::Gateway].nodes[0].address = address.parse().unwrap();
        fs::write(net.path().join("network.toml"), net.network.to_toml().unwrap()).unwrap();
        net.start(Role::Gateway.node(0), |node| node);
        net.wait_for_output(Role::Gateway.node(0), "\"event\":\"listening\"", 1);
        net.stop();
        net.output(Role::Gateway.node(0))
    };
    let local = start(&mut net, "127.0.0.1:0");
    assert!(!local.contains("not encrypted"), "{local}");
    let open = start(&mut net, "0.0.0.0:0");
    let of_open = open.strip_prefix(&local).unwrap();
    assert!(of_open.lines().next().unwrap().contains("frames are not encrypted"), "{of_open}");
}

#[test]
fn a_node_raises_its_limit_of_descriptors_and_names_what_it_is_enough_for() {
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
    let sentence = "this process may have 300 files open at once, so it accepts 133 clients";
    net.wait_for_output(Role::Gateway.node(0), sentence, 1);
    net.stop();
}
