//! Virtual machines in every face: a constructed result with guests of real KVM, emulated guests,
//! and an environment that cannot run. `tests/data/guests.json` is that result as a file.

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::environment::EnvironmentKind;
use nm_model::finding::{Confidence, Finding, Fix, FixKind, Threat, UndoClass};
use nm_model::guest::{GuestPlacement, GuestRecord};
use nm_model::probe::{Case, ProbeKind, Side};
use nm_model::result::{RunResult, Series, Statistic};
use nm_model::{FindingStatus, GuestExecution, NotAvailable, Outcome, Plan, Severity};
use nm_report::style::Style;
use nm_report::{csv, html, import, junit, markdown, openmetrics, reference, terminal};

use crate::fixture::{self, Size};
use crate::golden::{self, check};

const PLAIN: Style = Style { colour: false, width: 100 };

const SMALL: Size = Size {
    environments: &[],
    stacks: &[],
    sizes: &[1, 64, 1024, 4096],
    n_rounds: 5,
    n_samples: 1_200,
};

const PLAN: &str = "
name = 'constructed-guests'
summary = 'constructed: nothing in this result was measured'
rounds = 5

[[trials]]
environments = ['netns', 'vm-vswitch', 'vm-vhost', 'vm-sriov']
stacks = ['tcp-spin']
probe = 'pingpong'
optional = true
sizes = [1, 64, 1024, 4096]

[[trials]]
environments = ['vm-vswitch']
stacks = ['shm-spin']
probe = 'pingpong'
optional = true
sizes = [64]

[[trials]]
environments = ['vm-vhost']
stacks = ['xdp-spin']
probe = 'pingpong'
optional = true
sizes = [64]

[[trials]]
environments = ['netns', 'vm-vswitch', 'vm-vhost']
stacks = ['tcp-blocking']
probe = 'stream'
optional = true
patterns = ['8-bi-8']

[[targets]]
require = 'median < 30us at size<=1024'
on = 'vm-vswitch/*'
probe = 'pingpong'

[[targets]]
require = 'median < 30us'
on = 'vm-vhost/*'
probe = 'pingpong'

[[targets]]
require = 'median < 60us'
probe = 'pingpong'

[[comparisons]]
a = 'netns/tcp-spin'
b = 'vm-vswitch/tcp-spin'

[[comparisons]]
a = 'netns/tcp-spin'
b = 'vm-vhost/tcp-spin'
";

fn execution(environment: &str) -> Option<GuestExecution> {
    match environment {
        "vm-vswitch" => Some(GuestExecution::RealKvm),
        "vm-vhost" => Some(GuestExecution::Tcg),
        _ => None,
    }
}

fn in_environment(mut series: Series) -> Series {
    let execution = execution(&series.key.environment);
    series.comparability.execution = execution;
    series.estimates.clear();
    if execution.is_some_and(GuestExecution::is_emulated) {
        series.doubts.push(Doubt::new(DoubtKind::Emulated, "guests ran under tcg"));
    }
    series
}

fn pingpong(environment: &str, stack: &str, size_bytes: u32, base_ns: f64) -> Series {
    let case = Case::Message { size_bytes };
    let key = fixture::key(environment, stack, ProbeKind::Pingpong, case, Statistic::HalfRoundTrip);
    let base_ns = base_ns + f64::from(size_bytes) * 0.35;
    let mut series = fixture::latency(key, base_ns, SMALL);
    // A mode in every second round would leave the targets open.
    series.rounds.retain(|round| round.round % 2 == 0);
    for at in 0..2 {
        series.rounds.push(series.rounds[at].clone());
    }
    for (number, round) in (0..).zip(&mut series.rounds) {
        round.round = number;
    }
    in_environment(series)
}

fn finding(status: FindingStatus, id: &str, summary: &str) -> Finding {
    Finding {
        id: id.into(),
        title: "Threads of a guest have CPUs of their own".into(),
        severity: Severity::High,
        status,
        summary: summary.into(),
        evidence: vec![],
        why: "another thread on that CPU stops the guest".into(),
        sources: vec![],
        fix: Fix { kind: FixKind::Hypervisor, text: "pin them".into() },
        undo: UndoClass::Host,
        confidence: Confidence::Documented,
        effect: None,
        conflict: None,
        threatens: vec![Threat::Tail],
    }
}

fn record(environment: EnvironmentKind, execution: GuestExecution) -> GuestRecord {
    let is_real = !execution.is_emulated();
    GuestRecord {
        environment,
        execution,
        evidence: match is_real {
            true => "a loop took 0.31 ns a turn in a guest, 0.27 ns on the host".into(),
            false => "a loop took 1067 ns a turn under KVM, 0.27 ns on the host".into(),
        },
        qemu_version: "7.2.22".into(),
        machine: "q35".into(),
        cpu_model: if is_real { "host" } else { "max" }.into(),
        pairs: 1,
        cpus: 2,
        memory_mib: 512,
        page_kib: if is_real { 2048 } else { 4 },
        is_memory_locked: is_real,
        kernel: "6.1.0-56-cloud-amd64".into(),
        program_sha256: "00".repeat(32),
        boot_ms: if is_real { 860 } else { 2460 },
        first_result_ms: is_real.then_some(1380),
        placement: match is_real {
            true => vec![GuestPlacement {
                side: Some(Side::Client),
                pair: None,
                virtual_cpus: vec![2, 3],
                other_threads: vec![1],
            }],
            false => vec![],
        },
        notes: vec!["the host's halt polling is off".into()],
        findings: vec![
            finding(FindingStatus::Fail, "guest.pinned", "a virtual CPU is free to move"),
            finding(FindingStatus::Pass, "guest.pages", "huge pages are behind the memory"),
        ],
    }
}

/// The constructed result, judged.
pub fn result() -> RunResult {
    let mut run = fixture::result(fixture::SMALL);
    run.name = "constructed-guests".into();
    run.notes.insert("constructed".into(), "nothing in this result was measured".into());
    run.plan = Some(Plan::parse(PLAN).unwrap());
    run.facts.clear();
    run.failures.clear();
    run.doubts.clear();
    run.series.clear();
    for (environment, base_ns) in
        [("netns", 9_000.0), ("vm-vswitch", 24_000.0), ("vm-vhost", 213_000.0)]
    {
        for &size_bytes in SMALL.sizes {
            run.series.push(pingpong(environment, "tcp-spin", size_bytes, base_ns));
        }
        let flows = fixture::throughput(environment, "8-bi-8", 200_000.0 / base_ns, SMALL);
        run.series.push(in_environment(flows));
    }
    run.series.push(pingpong("vm-vswitch", "shm-spin", 64, 280.0));
    run.series.push(pingpong("vm-vhost", "xdp-spin", 64, 120_000.0));
    run.guests = vec![
        record(EnvironmentKind::VmSwitch, GuestExecution::RealKvm),
        record(EnvironmentKind::VmVhost, GuestExecution::Tcg),
    ];
    run.not_available = vec![NotAvailable {
        environment: EnvironmentKind::VmSriov,
        stack: "tcp-spin".parse().unwrap(),
        probe: ProbeKind::Pingpong,
        reason: "no IOMMU is in use (intel_iommu=on on the kernel command line)".into(),
        has_failed: false,
    }];
    nm_judge::judge(&mut run, &|name| reference::load(name).ok());
    run
}

#[test]
fn the_file_is_the_constructed_result() {
    let json = serde_json::to_string(&result()).unwrap() + "\n";
    check("tests/data/guests.json", &json);
    let loaded = nm_report::folder::load(&golden::path("tests/data/guests.json")).unwrap();
    assert_eq!((loaded.guests.len(), loaded.name.as_str()), (2, "constructed-guests"));
}

#[test]
fn golden_faces_of_guests() {
    let run = result();
    check("tests/golden/guests.txt", &terminal::summary(&run, &PLAIN, None));
    check("tests/golden/guests.md", &markdown::report(&run));
    let references = [reference::load("deftech-hft-vm-pf").unwrap()];
    check("tests/golden/guests.html", &html::report(&run, &references));
    check("tests/golden/guests.xml", &junit::report(&run));
}

/// The lines of a text that show a figure of the emulated environment. A figure has a decimal point
/// or a unit.
fn figures_of_emulated(text: &str) -> Vec<&str> {
    let has_figure = |line: &str| {
        let rest = line.split("vm-vhost").nth(1).unwrap_or_default();
        rest.contains('.') || rest.contains("µs")
    };
    text.lines().filter(|line| line.contains("vm-vhost") && has_figure(line)).collect()
}

#[test]
fn every_line_of_a_table_with_a_figure_of_emulated_guests_has_the_mark() {
    let run = result();
    for line in csv::long(&run).lines().skip(1) {
        assert_eq!(line.ends_with(",EMULATED by tcg"), line.starts_with("vm-vhost"), "{line}");
        assert_eq!(line.ends_with(",real-kvm"), line.starts_with("vm-vswitch"), "{line}");
    }
    let metrics = openmetrics::text(&run);
    let samples = metrics.lines().filter(|line| line.contains("environment=\"vm-vhost\""));
    assert!(samples.clone().count() > 20);
    for line in samples {
        assert!(line.contains("execution=\"EMULATED by tcg\""), "{line}");
    }
    let markdown = markdown::report(&run);
    let rows = figures_of_emulated(&markdown);
    assert!(rows.len() > 5, "{rows:?}");
    for line in rows.into_iter().filter(|line| line.starts_with('|')) {
        assert!(line.contains("EMULATED"), "{line}");
    }
}

#[test]
fn emulated_series_are_in_no_verdict_and_no_ratio() {
    let run = result();
    assert_eq!(run.outcome, Outcome::Pass, "{:?}", run.verdicts);
    let of_emulated = |text: &str| text.starts_with("vm-vhost");
    for verdict in &run.verdicts {
        assert!(verdict.evidence.iter().all(|one| !of_emulated(&one.series)));
    }
    assert_eq!(run.comparisons.len(), 1, "that with the emulated side is not judged");
    assert_eq!(run.not_judged.len(), 2);
    for text in [junit::report(&run), terminal::summary(&run, &PLAIN, None)] {
        assert!(text.contains("figures of emulated guests do not count"), "{text}");
    }
}

#[test]
fn imported_tables_keep_the_execution() {
    let mut run = result();
    run.series.retain(|series| series.key.probe == ProbeKind::Pingpong);
    let imported = import::read(&csv::long(&run), "guests").unwrap();
    let find = |environment: &str| {
        imported.series.iter().find(|one| one.key.environment == environment).unwrap()
    };
    assert!(find("vm-vhost").is_emulated());
    assert_eq!(find("vm-vswitch").comparability.execution, Some(GuestExecution::RealKvm));
    assert_eq!(find("netns").comparability.execution, None);
}

#[test]
fn the_steps_have_figures_gaps_and_marks_but_no_difference_with_emulated_ones() {
    let markdown = markdown::report(&result());
    let row = |name: &str| {
        let start = format!("| {name} |");
        let line = markdown.lines().find(|line| line.starts_with(&start));
        line.unwrap_or_else(|| panic!("{name}: {markdown}")).to_string()
    };
    assert!(row("virtual switch").contains("to bare"), "{}", row("virtual switch"));
    for name in ["vhost", "bypass"] {
        let line = row(name);
        assert!(line.contains("EMULATED by tcg") && !line.contains(" to "), "{line}");
    }
    assert!(row("SR-IOV").contains("no IOMMU is in use"), "{}", row("SR-IOV"));
    // The step before that has a figure that counts.
    let shared = row("shared memory");
    assert!(shared.contains("to virtual switch") && shared.contains('-'), "{shared}");
    let published = row("published vmware-rtt-vnic");
    assert!(published.contains("30.00 µs") && published.contains("half of"), "{published}");
}

#[test]
fn a_result_without_guests_has_no_section_of_them() {
    let run = fixture::result(fixture::SMALL);
    for text in [html::report(&run, &[]), markdown::report(&run)] {
        assert!(!text.contains("Virtual machines") && !text.contains("EMULATED"));
    }
}
