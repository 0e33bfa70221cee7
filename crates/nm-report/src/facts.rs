//! The facts of all endpoints as rows of text, side by side, and where the hot threads ran.

use nm_model::facts::{Facts, LinkFacts};
use nm_model::result::{Placement, Series};
use nm_model::{EndpointId, RunResult};

use crate::style::Tone;
use crate::table::Table;
use crate::units::{self, NOT_AVAILABLE};
use crate::view;

/// Text where an endpoint has no such fact.
const NO_FACT: &str = "–";

/// A named fact.
type Fact = (String, String);

fn text(value: &Option<String>) -> String {
    value.clone().unwrap_or_else(|| NOT_AVAILABLE.to_string())
}

fn list(values: &[String]) -> String {
    if values.is_empty() { "none".to_string() } else { values.join(", ") }
}

/// CPU numbers as ranges: `0-3,8`.
fn cpu_list(cpus: &[u32]) -> String {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    cpus.dedup();
    let mut ranges: Vec<(u32, u32)> = vec![];
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(cpu) => *end = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = |(start, end): &(u32, u32)| {
        if start == end { start.to_string() } else { format!("{start}-{end}") }
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

fn host_rows(facts: &Facts) -> Vec<Fact> {
    let (host, machine) = (&facts.host, &facts.virtualization);
    let row = |name: &str, value: String| (name.to_string(), value);
    vec![
        row("host", host.name.clone()),
        row("operating system", text(&host.os)),
        row("kernel", format!("{} {}", host.kernel, host.machine)),
        row("kernel command line", text(&host.cmdline)),
        row("load over one minute", units::or_not_available(host.load_1m, units::plain)),
        row("hypervisor", machine.hypervisor.clone().unwrap_or_else(|| "none seen".to_string())),
        row("product", text(&machine.product)),
        row("container", machine.container.clone().unwrap_or_else(|| "none seen".to_string())),
        row("nearmetal", facts.nearmetal_version.clone()),
    ]
}

fn cpu_rows(facts: &Facts) -> Vec<Fact> {
    let cpu = &facts.cpu;
    let row = |name: &str, value: String| (name.to_string(), value);
    let siblings: Vec<String> = cpu.siblings.iter().map(|group| cpu_list(group)).collect();
    let mut nodes: Vec<u32> = cpu.numa_nodes.values().copied().collect();
    nodes.sort_unstable();
    nodes.dedup();
    vec![
        row("processor", text(&cpu.model)),
        row("CPUs online", cpu.online.to_string()),
        row("CPUs allowed", cpu_list(&cpu.allowed)),
        row("CPUs that share a core", list(&siblings)),
        row("NUMA nodes", if nodes.is_empty() { NOT_AVAILABLE.into() } else { cpu_list(&nodes) }),
        row("frequency governor", text(&cpu.governor)),
        row("idle driver", text(&cpu.idle_driver)),
        row("idle states", list(&cpu.idle_states)),
        row("isolated CPUs", cpu.isolated.clone().unwrap_or_else(|| "none".to_string())),
        row("CPU quota", cpu.quota.clone().unwrap_or_else(|| "none".to_string())),
        row("mitigations", list(&cpu.mitigations)),
    ]
}

fn clock_and_memory_rows(facts: &Facts) -> Vec<Fact> {
    let (clock, memory) = (&facts.clock, &facts.memory);
    let row = |name: &str, value: String| (name.to_string(), value);
    let ghz = |hz: f64| format!("{} GHz", units::plain(hz / 1e9));
    let limit = memory.lock_limit_bytes.map_or_else(|| "unlimited".to_string(), units::bytes);
    let mut rows = vec![
        row("clock", clock.source.clone()),
        row("TSC", units::or_not_available(clock.tsc_hz, ghz)),
        row(
            "calibration error, ppm",
            units::or_not_available(clock.calibration_error_ppm, |v| units::significant(v, 2)),
        ),
        row("cost of a pair of time stamps", units::latency(clock.pair_cost_ns)),
        row("kernel's clock source", text(&clock.kernel_source)),
        row("memory", format!("{} MiB", memory.total_bytes >> 20)),
        row("locked memory allowed", limit),
    ];
    if let Some(reason) = &clock.fallback_reason {
        rows.push(row("why not the TSC", reason.clone()));
    }
    rows
}

fn link_text(link: &LinkFacts) -> String {
    let mut parts = vec![if link.up { "up".to_string() } else { "down".to_string() }];
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            parts.push(format!("{name} {value}"));
        }
    };
    add("driver", link.driver.clone());
    add("version", link.driver_version.clone());
    add("firmware", link.firmware.clone());
    add("bus", link.bus.clone());
    add("MTU", link.mtu.map(|v| v.to_string()));
    add("speed", link.speed_mbps.map(|v| format!("{} Gb/s", units::plain(f64::from(v) / 1e3))));
    add("NUMA node", link.numa_node.map(|v| v.to_string()));
    add("coalescing", link.coalescing.clone());
    add("rings", link.rings.clone());
    add("queues", link.queues.map(|v| v.to_string()));
    add("offloads", (!link.offloads.is_empty()).then(|| link.offloads.join(" ")));
    parts.join(", ")
}

/// All facts of an endpoint by name, in a stable order.
fn facts_of(facts: &Facts) -> Vec<Fact> {
    let mut rows = host_rows(facts);
    rows.extend(cpu_rows(facts));
    rows.extend(clock_and_memory_rows(facts));
    rows.extend(facts.settings.iter().map(|(name, value)| (name.clone(), value.clone())));
    let variable = |(name, value): (&String, &String)| (format!("variable {name}"), value.clone());
    rows.extend(facts.variables.iter().map(variable));
    rows.extend(facts.links.iter().map(|l| (format!("link {}", l.name), link_text(l))));
    rows
}

/// One fact of every endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactRow {
    /// Its name.
    pub name: String,
    /// Its value at each endpoint, in the order of [`endpoints`].
    pub values: Vec<String>,
}

impl FactRow {
    /// Whether all endpoints agree.
    pub fn is_equal(&self) -> bool {
        self.values.iter().all(|value| *value == self.values[0])
    }
}

/// Names of the endpoints, in the order of columns.
pub fn endpoints(result: &RunResult) -> Vec<String> {
    result.facts.keys().map(EndpointId::to_string).collect()
}

/// Every fact that any endpoint has, in a stable order.
pub fn rows(result: &RunResult) -> Vec<FactRow> {
    let all: Vec<Vec<Fact>> = result.facts.values().map(facts_of).collect();
    let mut rows: Vec<FactRow> = vec![];
    for (index, facts) in all.iter().enumerate() {
        for (name, value) in facts {
            let at = rows.iter().position(|row| row.name == *name).unwrap_or_else(|| {
                let values = vec![NO_FACT.to_string(); all.len()];
                rows.push(FactRow { name: name.clone(), values });
                rows.len() - 1
            });
            rows[at].values[index] = value.clone();
        }
    }
    rows
}

/// Where the hot threads ran: one line for each thread, summed over rounds.
pub fn placements(series: &[Series]) -> Table {
    let titles = [
        "series",
        "thread",
        "pinned to",
        "ran on",
        "#migrations",
        "#taken away",
        "#gave up",
        "#run delay",
        "#stolen, ms",
    ];
    let caption = "Hot threads, sums over all rounds: where they ran and what disturbed them";
    let mut table = Table::new(caption, &titles);
    for series in series {
        let mut threads: Vec<String> = vec![];
        let name = |p: &Placement| format!("{} {}", p.side, p.thread);
        for placement in series.rounds.iter().flat_map(|r| &r.placements) {
            if !threads.contains(&name(placement)) {
                threads.push(name(placement));
            }
        }
        for thread in threads {
            let all: Vec<_> = series
                .rounds
                .iter()
                .flat_map(|r| &r.placements)
                .filter(|p| name(p) == thread)
                .collect();
            let pinned: Vec<u32> = all.iter().filter_map(|p| p.pinned_cpu).collect();
            let ran: Vec<u32> =
                all.iter().flat_map(|p| [p.first_cpu, p.last_cpu]).flatten().collect();
            let sum = |value: fn(&Placement) -> Option<u64>| {
                let sum = view::sum(all.iter().map(|p| value(p)));
                sum.map_or_else(|| NOT_AVAILABLE.to_string(), units::count)
            };
            let delay = view::sum(all.iter().map(|p| p.run_delay_ns));
            table.push(
                Tone::Plain,
                vec![
                    series.key.to_string(),
                    thread,
                    if pinned.is_empty() { "not pinned".into() } else { cpu_list(&pinned) },
                    if ran.is_empty() { NOT_AVAILABLE.into() } else { cpu_list(&ran) },
                    sum(|p| p.migrations),
                    sum(|p| Some(p.involuntary_switches)),
                    sum(|p| Some(p.voluntary_switches)),
                    delay.map_or_else(|| NOT_AVAILABLE.to_string(), |ns| units::latency(ns as f64)),
                    sum(|p| p.steal_ms),
                ],
            );
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_numbers_become_ranges() {
        assert_eq!(cpu_list(&[3, 0, 1, 2, 8, 8]), "0-3,8");
        assert_eq!(cpu_list(&[u32::MAX, 0]), format!("0,{}", u32::MAX));
        assert_eq!(cpu_list(&[]), "");
    }
}
