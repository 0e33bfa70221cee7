//! Random plans: whatever is applied, undo restores every byte.

use nm_settings::setting::NumberGoal;
use nm_settings::target::{CpuSetting, DirtyLimit, LinkSetting, MachineSetting, Target};
use nm_tune::plan::{StepChange, Wanted};
use nm_tune::run::Status;
use nm_tune::undo::Choices;
use proptest::prelude::*;

use crate::simulated::{Bench, link, step_change};

fn of_link(setting: LinkSetting) -> Target {
    Target::Link { link: link("nic0"), setting }
}

fn numbers(setting: LinkSetting, count: usize) -> impl Strategy<Value = StepChange> {
    let goal = prop_oneof![
        (0u32..200).prop_map(NumberGoal::Is),
        (0u32..200).prop_map(NumberGoal::AtMost),
        (0u32..200).prop_map(NumberGoal::AtLeast),
    ];
    prop::collection::vec((0..count, goal), 1..4)
        .prop_map(move |goals| step_change(of_link(setting), Wanted::Numbers(goals)))
}

fn text(targets: Vec<Target>, words: Vec<String>) -> impl Strategy<Value = StepChange> {
    (prop::sample::select(targets), prop::sample::select(words))
        .prop_map(|(target, word)| step_change(target, Wanted::Word(word)))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

pub fn any_change() -> impl Strategy<Value = StepChange> {
    let sysctl = |name: &str| Target::Sysctl { name: name.parse().unwrap() };
    let cpu = |cpu| Target::Cpu { cpu, setting: CpuSetting::PmQosResumeLatency };
    let plain = vec![
        sysctl("kernel.numa_balancing"),
        sysctl("net.ipv4.tcp_autocorking"),
        sysctl("vm.stat_interval"),
        Target::Machine { setting: MachineSetting::Ksm },
        cpu(2),
        cpu(3),
    ];
    let thp = vec![Target::Machine { setting: MachineSetting::ThpEnabled }];
    let lists = vec![Target::Irq { irq: 7 }, Target::Irq { irq: 8 }];
    let dirty = Target::DirtyLimit { limit: DirtyLimit::Background };
    let mask = Target::Machine { setting: MachineSetting::WorkqueueMask };
    prop_oneof![
        text(plain, words(&["0", "1", "2", "n/a", "10"])),
        text(thp, words(&["always", "madvise", "never", "not a choice"])),
        text(lists, words(&["0", "0-1", "1,3"])),
        (1u64..1 << 30)
            .prop_map(move |bytes| step_change(dirty.clone(), Wanted::DirtyBytes(bytes))),
        prop::collection::vec(0u32..4, 0..4)
            .prop_map(move |cpus| step_change(mask.clone(), Wanted::Mask(cpus))),
        numbers(LinkSetting::Coalescing, 4),
        numbers(LinkSetting::Rings, 4),
        numbers(LinkSetting::Channels, 4),
        numbers(LinkSetting::Gro, 1),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn undo_restores_every_byte_of_any_plan(changes in prop::collection::vec(any_change(), 0..20)) {
        let mut bench = Bench::new();
        let before = bench.machine.state();
        bench.apply(&changes).unwrap();
        bench.undo(&Choices::default()).unwrap();
        prop_assert_eq!(bench.machine.state(), before);
        prop_assert_eq!(bench.run().status(), Status::Closed);
    }
}
