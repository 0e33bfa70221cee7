//! Plans on a recorded tree.

use nm_settings::SettingId;
use nm_tune::machine::HostMachine;
use nm_tune::plan::{CHANGES_MAX, Choice, Planned, PlannedStep, Selection, plan};

use crate::simulated::{Simulated, folder, link, put};

fn planned(selection: &Selection) -> (Vec<PlannedStep>, tempfile::TempDir) {
    let temporary = folder();
    let machine = Simulated::new(temporary.path());
    put(temporary.path(), "/proc/sys/kernel/sched_rt_runtime_us", "950000\n");
    (plan(selection, &machine).unwrap(), temporary)
}

fn of(steps: &[PlannedStep], id: SettingId) -> &Planned {
    &steps.iter().find(|step| step.step.id == id).unwrap().planned
}

fn reason(planned: &Planned) -> &str {
    match planned {
        Planned::NotAvailable(reason) => reason,
        other => panic!("{other:?}"),
    }
}

fn choice() -> Choice {
    Choice { cpus: vec![2, 3], link: Some(link("nic0")) }
}

#[test]
fn every_step_is_listed_with_its_changes_or_a_reason() {
    let selection = Selection { choice: choice(), ..Selection::default() };
    let (steps, _folder) = planned(&selection);
    assert_eq!(steps.len(), SettingId::ALL.len());
    let Planned::Changes(thp) = of(&steps, SettingId::MemThp) else { panic!() };
    assert_eq!(thp[0].new.to_string(), "always [madvise] never");
    let Planned::Changes(idle) = of(&steps, SettingId::CpuIdle) else { panic!() };
    assert_eq!(idle.len(), 2);
    let Planned::Changes(irq) = of(&steps, SettingId::IrqNic) else {
        // The queues come first, and a new number of queues is a new set of interrupts.
        assert!(reason(of(&steps, SettingId::IrqNic)).contains("nic.channels"));
        return;
    };
    panic!("{irq:?}");
}

#[test]
fn interrupts_leave_the_application_cpus() {
    let only = vec![SettingId::IrqNic];
    let (steps, _folder) = planned(&Selection { only, choice: choice(), ..Selection::default() });
    let Planned::Changes(irq) = of(&steps, SettingId::IrqNic) else { panic!() };
    let new: Vec<String> = irq.iter().map(|change| change.new.to_string()).collect();
    assert_eq!(new, ["0-1", "0-1"], "one was on CPU 2 alone");
    let temporary = folder();
    let machine = Simulated::new(temporary.path());
    put(temporary.path(), "/proc/77/comm", "irqbalance\n");
    let selection =
        Selection { only: vec![SettingId::IrqNic], choice: choice(), ..Selection::default() };
    let steps = plan(&selection, &machine).unwrap();
    assert!(reason(&steps[0].planned).contains("irqbalance"));
}

#[test]
fn what_is_missing_is_the_reason() {
    let (steps, _folder) = planned(&Selection::default());
    assert!(reason(of(&steps, SettingId::CpuIdle)).contains("--cpus"));
    assert!(reason(of(&steps, SettingId::NicGro)).contains("--link"));
    assert!(reason(of(&steps, SettingId::CpuGovernor)).contains("does not exist here"));
    assert!(reason(of(&steps, SettingId::IsoTick)).contains("tune emit grub"));
    let choice = Choice { cpus: vec![9], link: Some(link("eth7")) };
    let (steps, _folder) = planned(&Selection { choice, ..Selection::default() });
    assert!(reason(of(&steps, SettingId::CpuIdle)).contains("CPU 9 is not online"));
    assert!(reason(of(&steps, SettingId::NicGro)).contains("no link eth7"));
    let choice = Choice { cpus: vec![0, 1, 2, 3], link: None };
    let (steps, _folder) = planned(&Selection { choice, ..Selection::default() });
    assert!(reason(of(&steps, SettingId::IsoWorkqueue)).contains("no CPU is left"));
}

#[test]
fn a_step_has_a_number_of_changes() {
    let temporary = folder();
    let machine = Simulated::new(temporary.path());
    put(temporary.path(), "/sys/devices/system/cpu/online", &format!("0-{CHANGES_MAX}\n"));
    let only = vec![SettingId::CpuGovernor];
    let steps = plan(&Selection { only, ..Selection::default() }, &machine).unwrap();
    assert!(reason(&steps[0].planned).contains("at most 16384"), "{:?}", steps[0].planned);
}

#[test]
fn security_needs_permission_by_name() {
    let only = vec![SettingId::IsoRtThrottle];
    let (steps, _folder) = planned(&Selection { only: only.clone(), ..Selection::default() });
    assert!(reason(&steps[0].planned).contains("--allow iso.rt_throttle"));
    let (steps, _folder) =
        planned(&Selection { only: only.clone(), allow: only, ..Selection::default() });
    assert!(matches!(steps[0].planned, Planned::Changes(_)));
}

#[test]
fn named_steps_that_exclude_each_other_are_an_error() {
    let temporary = folder();
    let machine = Simulated::new(temporary.path());
    let only = vec![SettingId::NicChannels, SettingId::IrqNic];
    let error = plan(&Selection { only, choice: choice(), ..Selection::default() }, &machine);
    let message = error.unwrap_err().to_string();
    assert!(message.contains("nic.channels and irq.nic exclude each other"), "{message}");
}

#[test]
fn a_recorded_tree_has_no_drivers() {
    let temporary = folder();
    Simulated::new(temporary.path());
    put(temporary.path(), "/sys/class/net/nic0/address", "02:00:00:00:00:01\n");
    let machine = HostMachine::recorded(temporary.path());
    let only = vec![SettingId::NicCoalesce];
    let steps = plan(&Selection { only, choice: choice(), ..Selection::default() }, &machine);
    assert!(reason(&steps.unwrap()[0].planned).contains("recorded tree"));
}
