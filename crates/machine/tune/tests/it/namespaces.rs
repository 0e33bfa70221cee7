//! Real settings of real links, in a network namespace that the test makes, with a sysfs of its
//! own. The test starts itself again there, so that nothing of this machine is changed.

use std::process::Command;
use std::sync::atomic::AtomicBool;

use nm_settings::setting::{NumberGoal, SettingId};
use nm_settings::target::{LinkSetting, QueueSetting, Target};
use nm_settings::value::Value;
use nm_test_support::skip::can_run;
use nm_tune::apply::Outcome;
use nm_tune::journal::Folder;
use nm_tune::machine::{HostMachine, Machine};
use nm_tune::plan::{Choice, Planned, Selection, StepChange, Wanted, plan};
use nm_tune::record::{Begin, FORMAT};
use nm_tune::run::{Run, Status};
use nm_tune::undo::Choices;

use crate::simulated::{folder, link, step_change};

/// Set in the process that runs inside of the namespaces.
const INSIDE: &str = "NEARMETAL_TEST_NAMESPACE";

/// Makes a tap, whose driver takes at most 64 packets of coalescing, and a veth pair with queues.
const LINKS: &str = "mount -t sysfs sysfs /sys && ip tuntap add dev tap0 mode tap && \
    ip link add v0 numtxqueues 4 numrxqueues 4 type veth peer name v1 numtxqueues 4 numrxqueues 4";

#[test]
fn real_settings_of_a_namespace_are_changed_and_restored() {
    if !can_run(nm_sys::namespace::privileged(), "it takes root to make namespaces") {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let script = format!("{LINKS} && exec \"$0\" --exact namespaces::inside --ignored");
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-ec", &script])
        .arg(program)
        .env(INSIDE, "1")
        .output()
        .expect("unshare starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{errors}");
}

fn changes() -> Vec<StepChange> {
    let of = |name, setting| Target::Link { link: link(name), setting };
    let numbers = |target, goals| step_change(target, Wanted::Numbers(goals));
    let sysctl = Target::Sysctl { name: "net.ipv4.tcp_autocorking".parse().unwrap() };
    let rps = Target::Queue { link: link("v0"), queue: 0, setting: QueueSetting::Rps };
    vec![
        step_change(sysctl, Wanted::Word("0".into())),
        numbers(of("v0", LinkSetting::Channels), vec![(0, NumberGoal::Is(2))]),
        numbers(of("tap0", LinkSetting::Coalescing), vec![(1, NumberGoal::Is(100))]),
        numbers(of("tap0", LinkSetting::Gro), vec![(0, NumberGoal::Is(0))]),
        step_change(rps, Wanted::Mask(vec![0])),
    ]
}

fn values(machine: &HostMachine) -> Vec<Value> {
    changes().iter().map(|change| machine.read(&change.change.target).unwrap()).collect()
}

#[test]
#[ignore = "runs inside of the namespaces that the test above makes"]
fn inside() {
    assert!(std::env::var_os(INSIDE).is_some(), "this would change settings of the machine");
    let mut machine = HostMachine::live().unwrap();
    let before = values(&machine);
    let temporary = folder();
    let folder = Folder::open(&temporary.path().join("journal")).unwrap();
    let lock = folder.lock().unwrap();
    let begin = Begin {
        format: FORMAT,
        run: "real".parse().unwrap(),
        started: String::new(),
        version: String::new(),
        root: "/".into(),
        origin: machine.origin().unwrap(),
        confirm_within_s: None,
        name: None,
    };
    let mut log = folder.begin(&begin, &lock).unwrap();
    let mut run = Run::begun(begin);
    let never = AtomicBool::new(false);
    let applied = nm_tune::apply(&mut machine, &mut log, &mut run, &changes(), &never).unwrap();
    let outcomes: Vec<&Outcome> = applied.outcomes.iter().map(|(.., outcome)| outcome).collect();
    assert_eq!(outcomes.len(), 5, "{outcomes:?}");
    let Outcome::Rounded { read: Value::Numbers(numbers), .. } = outcomes[2] else {
        panic!("the driver of a tap takes at most 64: {outcomes:?}");
    };
    assert_eq!(numbers[1], 64);
    for index in [0, 1, 3, 4] {
        assert!(matches!(outcomes[index], Outcome::Applied { .. }), "{index}: {outcomes:?}");
    }
    let after = values(&machine);
    assert!(before.iter().zip(&after).all(|(before, after)| before != after), "{after:?}");

    // What undo reads is the file, not what this process remembers.
    let mut run = folder.run(&"real".parse().unwrap()).unwrap().unwrap();
    nm_tune::undo(&mut machine, &mut log, &mut run, &Choices::default(), &never).unwrap();
    assert_eq!(values(&machine), before);
    assert_eq!(run.status(), Status::Closed);
    let choice = Choice { cpus: vec![], link: Some(link("tap0")) };
    let steps = plan(&Selection { choice, ..Selection::default() }, &machine).unwrap();
    let gro = steps.iter().find(|step| step.step.id == SettingId::NicGro).unwrap();
    assert!(matches!(gro.planned, Planned::Changes(_)), "{:?}", gro.planned);
}
