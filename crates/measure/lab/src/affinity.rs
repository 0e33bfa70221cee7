//! CPUs for the measuring threads of both ends.

use std::fmt;
use std::str::FromStr;

use nm_model::facts::{CpuFacts, Facts};
use nm_model::{Failure, FailureKind};
use nm_place::{Topology, Wish, choose};
use nm_sys::cpu::choose_pair;
use nm_sys::hostfiles::parse_list;

/// CPUs for the measuring threads of each end. Thread n is pinned to the CPU at index n modulo the
/// length of the list; with an empty list threads are not pinned.
///
/// Text form: `CLIENT;SERVER`, each a list such as `1`, `0,2-3` or `any`. A single list is used for
/// both ends, which is meant for two machines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Affinity {
    /// The client's.
    pub client: Vec<u32>,
    /// The server's.
    pub server: Vec<u32>,
}

/// Why CPUs cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AffinityError {
    /// The text is not `CLIENT;SERVER`.
    #[error("affinity `{0}` is not `CLIENT;SERVER`")]
    Malformed(String),
    /// The control group or the machine does not have the CPU.
    #[error("the {end} may not use CPU {cpu}")]
    NotAllowed {
        /// `client` or `server`.
        end: &'static str,
        /// The CPU.
        cpu: u32,
        /// CPUs that this end may use.
        allowed: Vec<u32>,
    },
}

impl From<AffinityError> for Failure {
    fn from(error: AffinityError) -> Failure {
        let failure = Failure::new(FailureKind::BadRequest, error.to_string());
        match error {
            AffinityError::Malformed(_) => {
                failure.hint("write for example --affinity '1;2', or '1-2;any'; mind the quotes")
            }
            AffinityError::NotAllowed { allowed, .. } => match &allowed[..] {
                [] => failure.hint("its CPUs cannot be read; leave --affinity out"),
                [one] => failure.hint(format!("it may use CPU {one} only")),
                more => failure.hint(format!("it may use CPUs {}", ranges(more))),
            },
        }
    }
}

impl FromStr for Affinity {
    type Err = AffinityError;

    fn from_str(text: &str) -> Result<Affinity, AffinityError> {
        let list = |part: &str| match part.trim() {
            "any" | "" => Some(vec![]),
            part => parse_list(part),
        };
        let (client, server) = text.split_once(';').unwrap_or((text, text));
        match (list(client), list(server)) {
            (Some(client), Some(server)) if !text.trim().is_empty() => {
                Ok(Affinity { client, server })
            }
            _ => Err(AffinityError::Malformed(text.to_string())),
        }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |cpus: &[u32]| match cpus {
            [] => "any".to_string(),
            cpus => cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        };
        write!(f, "{};{}", text(&self.client), text(&self.server))
    }
}

impl Affinity {
    /// CPUs for `threads` measuring threads at each end: different CPUs, and different cores, as
    /// far as the machine has enough of them.
    pub fn choose(client: &Facts, server: &Facts, threads: usize) -> Affinity {
        if one_kernel(client, server) {
            // Agents of one environment may use the same CPUs, so the client's list is used for
            // both.
            let order = by_preference(&client.cpu, 2 * threads);
            return match order[..] {
                [] => Affinity::default(),
                [one] => Affinity { client: vec![one], server: vec![one] },
                _ => Affinity {
                    client: order.iter().step_by(2).copied().collect(),
                    server: order.iter().skip(1).step_by(2).copied().collect(),
                },
            };
        }
        Affinity {
            client: by_preference(&client.cpu, threads),
            server: by_preference(&server.cpu, threads),
        }
    }

    /// Checks that both ends may use their CPUs.
    ///
    /// # Errors
    /// If an end may not use one of its CPUs.
    pub fn check(&self, client: &Facts, server: &Facts) -> Result<(), AffinityError> {
        self.check_allowed(&client.cpu.allowed, Some(&server.cpu.allowed))
    }

    /// Checks the CPUs of both ends against those that each may use; those of a server that is not
    /// known yet are not checked.
    ///
    /// # Errors
    /// If an end may not use one of its CPUs.
    pub fn check_allowed(
        &self,
        client: &[u32],
        server: Option<&[u32]>,
    ) -> Result<(), AffinityError> {
        let server = server.map(|allowed| ("server", &self.server, allowed));
        for (end, cpus, allowed) in
            [Some(("client", &self.client, client)), server].into_iter().flatten()
        {
            if let Some(cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
                let allowed = allowed.to_vec();
                return Err(AffinityError::NotAllowed { end, cpu: *cpu, allowed });
            }
        }
        Ok(())
    }
}

/// Rising numbers as ranges: `0-3, 8`.
fn ranges(cpus: &[u32]) -> String {
    let mut all: Vec<(u32, u32)> = vec![];
    for &cpu in cpus {
        match all.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => all.push((cpu, cpu)),
        }
    }
    let text = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    all.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Whether both ends run under the same kernel.
pub fn one_kernel(client: &Facts, server: &Facts) -> bool {
    client.host.boot_id.is_some() && client.host.boot_id == server.host.boot_id
}

/// Up to `count` CPUs: one CPU of each core by the rule of all placements. Where a node has too few
/// cores, first one CPU of each core, starting with the best pair, then the other CPUs of the
/// cores.
fn by_preference(cpu: &CpuFacts, count: usize) -> Vec<u32> {
    let topology = Topology::of_threads(&cpu.allowed, &cpu.siblings, &cpu.numa_nodes);
    if let Ok(chosen) = choose(&topology, &Wish { cores: count, ..Wish::default() }) {
        return chosen.hot.into_iter().rev().collect();
    }
    let mut left = cpu.allowed.clone();
    let mut order: Vec<u32> = vec![];
    while order.len() < count && !left.is_empty() {
        let shares = |a: &u32, b: &u32| {
            cpu.siblings.iter().any(|group| group.contains(a) && group.contains(b))
        };
        let unused_cores: Vec<u32> =
            left.iter().copied().filter(|c| !order.iter().any(|o| shares(c, o))).collect();
        let from = if unused_cores.is_empty() { left.clone() } else { unused_cores };
        let pair = choose_pair(&from, &cpu.siblings);
        if pair.is_empty() {
            break;
        }
        left.retain(|cpu| !pair.contains(cpu));
        order.extend(pair);
    }
    order.truncate(count);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts(boot: &str, allowed: &[u32], siblings: &[&[u32]]) -> Facts {
        let mut facts = Facts::default();
        facts.host.boot_id = Some(boot.to_string());
        facts.cpu.allowed = allowed.to_vec();
        facts.cpu.siblings = siblings.iter().map(|group| group.to_vec()).collect();
        facts
    }

    #[test]
    fn affinities_are_parsed_as_printed() {
        for text in ["1;2", "0,1;any", "any;any"] {
            assert_eq!(text.parse::<Affinity>().unwrap().to_string(), text);
        }
        assert_eq!("0-2;3".parse::<Affinity>().unwrap().client, [0, 1, 2]);
        assert_eq!("5".parse::<Affinity>().unwrap().to_string(), "5;5");
        for text in ["", "1:2", "a;b", "2-1;0", "1;-2"] {
            assert!(text.parse::<Affinity>().is_err(), "{text}");
        }
    }

    #[test]
    fn two_ends_on_one_machine_get_different_cores() {
        let machine = facts("a", &[0, 1, 2, 3], &[&[0, 2], &[1, 3]]);
        let chosen = Affinity::choose(&machine, &machine, 1);
        let (client, server) = (chosen.client[0], chosen.server[0]);
        assert_ne!(client % 2, server % 2, "{chosen}");
    }

    #[test]
    fn single_cpu_is_shared_and_without_cpus_nothing_is_pinned() {
        let one = facts("a", &[5], &[]);
        assert_eq!(Affinity::choose(&one, &one, 2).to_string(), "5;5");
        let none = facts("a", &[], &[]);
        assert_eq!(Affinity::choose(&none, &none, 1), Affinity::default());
    }

    #[test]
    fn two_machines_choose_independently() {
        let (a, b) = (facts("a", &[0, 1], &[]), facts("b", &[0, 1], &[]));
        let chosen = Affinity::choose(&a, &b, 1);
        assert_eq!((chosen.client.len(), chosen.server.len()), (1, 1));
        assert_eq!(chosen.client, chosen.server);
    }

    #[test]
    fn forbidden_cpu_is_named() {
        let machine = facts("a", &[0, 1], &[]);
        let affinity: Affinity = "0;9".parse().unwrap();
        let failure = Failure::from(affinity.check(&machine, &machine).unwrap_err());
        assert_eq!(failure.to_string(), "the server may not use CPU 9; it may use CPUs 0, 1");
        let both: Affinity = "7".parse().unwrap();
        let refused = |server| Failure::from(both.check_allowed(&[3], server).unwrap_err());
        assert_eq!(
            refused(None).to_string(),
            "the client may not use CPU 7; it may use CPU 3 only"
        );
        let server_only = Affinity { client: vec![], server: vec![9] };
        assert!(server_only.check_allowed(&[0], None).is_ok());
        assert!(server_only.check_allowed(&[0], Some(&[0])).is_err());
        assert_eq!(ranges(&[0, 1, 2, 3, 6, 8, 9]), "0-3, 6, 8, 9");
    }

    proptest! {
        #[test]
        fn cpus_are_distinct_while_there_are_enough(
            cpus in prop::collection::btree_set(0u32..32, 0..16), threads in 1usize..6
        ) {
            let allowed: Vec<u32> = cpus.iter().copied().collect();
            let machine = facts("a", &allowed, &[&[0, 16], &[1, 17], &[2, 18], &[3, 19]]);
            let chosen = Affinity::choose(&machine, &machine, threads);
            let mut all = [chosen.client.clone(), chosen.server.clone()].concat();
            prop_assert!(all.iter().all(|cpu| allowed.contains(cpu)));
            if allowed.len() >= 2 {
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), count);
                prop_assert!(!chosen.client.is_empty() && !chosen.server.is_empty());
            }
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in "\\PC{0,30}") {
            let _ = text.parse::<Affinity>();
        }
    }
}
