//! Hosts on which nodes run, from a file, and how a node is started there by ssh.
//!
//! One host a line: where ssh goes, the IP address at which the other hosts reach it, the classes
//! of node that it takes (all of them if none is named), and where nearmetal is if not on the path:
//!
//! ```text
//! # ssh       address     classes             program
//! alice       192.0.2.1   gateway,router
//! root@bob    192.0.2.2   mediator            /opt/nearmetal
//! carol       192.0.2.3   mediator,processor
//! ```
//!
//! The load runs on the host of the command itself.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use nm_exchange::network::Role;

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Where ssh goes.
    pub destination: String,
    /// Where its nodes listen.
    pub address: IpAddr,
    /// Classes of node that it takes.
    pub roles: Vec<Role>,
    /// nearmetal there.
    pub program: String,
}

impl Host {
    /// What starts a node there. The text of the network's file, of so many bytes, is to come first
    /// on its input; the file lies in a folder of its own that goes with the node.
    pub fn command(&self, role: Role, index: usize, network_bytes: usize) -> Command {
        let script = format!(
            "d=$(mktemp -d) && head -c {network_bytes} > \"$d/network.toml\" && \
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

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Reads a file of hosts.
///
/// # Errors
/// A sentence that names the line.
pub fn read(path: &Path) -> Result<Vec<Host>, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the hosts file {} cannot be read: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{}, {error}", path.display()))
}

/// Reads the text of a file of hosts.
///
/// # Errors
/// A sentence that names the line.
pub fn parse(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = vec![];
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let host = host(&words).map_err(|error| format!("line {}: {error}", number + 1))?;
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err("it names no host".to_string());
    }
    for role in Role::ALL {
        if !hosts.iter().any(|host| host.roles.contains(role)) {
            return Err(format!("no host takes nodes of class {role}"));
        }
    }
    Ok(hosts)
}

fn host(words: &[&str]) -> Result<Host, String> {
    let [destination, address, rest @ ..] = words else {
        return Err("a host is `DESTINATION ADDRESS [CLASS,…] [PROGRAM]`".to_string());
    };
    if destination.starts_with('-') {
        return Err(format!("`{destination}` is no destination for ssh"));
    }
    let address = address.parse().map_err(|_| format!("`{address}` is no IP address"))?;
    let (classes, program) = match rest {
        [] => (None, None),
        [word] if word.contains('/') => (None, Some(*word)),
        [classes] => (Some(*classes), None),
        [classes, program] => (Some(*classes), Some(*program)),
        [_, _, more, ..] => return Err(format!("`{more}` is one word too many")),
    };
    let roles = match classes {
        None => Role::ALL.to_vec(),
        Some(classes) => classes
            .split(',')
            .map(|class| {
                class.parse().map_err(|error: nm_exchange::network::UnknownRole| error.to_string())
            })
            .collect::<Result<_, String>>()?,
    };
    Ok(Host {
        destination: destination.to_string(),
        address,
        roles,
        program: program.unwrap_or("nearmetal").to_string(),
    })
}

/// The host of a node: those that take its class take turns.
pub fn place(hosts: &[Host], role: Role, index: usize) -> Option<&Host> {
    let takers: Vec<&Host> = hosts.iter().filter(|host| host.roles.contains(&role)).collect();
    takers.get(index % takers.len().max(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# two\nalice 192.0.2.1 gateway,router\n\nbob 192.0.2.2 # all\n";

    #[test]
    fn nodes_take_turns_among_the_hosts_that_take_their_class() {
        let hosts = parse(GOOD).unwrap();
        let at = |role, index| place(&hosts, role, index).unwrap().destination.as_str();
        assert_eq!([at(Role::Gateway, 0), at(Role::Gateway, 1)], ["alice", "bob"]);
        assert_eq!([at(Role::Mediator, 0), at(Role::Mediator, 1)], ["bob", "bob"]);
        let with_program = parse("bob 192.0.2.2 /opt/it's").unwrap();
        assert_eq!(with_program[0].program, "/opt/it's");
        let command = format!("{:?}", with_program[0].command(Role::Router, 3, 77));
        assert!(command.contains("--role router --index 3"), "{command}");
        assert!(command.contains("head -c 77"), "{command}");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_bad_line_is_named() {
        let refused = |text: &str, why: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        };
        refused("", "names no host");
        refused("alice", "line 1: a host is");
        refused("\nalice discarded", "line 2: `discarded` is no IP address");
        refused("alice 192.0.2.1 gateways", "`gateways` is not a class");
        refused("alice 192.0.2.1 gateway", "no host takes nodes of class router");
        refused("-oX 192.0.2.1", "no destination");
        refused("a 192.0.2.1 gateway /x y", "one word too many");
        assert!(read(Path::new("/no/hosts")).unwrap_err().contains("/no/hosts"));
    }
}
