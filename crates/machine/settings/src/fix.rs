//! The command that sets a setting, for people: words in capitals stand for what was found.

use nm_model::finding::FixKind;

use crate::setting::{Action, Goal, NumberGoal, Risk, Setting, SettingId};
use crate::target::{CpuSetting, LinkSetting, MachineSetting, QueueSetting};

impl Setting {
    /// How to set it by hand. `CPULIST`, `CPUS`, `MASK`, `HOUSEKEEPING`, `NUMBER`, `LINK`, `COUNT`,
    /// `PATH` and `VALUE` stand for what was found.
    pub fn fix(&self) -> (FixKind, String) {
        let kind = match self.action {
            Action::CommandLine(_) => FixKind::KernelCommandLine,
            _ => FixKind::Command,
        };
        (kind, self.command())
    }

    /// What to know before: what a change costs.
    pub fn caution(&self) -> Option<&'static str> {
        match self.risk {
            _ if self.id == SettingId::IsoRtThrottle => {
                Some("with stalld, or the kernel's threads starve")
            }
            Risk::None => None,
            Risk::BriefOutage => Some("the link stops for a moment"),
            Risk::Security => Some("weakens the machine"),
        }
    }

    fn command(&self) -> String {
        match &self.action {
            Action::Sysctl(name, goal) => format!("sysctl -w {name}={}", goal.word()),
            Action::DirtyBackgroundBytes(bytes) => {
                format!("sysctl -w vm.dirty_background_bytes={bytes}")
            }
            Action::ApplicationCpus(file, goal) | Action::AllCpus(file, goal) => {
                of_cpus(*file, &format!("echo {}", goal.word()))
            }
            Action::FixedFrequency => of_cpus(
                CpuSetting::MinFrequency,
                "cat /sys/devices/system/cpu/cpu$c/cpufreq/scaling_max_freq",
            ),
            Action::Machine(_) => match self.files().as_slice() {
                [(path, goal)] => echo(*goal, path),
                _ => "echo VALUE > PATH".to_string(),
            },
            Action::WorkqueueMask => {
                format!("echo MASK > {}", MachineSetting::WorkqueueMask.path())
            }
            Action::Interrupts => "echo HOUSEKEEPING > /proc/irq/NUMBER/smp_affinity_list".into(),
            Action::Queues(QueueSetting::Rps) => {
                "for q in /sys/class/net/LINK/queues/rx-*; do echo 0 > $q/rps_cpus; done".into()
            }
            Action::Queues(QueueSetting::Xps) => {
                "n=0; for q in /sys/class/net/LINK/queues/tx-*; do printf '%x\\n' \
                 $((1 << n % 32)) > $q/xps_cpus; n=$((n + 1)); done"
                    .into()
            }
            Action::LinkFiles(files) => {
                joined(files.iter().map(|(file, goal)| {
                    echo(*goal, &format!("/sys/class/net/LINK/{}", file.file()))
                }))
            }
            Action::Driver(setting, goals) => ethtool(*setting, goals),
            Action::QueueCount => "ethtool -L LINK combined COUNT".to_string(),
            Action::RingEntries(entries) => {
                let goal = NumberGoal::AtLeast(*entries);
                ethtool(LinkSetting::Rings, &[(0, goal), (3, goal)])
            }
            Action::CommandLine(word) => word.replace("{app}", "CPUS"),
        }
    }
}

fn echo(goal: Goal, path: &str) -> String {
    format!("echo {} > {path}", goal.word())
}

fn of_cpus(file: CpuSetting, value: &str) -> String {
    let path = format!("/sys/devices/system/cpu/cpu$c/{}", file.file());
    format!("for c in CPULIST; do {value} > {path}; done")
}

fn ethtool(setting: LinkSetting, goals: &[(usize, NumberGoal)]) -> String {
    let number = |index| goals.iter().find(|(one, _)| *one == index).map(|(_, g)| g.number());
    format!("ethtool {} LINK {}", setting.option(), setting.words(number))
}

fn joined(commands: impl Iterator<Item = String>) -> String {
    commands.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalogue, setting};

    #[test]
    fn a_fix_is_the_command_that_sets_the_entry() {
        for (id, expected) in [
            (SettingId::NumaBalance, "sysctl -w kernel.numa_balancing=0"),
            (SettingId::MemThp, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
            (
                SettingId::CpuIdle,
                "for c in CPULIST; do echo 2 > \
                 /sys/devices/system/cpu/cpu$c/power/pm_qos_resume_latency_us; done",
            ),
            (
                SettingId::NicCoalesce,
                "ethtool -C LINK rx-usecs 0 rx-frames 1 tx-usecs 0 tx-frames 1",
            ),
            (SettingId::NicRings, "ethtool -G LINK rx 1024 tx 1024"),
            (SettingId::IsoTick, "nohz_full=CPUS"),
        ] {
            assert_eq!(setting(id).fix().1, expected);
        }
        for entry in catalogue::SETTINGS {
            assert!(!entry.fix().1.is_empty(), "{}", entry.id);
        }
    }
}
