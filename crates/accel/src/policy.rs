//! Which connections may leave the kernel, by port and by program, and what programs use io_uring
//! for. This is the compact form in which the binary passes a policy file, and its evaluation.
//!
//! The form (`NEARMETAL_ACCEL_POLICY`) is a list of rules, separated by `;`. The first rule that
//! matches decides, and a connection that no rule matches is allowed:
//!
//! ```text
//! rule     = ("+" | "-") [ports] ["@" programs]      allow or deny
//!          | "~" microseconds "@" programs           how long these programs spin
//!          | "%" use "@" programs                    what these programs use io_uring for
//! ports    = port ["-" port] {"," port ["-" port]}   either end's port
//! use      = "sockets" | "files" | "refuse"          see [`RingUse`]
//! programs = name {"," name}                         `*` at the end stands for any rest
//! ```
//!
//! `-22;-@sshd,curl;~0@redis*` denies port 22, denies the programs sshd and curl, and lets redis
//! sleep at once. An invalid text denies everything, because its author meant to restrict
//! something.

/// Rules by port that apply to this program.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
}

/// One rule: no ranges means every port.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    allow: bool,
    ports: Vec<(u16, u16)>,
}

/// What a program's rings of io_uring may serve. The kernel moves the bytes of a ring's operations
/// without a call of the program, so only its author or user can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingUse {
    /// Sockets too: with the first ring, all sockets of the process stay on the kernel.
    Sockets,
    /// Files only: sockets are accelerated as if there were no ring.
    Files,
    /// Nothing: a new ring is refused with EPERM, as on a system on which io_uring is switched off.
    Refused,
}

/// Programs whose use of rings is known; a policy's own rules take precedence.
///
/// MariaDB reads and writes its tables by liburing. libuv, which runs Node.js, uses a ring for
/// files and another one to change its epoll set, which this library must see; without rings it
/// makes the same changes by calls.
const KNOWN_PROGRAMS: &str = "%files@mariadbd,mysqld;%refuse@node,nodejs";

/// What a policy says about one program.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramPolicy {
    /// Rules by port.
    pub connections: Policy,
    /// How long it may spin, µs.
    pub spin_us: Option<u32>,
    /// What it uses io_uring for.
    pub rings: RingUse,
}

impl ProgramPolicy {
    /// Parses the compact form for a program that is known under `names` (of its file, and as the
    /// kernel shows it).
    pub fn parse(text: &str, names: &[String]) -> ProgramPolicy {
        let known = Words::parse(KNOWN_PROGRAMS, names).and_then(|known| known.rings);
        let Some(words) = Words::parse(text, names) else {
            let connections = Policy::nothing();
            return ProgramPolicy { connections, spin_us: None, rings: RingUse::Sockets };
        };
        ProgramPolicy {
            connections: Policy { rules: words.rules },
            spin_us: words.spin_us,
            rings: words.rings.or(known).unwrap_or(RingUse::Sockets),
        }
    }
}

/// The words of the compact form that are meant for one program.
#[derive(Default)]
struct Words {
    rules: Vec<Rule>,
    spin_us: Option<u32>,
    rings: Option<RingUse>,
}

impl Words {
    /// None if the text is invalid.
    fn parse(text: &str, names: &[String]) -> Option<Words> {
        let mut words = Words::default();
        for word in text.split(';').filter(|word| !word.is_empty()) {
            let (rule, programs) = match word.split_once('@') {
                Some((rule, programs)) => (rule, Some(programs)),
                None => (word, None),
            };
            let is_meant = programs.is_none_or(|programs| is_named(programs, names));
            if let Some(digits) = rule.strip_prefix('~') {
                let microseconds = digits.parse().ok()?;
                words.spin_us = words.spin_us.or(is_meant.then_some(microseconds));
            } else if let Some(name) = rule.strip_prefix('%') {
                let used_for = ring_use(name)?;
                words.rings = words.rings.or(is_meant.then_some(used_for));
            } else {
                let allow = rule.starts_with('+');
                let ports = rule.strip_prefix(['+', '-']).and_then(ranges)?;
                if is_meant {
                    words.rules.push(Rule { allow, ports });
                }
            }
        }
        Some(words)
    }
}

fn ring_use(name: &str) -> Option<RingUse> {
    match name {
        "sockets" => Some(RingUse::Sockets),
        "files" => Some(RingUse::Files),
        "refuse" => Some(RingUse::Refused),
        _ => None,
    }
}

impl Policy {
    /// Allows every connection.
    pub const EVERYTHING: Policy = Policy { rules: Vec::new() };

    /// Whether it allows every connection, by having no rules.
    pub fn is_everything(&self) -> bool {
        self.rules.is_empty()
    }

    /// Denies every connection.
    fn nothing() -> Policy {
        Policy { rules: vec![Rule { allow: false, ports: vec![] }] }
    }

    /// Whether a connection between these ports may go through shared memory. A rule applies to
    /// both ports alike, so that both ends come to the same result.
    pub fn allows(&self, local_port: u16, peer_port: u16) -> bool {
        let is_in = |port: u16, (low, high): &(u16, u16)| (*low..=*high).contains(&port);
        let first = self.rules.iter().find(|rule| {
            rule.ports.is_empty()
                || rule
                    .ports
                    .iter()
                    .any(|range| is_in(local_port, range) || is_in(peer_port, range))
        });
        first.is_none_or(|rule| rule.allow)
    }
}

/// Parses `22,5000-5999`; an empty text is an empty list.
fn ranges(text: &str) -> Option<Vec<(u16, u16)>> {
    if text.is_empty() {
        return Some(vec![]);
    }
    let range = |word: &str| {
        let (low, high) = word.split_once('-').unwrap_or((word, word));
        Some((low.parse().ok()?, high.parse().ok()?))
    };
    text.split(',').map(range).collect()
}

fn is_named(programs: &str, names: &[String]) -> bool {
    programs.split(',').any(|pattern| {
        names.iter().any(|name| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, name: &str) -> ProgramPolicy {
        ProgramPolicy::parse(text, &[name.to_string()])
    }

    #[test]
    fn first_matching_rule_wins_and_the_default_allows() {
        let policy = read("-22;+5000-5999;-5500;-@curl", "redis-server");
        assert_eq!((policy.spin_us, policy.rings), (None, RingUse::Sockets));
        for (ports, allowed) in [
            ((22, 40000), false),
            ((40000, 22), false),
            ((5500, 40000), true),
            ((6379, 40000), true),
        ] {
            assert_eq!(policy.connections.allows(ports.0, ports.1), allowed, "{ports:?}");
        }
        assert!(Policy::EVERYTHING.allows(1, 2));
    }

    #[test]
    fn rules_of_other_programs_do_not_apply() {
        let text = "-@curl,ssh*;~7@redis*;~9@redis-server;%files@redis*;+6379;-";
        assert!(!read(text, "curl").connections.allows(6379, 1));
        assert!(!read(text, "sshd").connections.allows(6379, 1));
        let redis = read(text, "redis-server");
        assert!(redis.connections.allows(6379, 1) && !redis.connections.allows(80, 1));
        assert_eq!((redis.spin_us, redis.rings), (Some(7), RingUse::Files));
        let python = read(text, "python3");
        assert_eq!((python.spin_us, python.rings), (None, RingUse::Sockets));
    }

    #[test]
    fn known_programs_have_a_use_of_rings_that_a_policy_overrides() {
        assert_eq!(read("", "mariadbd").rings, RingUse::Files);
        assert_eq!(read("", "node").rings, RingUse::Refused);
        assert_eq!(read("", "python3").rings, RingUse::Sockets);
        assert_eq!(read("%sockets@maria*", "mariadbd").rings, RingUse::Sockets);
        assert_eq!(read("%files@node;%refuse", "node").rings, RingUse::Files);
        assert_eq!(read("%refuse", "python3").rings, RingUse::Refused);
    }

    #[test]
    fn invalid_text_denies_everything() {
        for text in ["22", "+x", "-70000", "~x@y", "+1-2-3", "%disks@y", "%"] {
            let policy = read(text, "mariadbd");
            assert!(!policy.connections.allows(80, 81) && policy.spin_us.is_none(), "{text}");
            assert_eq!(policy.rings, RingUse::Sockets, "{text}");
        }
        assert!(read("", "curl").connections.allows(80, 81));
    }
}
