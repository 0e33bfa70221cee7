//! Factors in the reports: chart, tables, what limits a finding, the strongest effect.

use nm_model::campaign::NotAvailable;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::metric::Metric;
use nm_model::plan::EnvironmentKind;
use nm_model::probe::ProbeKind;
use nm_model::verdict::{ComparisonRow, Interval, Relation};
use nm_model::{
    Factor, FactorCheck, FactorEffect, FactorEvidence, FactorKind, FactorResult, RowId, RunResult,
    Selector, SeriesKey,
};
use nm_report::style::Style;
use nm_report::{folder, html, markdown, terminal};

use crate::fixture::{self, SMALL};

fn row(metric: Metric, ratio: f64, relation: Relation) -> ComparisonRow {
    ComparisonRow {
        case: "64 B".into(),
        metric,
        a: Some(20_000.0),
        b: Some(20_000.0 * ratio),
        ratio: Some(ratio),
        interval: Some(Interval { low: ratio * 0.9, high: ratio * 1.1, level: 0.95 }),
        p_value: Some(0.0079),
        test: None,
        relation,
        is_primary: false,
        bounds: None,
        n_cases: 1,
        ranges_apart: None,
        ranges: None,
        basis: String::new(),
    }
}

/// The made-up result with a factor that makes one row faster, and one that nothing shows.
fn with_factors() -> RunResult {
    let mut run = fixture::result(SMALL);
    let keys: Vec<SeriesKey> = run.series[..2].iter().map(|series| series.key.clone()).collect();
    let of = |name: &str, kind, key: &SeriesKey, ratio, relation, shown| {
        let on = Selector::any();
        let factor = Factor { name: name.into(), kind, on, probe: None, step: None };
        let id = RowId {
            environment: key.environment.clone(),
            stack: key.stack.clone(),
            probe: key.probe,
            case: None,
            round: Some(4),
            factor: Some(name.into()),
        };
        let evidence = vec![FactorEvidence::new("/dev/cpu_dma_latency", "0 µs while held")];
        let doubt = Doubt::new(DoubtKind::FactorNotShown, "in 0 of 1 rounds");
        FactorResult {
            checks: vec![FactorCheck { row: id, is_in_force: Some(shown), evidence }],
            effects: vec![FactorEffect {
                key: key.clone(),
                figure: row(Metric::Median, ratio, relation),
                guards: vec![row(Metric::Percentile(99.0), 1.2, Relation::Worse)],
                doubts: if shown { vec![] } else { vec![doubt] },
            }],
            ..FactorResult::new(factor)
        }
    };
    let held = FactorKind::IdleStatesHeld;
    run.factors = vec![
        of("held", held, &keys[0], 0.5, Relation::Better, true),
        of("polled", FactorKind::BusyPoll, &keys[1], 0.1, Relation::Better, false),
    ];
    run.factors[0].notes = vec!["this is a virtual machine (KVM)".into()];
    run.factors[1].not_available = vec![NotAvailable {
        environment: EnvironmentKind::Loopback,
        stack: "tcp-blocking".parse().unwrap(),
        probe: ProbeKind::Pingpong,
        reason: "loopback has no device".into(),
        has_failed: false,
    }];
    run
}

#[test]
fn the_page_has_chart_table_proof_and_limits() {
    let page = html::report(&with_factors(), &[]);
    for text in [
        "id=\"factors\"",
        "on ÷ off, logarithmic",
        "no effect",
        "0.500 better",
        "held: loopback/tcp-spin 1 B",
        "p99 1.20 worse",
        "1 of 1 round",
        "0 of 1 round",
        "0 µs while held",
        "held: this is a virtual machine (KVM)",
        "polled on loopback/tcp-blocking pingpong: not available: loopback has no device",
        "factor not shown to be in force: in 0 of 1 rounds",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page, html::report(&with_factors(), &[]), "the same bytes each time");
    assert!(!html::report(&fixture::result(SMALL), &[]).contains("factors-1"));
}

#[test]
fn the_first_screen_names_the_strongest_effect_that_is_shown() {
    let page = html::report(&with_factors(), &[]);
    let first = &page[..page.find("id=\"factors\"").unwrap()];
    let sentence = "With idle states held (held) median of loopback/tcp-spin 1 B is 2 times \
                    faster: 0.500 of the figure without, 95 % interval 0.450 to 0.550.";
    assert!(first.contains(sentence), "{}", &first[first.len().saturating_sub(20_000)..]);
    let mut run = with_factors();
    run.factors.remove(0);
    let page = html::report(&run, &[]);
    assert!(!page.contains("With busy polling"), "nothing shows that it was in force");
}

#[test]
fn terminal_and_markdown_have_the_tables() {
    let run = with_factors();
    let text = terminal::summary(&run, &Style { colour: false, width: 160 }, None);
    assert!(text.contains("Factors: with the factor (on) against without it (off)"), "{text}");
    assert!(text.contains("0.450 to 0.550") && text.contains("not available: loopback has"));
    let text = markdown::report(&run);
    assert!(
        text.contains("## Factors") && text.contains("/dev/cpu\\_dma\\_latency")
            || text.contains("/dev/cpu_dma_latency"),
        "{text}"
    );
}

#[test]
fn a_result_with_factors_reads_back() {
    let run = with_factors();
    let json = serde_json::to_string(&run).unwrap();
    assert_eq!(folder::parse(&json, "made").unwrap().factors, run.factors);
}
