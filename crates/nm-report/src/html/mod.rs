//! The report as one HTML file that needs nothing else: no script, no font, no network. It opens
//! from a disk or a mail, in light and dark, on paper, with a keyboard or a screen reader.
//!
//! The result itself is in the page as JSON ([`embedded`] reads it back).

mod charts;
mod region;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use nm_model::result::RoundData;
use nm_model::verdict::{Comparison, Verdict};
use nm_model::{Outcome, RunResult};

use crate::comparison;
use crate::exchange;
use crate::facts;
use crate::style::Tone;
use crate::table::Table;
use crate::units;
use crate::view::{self, Detail, Notes};

use region::{class, region};

/// Nothing may be loaded, sent or run. Styles are part of the page.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

const STYLE: &str = include_str!("style.css");

/// Most bytes of the result inside the page.
const EMBEDDED_BYTES_MAX: usize = 512 * 1024;

/// The report of `result`; `references` are drawn faintly beside series of the same statistic.
pub fn report(result: &RunResult, references: &[RunResult]) -> String {
    let notes = Notes::collect(result);
    let sections = charts::sections(result, references);
    let exchange = exchange::tables(result);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="referrer" content="no-referrer";
                title { (view::headline(result).word) " · " (result.name) " · nearmetal" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#verdict" { "Skip to the verdict" }
                header {
                    p.brand { b { "nearmetal" } " qualification report" }
                    h1 { (result.name) }
                }
                main {
                    (verdict(result))
                    (contents(result, &sections, &exchange, &notes))
                    (targets(result))
                    (comparisons(result))
                    @for section in &sections {
                        (chart_section(section))
                    }
                    (figures(result, &notes))
                    (the_exchange(&exchange))
                    (doubts(&notes))
                    (endpoints(result))
                    (references_section(references))
                    (missing(result))
                    (method(result))
                }
                footer {
                    p { "Made by " (view::source_text(&result.source)) ". "
                        "Half round trips and round trips are different statistics; each table and \
                         axis says which it shows." }
                }
                (embed(result))
            }
        }
    };
    page.into_string()
}

fn chart_section(section: &charts::Section) -> Markup {
    let heading = format!("{}-h", section.anchor());
    html! {
        section id=(section.anchor()) aria-labelledby=(heading) {
            h2 id=(heading) { (section.title) }
            p.reading { (section.reading) }
            @for figure in &section.figures { (figure.draw()) }
        }
    }
}

/// A small label with sign, word and colour.
fn badge(outcome: Outcome) -> Markup {
    let sign = match outcome {
        Outcome::Pass => "✓",
        Outcome::Fail => "✗",
        Outcome::Inconclusive => "?",
    };
    html! {
        span class=(format!("badge {}", class(outcome.into()).unwrap_or_default())) {
            span aria-hidden="true" { (sign) } " " (outcome)
        }
    }
}

fn verdict(result: &RunResult) -> Markup {
    let headline = view::headline(result);
    let class = format!("verdict {}", class(headline.tone).unwrap_or_default());
    let n_rounds = result.plan.as_ref().map(|plan| plan.rounds);
    let samples = result.series.iter().filter_map(view::samples).fold(0, u64::saturating_add);
    let fact = |name: &str, value: Option<String>| {
        html! {
            @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
        }
    };
    let mut hosts: Vec<&str> = result.facts.values().map(|f| f.host.name.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.retain(|host| !host.is_empty());
    html! {
        section id="verdict" class=(class) aria-labelledby="verdict-h" tabindex="-1" {
            h2 id="verdict-h" { (headline.word) }
            p.sentence { (headline.sentence) }
            @if let Some(plan) = &result.plan {
                @if !plan.summary.is_empty() { p { (plan.summary) } }
            }
            dl.strip {
                (fact("plan", result.plan.as_ref().map(|plan| plan.name.clone())))
                (fact("made by", Some(view::source_text(&result.source))))
                (fact("machine", (!hosts.is_empty()).then(|| hosts.join(", "))))
                (fact("started (UTC)", result.started.clone()))
                (fact("took", result.duration_s.map(units::duration)))
                (fact("rounds", n_rounds.map(|n| n.to_string())))
                (fact("series", Some(result.series.len().to_string())))
                (fact("samples", (samples > 0).then(|| units::count(samples))))
                (fact("state", Some(result.state.to_string())))
            }
        }
    }
}

fn contents(
    result: &RunResult,
    sections: &[charts::Section],
    exchange: &[Table],
    notes: &Notes,
) -> Markup {
    let mut links: Vec<(String, &str)> = vec![];
    let mut add = |is_there: bool, anchor: &str, title: &'static str| {
        if is_there {
            links.push((anchor.to_string(), title));
        }
    };
    add(!result.verdicts.is_empty(), "why", "Why");
    add(!result.comparisons.is_empty(), "compared", "What was compared");
    for section in sections {
        add(true, &section.anchor(), section.title);
    }
    add(!result.series.is_empty(), "figures", "All figures");
    add(!exchange.is_empty(), "exchange", "The exchange");
    add(!notes.notes.is_empty(), "doubts", "Doubts");
    add(!result.facts.is_empty(), "endpoints", "Endpoints");
    add(!result.not_available.is_empty() || !result.failures.is_empty(), "missing", "Not measured");
    add(true, "method", "Method");
    html! {
        nav aria-label="Contents" {
            ul {
                @for (anchor, title) in &links {
                    li { a href=(format!("#{anchor}")) { (title) } }
                }
            }
        }
    }
}

fn targets(result: &RunResult) -> Markup {
    html! {
        @if !result.verdicts.is_empty() {
            section id="why" aria-labelledby="why-h" {
                h2 id="why-h" { "Why" }
                ul.cards { @for verdict in &result.verdicts { (target(result, verdict)) } }
            }
        }
    }
}

fn target(result: &RunResult, verdict: &Verdict) -> Markup {
    let planned = result.plan.iter().flat_map(|plan| &plan.targets);
    let planned = planned.filter(|t| t.require.text == verdict.target);
    let why: Vec<&str> = planned.map(|t| t.why.as_str()).filter(|why| !why.is_empty()).collect();
    let evidence = view::evidence_table(verdict);
    html! {
        li class=(format!("card {}", class(verdict.outcome.into()).unwrap_or_default())) {
            p.head { (badge(verdict.outcome)) " " code { (verdict.target) } }
            p { (verdict.reason) }
            @if let Some(why) = why.first() { p.reading { "Source of the target: " (why) } }
            @if !evidence.rows.is_empty() {
                details {
                    summary {
                        "Evidence: " (units::plural(evidence.rows.len(), "series", "series"))
                    }
                    (region(&evidence))
                }
            }
        }
    }
}

fn comparisons(result: &RunResult) -> Markup {
    html! {
        @if !result.comparisons.is_empty() {
            section id="compared" aria-labelledby="compared-h" {
                h2 id="compared-h" { "What was compared" }
                ul.cards { @for comparison in &result.comparisons { (compared(comparison)) } }
            }
        }
    }
}

/// One comparison: outcome, reasons, where it is not like for like, the figures.
fn compared(compared: &Comparison) -> Markup {
    let table = comparison::table(compared);
    let mut facts = Table::new("Facts in which the machines differ", &["fact", "A", "B"]);
    for row in &compared.facts {
        facts.push(Tone::Plain, vec![row.field.clone(), row.a.clone(), row.b.clone()]);
    }
    let mut differences = Table::new("Not like for like", &["field", "A", "B"]);
    for row in &compared.differences {
        differences.push(Tone::Differs, vec![row.field.clone(), row.a.clone(), row.b.clone()]);
    }
    html! {
        li class=(format!("card {}", class(compared.outcome.into()).unwrap_or_default())) {
            p.head { (badge(compared.outcome)) " "
                b { (compared.b) } " (B) against " b { (compared.a) } " (A)" }
            ul { @for reason in &compared.reasons { li { (reason) } } }
            @if compared.differences.is_empty() {
                p { "Like for like: statistic, protocol, way of waiting, bypass, link and firmware \
                     agree as far as both sides tell them." }
            } @else {
                p { b { "Not like for like." } " These differ, so a ratio shows them too:" }
                (region(&differences))
            }
            @if !table.rows.is_empty() {
                details {
                    summary { "Figures: " (units::plural(table.rows.len(), "row", "rows")) }
                    (region(&table))
                }
            }
            @if !facts.rows.is_empty() {
                details { summary { "Facts in which the machines differ" } (region(&facts)) }
            }
            @if !compared.unmatched.is_empty() {
                details {
                    summary { "Cases that only one side has" }
                    ul { @for line in &compared.unmatched { li { (line) } } }
                }
            }
        }
    }
}

/// Round trips and rates beside the published ones, CPU time, hops and faults.
fn the_exchange(tables: &[Table]) -> Markup {
    html! {
        @if !tables.is_empty() {
            section id="exchange" aria-labelledby="exchange-h" {
                h2 id="exchange-h" { "The exchange" }
                p.reading {
                    "A round trip goes from the client through gateway, router, mediator and \
                     transaction processor and back; it counts from when the schedule wanted the \
                     request to leave. The published study ran on twelve hosts without durability."
                }
                @for table in tables { (region(table)) }
            }
        }
    }
}

fn figures(result: &RunResult, notes: &Notes) -> Markup {
    html! {
        @if !result.series.is_empty() {
            section id="figures" aria-labelledby="figures-h" {
                h2 id="figures-h" { "All figures" }
                p.reading { "Numbers in brackets lead to the doubts below." }
                @for group in view::groups(result) {
                    (region(&view::group_table(&group, notes, Detail::Full)))
                }
            }
        }
    }
}

fn doubts(notes: &Notes) -> Markup {
    const SHOWN_MAX: usize = 3;
    let occurrence = |(series, detail): &(Option<String>, String)| {
        html! {
            li { @if let Some(series) = series { b { (series) } ": " } (detail) }
        }
    };
    html! {
        @if !notes.notes.is_empty() {
            section id="doubts" aria-labelledby="doubts-h" {
                h2 id="doubts-h" { "Doubts" }
                p.reading { "Reasons to distrust a number, with cause and remedy." }
                ol.doubts {
                    @for (index, note) in notes.notes.iter().enumerate() {
                        li {
                            h3 { "[" (index + 1) "] " (note.kind.title()) }
                            p { b { "Cause: " } (note.kind.cause()) "." }
                            p { b { "Remedy: " } (note.kind.remedy()) "." }
                            @let (shown, rest) =
                                note.occurrences.split_at(note.occurrences.len().min(SHOWN_MAX));
                            ul { @for entry in shown { (occurrence(entry)) } }
                            @if !rest.is_empty() {
                                details {
                                    summary {
                                        (rest.len()) " more"
                                        " with " (note.kind.title())
                                    }
                                    ul { @for entry in rest { (occurrence(entry)) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn endpoints(result: &RunResult) -> Markup {
    let placements = facts::placements(&result.series);
    html! {
        @if !result.facts.is_empty() || !placements.rows.is_empty() || !result.notes.is_empty() {
            section id="endpoints" aria-labelledby="endpoints-h" {
                h2 id="endpoints-h" { "Endpoints" }
                @if !result.facts.is_empty() { (facts_table(result)) }
                @if !placements.rows.is_empty() {
                    details { summary { "Where the hot threads ran" } (region(&placements)) }
                }
                @if !result.notes.is_empty() {
                    dl.notes {
                        @for (name, text) in &result.notes { div { dt { (name) } dd { (text) } } }
                    }
                }
            }
        }
    }
}

/// Equal rows once over all columns, differing rows marked by sign, word and colour.
fn facts_table(result: &RunResult) -> Markup {
    let endpoints = facts::endpoints(result);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Facts of the endpoints" {
            table.facts {
                caption { "Facts of the endpoints. ≠ marks rows in which they differ." }
                thead { tr {
                    th scope="col" { "fact" }
                    @for endpoint in &endpoints { th scope="col" { (endpoint) } }
                } }
                tbody { @for row in facts::rows(result) {
                    @if row.is_equal() {
                        tr {
                            th scope="row" { (row.name) }
                            td colspan=(endpoints.len()) { (row.values[0]) }
                        }
                    } @else {
                        tr.differs {
                            th scope="row" {
                                (row.name) " "
                                span.mark role="img" aria-label="differs" { "≠" }
                            }
                            @for value in &row.values { td { (value) } }
                        }
                    }
                } }
            }
        }
    }
}

fn references_section(references: &[RunResult]) -> Markup {
    let mut table = Table::new("Runs drawn faintly beside", &["run", "made by", "known of it"]);
    for run in references {
        let known: Vec<String> =
            run.notes.iter().map(|(name, text)| format!("{name}: {text}")).collect();
        table.push(
            Tone::Faint,
            vec![run.name.clone(), view::source_text(&run.source), known.join("; ")],
        );
    }
    html! {
        @if !references.is_empty() {
            section id="references" aria-labelledby="references-h" {
                h2 id="references-h" { "Reference runs" }
                p.reading {
                    "Drawn only beside series of the same probe and the same statistic. They ran \
                     on other machines: they show what to expect and judge nothing."
                }
                (region(&table))
            }
        }
    }
}

fn missing(result: &RunResult) -> Markup {
    html! {
        @if !result.not_available.is_empty() || !result.failures.is_empty() {
            section id="missing" aria-labelledby="missing-h" {
                h2 id="missing-h" { "Not measured" }
                @if !result.not_available.is_empty() {
                    (region(&view::not_available_table(result)))
                }
                @if !result.failures.is_empty() {
                    h3 { "Failed trials" }
                    ul { @for failure in &result.failures { li { (failure.to_string()) } } }
                }
            }
        }
    }
}

fn method(result: &RunResult) -> Markup {
    html! {
        section id="method" aria-labelledby="method-h" {
            h2 id="method-h" { "Method" }
            ul { @for note in view::method_notes(result) { li { (note) } } }
        }
    }
}

/// What the page's copy of the result leaves out, largest first.
const LEFT_OUT: [&str; 3] = ["nothing", "histograms", "histograms, slices and placements"];

/// The result as JSON, thinned step by step until it is small enough for one page.
fn embed(result: &RunResult) -> Markup {
    let mut copy = result.clone();
    let mut json = json_of(&copy);
    let mut step = 0;
    while json.len() > EMBEDDED_BYTES_MAX && step + 1 < LEFT_OUT.len() {
        step += 1;
        thin(&mut copy, step);
        json = json_of(&copy);
    }
    html! {
        @if step > 0 {
            p.reading {
                "This page holds a copy of the result without " (LEFT_OUT[step])
                ", to stay small; result.json beside it has everything."
            }
        }
        script type="application/json" id="result" data-without=(LEFT_OUT[step]) {
            (PreEscaped(json))
        }
    }
}

/// JSON in which no `<` is left, so that nothing in it can end the script element.
fn json_of(result: &RunResult) -> String {
    serde_json::to_string(result).unwrap_or_default().replace('<', "\\u003c")
}

fn thin(result: &mut RunResult, step: usize) {
    for round in result.series.iter_mut().flat_map(|s| &mut s.rounds) {
        if step >= 2 {
            round.placements.clear();
        }
        if let RoundData::Latency(data) = &mut round.data {
            data.histogram = None;
            if step >= 2 {
                data.slices.clear();
            }
        }
    }
}

/// The JSON text of the result in a report made by [`report`], if there is one.
pub fn embedded(page: &str) -> Option<&str> {
    let start = page.rfind("<script type=\"application/json\" id=\"result\"")?;
    let (_, rest) = page[start..].split_once('>')?;
    rest.split_once("</script>").map(|(json, _)| json)
}
