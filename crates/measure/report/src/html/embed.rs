//! The result inside its own report.

use maud::{Markup, PreEscaped, html};
use nm_model::RunResult;
use nm_model::jitter::JitterRound;
use nm_model::result::RoundData;

/// Most bytes of the result inside the page.
const EMBEDDED_BYTES_MAX: usize = 512 * 1024;

/// What the page's copy of the result leaves out, largest first.
const LEFT_OUT: [&str; 4] = [
    "nothing",
    "histograms",
    "histograms, slices and placements",
    "histograms, slices, placements and the details of single rounds' doubts",
];

/// The result as JSON, thinned step by step until it is small enough for one page.
pub fn embed(result: &RunResult) -> Markup {
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
    let with_factors = result.factors.iter_mut().flat_map(|factor| &mut factor.series);
    let all = result.series.iter_mut().chain(with_factors);
    for round in all.flat_map(|series| &mut series.rounds) {
        if step >= 2 {
            round.placements.clear();
        }
        if step >= 3 {
            // The doubts of a series tell what its rounds' doubts have in common.
            round.doubts.iter_mut().for_each(|doubt| doubt.detail.clear());
        }
        if let RoundData::Latency(data) = &mut round.data {
            data.histogram = None;
            if step >= 2 {
                data.slices.clear();
            }
            if let Some(jitter) = &mut data.jitter {
                thin_jitter(jitter, step);
            }
        }
    }
}

fn thin_jitter(jitter: &mut JitterRound, step: usize) {
    jitter.lost_histogram = None;
    for cpu in &mut jitter.cpus {
        cpu.histogram = None;
        if step >= 2 {
            cpu.slices.clear();
        }
    }
}

/// The JSON text of the result in a report, if there is one.
pub fn embedded(page: &str) -> Option<&str> {
    let start = page.rfind("<script type=\"application/json\" id=\"result\"")?;
    let (_, rest) = page[start..].split_once('>')?;
    rest.split_once("</script>").map(|(json, _)| json)
}
