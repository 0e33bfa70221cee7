//! Cores, memory, power and mitigations of the host.

use nm_model::lab_plan::LabCheck;
use nm_settings::catalogue::IDLE_EXIT_US_MAX;
use nm_settings::setting::Action;
use nm_settings::target::{CpuSetting, MachineSetting};
use nm_settings::{SettingId, setting};
use nm_sys::cpu_list;

use super::report::{boot, command, good, unknown, with, worse};
use super::view::{View, accepts};

const CPUS: &str = "/sys/devices/system/cpu";
/// Two guests with one spinning virtual CPU each, and one CPU for all other work.
const CORES_MIN: usize = 3;
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// The checks.
pub fn checks(view: &View<'_>) -> Vec<LabCheck> {
    vec![
        cores(view),
        isolation(view),
        huge_pages(view),
        merging(view),
        locking(view),
        idle(view),
        governor(view),
        clock(view),
        mitigations(view),
    ]
}

fn cores(view: &View<'_>) -> LabCheck {
    const ID: &str = "cpu.cores";
    let online = view.files.list(&format!("{CPUS}/online")).unwrap_or_default();
    let mut firsts: Vec<u32> = online
        .iter()
        .map(|cpu| {
            let path = format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list");
            view.files.list(&path).and_then(|list| list.first().copied()).unwrap_or(*cpu)
        })
        .collect();
    firsts.dedup();
    firsts.sort_unstable();
    firsts.dedup();
    let (cpus, cores) = (online.len(), firsts.len());
    let check = match cores {
        0 => unknown(ID, "the processors could not be read"),
        n if n >= CORES_MIN => good(ID, format!("{cores} cores with {cpus} CPUs")),
        _ => worse(
            ID,
            format!(
                "{cores} cores with {cpus} CPUs: two guests that spin and the host need \
                 {CORES_MIN}, so probes wait by sleeping, which is a doubt"
            ),
            super::report::hardware(format!("a machine with {CORES_MIN} cores or more")),
        ),
    };
    with(check, view, &["/sys/devices/system/cpu/online"])
}

fn isolation(view: &View<'_>) -> LabCheck {
    const ID: &str = "cpu.isolation";
    let isolated = view.files.list(&format!("{CPUS}/isolated")).unwrap_or_default();
    let check = match isolated.is_empty() {
        false => good(ID, format!("CPUs {} are isolated", cpu_list::list(&isolated))),
        true => worse(
            ID,
            "no CPU is isolated: other threads of the host interrupt virtual CPUs",
            boot("isolcpus=managed_irq,domain,LIST nohz_full=LIST rcu_nocbs=LIST"),
        ),
    };
    with(check, view, &["/sys/devices/system/cpu/isolated"])
}

fn huge_pages(view: &View<'_>) -> LabCheck {
    const ID: &str = "memory.huge_pages";
    /// Two guests with the default of 512 MiB each.
    const PAGES: u64 = 512;
    let path = format!("{HUGE_PAGES}/free_hugepages");
    let check = match view.files.value::<u64>(&path) {
        None => unknown(ID, "the kernel shows no huge pages of 2 MiB"),
        Some(free) if free >= PAGES => good(ID, format!("{free} huge pages of 2 MiB are free")),
        Some(free) => worse(
            ID,
            format!(
                "{free} huge pages of 2 MiB are free, two guests of 512 MiB need {PAGES}: their \
                 memory is of small pages"
            ),
            command(format!("echo {PAGES} > {HUGE_PAGES}/nr_hugepages")),
        ),
    };
    with(check, view, &[&path])
}

fn merging(view: &View<'_>) -> LabCheck {
    const ID: &str = "memory.merging";
    let check = match accepts(view, SettingId::MemKsm) {
        Some(false) => worse(
            ID,
            "the host merges equal pages: a write to one stops the guest",
            command(setting(SettingId::MemKsm).fix().1),
        ),
        None => unknown(ID, "merging of pages: this kernel has none, or hides it"),
        Some(true) => good(ID, "the host merges no pages"),
    };
    with(check, view, &[&MachineSetting::Ksm.path()])
}

fn locking(view: &View<'_>) -> LabCheck {
    const ID: &str = "memory.locking";
    const PATH: &str = "/proc/self/limits";
    let text = view.text(PATH);
    let line = text.lines().find(|line| line.starts_with("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3));
    match soft {
        Some("unlimited") => good(ID, "the guests' memory can be locked"),
        Some(bytes) => worse(
            ID,
            format!("{bytes} bytes can be locked, which is less than a guest's memory"),
            command("ulimit -l unlimited   # as root, or LimitMEMLOCK=infinity in its service"),
        ),
        None => unknown(ID, "how much memory can be locked"),
    }
}

fn idle(view: &View<'_>) -> LabCheck {
    const ID: &str = "power.idle";
    let folder = format!("{CPUS}/cpu0/cpuidle");
    let states = view.files.names(&folder);
    let deep: Vec<String> = states
        .iter()
        .filter(|state| view.text(&format!("{folder}/{state}/disable")) != "1")
        .filter_map(|state| {
            let us: u64 = view.files.value(&format!("{folder}/{state}/latency"))?;
            let name = view.text(&format!("{folder}/{state}/name"));
            (us > IDLE_EXIT_US_MAX).then(|| format!("{name} ({us} µs)"))
        })
        .collect();
    match (states.is_empty(), deep.is_empty()) {
        (true, _) => unknown(ID, "idle states: the kernel shows none"),
        (false, true) => good(ID, format!("idle CPUs wake up within {IDLE_EXIT_US_MAX} µs")),
        (false, false) => worse(
            ID,
            format!("idle CPUs may sleep deeply: {}", deep.join(", ")),
            command("nearmetal tune apply --only cpu.cstate --cpus LIST"),
        ),
    }
}

fn governor(view: &View<'_>) -> LabCheck {
    const ID: &str = "power.governor";
    let path = format!("{CPUS}/cpu0/{}", CpuSetting::Governor.file());
    let Action::AllCpus(_, goal) = setting(SettingId::CpuGovernor).action else {
        unreachable!("each CPU has a governor");
    };
    let check = match view.text(&path).as_str() {
        "" => unknown(ID, "frequency governor: the kernel shows none"),
        text if goal.accepts(text) == Some(true) => good(ID, format!("frequency governor: {text}")),
        other => worse(
            ID,
            format!("frequency governor: {other}"),
            command("nearmetal tune apply --only cpu.governor --cpus LIST"),
        ),
    };
    with(check, view, &[&path])
}

fn clock(view: &View<'_>) -> LabCheck {
    const ID: &str = "cpu.clock";
    const PATH: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let is_steady = view.has_flag("constant_tsc") && view.has_flag("nonstop_tsc");
    let check = match (view.text(PATH).as_str(), is_steady) {
        ("", _) => unknown(ID, "the clock source could not be read"),
        ("tsc", true) => good(ID, "the clock is a time stamp counter of one rate"),
        (name, _) => worse(
            ID,
            format!("the clock is {name}, so guests cannot read the time stamp counter reliably"),
            boot("tsc=reliable   # only where its rate is known to be constant"),
        ),
    };
    with(check, view, &[PATH])
}

/// What is switched on against the processor's faults. It is shown, and never advised against.
fn mitigations(view: &View<'_>) -> LabCheck {
    const ID: &str = "cpu.mitigations";
    const FOLDER: &str = "/sys/devices/system/cpu/vulnerabilities";
    let names = view.files.names(FOLDER);
    let is_on = |name: &&String| view.text(&format!("{FOLDER}/{name}")).starts_with("Mitigation");
    let on: Vec<&str> = names.iter().filter(is_on).map(String::as_str).collect();
    match names.is_empty() {
        true => unknown(ID, "mitigations of the processor's faults: the kernel shows none"),
        false => good(
            ID,
            format!(
                "mitigations in force: {}",
                match on.is_empty() {
                    true => "none".to_string(),
                    false => on.join(", "),
                }
            ),
        ),
    }
}
