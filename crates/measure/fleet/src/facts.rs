//! What sets an outlier apart: facts that it has and no host that is none.

use std::collections::{BTreeMap, BTreeSet};

use nm_model::Facts;

/// Facts of one host: name to value.
pub type HostFacts = BTreeMap<String, String>;

/// Most differences that are named for one host.
pub const DIFFERENCES_MAX: usize = 5;

/// Facts of a machine that may explain its latency, as names and texts. What tells one machine
/// from another and explains nothing, such as its name or its load, is not among them.
pub fn flat(facts: &Facts) -> HostFacts {
    let Facts { host, cpu, clock, memory, virtualization, settings, .. } = facts;
    let mut all = HostFacts::new();
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            all.insert(name.to_string(), value);
        }
    };
    add("kernel", Some(host.kernel.clone()));
    add("architecture", Some(host.machine.clone()));
    add("system", host.os.clone());
    add("kernel command line", host.cmdline.clone());
    add("processor", cpu.model.clone());
    add("CPUs online", Some(cpu.online.to_string()));
    let smt = if cpu.siblings.is_empty() { "off" } else { "on" };
    add("SMT", Some(smt.to_string()));
    add("governor", cpu.governor.clone());
    add("idle driver", cpu.idle_driver.clone());
    add("idle states", Some(cpu.idle_states.join(", ")));
    add("isolated CPUs", cpu.isolated.clone());
    add("mitigations", Some(cpu.mitigations.join(", ")));
    add("CPU quota", cpu.quota.clone());
    add("clock", Some(clock.source.clone()));
    add("kernel clock", clock.kernel_source.clone());
    let memory_gib = memory.total_bytes as f64 / f64::from(1 << 30);
    add("memory", Some(format!("{memory_gib:.0} GiB")));
    add("hypervisor", virtualization.hypervisor.clone());
    add("product", virtualization.product.clone());
    add("container", virtualization.container.clone());
    for (name, value) in settings {
        add(name, Some(value.clone()));
    }
    all
}

/// A fact that sets a host apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The fact.
    pub fact: String,
    /// Its value.
    pub value: String,
    /// The value of most other hosts.
    pub usual: String,
    /// How many of the hosts that do not stand out have the usual value.
    pub n_usual: usize,
    /// How many of the hosts that do not stand out have the fact.
    pub n_others: usize,
    /// Other outliers with the same value.
    pub also: Vec<usize>,
}

/// The facts of `host` that no host outside of `outliers` has. A fact with as many values as hosts,
/// such as a name or a load, sets everybody apart, and is left out: most others must have one.
/// What most others have in common comes first.
pub fn differences(
    facts: &[Option<HostFacts>],
    host: usize,
    outliers: &BTreeSet<usize>,
) -> Vec<Difference> {
    let Some(own) = &facts[host] else { return vec![] };
    let others: Vec<&HostFacts> = (0..facts.len())
        .filter(|at| !outliers.contains(at) && *at != host)
        .filter_map(|at| facts[at].as_ref())
        .collect();
    let one = |(fact, value): (&String, &String)| {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for other in others.iter().filter_map(|other| other.get(fact)) {
            *counts.entry(other).or_default() += 1;
        }
        let n_others: usize = counts.values().sum();
        let (usual, n_usual) = counts.iter().max_by_key(|(_, n)| **n).map(|(v, n)| (*v, *n))?;
        let is_apart = !counts.contains_key(value.as_str()) && n_usual * 2 > n_others;
        let has_value = |at: &usize| {
            *at != host && facts[*at].as_ref().is_some_and(|all| all.get(fact) == Some(value))
        };
        is_apart.then(|| Difference {
            fact: fact.clone(),
            value: value.clone(),
            usual: usual.to_string(),
            n_usual,
            n_others,
            also: outliers.iter().copied().filter(has_value).collect(),
        })
    };
    let mut found: Vec<Difference> = own.iter().filter_map(one).collect();
    let share = |one: &Difference| one.n_usual as f64 / one.n_others as f64;
    found.sort_by(|a, b| share(b).total_cmp(&share(a)).then(a.fact.cmp(&b.fact)));
    found.truncate(DIFFERENCES_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(governor: &str, name: &str) -> Option<HostFacts> {
        let all = [("governor", governor), ("name", name), ("kernel", "6.1")];
        Some(all.map(|(fact, value)| (fact.to_string(), value.to_string())).into())
    }

    #[test]
    fn what_it_alone_has_is_named_and_what_differs_everywhere_is_not() {
        let mut all: Vec<_> = (0..8).map(|at| facts("performance", &format!("h{at}"))).collect();
        all[3] = facts("powersave", "h3");
        all[5] = None;
        let found = differences(&all, 3, &BTreeSet::from([3]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].fact.as_str(), found[0].value.as_str()), ("governor", "powersave"));
        assert_eq!(
            (found[0].usual.as_str(), found[0].n_usual, found[0].n_others),
            ("performance", 6, 6)
        );
        assert!(found[0].also.is_empty());
        all[6] = facts("powersave", "h6");
        assert!(differences(&all, 3, &BTreeSet::from([3])).is_empty(), "a good host has it too");
        let found = differences(&all, 3, &BTreeSet::from([3, 6]));
        assert_eq!(found[0].also, [6]);
        assert!(differences(&all, 5, &BTreeSet::from([5])).is_empty());
    }
}
