//! Interrupts: who distributes them, where those of the network device run, how many hit the
//! workload's CPUs.

use std::collections::BTreeMap;

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Judgement};
use nm_model::finding::FixKind::{Command, KernelCommandLine};
use nm_model::finding::{Evidence, Threat, UndoClass};

use super::common::{no_cpu, no_link, overlap, unread};
use crate::check::Check;
use crate::machine::{Machine, net};
use crate::observed::{Observed, evidence};
use nm_settings::{SettingId, source};
use nm_sys::cpu_list;

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "irq.balance",
        title: "irqbalance",
        severity: Severity::High,
        why: "it moves interrupts to the workload's CPUs, and undoes what was set by hand",
        sources: &[source::AWS, source::ENA],
        fix: (
            Command,
            "echo IRQBALANCE_BANNED_CPULIST=CPUS >> /etc/default/irqbalance && \
             systemctl restart irqbalance",
        ),
        undo: UndoClass::Live,
        conflict: Some("AWS's sample stops irqbalance; the ENA guide keeps it and bans CPUs"),
        threatens: &[Threat::Tail],
        run: balance,
        ..Check::UNDECLARED
    },
    Check {
        id: "irq.nic",
        title: "CPUs of the network device's interrupts",
        severity: Severity::High,
        settings: &[SettingId::IrqNic],
        threatens: &[Threat::Network, Threat::Tail],
        run: nic,
        ..Check::UNDECLARED
    },
    Check {
        id: "irq.isolated_rate",
        title: "interrupts on the workload's CPUs",
        severity: Severity::Medium,
        why: "each one is a gap in the workload",
        sources: &[source::RIGTORP],
        fix: (
            KernelCommandLine,
            "nohz_full=CPUS   # for row LOC; for devices /proc/irq/N/smp_affinity_list; for CAL \
             and TLB pin the workload, and unmap nothing while it runs",
        ),
        undo: UndoClass::Boot,
        confidence: Documented,
        threatens: &[Threat::Tail, Threat::Maximum],
        run: rate,
        ..Check::UNDECLARED
    },
    Check {
        id: "irq.squeeze",
        title: "packets that waited for the next turn of the network soft interrupt",
        severity: Severity::High,
        why: "the soft interrupt used up its budget of packets or time; at worst packets are \
              dropped",
        sources: &[source::ENA],
        fix: (Command, "sysctl -w net.core.netdev_budget=600 net.core.netdev_budget_usecs=8000"),
        undo: UndoClass::Live,
        threatens: &[Threat::Tail, Threat::Loss, Threat::Network],
        run: squeeze,
        ..Check::UNDECLARED
    },
    Check {
        id: "irq.rps_xps",
        title: "steering of packets between CPUs by software",
        severity: Severity::Medium,
        settings: &[SettingId::IrqRps, SettingId::IrqXps],
        confidence: Judgement,
        threatens: &[Threat::Network],
        run: steering,
        ..Check::UNDECLARED
    },
];

const INTERRUPTS: &str = "/proc/interrupts";

/// A row of `/proc/interrupts`.
struct Row<'a> {
    name: &'a str,
    counts: Vec<u64>,
    text: &'a str,
}

/// The CPUs of the columns, and the rows.
fn table(text: &str) -> Option<(Vec<u32>, Vec<Row<'_>>)> {
    let mut lines = text.lines();
    let cpus: Vec<u32> = lines
        .next()?
        .split_whitespace()
        .map(|title| title.strip_prefix("CPU")?.parse().ok())
        .collect::<Option<_>>()?;
    let rows = lines.filter_map(|line| {
        let (name, rest) = line.split_once(':')?;
        let mut words = rest.split_whitespace();
        let counts: Vec<u64> =
            words.by_ref().take(cpus.len()).map_while(|word| word.parse().ok()).collect();
        Some(Row { name: name.trim(), counts, text: rest })
    });
    let rows = rows.collect();
    Some((cpus, rows))
}

fn balance(m: &Machine<'_>) -> Observed {
    if !m.sees_processes() {
        return unread(m, "the processes", &["/proc/1/comm", "/proc/2/comm"]);
    }
    let Some(pid) = m.process("irqbalance") else {
        return Observed::pass("irqbalance does not run").with([evidence(
            "/proc",
            "no irqbalance",
            "names of all processes",
        )]);
    };
    let comm = format!("/proc/{pid}/comm");
    let files = ["/etc/default/irqbalance", "/etc/sysconfig/irqbalance"];
    let banned = files.iter().find_map(|path| {
        let lines = m.text(path)?.lines().map(str::trim);
        let value = |line: &str| {
            let (name, value) = line.split_once('=')?;
            let value = value.trim_matches(['"', '\'']);
            match name.trim_start_matches("export ").trim() {
                "IRQBALANCE_BANNED_CPULIST" => nm_sys::hostfiles::parse_list(value),
                "IRQBALANCE_BANNED_CPUS" => cpu_list::parse_mask(value),
                _ => None,
            }
        };
        lines
            .filter(|line| !line.starts_with('#'))
            .filter_map(value)
            .next_back()
            .map(|c| (*path, c))
    });
    let (path, banned) = banned.unwrap_or((files[0], vec![]));
    // It also leaves out isolated CPUs and those without a tick by itself.
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    let isolated = m.isolated();
    let is_free = |cpu: &&u32| !banned.contains(cpu) && !isolated.contains(cpu);
    let open: Vec<u32> = m.hot.iter().filter(is_free).copied().collect();
    Observed::bad_if(
        !open.is_empty(),
        format!("irqbalance runs and may use CPUs {}", cpu_list::list(&open)),
        format!("irqbalance runs and leaves CPUs {} alone", cpu_list::list(&m.hot)),
    )
    .replace("CPUS", cpu_list::list(&m.separable()))
    .with([
        m.evidence(&comm, "running"),
        m.evidence(path, format!("banned: {}", cpu_list::list(&banned))),
    ])
}

/// Interrupts of a link: number and name.
fn of_link<'a>(m: &Machine<'a>, link: &str) -> Vec<(u32, &'a str)> {
    let Some((_, rows)) = m.text(INTERRUPTS).and_then(table) else { return vec![] };
    let device = m.symlink(&net(link, "device"));
    let bus = m.link(link).and_then(|link| link.bus.as_deref());
    let folder = net(link, "device/msi_irqs");
    let listed: Vec<u32> = m.names(&folder).iter().filter_map(|name| name.parse().ok()).collect();
    let is_named = |word: &str| {
        let of_name = word == link || word.split(['-', '@', ':', '_']).any(|part| part == link);
        let of_virtio = device.is_some_and(|device| {
            device.starts_with("virtio") && word.split('-').next() == Some(device)
        });
        of_name || of_virtio || bus.is_some_and(|bus| word.ends_with(&format!("pci:{bus}")))
    };
    let found = rows.into_iter().filter_map(|row| {
        let number: u32 = row.name.parse().ok()?;
        // `pci:0000:01:00.0` of the chip's name is not the device's own.
        let name = row.text.split_whitespace().last()?;
        let is_config = name.ends_with("-config") || name.ends_with("-async");
        ((listed.contains(&number) || is_named(name)) && !is_config).then_some((number, name))
    });
    found.collect()
}

fn nic(m: &Machine<'_>) -> Observed {
    if m.links.is_empty() {
        return no_link(m);
    }
    let mut faults = vec![];
    let mut seen: Vec<Evidence> = vec![];
    let mut number = None;
    for link in &m.links {
        let mut by_cpu: BTreeMap<u32, usize> = BTreeMap::new();
        let queues = of_link(m, link);
        for (irq, name) in &queues {
            let effective = format!("/proc/irq/{irq}/effective_affinity_list");
            let asked = format!("/proc/irq/{irq}/smp_affinity_list");
            let path = if m.text(&effective).is_some() { effective } else { asked };
            let Some(cpus) = m.list(&path) else { continue };
            number.get_or_insert(*irq);
            seen.push(m.evidence(&path, format!("{name} runs on CPUs {}", cpu_list::list(&cpus))));
            cpus.iter().for_each(|cpu| *by_cpu.entry(*cpu).or_default() += 1);
        }
        let used: Vec<u32> = by_cpu.keys().copied().collect();
        let on_hot = overlap(&used, &m.hot);
        if m.knows_hot() && !on_hot.is_empty() {
            faults.push(format!(
                "{link} interrupts CPUs {} of the workload",
                cpu_list::list(&on_hot)
            ));
        }
        let node = m.numa_node(link).map(|(_, node)| node).filter(|node| *node >= 0);
        let nodes = &m.facts.cpu.numa_nodes;
        let is_far = |cpu: &&u32| {
            node.is_some_and(|node| nodes.get(*cpu).is_some_and(|one| i64::from(*one) != node))
        };
        let far: Vec<u32> = used.iter().filter(is_far).copied().collect();
        if !far.is_empty() {
            faults.push(format!("{link} interrupts CPUs {} of another node", cpu_list::list(&far)));
        }
        if queues.len() > 2 && used.len() == 1 && m.online.len() > 1 {
            faults.push(format!(
                "all {} interrupts of {link} run on CPU {}",
                queues.len(),
                used[0]
            ));
        }
    }
    if seen.is_empty() {
        return unread(m, "the interrupts of the network device", &[INTERRUPTS]);
    }
    let rest: Vec<u32> = m.online.iter().filter(|cpu| !m.hot.contains(cpu)).copied().collect();
    Observed::bad_if(
        !faults.is_empty(),
        faults.join("; "),
        "the network devices interrupt no CPU that they should not",
    )
    .replace("HOUSEKEEPING", if rest.is_empty() { "0".to_string() } else { cpu_list::list(&rest) })
    .replace("NUMBER", number.unwrap_or_default().to_string())
    .with(seen)
}

fn rate(m: &Machine<'_>) -> Observed {
    let (Some(first), Some(later), Some(interval_s)) =
        (m.text(INTERRUPTS).and_then(table), m.second(INTERRUPTS).and_then(table), m.interval_s())
    else {
        return unread(m, "the rate of interrupts (it needs two samples)", &[INTERRUPTS]);
    };
    let before: BTreeMap<&str, &Vec<u64>> =
        first.1.iter().map(|row| (row.name, &row.counts)).collect();
    let mut rates: Vec<(f64, u32, &str)> = vec![];
    for row in &later.1 {
        let Some(counts) = before.get(row.name) else { continue };
        for ((cpu, now), then) in later.0.iter().zip(&row.counts).zip(counts.iter()) {
            let per_s = now.saturating_sub(*then) as f64 / interval_s;
            if m.hot.contains(cpu) && per_s > 0.0 {
                rates.push((per_s, *cpu, row.name));
            }
        }
    }
    rates.sort_by(|a, b| b.0.total_cmp(&a.0));
    let of_cpu = |cpu: u32| rates.iter().filter(|r| r.1 == cpu).map(|r| r.0).sum::<f64>();
    let all: Vec<(u32, f64)> = m.hot.iter().map(|cpu| (*cpu, of_cpu(*cpu))).collect();
    let busy: Vec<u32> = all.iter().filter(|(_, rate)| *rate > 10.0).map(|(cpu, _)| *cpu).collect();
    let worst = all.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0));
    let text = format!("CPU {} takes {:.0} interrupts a second", worst.0, worst.1);
    let seen: Vec<Evidence> = rates
        .iter()
        .take(4)
        .map(|(per_s, cpu, name)| {
            evidence(format!("{INTERRUPTS} {name}"), &format!("{per_s:.0}/s"), format!("CPU {cpu}"))
        })
        .chain([evidence(INTERRUPTS, &format!("{interval_s:.2} s"), "time between two samples")])
        .collect();
    if !m.knows_hot() {
        return Observed::unknown(format!("{text}; the workload's CPUs are not known")).with(seen);
    }
    Observed::bad_if(!busy.is_empty(), text.clone(), text)
        .replace("CPUS", cpu_list::list(&m.hot))
        .with(seen)
}

/// Sums of the columns dropped and squeezed of `softnet_stat`.
fn softnet(text: &str) -> Option<(u64, u64)> {
    let mut sums = (0, 0);
    for line in text.lines() {
        let mut words = line.split_whitespace().skip(1);
        sums.0 += u64::from_str_radix(words.next()?, 16).ok()?;
        sums.1 += u64::from_str_radix(words.next()?, 16).ok()?;
    }
    Some(sums)
}

fn squeeze(m: &Machine<'_>) -> Observed {
    const PATH: &str = "/proc/net/softnet_stat";
    let Some((dropped, squeezed)) = m.text(PATH).and_then(softnet) else {
        return unread(m, "the counts of the network soft interrupt", &[PATH]);
    };
    let later = m.second(PATH).and_then(softnet);
    let seen = [m.evidence(PATH, format!("{dropped} dropped, {squeezed} squeezed since boot"))];
    let total = format!("{dropped} packets dropped and {squeezed} turns cut short since boot");
    match later {
        None if dropped + squeezed == 0 => Observed::pass(total),
        None => Observed::unknown(format!("{total}; whether it still happens needs two samples")),
        Some(later) => {
            let now = (later.0.saturating_sub(dropped), later.1.saturating_sub(squeezed));
            let text = format!("{total}, {} and {} of them during the snapshot", now.0, now.1);
            Observed::bad_if(now.0 + now.1 > 0, text.clone(), text)
        }
    }
    .with(seen)
}

fn steering(m: &Machine<'_>) -> Observed {
    if m.hot.is_empty() {
        return no_cpu(m);
    }
    let mut seen = vec![];
    let mut faults = vec![];
    let mut link_at_fault = None;
    let mut wrong = vec![];
    for link in &m.links {
        let folder = net(link, "queues");
        for queue in m.names(&folder).iter().filter(|name| name.starts_with("rx-")) {
            let path = format!("{folder}/{queue}/rps_cpus");
            let Some(cpus) = m.text(&path).and_then(cpu_list::parse_mask) else { continue };
            let on_hot = overlap(&cpus, &m.hot);
            if !on_hot.is_empty() {
                link_at_fault.get_or_insert(*link);
                wrong.push(SettingId::IrqRps);
                faults.push(format!(
                    "{link} {queue} steers packets to CPUs {}",
                    cpu_list::list(&on_hot)
                ));
            }
            seen.push(m.evidence(&path, format!("CPUs {}", cpu_list::list(&cpus))));
        }
        let senders: Vec<&String> =
            m.names(&folder).iter().filter(|name| name.starts_with("tx-")).collect();
        let masks: Vec<Vec<u32>> = senders
            .iter()
            .filter_map(|queue| {
                m.text(&format!("{folder}/{queue}/xps_cpus")).and_then(cpu_list::parse_mask)
            })
            .collect();
        if senders.len() > 1 && !masks.is_empty() && masks.iter().all(Vec::is_empty) {
            link_at_fault.get_or_insert(*link);
            wrong.push(SettingId::IrqXps);
            faults.push(format!("{link} has {} transmit queues and no XPS", senders.len()));
            seen.push(m.evidence(&format!("{folder}/tx-0/xps_cpus"), "no CPU"));
        }
    }
    if seen.is_empty() {
        return match m.links.first() {
            None => no_link(m),
            Some(link) => {
                unread(m, "the steering of packets", &[&net(link, "queues/rx-0/rps_cpus")])
            }
        };
    }
    Observed::bad_if(!faults.is_empty(), faults.join("; "), "no queue steers packets to others")
        .replace("LINK", link_at_fault.or(m.links.first().copied()).unwrap_or("eth0"))
        .at_fault(wrong)
        .with(seen)
}
