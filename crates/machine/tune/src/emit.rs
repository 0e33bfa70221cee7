//! Files that make the steps of a plan permanent by other means: TuneD, sysctl, systemd, GRUB, a
//! slice of CPUs. They are written to a folder of the user's; no file of the system is edited.

use std::fmt::Write;

use crate::expand::online;
use crate::machine::Machine;
use crate::plan::{Planned, PlannedStep, Selection};
use nm_settings::setting::{Action, Risk, SettingId};
use nm_settings::target::{CpuSetting, LinkSetting, MachineSetting, Place, Target};
use nm_settings::value::{Value, chosen};
use nm_sys::cpu_list;

/// The name of the run of one start of the service: systemd puts the same id into the commands that
/// start and stop it, so that the service undoes its own run and no other.
const UNIT_RUN: &str = "unit-${INVOCATION_ID}";

/// What reads the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// TuneD.
    Tuned,
    /// sysctl.d.
    Sysctl,
    /// A service that applies and undoes the steps, and a `.link` file.
    Systemd,
    /// The kernel's command line.
    Grub,
    /// A slice with CPUs of its own.
    Cpuset,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// Path below the folder.
    pub path: String,
    /// Content.
    pub text: String,
}

/// Who writes, for the headers and for the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// Version of the program.
    pub version: String,
    /// Path of the program.
    pub program: String,
}

/// Why nothing can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// No step of the plan has a form in these files.
    #[error("no step of this plan can be made permanent this way; see `nearmetal tune plan`")]
    Nothing,
    /// A slice needs CPUs.
    #[error("a slice needs CPUs: name the application's with --cpus")]
    NoCpus,
    /// The path of the program cannot be part of a unit file.
    #[error("the path of the program, `{0}`, has characters that a unit file cannot have")]
    ProgramPath(String),
}

/// The files of one kind for a plan that was made from `selection` on `machine`.
///
/// # Errors
/// If there is nothing to write.
pub fn emit(
    kind: Kind,
    steps: &[PlannedStep],
    selection: &Selection,
    machine: &dyn Machine,
    author: &Author,
) -> Result<Vec<Emitted>, EmitError> {
    let emit = Emit { steps, selection, machine, author };
    match kind {
        Kind::Tuned => emit.tuned(),
        Kind::Sysctl => emit.sysctl(),
        Kind::Systemd => emit.systemd(),
        Kind::Grub => emit.grub(),
        Kind::Cpuset => emit.cpuset(),
    }
}

struct Emit<'a> {
    steps: &'a [PlannedStep],
    selection: &'a Selection,
    machine: &'a dyn Machine,
    author: &'a Author,
}

/// A setting and the value that it is to have.
type Setting<'a> = (&'a Target, &'a Value);

impl Emit<'_> {
    /// What made the file, the steps that it has, and how its effect ends.
    fn header(&self, steps: &[&str], install: &str, remove: &str) -> String {
        let steps = match steps {
            [] => String::new(),
            steps => format!("# Steps: {}\n", steps.join(", ")),
        };
        format!(
            "# Made by nearmetal {} (`nearmetal tune emit`), profile latency.\n\
             {steps}\
             # Install: {install}\n\
             # Remove:  {remove}\n\n",
            self.author.version
        )
    }

    /// The steps that change a setting of which `is_in_file` is true.
    fn steps_of(&self, is_in_file: impl Fn(&Target) -> bool) -> Vec<&str> {
        let has = |step: &&PlannedStep| match &step.planned {
            Planned::Changes(changes) | Planned::NothingToDo(changes) => {
                changes.iter().any(|change| is_in_file(&change.target))
            }
            Planned::NotAvailable(_) => false,
        };
        self.steps.iter().filter(has).map(|step| step.step.id.name()).collect()
    }

    /// Steps that can be made here.
    fn permanent(&self) -> impl Iterator<Item = &PlannedStep> {
        self.steps.iter().filter(|step| !matches!(step.planned, Planned::NotAvailable(_)))
    }

    /// Settings with the values that the steps want, also where they have them already.
    fn settings(&self) -> Vec<Setting<'_>> {
        let mut all = vec![];
        for step in self.steps {
            if let Planned::Changes(changes) | Planned::NothingToDo(changes) = &step.planned {
                all.extend(changes.iter().map(|change| (&change.target, &change.new)));
            }
        }
        all
    }

    fn sysctl(&self) -> Result<Vec<Emitted>, EmitError> {
        let lines = self.sysctl_lines(true);
        if lines.is_empty() {
            return Err(EmitError::Nothing);
        }
        let is_sysctl =
            |target: &Target| matches!(target, Target::Sysctl { .. } | Target::DirtyLimit { .. });
        let header = self.header(
            &self.steps_of(is_sysctl),
            "copy to /etc/sysctl.d/, then `sysctl --system`",
            "delete /etc/sysctl.d/90-nearmetal.conf; the values return with the next restart",
        );
        Ok(vec![Emitted { path: "90-nearmetal.conf".into(), text: header + &lines }])
    }

    fn sysctl_lines(&self, with_dirty: bool) -> String {
        let mut lines = String::new();
        for (target, value) in self.settings() {
            let _ = match (target, value) {
                (Target::Sysctl { name }, value) => writeln!(lines, "{name} = {value}"),
                (Target::DirtyLimit { .. }, Value::Text(text)) if with_dirty => {
                    let Place::Twins([bytes, _]) = target.place() else { continue };
                    let name = bytes.trim_start_matches("/proc/sys/").replace('/', ".");
                    writeln!(lines, "{name} = {}", text.lines().next().unwrap_or_default())
                }
                _ => Ok(()),
            };
        }
        lines
    }

    fn tuned(&self) -> Result<Vec<Emitted>, EmitError> {
        let is_there = |target: &Target| match target.place() {
            Place::Twins(_) => false,
            Place::File(path) => path.starts_with("/sys/") || path.starts_with("/proc/sys/"),
            _ => true,
        };
        let mut steps = self.steps_of(is_there);
        steps.extend(self.command_line().into_iter().map(|(step, _)| step.name()));
        let mut text = self.header(
            &steps,
            "copy this folder to /etc/tuned/profiles (before TuneD 2.24: /etc/tuned), then \
             `tuned-adm profile nearmetal-latency`",
            "`tuned-adm profile` with the profile before, then delete the folder",
        );
        text += "[main]\nsummary=Steps of nearmetal for low latency\ninclude=network-latency\n";
        let sections = [
            ("sysctl", self.tuned_sysctl()),
            ("vm", self.tuned_vm()),
            ("cpu", self.tuned_cpu()),
            ("sysfs", self.tuned_sysfs()),
            ("nearmetal_net", self.tuned_net()),
            ("bootloader", self.tuned_boot()),
        ];
        if sections.iter().all(|(_, lines)| lines.is_empty()) {
            return Err(EmitError::Nothing);
        }
        for (name, lines) in sections.iter().filter(|(_, lines)| !lines.is_empty()) {
            let _ = write!(text, "\n[{name}]\n{lines}");
        }
        Ok(vec![Emitted { path: "nearmetal-latency/tuned.conf".into(), text }])
    }

    fn tuned_sysctl(&self) -> String {
        // TuneD cannot roll the dirty limits back: it writes a zero that the kernel refuses.
        self.sysctl_lines(false).replace(" = ", "=")
    }

    fn tuned_vm(&self) -> String {
        let thp = Target::Machine { setting: MachineSetting::ThpEnabled };
        let word = |(target, value): Setting<'_>| match value {
            Value::Text(text) if *target == thp => chosen(text).map(str::to_string),
            _ => None,
        };
        let found = self.settings().into_iter().find_map(word);
        found.map(|word| format!("transparent_hugepages={word}\n")).unwrap_or_default()
    }

    fn tuned_cpu(&self) -> String {
        let mut lines = String::new();
        for (setting, option) in [
            (CpuSetting::Governor, "governor"),
            (CpuSetting::EnergyPreference, "energy_performance_preference"),
        ] {
            let is_it = |target: &Target| match target {
                Target::Cpu { setting: other, .. } => *other == setting,
                _ => false,
            };
            let found = self.settings().into_iter().find(|(target, _)| is_it(target));
            if let Some((_, value)) = found {
                let _ = writeln!(lines, "{option}={value}");
            }
        }
        lines
    }

    fn tuned_sysfs(&self) -> String {
        let mut lines = String::new();
        for (target, value) in self.settings() {
            let is_cpu_option = matches!(
                target,
                Target::Cpu { setting: CpuSetting::Governor | CpuSetting::EnergyPreference, .. }
            );
            match (target.place(), value) {
                (Place::File(path), value) if path.starts_with("/sys/") && !is_cpu_option => {
                    let _ = writeln!(lines, "{path}={value}");
                }
                (Place::Choice(path), Value::Text(text)) if path.ends_with("defrag") => {
                    let _ = writeln!(lines, "{path}={}", chosen(text).unwrap_or_default());
                }
                _ => {}
            }
        }
        lines
    }

    /// Settings of a link's driver, by the options of ethtool.
    fn tuned_net(&self) -> String {
        let Some(link) = &self.selection.choice.link else { return String::new() };
        let mut options: Vec<(&str, Vec<String>)> = vec![];
        let mut add =
            |option, text: String| match options.iter_mut().find(|(name, _)| *name == option) {
                Some((_, texts)) => texts.push(text),
                None => options.push((option, vec![text])),
            };
        for (setting, numbers) in self.driver_settings() {
            let words =
                setting.words(|index| Some(numbers.get(index).copied().unwrap_or_default()));
            match setting {
                LinkSetting::Coalescing => add("coalesce", words),
                LinkSetting::Gro | LinkSetting::Gso | LinkSetting::Tso | LinkSetting::Lro => {
                    add("features", words);
                }
                LinkSetting::Rings => add("ring", words),
                LinkSetting::Channels => add("channels", words),
                LinkSetting::Pause => add("pause", words),
            }
        }
        if options.is_empty() {
            return String::new();
        }
        let lines: String =
            options.iter().map(|(name, texts)| format!("{name}={}\n", texts.join(" "))).collect();
        format!("type=net\ndevices={link}\n{lines}")
    }

    /// The driver's settings, each once, as all steps together want it.
    fn driver_settings(&self) -> Vec<(LinkSetting, Vec<u32>)> {
        let mut all: Vec<(LinkSetting, Vec<u32>)> = vec![];
        for step in self.steps {
            let (Planned::Changes(changes) | Planned::NothingToDo(changes)) = &step.planned else {
                continue;
            };
            for change in changes {
                let Target::Link { setting, .. } = &change.target else { continue };
                // Two steps change the same structure, so the second starts from the first.
                let known = all.iter_mut().find(|(known, _)| known == setting);
                let before = known.as_ref().map(|(_, numbers)| Value::Numbers(numbers.clone()));
                let new = change.wanted.resolve(before.as_ref().unwrap_or(&change.current));
                match (new, known) {
                    (Some(Value::Numbers(new)), Some((_, numbers))) => *numbers = new,
                    (Some(Value::Numbers(new)), None) => all.push((*setting, new)),
                    _ => {}
                }
            }
        }
        all
    }

    fn tuned_boot(&self) -> String {
        match self.command_line() {
            words if words.is_empty() => String::new(),
            words => format!("cmdline_nearmetal=+{}\n", joined(&words)),
        }
    }

    /// Words of the kernel's command line: of steps that are not security-relevant, or allowed.
    fn command_line(&self) -> Vec<(SettingId, String)> {
        let mut words = vec![];
        for PlannedStep { step, .. } in self.steps {
            let Action::CommandLine(word) = step.action else { continue };
            let is_allowed = step.risk != Risk::Security || self.selection.allow.contains(&step.id);
            let needs_cpus = word.contains("{app}");
            let is_needed = online(self.machine).len() >= step.cpus_min;
            if is_allowed && is_needed && !(needs_cpus && self.selection.choice.cpus.is_empty()) {
                let cpus = cpu_list::list(&self.selection.choice.cpus);
                words.push((step.id, word.replace("{app}", &cpus)));
            }
        }
        words
    }

    fn grub(&self) -> Result<Vec<Emitted>, EmitError> {
        let words = self.command_line();
        if words.is_empty() {
            return Err(EmitError::Nothing);
        }
        let steps: Vec<&str> = words.iter().map(|(step, _)| step.name()).collect();
        let mut text = self.header(
            &steps,
            "copy to /etc/default/grub.d/, then `update-grub`, and restart",
            "delete /etc/default/grub.d/90-nearmetal.cfg, then `update-grub`, and restart",
        );
        let words = joined(&words);
        let _ = writeln!(text, "GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {words}\"");
        Ok(vec![Emitted { path: "90-nearmetal.cfg".into(), text }])
    }

    fn systemd(&self) -> Result<Vec<Emitted>, EmitError> {
        let program = &self.author.program;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
        if !program.starts_with('/') || !program.chars().all(is_plain) {
            return Err(EmitError::ProgramPath(program.clone()));
        }
        let steps: Vec<&str> = self.permanent().map(|step| step.step.id.name()).collect();
        if steps.is_empty() {
            return Err(EmitError::Nothing);
        }
        let mut options = format!("--only {}", steps.join(","));
        for id in &self.selection.allow {
            let _ = write!(options, " --allow {id}");
        }
        if !self.selection.choice.cpus.is_empty() {
            let _ = write!(options, " --cpus {}", cpu_list::list(&self.selection.choice.cpus));
        }
        if let Some(link) = &self.selection.choice.link {
            let _ = write!(options, " --link {link}");
        }
        let header = self.header(
            &steps,
            "copy to /etc/systemd/system/, then `systemctl enable --now nearmetal-tune`",
            "`systemctl disable --now nearmetal-tune`, which undoes the steps; delete the file",
        );
        let text = format!(
            "{header}[Unit]\nDescription=Latency steps of nearmetal\nAfter=network.target\n\n\
             [Service]\nType=oneshot\nRemainAfterExit=yes\n\
             ExecStart={program} tune apply --run-name {UNIT_RUN} {options}\n\
             ExecStop={program} tune undo --run-name {UNIT_RUN}\n\n\
             [Install]\nWantedBy=multi-user.target\n"
        );
        let mut files = vec![Emitted { path: "nearmetal-tune.service".into(), text }];
        files.extend(self.link_file());
        Ok(files)
    }

    /// A `.link` file of the link's driver settings, in place of a service.
    fn link_file(&self) -> Option<Emitted> {
        let link = self.selection.choice.link.as_ref()?;
        let mac = self.machine.device(link).map(|device| device.mac)?;
        let settings = self.driver_settings();
        if mac.is_empty() || settings.is_empty() {
            return None;
        }
        let path = format!("10-nearmetal-{link}.link");
        let mut text = self.header(
            &self.steps_of(|target| matches!(target, Target::Link { .. })),
            "for the link alone, in place of the service: copy to /etc/systemd/network/, and \
             restart",
            &format!("delete /etc/systemd/network/{path}, and restart"),
        );
        let _ = write!(
            text,
            "[Match]\nPermanentMACAddress={mac}\n\n[Link]\n\
             NamePolicy=keep kernel database onboard slot path\n\
             AlternativeNamesPolicy=database onboard slot path mac\n\
             MACAddressPolicy=persistent\n"
        );
        for (setting, numbers) in settings {
            text += &link_lines(setting, &numbers);
        }
        Some(Emitted { path, text })
    }

    fn cpuset(&self) -> Result<Vec<Emitted>, EmitError> {
        if self.selection.choice.cpus.is_empty() {
            return Err(EmitError::NoCpus);
        }
        let list = cpu_list::list(&self.selection.choice.cpus);
        let group = "/sys/fs/cgroup/nearmetal.slice/cpuset.cpus.partition";
        let slice = self.header(
            &[],
            "copy both files to /etc/systemd/system/, then `systemctl enable --now \
             nearmetal-cpuset`; run the application with `systemd-run --slice=nearmetal.slice`",
            "`systemctl disable --now nearmetal-cpuset`, then delete both files",
        ) + &format!(
            "[Unit]\nDescription=CPUs of the latency-critical application\n\n\
             [Slice]\nAllowedCPUs={list}\n"
        );
        let service = self.header(
            &[],
            "see nearmetal.slice",
            "see nearmetal.slice; without the partition the scheduler uses the CPUs again",
        ) + &format!(
            "[Unit]\nDescription=Isolates the CPUs of nearmetal.slice\n\
             Requires=nearmetal.slice\nAfter=nearmetal.slice\n\n\
             [Service]\nType=oneshot\nRemainAfterExit=yes\n\
             ExecStart=/bin/sh -c 'echo isolated > {group}'\n\
             ExecStop=/bin/sh -c 'echo member > {group}'\n\n\
             [Install]\nWantedBy=multi-user.target\n"
        );
        Ok(vec![
            Emitted { path: "nearmetal.slice".into(), text: slice },
            Emitted { path: "nearmetal-cpuset.service".into(), text: service },
        ])
    }
}

fn joined(words: &[(SettingId, String)]) -> String {
    words.iter().map(|(_, word)| word.as_str()).collect::<Vec<_>>().join(" ")
}

/// The lines of a `.link` file for one setting.
fn link_lines(setting: LinkSetting, numbers: &[u32]) -> String {
    let of = |index: usize| numbers.get(index).copied().unwrap_or_default();
    let yes = |index: usize| if of(index) == 0 { "no" } else { "yes" };
    match setting {
        LinkSetting::Coalescing => format!(
            "RxCoalesceSec={}us\nRxMaxCoalescedFrames={}\nTxCoalesceSec={}us\n\
             TxMaxCoalescedFrames={}\nUseAdaptiveRxCoalesce={}\nUseAdaptiveTxCoalesce={}\n",
            of(0),
            of(1),
            of(4),
            of(5),
            yes(9),
            yes(10)
        ),
        LinkSetting::Rings => format!("RxBufferSize={}\nTxBufferSize={}\n", of(0), of(3)),
        LinkSetting::Channels if of(3) > 0 => format!("CombinedChannels={}\n", of(3)),
        LinkSetting::Channels => format!("RxChannels={}\nTxChannels={}\n", of(0), of(1)),
        LinkSetting::Pause => format!("RxFlowControl={}\nTxFlowControl={}\n", yes(1), yes(2)),
        LinkSetting::Gro => format!("GenericReceiveOffload={}\n", yes(0)),
        LinkSetting::Gso => format!("GenericSegmentationOffload={}\n", yes(0)),
        LinkSetting::Tso => format!("TCPSegmentationOffload={}\n", yes(0)),
        LinkSetting::Lro => format!("LargeReceiveOffload={}\n", yes(0)),
    }
}
