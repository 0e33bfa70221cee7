//! The first screen and the order of the page: what decides, which doubts weigh most, one picture.

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::machine::{MachineUse, ProgramUse};
use nm_model::verdict::{Evidence, Verdict};
use nm_model::{Outcome, RunResult, Undecided};
use nm_report::first_screen::{self, Topic};
use nm_report::style::Style;
use nm_report::view::Notes;
use nm_report::{html, terminal, title, weight};

use crate::fixture::{self, SMALL};

/// The made-up result with one target only.
fn with_verdict(
    requirement: &str,
    outcome: Outcome,
    evidence: &[(&str, Outcome, f64, &str)],
) -> RunResult {
    let mut run = fixture::result(SMALL);
    let evidence = evidence.iter().map(|(series, outcome, value, reason)| Evidence {
        series: series.to_string(),
        outcome: *outcome,
        value: Some(*value),
        interval: None,
        reason: reason.to_string(),
    });
    run.verdicts = vec![Verdict {
        target: requirement.into(),
        require: requirement.parse().ok(),
        outcome,
        reason: "made up".into(),
        is_same_host_only: false,
        is_of_machine: false,
        why: String::new(),
        decisive: None,
        evidence: evidence.collect(),
    }];
    run.outcome = outcome;
    run
}

const REQUESTS: &str = "loopback/tcp-epoll rr 64 B at 1000/s from intended send";

#[test]
fn a_failure_advises_by_the_doubts_of_its_own_series() {
    let evidence = [(REQUESTS, Outcome::Fail, 29.6e6, "above")];
    let mut run = with_verdict("p99 < 10ms", Outcome::Fail, &evidence);
    run.comparisons.clear();
    assert_eq!(line(&run, Topic::Verdict), "p99 29.6 ms on loopback/tcp-epoll (limit 10 ms).");
    assert!(line(&run, Topic::Next).ends_with(" Also repeat when idle."), "a busy machine");
    run.doubts.clear();
    let series = run.series.iter_mut().find(|s| s.key.to_string() == REQUESTS).unwrap();
    series.doubts = vec![Doubt::new(DoubtKind::Steal, "30 ms")];
    assert!(line(&run, Topic::Next).ends_with(" Also repeat on dedicated CPUs."));
    // The doubts of another series say nothing about this one.
    run.series.iter_mut().for_each(|s| s.doubts.clear());
    run.series[0].doubts = vec![Doubt::new(DoubtKind::Steal, "30 ms")];
    assert!(!line(&run, Topic::Next).contains("Also"));
}

#[test]
fn the_figure_furthest_beyond_its_limit_decides_a_failure() {
    let evidence = [
        ("loopback/tcp-spin pingpong 64 B", Outcome::Fail, 7000.0, "above"),
        ("netns/udp-blocking pingpong 64 B", Outcome::Fail, 9000.0, "above"),
        ("netns/tcp-spin pingpong 64 B", Outcome::Pass, 100.0, "below"),
    ];
    let run = with_verdict("median < 6us at size<=64", Outcome::Fail, &evidence);
    let verdict = "median 9.00 µs on netns/udp-blocking at 64 B (limit 6 µs).";
    assert_eq!(line(&run, Topic::Verdict), verdict);
}

#[test]
fn a_pass_names_the_figure_nearest_to_its_limit() {
    let every = [
        ("loopback/tcp-spin pingpong 64 B", Outcome::Pass, 3000.0, "below"),
        ("netns/tcp-spin pingpong 64 B", Outcome::Pass, 5000.0, "below"),
    ];
    let run = with_verdict("median < 6us", Outcome::Pass, &every);
    let nearest = |path: &str, value: &str| {
        format!("nearest to its limit: median {value} on {path} at 64 B (limit 6 µs).")
    };
    let verdict = line(&run, Topic::Verdict);
    assert!(verdict.ends_with(&nearest("netns/tcp-spin", "5.00 µs")), "{verdict}");
    // Where one series is enough, the best one decides.
    let mut any = every.to_vec();
    any.push(("netns/udp-blocking pingpong 64 B", Outcome::Fail, 9000.0, "above"));
    let mut run = with_verdict("median < 6us", Outcome::Pass, &any);
    let verdict = line(&run, Topic::Verdict);
    assert!(verdict.ends_with(&nearest("loopback/tcp-spin", "3.00 µs")), "{verdict}");
    // The judge's own choice comes first, so that sentence, table and reason agree.
    run.verdicts[0].decisive = Some("netns/tcp-spin pingpong 64 B".into());
    assert!(line(&run, Topic::Verdict).ends_with(&nearest("netns/tcp-spin", "5.00 µs")));
}

#[test]
fn an_open_question_is_stated_with_its_reason() {
    let reason = "9.8 ms (95 % interval 9 to 11 ms over 5 rounds), limit 10 ms: the limit lies \
                  inside the interval";
    let evidence = [(REQUESTS, Outcome::Inconclusive, 9.8e6, reason)];
    let run = with_verdict("p99 < 10ms", Outcome::Inconclusive, &evidence);
    let verdict = line(&run, Topic::Verdict);
    assert!(verdict.starts_with("p99 on loopback/tcp-epoll: 9.8 ms"), "{verdict}");
    assert!(verdict.ends_with("inside the interval."), "{verdict}");
}

#[test]
fn doubts_on_deciding_series_weigh_most_then_those_on_many() {
    let evidence = [(REQUESTS, Outcome::Fail, 29.6e6, "above")];
    let mut run = with_verdict("p99 < 10ms", Outcome::Fail, &evidence);
    run.doubts.clear();
    for series in &mut run.series {
        series.doubts = match series.key.to_string() == REQUESTS {
            true => vec![Doubt::new(DoubtKind::Steal, "x"), Doubt::new(DoubtKind::Steal, "y")],
            false => vec![Doubt::new(DoubtKind::Migrated, "x")],
        };
    }
    run.series[0].doubts.push(Doubt::new(DoubtKind::Drift, "x"));
    let notes = Notes::collect(&run);
    let weighed = weight::weighed(&run, &notes);
    let kinds: Vec<DoubtKind> = weighed.iter().map(|doubt| doubt.note.kind).collect();
    assert_eq!(kinds, [DoubtKind::Steal, DoubtKind::Migrated, DoubtKind::Drift]);
    let n_all = run.series.len();
    assert_eq!(
        weighed[0].extent(),
        format!("1 of {n_all} series, with all 1 that decide the outcome")
    );
    assert_eq!(weighed[1].extent(), format!("{} of {n_all} series", n_all - 1));
}

/// The part of `page` from the element with the id on, up to the end of its section.
fn section<'p>(page: &'p str, id: &str) -> &'p str {
    let start = page.find(&format!("<section id=\"{id}\"")).unwrap();
    page[start..].split("</section>").next().unwrap()
}

#[test]
fn the_first_screen_holds_answer_doubts_and_picture() {
    let run = fixture::result(SMALL);
    let references = [fixture::reference(), fixture::round_trip_reference()];
    let page = html::report(&run, &references);
    assert_eq!(title::title(&run), "made-up-host, plan made-up, 2 Jan 2026");
    assert!(page.contains("<h1>made-up-host, plan made-up, 2 Jan 2026</h1>"));
    assert!(page.contains("<title>FAIL: made-up-host, plan made-up, 2 Jan 2026"));
    let first = section(&page, "verdict");
    assert!(first.contains("throughput 9.10 Gb/s on loopback/tcp-blocking"), "{first}");
    assert_eq!(first.matches("href=\"#doubt-").count(), 3);
    assert!(first.contains("svg id=\"curves\"") && first.contains("made-up-reference"));
    let first = section(&page, "stacks");
    // Each stack in each environment, and the published run of the same statistic.
    for label in [">tcp-spin<", ">udp-blocking<"] {
        assert_eq!(first.matches(label).count(), 2 * 2 + 2, "{label}");
    }
    assert!(first.contains("loopback · half round trip, 64 B"));
    assert!(first.contains("netns rr · round trip, 1000/s"));
    assert!(first.contains("made-up-reference") && first.contains("bar kf"));
    // A figure that a target limits has the limit as a line.
    assert!(first.contains("median &lt; 6 µs") && first.contains("class=\"limit\""));
}

#[test]
fn only_rows_with_doubts_are_hatched() {
    let mut run = fixture::result(SMALL);
    let hatches = |run: &RunResult| {
        section(&html::report(run, &[]), "stacks").matches("class=\"hatch ").count()
    };
    for series in &mut run.series {
        series.doubts.clear();
    }
    assert_eq!(hatches(&run), 0);
    let shown = run.series.iter_mut().find(|s| s.key.to_string().ends_with("pingpong 64 B"));
    shown.unwrap().doubts.push(Doubt::new(DoubtKind::Steal, "30 ms"));
    // Once in the wide and once in the narrow picture.
    assert_eq!(hatches(&run), 2);
}

#[test]
fn a_stack_that_fails_a_target_at_another_size_is_marked() {
    let evidence = [("netns/tcp-spin pingpong 1024 B", Outcome::Fail, 9000.0, "above")];
    let run = with_verdict("median < 6us at size<=1024", Outcome::Fail, &evidence);
    let page = html::report(&run, &[]);
    let first = section(&page, "stacks");
    // Once in each picture and in their key; the row shows its figures at 64 B.
    assert_eq!(first.matches("✗").count(), 3);
    assert_eq!(first.matches("class=\"failing\"").count(), 2);
}

#[test]
fn targets_that_are_not_met_come_first() {
    let page = html::report(&fixture::result(SMALL), &[]);
    let targets = section(&page, "targets");
    let at = |text: &str| targets.find(text).unwrap();
    assert!(at("throughput &gt;= 10 Gb/s") < at("p99.99 &lt;= 50us"));
    assert!(at("p99.99 &lt;= 50us") < at("median_ns &lt; 6000"));
    // 3,358 ns of 6,000 ns.
    assert!(targets.contains("56.0 %") && targets.contains("width:37.3%"), "{targets}");
}

#[test]
fn facts_that_differ_are_shown_and_equal_ones_are_folded() {
    let page = html::report(&fixture::result(SMALL), &[]);
    let endpoints = section(&page, "endpoints");
    let (shown, folded) = endpoints.split_once("<details").unwrap();
    assert!(shown.contains("lo (MTU 65536)") && shown.contains("veth0 (MTU 1500)"));
    assert!(!shown.contains("Made-up CPU") && folded.contains("Made-up CPU"));
    assert!(shown.contains(">loopback<") && shown.contains(">netns<"));
}

/// Text of the line about `topic`.
fn line(run: &RunResult, topic: Topic) -> String {
    let screen = first_screen::first_screen(run);
    let found = screen.lines.into_iter().find(|line| line.topic == topic);
    found.map_or(String::new(), |line| line.text)
}

/// A run with this machine and no doubts.
fn on_machine(outcome: Outcome, machine: MachineUse) -> RunResult {
    let evidence = [(REQUESTS, Outcome::Fail, 12.7e6, "above")];
    let mut run = with_verdict("p99 < 10ms", Outcome::Fail, &evidence);
    run.outcome = outcome;
    run.doubts.clear();
    run.series.iter_mut().for_each(|series| series.doubts.clear());
    run.machine = Some(machine);
    run
}

fn quiet() -> MachineUse {
    MachineUse {
        window_s: 100.0,
        cpus: 2,
        cpus_allowed: 2,
        steal_s: Some(0.2),
        other_work_s: Some(2.0),
        ..MachineUse::default()
    }
}

const FAILED: &str = "p99 12.7 ms on loopback/tcp-epoll (limit 10 ms)";

#[test]
fn a_failure_names_the_targets_that_decide_with_value_and_limit() {
    let mut run = on_machine(Outcome::Fail, quiet());
    assert_eq!(line(&run, Topic::Verdict), format!("{FAILED}."));
    let trust = "Nothing disturbed the run: the hypervisor took 0.1 % of the CPU time and other \
                 programs took 2 % of a CPU meanwhile.";
    assert_eq!(line(&run, Topic::Trust), trust);
    assert!(line(&run, Topic::Next).starts_with("`nearmetal audit` shows"));
    // The figure furthest beyond its limit stands first, the rest is counted.
    let mut lost = run.verdicts[0].clone();
    lost.require = "time-lost < 5%".parse().ok();
    lost.evidence[0].value = Some(0.42);
    run.verdicts.push(lost);
    let both = format!("42.0 % of the time was lost (limit 5 %); {FAILED}");
    assert_eq!(line(&run, Topic::Verdict), format!("{both}."));
    let first = run.verdicts[0].clone();
    run.verdicts.extend([first.clone(), first.clone(), first]);
    assert!(line(&run, Topic::Verdict).ends_with("; and 2 more."));
}

#[test]
fn a_disturbed_failure_is_open_and_names_what_to_end() {
    let programs = vec![ProgramUse { command: "hog".into(), pid: 7, cpu_s: 40.0 }];
    let machine = MachineUse { other_work_s: Some(47.0), programs, ..quiet() };
    let mut run = on_machine(Outcome::Inconclusive, machine);
    run.comparisons.clear();
    run.undecided =
        Some(Undecided::OtherPrograms { n_missed: 1, percent: 47.0, limit_percent: 10.0 });
    let expected =
        format!("{FAILED}, while programs outside the run used 47 % of a CPU (limit 10 %).");
    assert_eq!(line(&run, Topic::Verdict), expected);
    assert!(line(&run, Topic::Trust).starts_with("Disturbed: the hypervisor took 0.1 %"));
    assert_eq!(line(&run, Topic::Next), "Repeat on an idle machine; hog (7) took most.");
    let text = terminal::summary(&run, &Style { colour: false, width: 200 }, None);
    assert!(text.contains(&format!("\nINCONCLUSIVE: {expected}\n")), "{text}");
    for text in [html::report(&run, &[]), nm_report::markdown::report(&run)] {
        assert!(text.contains("while programs outside the run used 47 % of a CPU"), "{text}");
    }
    let junit = nm_report::junit::report(&run);
    assert!(junit.contains("<skipped message=\"missed, but programs outside"), "{junit}");
    assert!(!junit.contains("<failure"), "{junit}");
}

#[test]
fn a_failure_by_the_machine_keeps_its_place_and_asks_for_cpus() {
    let mut run = on_machine(Outcome::Fail, MachineUse { steal_s: Some(54.0), ..quiet() });
    let mut machine = run.verdicts[0].clone();
    machine.is_of_machine = true;
    machine.require = None;
    machine.target = "machine: at most 1 % of the CPU time stolen".into();
    machine.reason = "the hypervisor gave 27.0 % of the CPU time to others".into();
    let first = run.verdicts[0].clone();
    run.verdicts = vec![machine, first.clone(), first.clone(), first];
    let machine = "the hypervisor gave 27.0 % of the CPU time to others (required: at most 1 % of \
                   the CPU time stolen)";
    let expected = format!("{FAILED}; {FAILED}; {machine}; and 1 more.");
    assert_eq!(line(&run, Topic::Verdict), expected);
    assert_eq!(line(&run, Topic::Next), "Ask the host's owner for dedicated CPUs.");
}

#[test]
fn a_lost_host_is_the_verdict_and_its_hint_the_next_step() {
    let mut run = on_machine(Outcome::Inconclusive, quiet());
    run.undecided = Some(Undecided::Lost {
        row: None,
        reason: "host bob was lost; look whether it runs".into(),
        n_rounds: 5,
        n_undecided: 1,
        n_targets: 1,
    });
    assert_eq!(line(&run, Topic::Verdict), "Nothing decided: host bob was lost.");
    assert_eq!(line(&run, Topic::Next), "Look whether it runs; then repeat.");
    let junit = nm_report::junit::report(&run);
    assert_eq!(junit.matches("Nothing decided: host bob was lost").count(), 1, "{junit}");
}

#[test]
fn what_cannot_be_read_is_unknown_and_the_machine_has_its_label() {
    let mut run = on_machine(Outcome::Fail, MachineUse { steal_s: None, ..quiet() });
    run.label = Some("rack 7".into());
    assert!(line(&run, Topic::Trust).starts_with("Not fully known: what the hypervisor took"));
    assert_eq!(
        line(&run, Topic::Machine),
        "Made-up CPU @ 1 GHz, 2 CPUs, kernel 6.0.0-made-up, KVM; site rack 7"
    );
}
