//! What a step means on a machine: its changes, or why it cannot be made.

use nm_place::Wish;
use nm_settings::setting::{Action, NumberGoal, Setting};
use nm_settings::target::{
    CpuSetting, DirtyLimit, LinkName, LinkSetting, MachineSetting, QueueSetting, SysctlName, Target,
};
use nm_settings::wanted::Wanted;

use crate::machine::Machine;

/// Most interrupts, queues and CPUs that a step changes.
pub const CHANGES_MAX: usize = 16_384;

/// What the user chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// CPUs of the application.
    pub cpus: Vec<u32>,
    /// The link that the application uses.
    pub link: Option<LinkName>,
}

/// A change that a step wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedChange {
    /// The setting.
    pub target: Target,
    /// What it should become.
    pub wanted: Wanted,
}

/// The changes of a step.
///
/// # Errors
/// Why it cannot be made here, as a clause.
pub fn expand(
    step: &Setting,
    choice: &Choice,
    machine: &dyn Machine,
) -> Result<Vec<WantedChange>, String> {
    let changes = match &step.action {
        Action::Sysctl(name, goal) => {
            let name = SysctlName::try_from(name.to_string()).map_err(|error| error.to_string())?;
            vec![change(Target::Sysctl { name }, Wanted::from(*goal))]
        }
        Action::DirtyBackgroundBytes(bytes) => {
            let target = Target::DirtyLimit { limit: DirtyLimit::Background };
            vec![change(target, Wanted::DirtyBytes(*bytes))]
        }
        Action::ApplicationCpus(setting, goal) => {
            let cpus = application_cpus(choice, machine)?;
            of_cpus(&cpus, *setting, |_| Some(Wanted::from(*goal)))
        }
        Action::AllCpus(setting, goal) => {
            of_cpus(&online(machine), *setting, |_| Some(Wanted::from(*goal)))
        }
        Action::FixedFrequency => {
            let cpus = application_cpus(choice, machine)?;
            of_cpus(&cpus, CpuSetting::MinFrequency, |cpu| lowest_frequency(machine, cpu))
        }
        Action::Machine(files) => vec![first_that_exists(files, machine)?],
        Action::WorkqueueMask => {
            let target = Target::Machine { setting: MachineSetting::WorkqueueMask };
            vec![change(target, Wanted::Mask(system_cpus(choice, machine)?))]
        }
        Action::Interrupts => interrupts(choice, machine)?,
        Action::Queues(setting) => queues(*setting, choice, machine)?,
        Action::LinkFiles(files) => {
            let link = the_link(choice, machine)?;
            let target = |setting| Target::LinkFile { link: link.clone(), setting };
            files.iter().map(|(file, goal)| change(target(*file), Wanted::from(*goal))).collect()
        }
        Action::Driver(setting, goals) => {
            vec![of_driver(&the_link(choice, machine)?, *setting, goals.to_vec())]
        }
        Action::QueueCount => vec![queue_count(choice, machine)?],
        Action::RingEntries(entries) => vec![ring_entries(*entries, choice, machine)?],
        Action::CommandLine(_) => {
            return Err("only a restart changes the kernel's command line; \
                        `tune emit grub` writes it"
                .to_string());
        }
    };
    match changes.len() {
        0 => Err("there is nothing of this kind here".to_string()),
        1..=CHANGES_MAX => Ok(changes),
        count => Err(format!("{count} changes; at most {CHANGES_MAX} are made")),
    }
}

fn change(target: Target, wanted: Wanted) -> WantedChange {
    WantedChange { target, wanted }
}

fn of_cpus(
    cpus: &[u32],
    setting: CpuSetting,
    wanted: impl Fn(u32) -> Option<Wanted>,
) -> Vec<WantedChange> {
    cpus.iter()
        .filter_map(|cpu| Some(change(Target::Cpu { cpu: *cpu, setting }, wanted(*cpu)?)))
        .collect()
}

fn lowest_frequency(machine: &dyn Machine, cpu: u32) -> Option<Wanted> {
    let khz = |name: &str| {
        machine.files().value(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}"))
    };
    Some(Wanted::frequency(khz("base_frequency"), khz("scaling_max_freq")?))
}

fn first_that_exists(
    files: &[(MachineSetting, nm_settings::setting::Goal)],
    machine: &dyn Machine,
) -> Result<WantedChange, String> {
    let target = |setting| Target::Machine { setting };
    let exists = |setting| machine.read(&target(setting)).is_ok();
    let found = files.iter().find(|(setting, _)| exists(*setting)).or(files.first());
    let (setting, goal) = found.ok_or("there is nothing of this kind here")?;
    Ok(change(target(*setting), Wanted::from(*goal)))
}

/// CPUs that are online.
pub fn online(machine: &dyn Machine) -> Vec<u32> {
    machine.files().list("/sys/devices/system/cpu/online").unwrap_or_default()
}

fn application_cpus(choice: &Choice, machine: &dyn Machine) -> Result<Vec<u32>, String> {
    if choice.cpus.is_empty() {
        return Err(name_cpus(machine));
    }
    let online = online(machine);
    match choice.cpus.iter().find(|cpu| !online.contains(cpu)) {
        Some(cpu) => Err(format!("CPU {cpu} is not online")),
        None => Ok(choice.cpus.clone()),
    }
}

/// That the CPUs are to be named, and which ones the rule of all placements would take.
fn name_cpus(machine: &dyn Machine) -> String {
    let topology = nm_host::topology::read(machine.files());
    let best = nm_place::choose(&topology, &Wish { cores: 1, ..Wish::default() });
    let advice = best.map_or(String::new(), |best| {
        let others = best.reasons.iter().skip(1).map(String::as_str);
        let why = others.take(1).collect::<String>();
        format!("; for one thread CPU {} is best: {why}", nm_sys::cpu_list::list(&best.hot))
    });
    format!("name the application's CPUs with --cpus{advice}")
}

/// CPUs that are left for the system.
fn system_cpus(choice: &Choice, machine: &dyn Machine) -> Result<Vec<u32>, String> {
    let application = application_cpus(choice, machine)?;
    let others: Vec<u32> =
        online(machine).into_iter().filter(|cpu| !application.contains(cpu)).collect();
    match others.is_empty() {
        true => Err("no CPU is left for the system".to_string()),
        false => Ok(others),
    }
}

fn the_link(choice: &Choice, machine: &dyn Machine) -> Result<LinkName, String> {
    let link = choice.link.clone().ok_or("name the application's link with --link")?;
    match machine.device(&link) {
        Some(_) => Ok(link),
        None => Err(format!("there is no link {link} in this network namespace")),
    }
}

/// Interrupts that may come to an application CPU.
fn interrupts(choice: &Choice, machine: &dyn Machine) -> Result<Vec<WantedChange>, String> {
    let system = system_cpus(choice, machine)?;
    let files = machine.files();
    let is_balancer = |pid: &String| {
        pid.bytes().all(|byte| byte.is_ascii_digit())
            && files.text(&format!("/proc/{pid}/comm")).as_deref() == Some("irqbalance")
    };
    if files.names("/proc").iter().any(is_balancer) {
        return Err("irqbalance runs and would write it again; stop it, or ban these CPUs \
                    with IRQBALANCE_BANNED_CPULIST"
            .to_string());
    }
    let mut irqs: Vec<u32> =
        files.names("/proc/irq").iter().filter_map(|name| name.parse().ok()).collect();
    irqs.sort_unstable();
    let may_come = |irq: &u32| {
        let list = files.list(&format!("/proc/irq/{irq}/smp_affinity_list")).unwrap_or_default();
        // An interrupt without an action is no interrupt of a device.
        list.iter().any(|cpu| choice.cpus.contains(cpu))
    };
    let found: Vec<u32> = irqs.into_iter().filter(may_come).collect();
    if found.is_empty() {
        return Err("no interrupt may come to these CPUs".to_string());
    }
    let wanted = Wanted::ListWithout(choice.cpus.clone(), system);
    Ok(found.into_iter().map(|irq| change(Target::Irq { irq }, wanted.clone())).collect())
}

fn queues(
    setting: QueueSetting,
    choice: &Choice,
    machine: &dyn Machine,
) -> Result<Vec<WantedChange>, String> {
    let link = the_link(choice, machine)?;
    let prefix = if setting == QueueSetting::Rps { "rx-" } else { "tx-" };
    let names = machine.files().names(&format!("/sys/class/net/{link}/queues"));
    let mut numbers: Vec<u32> =
        names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
    numbers.sort_unstable();
    let target = |queue| Target::Queue { link: link.clone(), queue, setting };
    if setting == QueueSetting::Rps {
        let none = |queue| change(target(queue), Wanted::Mask(vec![]));
        return Ok(numbers.into_iter().map(none).collect());
    }
    if numbers.len() < 2 {
        return Err(format!("{link} has one queue to send"));
    }
    let (online, count) = (online(machine), numbers.len());
    let share = |index: usize| {
        online.iter().enumerate().filter(move |(at, _)| at % count == index).map(|(_, cpu)| *cpu)
    };
    let of = |(index, queue)| change(target(queue), Wanted::Mask(share(index).collect()));
    Ok(numbers.into_iter().enumerate().map(of).collect())
}

fn of_driver(
    link: &LinkName,
    setting: LinkSetting,
    goals: Vec<(usize, NumberGoal)>,
) -> WantedChange {
    change(Target::Link { link: link.clone(), setting }, Wanted::Numbers(goals))
}

fn queue_count(choice: &Choice, machine: &dyn Machine) -> Result<WantedChange, String> {
    let system = system_cpus(choice, machine)?.len();
    let most = NumberGoal::AtMost(u32::try_from(system).unwrap_or(u32::MAX));
    let link = the_link(choice, machine)?;
    Ok(of_driver(&link, LinkSetting::Channels, vec![(0, most), (1, most), (3, most)]))
}

fn ring_entries(
    entries: u32,
    choice: &Choice,
    machine: &dyn Machine,
) -> Result<WantedChange, String> {
    let link = the_link(choice, machine)?;
    let target = Target::Link { link: link.clone(), setting: LinkSetting::Rings };
    let limits = machine.limits(&target).ok_or("the driver has no rings")?;
    // rx, rx-mini, rx-jumbo, tx
    let goal = |index: usize| {
        limits
            .get(index)
            .filter(|max| **max > 0)
            .map(|max| (index, NumberGoal::AtLeast(entries.min(*max))))
    };
    Ok(of_driver(&link, LinkSetting::Rings, [0, 3].into_iter().filter_map(goal).collect()))
}
