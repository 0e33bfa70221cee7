//! Network devices: coalescing, queues, offloads, pause frames, link, losses, bypass.

use std::cell::{Cell, RefCell};

use nm_model::Severity;
use nm_model::finding::Confidence::{Documented, Judgement, Measured};
use nm_model::finding::FixKind::{Application, Command, Firmware, Hardware, Record};
use nm_model::finding::{Evidence, Threat, UndoClass};
use nm_model::snapshot::LinkCalls;

use super::common::{judge, no_link, path_of, unread};
use crate::check::Check;
use crate::machine::{Layer, Machine, net};
use crate::observed::{Observed, evidence, missing};
use nm_settings::setting::Action;
use nm_settings::target::{LinkFile, LinkSetting};
use nm_settings::{SettingId, setting, source};

const NETWORK: &[Threat] = &[Threat::Network];
const NETWORK_TAIL: &[Threat] = &[Threat::Network, Threat::Tail];

/// The checks.
pub const CHECKS: &[Check] = &[
    Check {
        id: "nic.coalesce",
        title: "interrupt coalescing",
        severity: Severity::High,
        settings: &[SettingId::NicCoalesce],
        confidence: Measured,
        effect: Some("e1000: never below 125 µs; ENA waits 64 µs before it reports sent packets"),
        threatens: NETWORK_TAIL,
        run: coalesce,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.adaptive",
        title: "adaptive interrupt coalescing",
        severity: Severity::High,
        settings: &[SettingId::NicAdaptive],
        threatens: NETWORK_TAIL,
        run: adaptive,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.driver",
        title: "driver and firmware of the network device",
        severity: Severity::Info,
        why: "figures of two machines compare only with equal drivers and firmware",
        sources: &[source::ENA],
        fix: (Record, "name driver and firmware beside the figures, and keep them up to date"),
        threatens: NETWORK,
        run: driver,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.sfc_firmware",
        title: "firmware variant of Solarflare devices",
        severity: Severity::High,
        why: "the full-feature variant is slower than the one for ultra-low latency; pass-through \
              of virtual functions needs the former",
        sources: &[source::DEFTECH],
        fix: (Firmware, "sfboot firmware-variant=ultra-low-latency, then a power cycle"),
        undo: UndoClass::Firmware,
        confidence: Measured,
        effect: Some("median 1.72 to 2.08 µs (+20 %), p99 x1.65 (deftech-2019)"),
        threatens: NETWORK_TAIL,
        run: sfc_firmware,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.bypass",
        title: "means to bypass the kernel's network stack",
        severity: Severity::High,
        why: "the kernel's stack alone takes longer than a target below 10 µs allows",
        sources: &[source::DEFTECH, source::VMWARE],
        fix: (Application, "Onload, DPDK or AF_XDP on a device that supports them"),
        undo: UndoClass::Application,
        confidence: Measured,
        effect: Some("round trip of 25 µs by the kernel, 5 to 7 µs by Onload (vmware-2014)"),
        threatens: NETWORK,
        run: bypass,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.queues",
        title: "queues and ring sizes",
        severity: Severity::Medium,
        settings: &[SettingId::NicChannels, SettingId::NicRings],
        threatens: &[Threat::Network, Threat::Loss],
        run: queues,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.offload",
        title: "receive offloads",
        severity: Severity::Medium,
        settings: &[SettingId::NicLro, SettingId::NicGro],
        threatens: NETWORK,
        run: offload,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.pause",
        title: "pause frames",
        severity: Severity::Medium,
        settings: &[SettingId::NicPause],
        confidence: Judgement,
        threatens: NETWORK_TAIL,
        run: pause,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.flow_rules",
        title: "rules that give flows a queue of their own",
        severity: Severity::Low,
        why: "packets of neighbours in the same queue come first",
        sources: &[source::AWS],
        fix: (
            Command,
            "ethtool -K LINK ntuple on; ethtool -N LINK flow-type tcp4 dst-port 4810 action 1",
        ),
        undo: UndoClass::Live,
        threatens: NETWORK_TAIL,
        run: flow_rules,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.busy_poll",
        title: "busy polling of sockets",
        severity: Severity::High,
        settings: &[SettingId::NicBusyRead, SettingId::NicBusyPoll],
        confidence: Measured,
        effect: Some("mean round trip 42.05 to 31.75 µs (commit of io_uring's NAPI support)"),
        threatens: &[Threat::Network, Threat::Wakeup],
        run: busy_poll,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.defer",
        title: "deferred interrupts and threads of NAPI",
        severity: Severity::Medium,
        settings: &[SettingId::NicDefer, SettingId::NicThreaded],
        threatens: NETWORK_TAIL,
        run: defer,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.link",
        title: "speed and power saving of the link",
        severity: Severity::Medium,
        why: "a slower link sends longer for each byte; energy-efficient Ethernet has to wake up; \
              strong error correction adds delay",
        sources: &[source::DEFTECH, source::JUDGEMENT],
        fix: (Command, "ethtool --set-eee LINK eee off; ethtool --set-fec LINK encoding auto"),
        undo: UndoClass::Live,
        confidence: Measured,
        effect: Some("64 KiB: 29.2 µs at 25 Gb/s, 58.5 µs at 10 Gb/s (deftech-2019)"),
        threatens: &[Threat::Network, Threat::Throughput],
        run: link,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.drops",
        title: "packets that a device lost",
        severity: Severity::Critical,
        why: "TCP waits at least 200 ms before it sends again, UDP never does; clouds drop what \
              exceeds an allowance",
        sources: &[source::ENA],
        fix: (Hardware, "larger rings (ethtool -G), a larger instance, a shorter path"),
        undo: UndoClass::Live,
        threatens: &[Threat::Network, Threat::Loss, Threat::Maximum],
        run: drops,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.offpath",
        title: "bridges, bonds and connection tracking on the path",
        severity: Severity::Medium,
        why: "each packet is handled once more",
        sources: &[source::JUDGEMENT],
        fix: (
            Application,
            "use the device itself; exempt the workload's ports from tracking (notrack)",
        ),
        undo: UndoClass::Live,
        confidence: Judgement,
        threatens: NETWORK,
        run: offpath,
        ..Check::UNDECLARED
    },
    Check {
        id: "nic.tstamp",
        title: "time stamps by the device",
        severity: Severity::Info,
        why: "without them a packet's time is known only when software sees it",
        sources: &[source::JUDGEMENT],
        fix: (Record, "choose a device with a hardware clock where wire times matter"),
        confidence: Documented,
        threatens: &[Threat::OneWay],
        run: timestamps,
        ..Check::UNDECLARED
    },
];

/// Looks at each link of the workload that answers calls: what is wrong with it, if anything, and
/// the evidence. Nothing if the link cannot tell.
fn each_link<'a>(
    m: &Machine<'a>,
    what: &str,
    good: &str,
    look: impl Fn(&'a str, &'a LinkCalls) -> Option<(Option<String>, Evidence)>,
) -> Observed {
    if m.links.is_empty() {
        return no_link(m);
    }
    let mut faults = vec![];
    let mut seen = vec![];
    let mut at_fault = None;
    for name in &m.links {
        if let Some((fault, evidence)) = m.link(name).and_then(|link| look(name, link)) {
            if let Some(fault) = fault {
                at_fault.get_or_insert(*name);
                faults.push(format!("{name}: {fault}"));
            }
            seen.push(evidence);
        }
    }
    if seen.is_empty() {
        let reason = match m.snapshot.calls.links {
            Some(_) => "the driver does not tell",
            None => "the snapshot has no calls",
        };
        let call = format!("SIOCETHTOOL {}", m.links[0]);
        return Observed::unknown(format!("{what} could not be read"))
            .with([missing(call, reason)]);
    }
    Observed::bad_if(!faults.is_empty(), faults.join("; "), good)
        .replace("LINK", at_fault.unwrap_or(m.links[0]))
        .with(seen)
}

/// A number of a link's setting, by the index that the catalogue gives it.
fn number(link: &LinkCalls, setting: LinkSetting, index: usize) -> Option<u32> {
    let feature = |name: &str| link.features.get(name).copied().map(u32::from);
    match setting {
        LinkSetting::Coalescing => {
            let c = link.coalescing?;
            let adaptive = [c.adaptive_rx, c.adaptive_tx].map(u32::from);
            [
                (0, c.rx_usecs),
                (1, c.rx_frames),
                (4, c.tx_usecs),
                (5, c.tx_frames),
                (9, adaptive[0]),
                (10, adaptive[1]),
            ]
            .into_iter()
            .find_map(|(at, number)| (at == index).then_some(number))
        }
        LinkSetting::Pause => {
            let pause = link.pause?;
            [(1, pause.rx), (2, pause.tx)]
                .into_iter()
                .find_map(|(at, on)| (at == index).then_some(u32::from(on)))
        }
        LinkSetting::Gro => feature("rx-gro"),
        LinkSetting::Lro => feature("rx-lro"),
        LinkSetting::Rings | LinkSetting::Channels | LinkSetting::Gso | LinkSetting::Tso => None,
    }
}

/// Whether a number of a driver's setting is not as the catalogue wants it; absent if none is
/// known.
fn is_at_fault(link: &LinkCalls, id: SettingId) -> Option<bool> {
    let Action::Driver(of, goals) = &setting(id).action else { return None };
    let known = goals.iter().filter_map(|(at, goal)| Some(goal.accepts(number(link, *of, *at)?)));
    known.map(|is_good| !is_good).reduce(|one, other| one || other)
}

fn ethtool(name: &str, command: &str, raw: &str, parsed: &str) -> Evidence {
    evidence(format!("SIOCETHTOOL {name} {command}"), raw, parsed)
}

fn coalesce(m: &Machine<'_>) -> Observed {
    each_link(m, "interrupt coalescing", "the devices interrupt at once", |name, link| {
        let c = link.coalescing?;
        let raw = format!(
            "rx-usecs={} rx-frames={} tx-usecs={} tx-frames={}",
            c.rx_usecs, c.rx_frames, c.tx_usecs, c.tx_frames
        );
        let fault = is_at_fault(link, SettingId::NicCoalesce)?.then(|| {
            match (c.rx_usecs, c.tx_usecs, c.rx_frames.max(c.tx_frames)) {
                (0, 0, frames) => format!("waits for {frames} packets"),
                (rx, tx, _) => format!("waits {rx} µs on receive and {tx} µs on send"),
            }
        });
        Some((fault, ethtool(name, "GCOALESCE", &raw, "µs and packets before an interrupt")))
    })
}

fn adaptive(m: &Machine<'_>) -> Observed {
    each_link(m, "adaptive coalescing", "no driver adapts its coalescing", |name, link| {
        let c = link.coalescing?;
        let raw = format!("adaptive-rx={} adaptive-tx={}", c.adaptive_rx, c.adaptive_tx);
        let is_bad = is_at_fault(link, SettingId::NicAdaptive)?;
        let fault = is_bad.then(|| format!("adapts ({raw})"));
        Some((fault, ethtool(name, "GCOALESCE", &raw, "")))
    })
}

fn driver(m: &Machine<'_>) -> Observed {
    let names: Vec<String> =
        m.links.iter().filter_map(|name| Some(format!("{name}: {}", m.driver(name)?))).collect();
    if m.links.is_empty() || names.is_empty() {
        return each_link(m, "the driver", "", |_, _| None);
    }
    let seen = m.links.iter().filter_map(|name| {
        let driver = m.driver(name)?;
        let link = m.link(name);
        let or_unknown = |text: Option<&String>| text.map_or("unknown", String::as_str).to_string();
        let version = or_unknown(link.and_then(|link| link.driver_version.as_ref()));
        let firmware = or_unknown(link.and_then(|link| link.firmware.as_ref()));
        let raw = format!("{driver} {version}, firmware {firmware}");
        Some(ethtool(name, "GDRVINFO", &raw, "driver and firmware"))
    });
    Observed::pass(names.join(", ")).with(seen.collect::<Vec<_>>())
}

fn sfc_firmware(m: &Machine<'_>) -> Observed {
    let is_sfc = |name: &&&str| m.driver(name).is_some_and(|driver| driver.starts_with("sfc"));
    let Some(name) = m.links.iter().find(is_sfc) else {
        if !m.knows_links() {
            return no_link(m);
        }
        return Observed::not_applicable("no Solarflare device is in use");
    };
    let firmware = m.link(name).and_then(|link| link.firmware.as_deref());
    Observed::unknown("the firmware variant is known to Solarflare's sfboot only; run it").with([
        ethtool(name, "GDRVINFO", firmware.unwrap_or("unknown"), "firmware, not its variant"),
    ])
}

/// The RDMA device of a link, by its place on the bus.
fn rdma_of<'a>(m: &Machine<'a>, link: &str) -> Option<&'a str> {
    let own = m.present_below(&net(link, "device/infiniband/"));
    let device = m.symlink(&net(link, "device"));
    let by_bus = || {
        let all = m.names("/sys/class/infiniband").iter();
        let is_of_it = |name: &str| {
            let other = m.symlink(&format!("/sys/class/infiniband/{name}/device"));
            other.is_some() && other == device
        };
        all.map(String::as_str).find(|name| is_of_it(name))
    };
    own.first().and_then(|path| path.rsplit('/').next()).or_else(by_bus)
}

fn bypass(m: &Machine<'_>) -> Observed {
    let found: Vec<&str> = ["/dev/onload", "/sys/module/onload", "/dev/vfio/vfio"]
        .into_iter()
        .filter(|path| m.has(path))
        .collect();
    let sees_dev = !m.present_below("/dev/").is_empty() || m.snapshot.calls.links.is_some();
    if !found.is_empty() {
        return Observed::pass(format!("found: {}", found.join(", ")))
            .with(found.iter().map(|path| evidence(*path, "there", "")));
    }
    // An RDMA device serves the links of its own card alone.
    let all = m.names("/sys/class/infiniband");
    let (with, without): (Vec<&str>, Vec<&str>) =
        m.links.iter().partition(|link| rdma_of(m, link).is_some());
    let seen = with.iter().map(|link| {
        let name = rdma_of(m, link).unwrap_or_default();
        evidence(format!("/sys/class/infiniband/{name}"), "there", format!("of {link}"))
    });
    let seen: Vec<Evidence> = seen.collect();
    if !with.is_empty() && without.is_empty() {
        return Observed::pass(format!("RDMA devices serve {}", with.join(", "))).with(seen);
    }
    let absent = ["/dev/onload", "/dev/vfio/vfio"].map(|path| missing(path, "not there"));
    let is_known =
        |name: &String| m.symlink(&format!("/sys/class/infiniband/{name}/device")).is_some();
    if with.is_empty() && !all.is_empty() && !all.iter().all(is_known) {
        return Observed::unknown("an RDMA device is there, and nothing tells of which card")
            .with([evidence("/sys/class/infiniband", &all.join(" "), "RDMA devices")]);
    }
    if !with.is_empty() && m.snapshot.workload.links.is_empty() {
        return Observed::unknown(format!(
            "RDMA devices serve {} and not {}; `--link` names those of the workload",
            with.join(", "),
            without.join(", ")
        ))
        .with(seen);
    }
    match (sees_dev, all.is_empty() && with.is_empty()) {
        (true, true) => {
            Observed::fail("neither Onload nor VFIO nor an RDMA device is there").with(absent)
        }
        (true, false) => Observed::fail(format!(
            "neither Onload nor VFIO is there, and no RDMA device serves {}",
            without.join(", ")
        ))
        .with(absent),
        (false, _) => unread(m, "the devices", &["/dev/onload", "/dev/vfio/vfio"]),
    }
}

fn queues(m: &Machine<'_>) -> Observed {
    let n_serving = match m.knows_hot() {
        true => m.online.iter().filter(|cpu| !m.hot.contains(cpu)).count().max(1),
        false => m.online.len(),
    };
    let Action::RingEntries(entries) = setting(SettingId::NicRings).action else {
        unreachable!("rings have entries");
    };
    let at_fault = RefCell::new(vec![]);
    let observed = each_link(m, "the queues", "queues and rings fit", |name, link| {
        let mut faults = vec![];
        let mut raw = vec![];
        if let Some(channels) = link.channels {
            let n = channels.combined.max(channels.rx);
            raw.push(format!("queues={n} of {}", channels.combined_max));
            if n_serving > 0 && n as usize > n_serving {
                faults.push(format!("{n} queues for {n_serving} CPUs that serve them"));
                at_fault.borrow_mut().push(SettingId::NicChannels);
            }
        }
        if let Some(rings) = link.rings {
            raw.push(format!("ring rx={} of {}", rings.rx, rings.rx_max));
            for (name, now, max) in
                [("receive", rings.rx, rings.rx_max), ("transmit", rings.tx, rings.tx_max)]
            {
                if now < entries.min(max) {
                    faults.push(format!("the {name} ring has {now} entries"));
                    at_fault.borrow_mut().push(SettingId::NicRings);
                }
            }
        }
        let evidence = ethtool(name, "GCHANNELS GRINGPARAM", &raw.join(" "), "in use of most");
        (!raw.is_empty()).then(|| ((!faults.is_empty()).then(|| faults.join(", ")), evidence))
    });
    observed.replace("COUNT", n_serving.to_string()).at_fault(at_fault.into_inner())
}

fn offload(m: &Machine<'_>) -> Observed {
    let observed = each_link(m, "the offloads", "no receive offload is on", |name, link| {
        let lro = is_at_fault(link, SettingId::NicLro);
        let gro = is_at_fault(link, SettingId::NicGro);
        let hardware = link.features.get("rx-gro-hw").copied();
        if lro.is_none() && gro.is_none() {
            return None;
        }
        let on: Vec<&str> = [("LRO", lro), ("GRO", gro), ("hardware GRO", hardware)]
            .into_iter()
            .filter(|(_, on)| *on == Some(true))
            .map(|(name, _)| name)
            .collect();
        let fault = (!on.is_empty()).then(|| format!("{} on", on.join(", ")));
        let raw = format!("rx-lro={lro:?} rx-gro={gro:?} rx-gro-hw={hardware:?}");
        let raw = raw.replace("Some(true)", "on").replace("Some(false)", "off");
        Some((fault, ethtool(name, "GFEATURES", &raw.replace("None", "unknown"), "")))
    });
    let is_on = |id| {
        let mut links = m.links.iter().filter_map(|name| m.link(name));
        links.any(|link| is_at_fault(link, id) == Some(true))
    };
    // GRO alone delays a message only if more packets arrive in the same turn.
    match (is_on(SettingId::NicLro), is_on(SettingId::NicGro)) {
        (true, true) => observed,
        (true, false) => observed.at_fault(vec![SettingId::NicLro]),
        (false, _) => observed.at_fault(vec![SettingId::NicGro]).severity(Severity::Low),
    }
}

/// How much a counter of a link rose during the snapshot; absent with one sample.
fn risen(m: &Machine<'_>, link: &str, name: &str, first: u64) -> Option<u64> {
    let second = m.snapshot.second.as_ref()?.statistics.get(link)?.get(name)?;
    Some(second.saturating_sub(first))
}

fn pause(m: &Machine<'_>) -> Observed {
    let counted = Cell::new(false);
    let observed = each_link(m, "pause frames", "no device sends or obeys pauses", |name, link| {
        let pause = link.pause?;
        let counts: Vec<(&String, u64)> = link
            .statistics
            .iter()
            .filter(|(name, count)| name.contains("pause") && **count > 0)
            .map(|(name, count)| (name, *count))
            .collect();
        let text: Vec<String> = counts.iter().map(|(name, n)| format!("{name}={n}")).collect();
        let is_on = is_at_fault(link, SettingId::NicPause)?;
        counted.set(counted.get() || is_on && !counts.is_empty());
        let fault = is_on.then(|| match text.is_empty() {
            true => "pauses are on, and none was counted".to_string(),
            false => format!("pauses are on and were counted: {}", text.join(", ")),
        });
        let raw = format!("rx={} tx={} {}", pause.rx, pause.tx, text.join(" "));
        Some((fault, ethtool(name, "GPAUSEPARAM", &raw, "since the driver was loaded")))
    });
    if counted.get() { observed } else { observed.severity(Severity::Low) }
}

fn flow_rules(m: &Machine<'_>) -> Observed {
    each_link(m, "rules for flows", "flows can be given a queue of their own", |name, link| {
        let on = *link.features.get("rx-ntuple-filter")?;
        let n_queues = link.channels.map_or(1, |channels| channels.combined.max(channels.rx));
        let fault = (!on && n_queues > 1).then(|| "rules for flows are off".to_string());
        let raw = format!("rx-ntuple-filter={} queues={n_queues}", if on { "on" } else { "off" });
        Some((fault, ethtool(name, "GFEATURES", &raw, "")))
    })
}

fn busy_poll(m: &Machine<'_>) -> Observed {
    const IDS: [SettingId; 2] = [SettingId::NicBusyRead, SettingId::NicBusyPoll];
    let [Some(read), Some(poll)] = IDS.map(|id| judge(m, id)) else {
        let [read, poll] = IDS.map(path_of);
        return unread(m, "busy polling", &[&read, &poll]);
    };
    let text = match read.text {
        "0" => "blocking receivers do not poll the device".to_string(),
        us => {
            format!("receivers poll the device for {us} µs, poll and select for {} µs", poll.text)
        }
    };
    let both = IDS.into_iter().zip([read.is_good, poll.is_good]);
    let at_fault: Vec<SettingId> = both.filter(|(_, is_good)| !is_good).map(|(id, _)| id).collect();
    Observed::bad_if(!at_fault.is_empty(), text.clone(), text)
        .at_fault(at_fault)
        .with([m.evidence(&read.path, "µs"), m.evidence(&poll.path, "µs")])
}

fn defer(m: &Machine<'_>) -> Observed {
    let mut faults = vec![];
    let mut seen = vec![];
    let mut at_fault = None;
    let mut wrong = vec![];
    for name in &m.links {
        for id in [SettingId::NicDefer, SettingId::NicThreaded] {
            let Action::LinkFiles(files) = setting(id).action else { continue };
            for (file, goal) in files {
                let path = net(name, file.file());
                let Some(value) = m.text(&path) else { continue };
                if goal.accepts(value) == Some(false) {
                    at_fault.get_or_insert(*name);
                    wrong.push(id);
                    faults.push(format!("{name}: {} is {value}", file.file()));
                }
                seen.push(m.evidence(&path, meaning(*file)));
            }
        }
    }
    if seen.is_empty() {
        let path =
            net(m.links.first().copied().unwrap_or("eth0"), LinkFile::NapiDeferHardIrqs.file());
        return match m.links.is_empty() {
            true => no_link(m),
            false => unread(m, "deferred interrupts", &[&path]),
        };
    }
    Observed::bad_if(!faults.is_empty(), faults.join("; "), "NAPI runs at once, in interrupts")
        .replace("LINK", at_fault.or(m.links.first().copied()).unwrap_or("eth0"))
        .at_fault(wrong)
        .with(seen)
}

fn meaning(file: LinkFile) -> &'static str {
    match file {
        LinkFile::NapiDeferHardIrqs => "interrupts deferred",
        LinkFile::GroFlushTimeout => "ns before gathered packets are passed on",
        LinkFile::Threaded => "1: NAPI runs in threads",
    }
}

fn link(m: &Machine<'_>) -> Observed {
    // ETHTOOL_FEC_RS of <linux/ethtool.h>.
    const RS: u32 = 1 << 3;
    each_link(m, "the link", "no link is slow or saves energy", |name, link| {
        let mut faults = vec![];
        let mut raw = vec![];
        if let Some(speed) = link.speed_mbps {
            raw.push(format!("{speed} Mb/s"));
            if speed < 1_000 {
                faults.push(format!("the link has {speed} Mb/s"));
            }
        }
        if m.text(&net(name, "duplex")) == Some("half") {
            faults.push("the link is half duplex".to_string());
        }
        if let Some(eee) = link.eee {
            raw.push(format!("eee={}", if eee { "on" } else { "off" }));
            if eee {
                faults.push("energy-efficient Ethernet is on".to_string());
            }
        }
        if let Some(fec) = link.fec {
            raw.push(format!("fec={fec:#x}"));
            if fec & RS != 0 && link.speed_mbps.is_some_and(|speed| speed <= 25_000) {
                faults.push("Reed-Solomon error correction is on".to_string());
            }
        }
        let evidence = ethtool(name, "GSET GEEE GFECPARAM", &raw.join(" "), "");
        (!raw.is_empty()).then(|| ((!faults.is_empty()).then(|| faults.join(", ")), evidence))
    })
}

fn drops(m: &Machine<'_>) -> Observed {
    let mut now = vec![];
    let mut total: Vec<String> = vec![];
    let mut seen = vec![];
    let mut is_known = false;
    for name in &m.links {
        let statistics = m.link(name).map(|link| &link.statistics).into_iter().flatten();
        for (counter, count) in statistics.filter(|(name, _)| !name.contains("pause")) {
            is_known = true;
            if *count > 0 {
                total.push(format!("{name} {counter} {count}"));
                seen.push(ethtool(name, "GSTATS", &format!("{counter}={count}"), "since loading"));
            }
            if let Some(n) = risen(m, name, counter, *count).filter(|n| *n > 0) {
                now.push(format!("{name} {counter} +{n}"));
            }
        }
        for file in ["rx_dropped", "tx_dropped", "rx_missed_errors", "rx_fifo_errors"] {
            let path = net(name, &format!("statistics/{file}"));
            let Some(first) = m.number(&path) else { continue };
            is_known = true;
            let later = m.second(&path).and_then(|text| text.trim().parse::<i64>().ok());
            if first > 0 {
                total.push(format!("{name} {file} {first}"));
                seen.push(m.evidence(&path, "since the link was made"));
            }
            if let Some(later) = later.filter(|later| *later > first) {
                now.push(format!("{name} {file} +{}", later - first));
            }
        }
    }
    if !is_known {
        return each_link(m, "the counts of lost packets", "", |_, _| None);
    }
    if seen.is_empty() {
        let first = net(m.links[0], "statistics/rx_dropped");
        seen.push(m.evidence(&first, "packets dropped"));
    }
    let shown: Vec<String> = total.iter().take(3).cloned().collect();
    match (now.is_empty(), total.is_empty()) {
        (false, _) => Observed::fail(format!("lost during the snapshot: {}", now.join(", "))),
        (true, true) => Observed::pass("no packet was lost"),
        (true, false) => Observed::fail(format!("lost before the snapshot: {}", shown.join(", ")))
            .severity(Severity::Low),
    }
    .with(seen)
}

fn offpath(m: &Machine<'_>) -> Observed {
    const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
    let mut faults = vec![];
    let mut seen = vec![];
    for name in &m.links {
        let path = net(name, "master");
        if let Some(master) = m.symlink(&path) {
            faults.push(format!("{name} belongs to {master}"));
            seen.push(evidence(path, master, "bridge or bond"));
        } else {
            seen.push(evidence(net(name, ""), "no master", "belongs to no bridge or bond"));
        }
    }
    if let Some(count) = m.number(TRACKED).filter(|count| *count > 0) {
        faults.push(format!("{count} connections are tracked"));
    }
    seen.push(m.evidence(TRACKED, "connections"));
    if !m.knows_links() || m.links.is_empty() && faults.is_empty() {
        return no_link(m);
    }
    Observed::bad_if(!faults.is_empty(), faults.join("; "), "packets take the direct path")
        .with(seen)
}

fn timestamps(m: &Machine<'_>) -> Observed {
    // SOF_TIMESTAMPING_RX_HARDWARE of <linux/net_tstamp.h>.
    const RX_HARDWARE: u32 = 1 << 2;
    if m.layer == Layer::Unknown && m.links.is_empty() {
        return unread(m, "time stamping", &["/sys/class/net"]);
    }
    each_link(m, "time stamping", "the devices have clocks", |name, link| {
        let info = link.timestamps?;
        let has = info.hardware_clock.is_some() && info.capabilities & RX_HARDWARE != 0;
        let fault =
            (!has).then(|| "has no hardware clock, time stamps are by software".to_string());
        let clock = info.hardware_clock.map_or("none".to_string(), |n| format!("/dev/ptp{n}"));
        let raw = format!("clock={clock} capabilities={:#x}", info.capabilities);
        Some((fault, ethtool(name, "GET_TS_INFO", &raw, "")))
    })
}
