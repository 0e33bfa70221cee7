//! The facts of all endpoints as rows of text, side by side, and where the hot threads ran.

use nm_model::facts::{Facts, LinkFacts};
use nm_model::result::{Placement, Series};
use nm_model::{EndpointId, RunResult};

use crate::style::Tone;
use crate::table::{Column, Table};
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
pub fn cpu_list(cpus: &[u32]) -> String {
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
    ]
}

/// Mitigations of processor faults, each by its name.
fn mitigation_rows(facts: &Facts) -> Vec<Fact> {
    let row = |text: &String| {
        let (name, value) = text.split_once(": ").unwrap_or((text, "active"));
        (format!("mitigation {name}"), value.to_string())
    };
    facts.cpu.mitigations.iter().map(row).collect()
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

/// Names of the links of an endpoint with what matters most: `veth0 (MTU 1500), lo (down)`.
fn links_text(facts: &Facts) -> String {
    let text = |link: &LinkFacts| {
        let state = (!link.up).then(|| "down".to_string());
        let mtu = link.mtu.map(|bytes| format!("MTU {bytes}"));
        let parts: Vec<String> = state.into_iter().chain(mtu).collect();
        if parts.is_empty() {
            link.name.clone()
        } else {
            format!("{} ({})", link.name, parts.join(", "))
        }
    };
    list(&facts.links.iter().map(text).collect::<Vec<_>>())
}

fn link_cells(link: &LinkFacts) -> Vec<String> {
    let number = |value: Option<u32>| value.map(|v| v.to_string());
    let speed = link.speed_mbps.map(|v| format!("{} Gb/s", units::plain(f64::from(v) / 1e3)));
    vec![
        link.name.clone(),
        if link.up { "up".to_string() } else { "down".to_string() },
        text(&link.driver),
        text(&link.driver_version),
        text(&link.firmware),
        text(&link.bus),
        text(&number(link.mtu)),
        text(&speed),
        text(&link.numa_node.map(|node| node.to_string())),
        text(&number(link.queues)),
        text(&link.coalescing),
        text(&link.rings),
        link.offloads.join(" "),
    ]
}

/// The network links of all endpoints, equal ones once.
pub fn links(result: &RunResult) -> Table {
    let titles = [
        Column::text("link"),
        Column::text("at"),
        Column::text("state"),
        Column::text("driver"),
        Column::text("version"),
        Column::text("firmware"),
        Column::text("bus"),
        Column::figure("MTU"),
        Column::text("speed"),
        Column::figure("NUMA node"),
        Column::figure("queues"),
        Column::text("coalescing"),
        Column::text("rings"),
        Column::text("offloads"),
    ];
    let mut found: Vec<(Vec<EndpointId>, Vec<String>)> = vec![];
    for (endpoint, facts) in &result.facts {
        for cells in facts.links.iter().map(link_cells) {
            match found.iter_mut().find(|(_, known)| *known == cells) {
                Some((endpoints, _)) => endpoints.push(endpoint.clone()),
                None => found.push((vec![endpoint.clone()], cells)),
            }
        }
    }
    let columns = titles.map(Column::optional);
    let mut table = Table::new("Network links that the endpoints see", columns);
    for (endpoints, mut cells) in found {
        cells.insert(1, names(&endpoints));
        table.push(Tone::Plain, cells);
    }
    table.drop_empty();
    table
}

/// All facts of an endpoint by name, in a stable order.
fn facts_of(facts: &Facts) -> Vec<Fact> {
    let mut rows = host_rows(facts);
    rows.extend(cpu_rows(facts));
    rows.extend(clock_and_memory_rows(facts));
    rows.extend(facts.settings.iter().map(|(name, value)| (name.clone(), value.clone())));
    rows.extend(mitigation_rows(facts));
    let variable = |(name, value): (&String, &String)| (format!("variable {name}"), value.clone());
    rows.extend(facts.variables.iter().map(variable));
    rows.push(("network links".to_string(), links_text(facts)));
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

    /// Whether all endpoints that have this fact agree.
    pub fn is_equal_where_known(&self) -> bool {
        let mut known = self.values.iter().filter(|value| *value != NO_FACT);
        let first = known.next();
        known.all(|value| Some(value) == first)
    }
}

/// Names of the endpoints, in the order of columns.
pub fn endpoints(result: &RunResult) -> Vec<String> {
    result.facts.keys().map(EndpointId::to_string).collect()
}

/// Endpoints whose facts are all equal: one column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Names of the endpoints.
    pub name: String,
    /// Index of one of them in [`FactRow::values`].
    pub first: usize,
}

/// The endpoints of a result in groups of equal facts, in order of first appearance.
pub fn columns(result: &RunResult) -> Vec<Group> {
    let rows = rows(result);
    let mut groups: Vec<(usize, Vec<EndpointId>)> = vec![];
    for (index, endpoint) in result.facts.keys().enumerate() {
        let is_same = |first: usize| rows.iter().all(|row| row.values[first] == row.values[index]);
        match groups.iter_mut().find(|(first, _)| is_same(*first)) {
            Some((_, endpoints)) => endpoints.push(endpoint.clone()),
            None => groups.push((index, vec![endpoint.clone()])),
        }
    }
    let group =
        |(first, endpoints): (usize, Vec<EndpointId>)| Group { name: names(&endpoints), first };
    groups.into_iter().map(group).collect()
}

/// Endpoints as text; both sides of an environment together are named by the environment.
fn names(endpoints: &[EndpointId]) -> String {
    let mut names: Vec<String> = vec![];
    for endpoint in endpoints {
        let peer = EndpointId::new(endpoint.environment.clone(), endpoint.side.other());
        let name = match endpoints.contains(&peer) {
            true => endpoint.environment.clone(),
            false => endpoint.to_string(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
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
        Column::text("series"),
        Column::text("thread"),
        Column::text("pinned to"),
        Column::text("ran on"),
        Column::figure("migrations"),
        Column::figure("taken away"),
        Column::figure("gave up"),
        Column::figure("run delay"),
        Column::figure("stolen, ms"),
    ];
    let caption = "Hot threads, sums over all rounds: where they ran and what disturbed them";
    let mut table = Table::new(caption, titles);
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
                    view::marked(series, series.key.to_string()),
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
    use nm_model::Side;
    use nm_model::result::Source;

    use super::*;

    /// Both ends of `loopback` and of `netns`; the client of `netns` has its own MTU.
    fn result() -> RunResult {
        let mut run = RunResult::new("r", Source::Measured { version: "0".into() });
        for environment in ["loopback", "netns"] {
            for side in [Side::Client, Side::Server] {
                let mtu = if (environment, side) == ("netns", Side::Client) { 9000 } else { 1500 };
                let link =
                    LinkFacts { name: "veth0".into(), mtu: Some(mtu), up: true, ..<_>::default() };
                let mut facts = Facts { links: vec![link], ..Facts::default() };
                facts.cpu.mitigations = vec!["spectre_v2: IBRS".into()];
                run.facts.insert(EndpointId::new(environment, side), facts);
            }
        }
        run
    }

    #[test]
    fn equal_endpoints_share_a_column_and_only_facts_that_differ_are_marked() {
        let run = result();
        let names: Vec<String> = columns(&run).into_iter().map(|group| group.name).collect();
        assert_eq!(names, ["loopback, netns server", "netns client"]);
        let differing: Vec<FactRow> =
            rows(&run).into_iter().filter(|row| !row.is_equal()).collect();
        assert_eq!(differing.len(), 1);
        assert_eq!(differing[0].name, "network links");
        assert_eq!(differing[0].values[2], "veth0 (MTU 9000)");
    }

    #[test]
    fn lists_of_facts_become_one_row_each() {
        let run = result();
        assert!(rows(&run).iter().any(|row| row.name == "mitigation spectre_v2"));
        let links = links(&run);
        let cells: Vec<&str> = links.rows[0].cells.iter().map(String::as_str).collect();
        assert_eq!(cells, ["veth0", "loopback, netns server", "up", "1500"]);
        assert_eq!(links.rows.len(), 2);
    }

    #[test]
    fn cpu_numbers_become_ranges() {
        assert_eq!(cpu_list(&[3, 0, 1, 2, 8, 8]), "0-3,8");
        assert_eq!(cpu_list(&[u32::MAX, 0]), format!("0,{}", u32::MAX));
        assert_eq!(cpu_list(&[]), "");
    }
}
