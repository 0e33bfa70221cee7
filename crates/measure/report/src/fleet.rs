//! A fleet as text, as CSV, for CI and monitoring, and as tables. The page is in `html`.

pub mod junit;
pub mod openmetrics;

use nm_fleet::result::{FleetResult, HostResult, PairResult, Ratio};
use nm_model::result::RunState;

use crate::csv;
use crate::style::{Style, Tone, clean};
use crate::table::{Column, Table};
use crate::units;

/// File with the result, for programs.
pub const FLEET: &str = "fleet.json";

/// File with the pairs, for tables.
pub const FLEET_CSV: &str = "fleet.csv";

/// File with a test case for each host and trial.
pub const FLEET_JUNIT: &str = "junit.xml";

/// File with the figures for monitoring.
pub const FLEET_METRICS: &str = "metrics.prom";

/// File with the page.
pub const FLEET_PAGE: &str = "fleet.html";

/// Most hosts, outliers and reasons that the text has, each.
const LINES_MAX: usize = 3;

/// Most characters of a sentence of the text: two lines of a terminal.
const SENTENCE_CHARS_MAX: usize = 190;

/// `FAIL: fleet of 16 hosts, plan two-hosts, pairs all: 119 of 120 trials measured`.
pub fn title(found: &FleetResult) -> String {
    let interrupted = match found.state {
        RunState::Complete => "",
        RunState::Interrupted | RunState::Running => ", ended before its end",
    };
    format!(
        "fleet of {}, plan {}, pairs {}: {} of {} measured{interrupted}",
        units::plural(found.hosts.len(), "host", "hosts"),
        found.plan,
        found.pairs_chosen,
        found.n_measured(),
        units::plural(found.pairs.len(), "trial", "trials"),
    )
}

/// The summary for a terminal: at most 30 lines of 100 columns.
pub fn text(found: &FleetResult, style: &Style, folder: &str) -> String {
    let outcome = found.outcome.to_string().to_uppercase();
    let mut lines =
        vec![format!("{}: {}", style.tone(found.outcome.into(), &outcome), clean(&title(found)))];
    for figure in &found.figures {
        lines.push(format!(
            "{} of {}: the median pair takes {}, and pairs vary by {:.1} % beside what their hosts \
             explain",
            figure.metric,
            figure.series,
            units::latency(figure.fleet_ns),
            figure.scale_percent
        ));
    }
    let sentences = found.sentences();
    let sentences: Vec<String> = sentences.into_iter().map(str::to_string).collect();
    let none = "No host and no pair stands out.";
    some_of(&mut lines, "Outliers:", &sentences, Some(none));
    let ratio = |host: &&HostResult| {
        format!("{} {}", host.host.name, host.ratios.first().map_or(String::new(), ratio_text))
    };
    let slowest: Vec<String> = found.ranking().iter().map(ratio).collect();
    some_of(&mut lines, "Slowest hosts, their median to the fleet's:", &slowest, None);
    let aside: Vec<String> =
        found.set_aside().map(|(name, reason)| format!("{name}: {reason}")).collect();
    some_of(&mut lines, "Set aside:", &aside, None);
    lines.push(format!("report: {folder}/{FLEET_PAGE}"));
    lines.join("\n") + "\n"
}

/// Adds the first of `all` below a heading; if there are none, `none`.
fn some_of(lines: &mut Vec<String>, heading: &str, all: &[String], none: Option<&str>) {
    if all.is_empty() {
        lines.extend(none.map(str::to_string));
        return;
    }
    lines.push(heading.to_string());
    for one in all.iter().take(LINES_MAX) {
        let complete = clean(one);
        let short: String = complete.chars().take(SENTENCE_CHARS_MAX).collect();
        let rest = if short.len() < complete.len() { "…" } else { "" };
        lines.push(format!("  {short}{rest}"));
    }
    if all.len() > LINES_MAX {
        lines.push(format!("  and {} more, on the page", all.len() - LINES_MAX));
    }
}

/// `1.40 (1.31 to 1.50)`.
pub(crate) fn ratio_text(ratio: &Ratio) -> String {
    format!("{:.2} ({:.2} to {:.2})", ratio.ratio, ratio.low, ratio.high)
}

/// First line of [`csv`].
const HEADING: &str = "client,server,outcome,median_ns,p99_ns,reason";

/// A line for each trial.
pub fn csv(found: &FleetResult) -> String {
    let mut text = format!("{HEADING}\n");
    for pair in &found.pairs {
        let figure = |ns: Option<f64>| ns.map_or(String::new(), |ns| ns.to_string());
        let cells = [
            csv::quoted(&csv::as_text(&pair.client)),
            csv::quoted(&csv::as_text(&pair.server)),
            outcome_text(pair),
            figure(pair.median_ns),
            figure(pair.p99_ns),
            csv::quoted(&csv::as_text(pair.reason.as_deref().unwrap_or_default())),
        ];
        text += &cells.join(",");
        text.push('\n');
    }
    text
}

fn outcome_text(pair: &PairResult) -> String {
    pair.outcome.map_or(String::new(), |outcome| outcome.to_string())
}

/// The hosts, the slowest first, and those without a figure at the end.
pub fn hosts_table(found: &FleetResult) -> Table {
    let caption =
        "hosts by their effect on the median, as a ratio to the median host (95 % interval)";
    let titles = [
        Column::text("host"),
        Column::figure("median"),
        Column::figure("p99"),
        Column::figure("pairs measured"),
        Column::text("verdict"),
        Column::text("groups"),
        Column::text("set aside because"),
    ];
    let mut table = Table::new(caption, titles);
    let without = found.hosts.iter().filter(|host| host.ratios.is_empty());
    for host in found.ranking().into_iter().chain(without) {
        let ratio = |at: usize| host.ratios.get(at).map_or("–".to_string(), ratio_text);
        let cells = vec![
            host.host.name.clone(),
            ratio(0),
            ratio(1),
            host.n_measured.to_string(),
            host.outcome.to_string(),
            host.host.groups.join(", "),
            host.set_aside.clone().unwrap_or_default(),
        ];
        table.push(Tone::from(host.outcome), cells);
    }
    table
}

/// The trials, in the order of the rounds.
pub fn pairs_table(found: &FleetResult) -> Table {
    let caption = "trials in the order of their rounds, half round trip or what the plan measures";
    let titles = [
        Column::text("client"),
        Column::text("server"),
        Column::text("verdict"),
        Column::figure("median"),
        Column::figure("p99"),
        Column::text("without a result because"),
    ];
    let mut table = Table::new(caption, titles);
    for pair in &found.pairs {
        let figure = |ns: Option<f64>| ns.map_or("–".to_string(), units::latency);
        let cells = vec![
            pair.client.clone(),
            pair.server.clone(),
            outcome_text(pair),
            figure(pair.median_ns),
            figure(pair.p99_ns),
            pair.reason.clone().unwrap_or_default(),
        ];
        table.push(pair.outcome.map_or(Tone::Faint, Tone::from), cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use nm_fleet::hosts::parse_list;
    use nm_fleet::pairs::{Pairs, rounds};
    use nm_fleet::result::{FleetRequest, Measured, result};
    use nm_fleet::schedule::Fate;
    use nm_model::Outcome;

    use super::*;
    use crate::html;

    /// Constructed results of `n` hosts; one is slow, and one is set aside.
    pub(crate) fn constructed(n: usize) -> FleetResult {
        let request = FleetRequest {
            plan: "two-hosts".into(),
            pairs: "all".into(),
            both_ways: false,
            seed: 1,
            parallel: 4,
            controller: None,
            hosts: parse_list(&format!("node[001-{n:03}]")).unwrap(),
        };
        let trial = |pair: nm_fleet::Pair| {
            if pair.ends().contains(&2) {
                return (pair, Fate::NotTried(2), None);
            }
            let slow = if pair.ends().contains(&7) { 1.4 } else { 1.0 };
            let noise = 1.0 + ((pair.client * 31 + pair.server * 17) % 13) as f64 / 200.0;
            let measured = Measured {
                series: "ssh/tcp-spin pingpong 64 B".into(),
                figures_ns: [Some(9_000.0 * slow * noise), Some(30_000.0 * noise)],
                outcome: Outcome::Pass,
                facts: [None, None],
            };
            (pair, Fate::Measured, Some(measured))
        };
        let all = rounds(n, Pairs::All, false, 0).unwrap().concat();
        let trials: Vec<_> = all.into_iter().map(trial).collect();
        let aside = [(2, "host node003 cannot be reached: <b>no route</b>".to_string())];
        result(&request, "0", RunState::Complete, &trials, &aside)
    }

    #[test]
    fn the_summary_has_verdict_outlier_ranking_and_reasons_in_30_lines() {
        let text = text(&constructed(24), &Style { colour: false, width: 100 }, "out");
        assert!(text.starts_with("INCONCLUSIVE: fleet of 24 hosts, plan two-hosts"), "{text}");
        for words in [
            "253 of 276 trials measured",
            "node008: its median is 1.4",
            "node003: host node003 cannot be reached",
            "report: out/fleet.html",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let n_lines: usize = text.lines().map(|line| line.chars().count().div_ceil(100)).sum();
        assert!(n_lines <= 30, "{text}");
    }

    #[test]
    fn the_csv_has_a_line_for_each_trial() {
        let text = csv(&constructed(8));
        assert_eq!(text.lines().count(), 1 + 28);
        assert!(text.contains("not tried, as node003 was set aside"), "{text}");
        assert!(text.lines().all(|line| !line.is_empty()));
    }

    #[test]
    fn junit_has_a_case_for_each_host_and_trial_and_never_passes_what_has_no_result() {
        let mut found = constructed(8);
        found.hosts[3].outcome = Outcome::Fail;
        found.pairs[0].outcome = Some(Outcome::Fail);
        let text = junit::document(&found);
        assert!(text.contains("tests=\"36\" failures=\"2\" errors=\"1\" skipped=\"7\""), "{text}");
        let aside = "<error type=\"failed\" message=\"set aside: host node003 cannot be reached: \
                     &lt;b&gt;no route&lt;/b&gt;\"/>";
        assert!(text.contains(aside), "{text}");
        assert!(text.contains("message=\"0 of 6 measured pairs missed a target\""), "{text}");
        assert!(text.contains("not tried, as node003 was set aside"), "{text}");
    }

    #[test]
    fn metrics_have_each_host_and_each_measured_pair() {
        let text = openmetrics::text(&constructed(8));
        let n_lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(n_lines("nearmetal_fleet_host_verdict{"), 8 * 3);
        assert_eq!(n_lines("nearmetal_fleet_pair_latency_seconds{"), 21 * 2);
        assert_eq!(n_lines("nearmetal_fleet_host_ratio{"), 7 * 2 * 3);
        let aside = "nearmetal_fleet_host_set_aside{host=\"node003\"} 1.0";
        assert!(text.contains(aside) && text.ends_with("# EOF\n"), "{text}");
    }

    /// All pairs of 256 hosts: 32,640.
    #[test]
    fn a_page_of_256_hosts_is_at_most_20_mb_and_has_everything() {
        let found = constructed(256);
        let page = html::fleet(&found);
        assert!(page.len() <= 20_000_000, "{} bytes", page.len());
        assert!(page.contains("node008: its median is 1.4"), "no outlier");
        assert!(page.contains("&lt;b&gt;no route&lt;/b&gt;") && !page.contains("<b>no route"));
        assert!(!page.contains("<script") && !page.contains("http://"), "the page needs nothing");
        assert!(page.matches("<tr").count() > 32_640 + 256, "a row for each trial and host");
    }
}
