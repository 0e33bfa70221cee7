//! The hosts file, and the ssh command that starts a node on a host.
//!
//! One host per line: its ssh destination, the IP address at which the other hosts reach it, the
//! classes of node that may run there (`all`, also if none is named), and the path of nearmetal if
//! it is not on `PATH`:
//!
//! ```text
//! # ssh       address     classes             program
//! alice       192.0.2.1   gateway,router
//! root@bob    192.0.2.2   mediator            /opt/nearmetal
//! carol       192.0.2.3   mediator,processor
//! dave        192.0.2.4   all                 /opt/nearmetal
//! ```
//!
//! The load runs on the machine where the command was started.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use nm_auth::Secret;
use nm_exchange::network::{Network, NetworkError, Role, UnknownRole};
use thiserror::Error;

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Destination of ssh.
    pub destination: String,
    /// Address at which its nodes listen.
    pub address: IpAddr,
    /// Classes of node that may run there.
    pub roles: Vec<Role>,
    /// Path of nearmetal there.
    pub program: String,
}

/// What a node on another host is sent.
#[derive(Debug)]
pub struct HostFiles {
    /// The network's file, which names the secret's file beside it.
    pub network: String,
    /// The secret's file; empty if the network has no secret.
    pub secret: String,
}

/// Name of the secret's file on another host.
const SECRET: &str = "secret";

impl HostFiles {
    /// Those of a network.
    ///
    /// # Errors
    /// If its secret cannot be read.
    pub fn of(network: &Network) -> Result<HostFiles, NetworkError> {
        let secret = network.secret.as_deref().map(Secret::read).transpose()?;
        let name = secret.is_some().then(|| SECRET.into());
        let network = Network { secret: name, ..network.clone() }.to_toml()?;
        Ok(HostFiles { network, secret: secret.map_or(String::new(), |it| it.text()) })
    }
}

impl Host {
    /// The command that starts a node there. It reads the files from its standard input, and keeps
    /// them in a temporary folder, which only its user may read, until the node ends.
    pub fn command(&self, role: Role, index: usize, files: &HostFiles) -> Command {
        let (network_bytes, secret_bytes) = (files.network.len(), files.secret.len());
        let script = format!(
            "d=$(mktemp -d) && head -c {network_bytes} > \"$d/network.toml\" && \
             (umask 077; head -c {secret_bytes} > \"$d/{SECRET}\") && \
             {} exchange node --role {role} --index {index} --network \"$d/network.toml\"; \
             e=$?; rm -r \"$d\"; exit $e",
            quoted(&self.program)
        );
        let mut command = Command::new("ssh");
        command.args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=2"]);
        command.args(["-o", "ServerAliveCountMax=3", "--", &self.destination, &script]);
        command
    }
}

/// A word quoted for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Why a hosts file is refused.
#[derive(Debug, Error)]
pub enum HostsError {
    /// The file cannot be read.
    #[error("the hosts file {path} cannot be read: {source}")]
    Read {
        /// Its path.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file can be read, but is not a hosts file.
    #[error("{path}, {source}")]
    Content {
        /// Its path.
        path: String,
        /// Why.
        source: Box<HostsError>,
    },
    /// A line is wrong.
    #[error("line {number}, host {host}: {fault}")]
    Line {
        /// Number of the line, from 1 on.
        number: usize,
        /// The host of the line.
        host: String,
        /// What is wrong with it.
        fault: LineFault,
    },
    /// There is no line with a host.
    #[error("it names no host")]
    Empty,
    /// Nodes of a class may not run on any host.
    #[error("no host accepts nodes of class {role}: {hosts}; add it to one of them, or write all")]
    Uncovered {
        /// The class.
        role: Role,
        /// Each host with its classes.
        hosts: String,
    },
}

/// What is wrong with a line of a hosts file.
#[derive(Debug, Error)]
pub enum LineFault {
    /// There is no address.
    #[error("its address is missing; a line is `DESTINATION ADDRESS [CLASS,…|all] [PROGRAM]`")]
    Incomplete,
    /// ssh would read the destination as an option.
    #[error("`{0}` is no destination for ssh")]
    Destination(String),
    /// The address cannot be parsed.
    #[error("`{0}` is no IP address; write the one at which the other hosts reach it")]
    Address(String),
    /// A class cannot be parsed.
    #[error("{0}, or all")]
    Class(UnknownRole),
    /// There are more words than a line has.
    #[error("`{0}` is one word too many")]
    Surplus(String),
}

/// Reads a hosts file.
///
/// # Errors
/// If it cannot be read, or is not a hosts file.
pub fn read(path: &Path) -> Result<Vec<Host>, HostsError> {
    let shown = || path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|source| HostsError::Read { path: shown(), source })?;
    parse(&text).map_err(|error| HostsError::Content { path: shown(), source: Box::new(error) })
}

/// Parses the text of a hosts file.
///
/// # Errors
/// The first line that is wrong, or what no line provides.
pub fn parse(text: &str) -> Result<Vec<Host>, HostsError> {
    let mut hosts = vec![];
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let host = host(&words).map_err(|fault| HostsError::Line {
            number: number + 1,
            host: words[0].to_string(),
            fault,
        })?;
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(HostsError::Empty);
    }
    for role in Role::ALL {
        if !hosts.iter().any(|host| host.roles.contains(role)) {
            return Err(HostsError::Uncovered { role: *role, hosts: listed(&hosts) });
        }
    }
    Ok(hosts)
}

/// The hosts with their classes: `alice accepts gateway, router`.
fn listed(hosts: &[Host]) -> String {
    let text = |host: &Host| {
        let names: Vec<&str> = host.roles.iter().map(|role| role.name()).collect();
        format!("{} accepts {}", host.destination, names.join(", "))
    };
    hosts.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// The classes of a list, or all.
fn roles(classes: &str) -> Result<Vec<Role>, LineFault> {
    if classes == "all" {
        return Ok(Role::ALL.to_vec());
    }
    classes.split(',').map(|class| class.parse().map_err(LineFault::Class)).collect()
}

fn host(words: &[&str]) -> Result<Host, LineFault> {
    let [destination, address, rest @ ..] = words else {
        return Err(LineFault::Incomplete);
    };
    if destination.starts_with('-') {
        return Err(LineFault::Destination(destination.to_string()));
    }
    let address = address.parse().map_err(|_| LineFault::Address(address.to_string()))?;
    let (classes, program) = match rest {
        [] => (None, None),
        [word] if word.contains('/') => (None, Some(*word)),
        [classes] => (Some(*classes), None),
        [classes, program] => (Some(*classes), Some(*program)),
        [_, _, surplus, ..] => return Err(LineFault::Surplus(surplus.to_string())),
    };
    let roles = match classes {
        None => Role::ALL.to_vec(),
        Some(classes) => roles(classes)?,
    };
    Ok(Host {
        destination: destination.to_string(),
        address,
        roles,
        program: program.unwrap_or("nearmetal").to_string(),
    })
}

/// The host of a node: nodes of a class are assigned round-robin to the hosts that accept it.
pub fn place(hosts: &[Host], role: Role, index: usize) -> Option<&Host> {
    let accepting: Vec<&Host> = hosts.iter().filter(|host| host.roles.contains(&role)).collect();
    accepting.get(index % accepting.len().max(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Stdio;

    const GOOD: &str = "# two\nalice 192.0.2.1 gateway,router\n\nbob 192.0.2.2 # all\n";

    #[test]
    fn nodes_are_assigned_round_robin_to_the_hosts_that_accept_their_class() {
        let hosts = parse(GOOD).unwrap();
        let at = |role, index| place(&hosts, role, index).unwrap().destination.as_str();
        assert_eq!([at(Role::Gateway, 0), at(Role::Gateway, 1)], ["alice", "bob"]);
        assert_eq!([at(Role::Mediator, 0), at(Role::Mediator, 1)], ["bob", "bob"]);
        let all = parse("bob 192.0.2.2 all /opt/nearmetal").unwrap();
        assert_eq!((all[0].roles.len(), all[0].program.as_str()), (4, "/opt/nearmetal"));
        let with_program = parse("bob 192.0.2.2 /opt/it's").unwrap();
        assert_eq!(with_program[0].program, "/opt/it's");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    /// What the shell of a host does, with a program in place of nearmetal that shows its files.
    #[test]
    fn a_node_on_a_host_gets_its_files_and_then_its_input() {
        let folder = crate::place::sockets_folder().unwrap();
        let program = folder.path().join("it's a program");
        let text = "#!/bin/sh\necho $*\nd=$(dirname $8)\ncat $d/network.toml $d/secret\n\
                    stat -c %a $d/secret\ncat\n";
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        let hosts = parse(&format!("bob 192.0.2.2 all {}", "/program")).unwrap();
        let host = Host { program: program.display().to_string(), ..hosts[0].clone() };
        let files = HostFiles { network: "network\n".into(), secret: "key\n".into() };
        let command = host.command(Role::Router, 3, &files);
        let script = command.get_args().last().unwrap();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"network\nkey\nrest").unwrap();
        drop(input);
        let ended = child.wait_with_output().unwrap();
        let output = String::from_utf8(ended.stdout).unwrap();
        let (first, rest) = output.split_once('\n').unwrap();
        assert!(first.starts_with("exchange node --role router --index 3 --network"), "{first}");
        assert_eq!(rest, "network\nkey\n600\nrest");
        let path = Path::new(first.rsplit(' ').next().unwrap());
        assert!(!path.parent().unwrap().exists(), "the files go with the node");
    }

    #[test]
    fn a_wrong_line_is_named_in_the_error() {
        let refused = |text: &str, why: &str| {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        };
        refused("", "names no host");
        refused("alice", "line 1, host alice: its address is missing");
        refused("\nalice discarded", "line 2, host alice: `discarded` is no IP address");
        refused("alice 192.0.2.1 gateways", "host alice: `gateways` is not a class");
        refused("alice 192.0.2.1 gateways", "mediator or processor, or all");
        let uncovered = "no host accepts nodes of class router: alice accepts gateway";
        refused("alice 192.0.2.1 gateway", uncovered);
        refused("-oX 192.0.2.1", "no destination");
        refused("a 192.0.2.1 gateway /x y", "one word too many");
        let error = read(Path::new("/no/hosts")).unwrap_err();
        assert!(error.to_string().contains("/no/hosts"), "{error}");
    }
}
