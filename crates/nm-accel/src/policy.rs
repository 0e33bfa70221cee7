//! Which connections may leave the kernel, by port and by program: the compact form in which the
//! binary passes a policy file, and its evaluation.
//!
//! The form (`NEARMETAL_ACCEL_POLICY`) is a list of rules, separated by `;`. The first rule that
//! matches decides, and a connection that no rule matches is allowed:
//!
//! ```text
//! rule     = ("+" | "-") [ports] ["@" programs]      allow or deny
//!          | "~" microseconds "@" programs           how long these programs spin
//! ports    = port ["-" port] {"," port ["-" port]}   either end's port
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

impl Policy {
    /// Allows every connection.
    pub const EVERYTHING: Policy = Policy { rules: Vec::new() };

    /// Denies every connection.
    fn nothing() -> Policy {
        Policy { rules: vec![Rule { allow: false, ports: vec![] }] }
    }

    /// Parses the compact form for a program that is known under `names` (of its file, and as the
    /// kernel shows it). Also returns how long it may spin, if the policy says so.
    pub fn parse(text: &str, names: &[String]) -> (Policy, Option<u32>) {
        let mut policy = Policy::default();
        let mut spin_us = None;
        for word in text.split(';').filter(|word| !word.is_empty()) {
            let (rule, programs) = match word.split_once('@') {
                Some((rule, programs)) => (rule, Some(programs)),
                None => (word, None),
            };
            let is_meant = programs.is_none_or(|programs| is_named(programs, names));
            if let Some(digits) = rule.strip_prefix('~') {
                let Ok(microseconds) = digits.parse() else { return (Policy::nothing(), None) };
                if is_meant && spin_us.is_none() {
                    spin_us = Some(microseconds);
                }
                continue;
            }
            let allow = rule.starts_with('+');
            let Some(ports) = rule.strip_prefix(['+', '-']).and_then(ranges) else {
                return (Policy::nothing(), None);
            };
            if is_meant {
                policy.rules.push(Rule { allow, ports });
            }
        }
        (policy, spin_us)
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

    fn read(text: &str, name: &str) -> (Policy, Option<u32>) {
        Policy::parse(text, &[name.to_string()])
    }

    #[test]
    fn first_matching_rule_wins_and_the_default_allows() {
        let (policy, spin_us) = read("-22;+5000-5999;-5500;-@curl", "redis-server");
        assert_eq!(spin_us, None);
        for (ports, allowed) in [
            ((22, 40000), false),
            ((40000, 22), false),
            ((5500, 40000), true),
            ((6379, 40000), true),
        ] {
            assert_eq!(policy.allows(ports.0, ports.1), allowed, "{ports:?}");
        }
        assert!(Policy::EVERYTHING.allows(1, 2));
    }

    #[test]
    fn rules_of_other_programs_do_not_apply() {
        let text = "-@curl,ssh*;~7@redis*;~9@redis-server;+6379;-";
        assert!(!read(text, "curl").0.allows(6379, 1));
        assert!(!read(text, "sshd").0.allows(6379, 1));
        let (policy, spin_us) = read(text, "redis-server");
        assert!(policy.allows(6379, 1) && !policy.allows(80, 1));
        assert_eq!(spin_us, Some(7));
        assert_eq!(read(text, "python3").1, None);
    }

    #[test]
    fn invalid_text_denies_everything() {
        for text in ["22", "+x", "-70000", "~x@y", "+1-2-3"] {
            let (policy, spin_us) = read(text, "curl");
            assert!(!policy.allows(80, 81) && spin_us.is_none(), "{text}");
        }
        assert!(read("", "curl").0.allows(80, 81));
    }
}
