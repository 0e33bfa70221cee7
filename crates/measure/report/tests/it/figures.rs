//! Charts and tables show one statistic. What a chart's table says is what the table of all figures
//! says. Limits of targets are drawn, and a stack looks the same in every chart.

use std::collections::BTreeMap;

use nm_model::Metric;
use nm_model::result::{PercentileValue, RoundData, RunResult};
use nm_report::group_table::group_table;
use nm_report::probes::pingpong::matrix::Matrix;
use nm_report::view::{self, Detail, Notes};
use nm_report::{csv, folder, html, markdown, openmetrics, terminal};

use crate::fixture::{self, SMALL};

/// A table of a page: caption, titles and rows.
struct PageTable {
    caption: String,
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The text of an element, with its markup taken out.
fn text(markup: &str) -> String {
    let mut text = String::new();
    let mut is_markup = false;
    for letter in markup.chars() {
        match letter {
            '<' => is_markup = true,
            '>' => is_markup = false,
            letter if !is_markup => text.push(letter),
            _ => {}
        }
    }
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// The elements `name` of a piece of a page, with their markup inside.
fn elements<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let starts = [format!("<{name}>"), format!("<{name} ")];
    let end = format!("</{name}>");
    let mut found = vec![];
    let mut rest = page;
    while let Some(at) = starts.iter().filter_map(|start| rest.find(start)).min() {
        let inside = &rest[at..];
        let length = inside.find(&end).expect("the element is closed");
        found.push(inside[..length].split_once('>').unwrap().1);
        rest = &inside[length..];
    }
    found
}

fn tables(page: &str) -> Vec<PageTable> {
    let table = |table: &str| {
        let rows: Vec<Vec<String>> = elements(table, "tr")
            .into_iter()
            .map(|row| {
                let first = elements(row, "th").into_iter().map(text);
                first.chain(elements(row, "td").into_iter().map(text)).collect()
            })
            .collect();
        let (titles, rows) = rows.split_first().expect("a head");
        PageTable {
            caption: text(elements(table, "caption")[0]),
            titles: titles.clone(),
            rows: rows.to_vec(),
        }
    };
    elements(page, "table").into_iter().map(table).collect()
}

fn page_of(run: &RunResult) -> String {
    html::report(run, &[fixture::reference()])
}

/// ns of the unit at the end of a caption; `None` for tables of something else.
fn unit_ns(caption: &str) -> Option<f64> {
    let known = [(", ns", 1.0), (", µs", 1e3), (", ms", 1e6), (", s", 1e9), (", Gb/s", 1.0)];
    known.iter().find(|(end, _)| caption.ends_with(end)).map(|(_, unit)| *unit)
}

/// The figures of the tables of all figures: environment/stack, case and statistic → column → ns
/// with half of the last digit.
type Figures = BTreeMap<(String, String, String), BTreeMap<String, Option<(f64, f64)>>>;

/// A cell as a number, and half of its last digit.
fn number(cell: &str, unit_ns: f64) -> Option<(f64, f64)> {
    let value: f64 = cell.parse().ok()?;
    let decimals = cell.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    Some((value * unit_ns, 0.5000001 * 10f64.powi(-(decimals as i32)) * unit_ns))
}

fn all_figures(run: &RunResult) -> Figures {
    let notes = Notes::collect(run);
    let mut figures = Figures::new();
    for group in view::groups(run) {
        let table = group_table(&group, &notes, Detail::Full);
        let unit = match group.statistic {
            nm_model::result::Statistic::Throughput => 1.0,
            _ => unit_ns(&table.caption).unwrap(),
        };
        for row in &table.rows {
            let stack = format!("{}/{}", group.environment, row.cells[0]);
            let key = (stack, row.cells[1].clone(), group.statistic.label().to_string());
            let cells = table.columns.iter().zip(&row.cells);
            let cells = cells.map(|(column, cell)| (column.title.clone(), number(cell, unit)));
            figures.insert(key, cells.collect());
        }
    }
    figures
}

/// The figures of the series that a row of a chart's table is of.
fn figures_of<'f>(
    figures: &'f Figures,
    table: &PageTable,
    row: &[String],
) -> &'f BTreeMap<String, Option<(f64, f64)>> {
    let at = |title: &str| table.titles.iter().position(|t| t == title);
    let size = at("size").map_or(String::new(), |at| row[at].clone());
    let found: Vec<_> = figures
        .iter()
        .filter(|((stack, case, statistic), _)| {
            let size_of_case = case.split(" at ").next().unwrap().split(" B at").next().unwrap();
            let has_case = row[0].ends_with(&format!(" {case}"))
                || size == *case
                || table.caption.contains(&format!(" {size_of_case} ·"));
            row[0].split(' ').next() == Some(stack)
                && has_case
                && row[0].contains("intended") == statistic.contains("intended")
        })
        .map(|(_, cells)| cells)
        .collect();
    assert_eq!(found.len(), 1, "{} {row:?}", table.caption);
    found[0]
}

#[test]
fn the_table_of_every_chart_has_the_numbers_of_all_figures() {
    let run = fixture::result(SMALL);
    let figures = all_figures(&run);
    let (mut n_rows, mut kinds) = (0, std::collections::BTreeSet::new());
    for table in tables(&page_of(&run)).iter().filter(|table| table.titles[0] == "series") {
        let Some(unit) = unit_ns(&table.caption) else { continue };
        let round = table.titles.iter().position(|title| title == "round");
        for row in &table.rows {
            let is_round = round.is_some_and(|at| row[at] != "all");
            if row[0].starts_with("reference") || is_round {
                continue;
            }
            let known = figures_of(&figures, table, row);
            for (title, cell) in table.titles.iter().zip(row) {
                // Titles of several words are lists and texts.
                let is_figure = !title.contains(' ');
                let Some(expected) = known.get(title).filter(|_| is_figure) else { continue };
                let shown = number(cell, unit);
                let is_equal = match (expected, shown) {
                    (Some((a, half_a)), Some((b, half_b))) => (a - b).abs() <= half_a + half_b,
                    (None, None) => true,
                    _ => false,
                };
                assert!(is_equal, "{title} of {row:?} in {}: {expected:?}", table.caption);
                kinds.insert(title.clone());
            }
            n_rows += 1;
        }
    }
    assert!(n_rows > 40, "{n_rows} rows compared");
    assert!(["median", "p99", "min", "max"].iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
}

/// The made-up result in which the third round of every series is too short for p99.
fn with_a_short_round() -> RunResult {
    let mut run = fixture::result(SMALL);
    for series in &mut run.series {
        series.estimates.clear();
        for (number, round) in series.rounds.iter_mut().enumerate() {
            let RoundData::Latency(data) = &mut round.data else { continue };
            let p999 = (number == 2).then(|| data.min_ns.unwrap() / 2.0);
            data.percentiles.retain(|p| p.percentile < 99.0);
            let known = |percentile, value_ns| PercentileValue {
                percentile,
                value_ns,
                low_ns: None,
                high_ns: None,
            };
            data.percentiles.push(known(99.0, data.max_ns.filter(|_| number != 2)));
            data.percentiles.push(known(99.9, p999));
        }
    }
    run
}

#[test]
fn no_format_shows_a_percentile_that_some_rounds_lack() {
    let mut run = with_a_short_round();
    for series in &mut run.series {
        nm_stats::estimate(series);
    }
    for series in &run.series {
        for percentile in [99.0, 99.9] {
            assert_eq!(view::value(series, Metric::Percentile(percentile)), None);
            assert_eq!(series.estimate(Metric::Percentile(percentile)), None);
        }
    }
    let table = group_table(&view::groups(&run)[0], &Notes::collect(&run), Detail::Full);
    for title in ["p99", "p99.9"] {
        let at = table.columns.iter().position(|column| column.title == title).unwrap();
        assert!(table.rows.iter().all(|row| row.cells[at] == "n/a"), "{title}");
    }
    assert!(!openmetrics::text(&run).contains("quantile=\"0.99"));
    let all_rounds = |line: &&str| line.contains(",all,p99");
    assert_eq!(csv::long(&run).lines().filter(all_rounds).count(), 0);
}

#[test]
fn an_old_result_loses_the_estimates_that_rest_on_some_rounds() {
    let mut run = with_a_short_round();
    for series in &mut run.series {
        let all = std::mem::take(&mut series.rounds);
        series.rounds = vec![all[2].clone()];
        nm_stats::estimate(series);
        series.rounds = all;
    }
    let series = |run: &RunResult| run.series[0].clone();
    assert!(series(&run).estimate(Metric::Percentile(99.9)).is_some());
    let json = serde_json::to_string(&run).unwrap();
    let read = folder::parse(&json, "old.json").unwrap();
    assert_eq!(series(&read).estimate(Metric::Percentile(99.9)), None);
    assert!(series(&read).estimate(Metric::Median).is_some());
}

#[test]
fn limits_of_targets_are_drawn_where_they_cover_a_series() {
    let page = page_of(&fixture::result(SMALL));
    let figures = elements(&page, "figure");
    let of = |words: &[&str]| -> Vec<&&str> {
        let has_all = |f: &&&str| {
            let caption = text(elements(f, "figcaption")[0]);
            words.iter().all(|word| caption.contains(word))
        };
        figures.iter().filter(has_all).collect()
    };
    let limits = |figure: &str| -> Vec<String> {
        let texts = figure.split("<text class=\"lt\"").skip(1);
        texts.map(|t| text(&format!("<{}", t.split("</text>").next().unwrap()))).collect()
    };
    // The evidence of this target names tcp-spin on loopback only, one of two stacks.
    let size = of(&["pingpong 64 B · loopback", "by percentile"]);
    assert_eq!(limits(size[0]), ["median < 6 µs, for 1 of 2", "p99.99 ≤ 50 µs, for 1 of 2"]);
    let rounds = of(&["pingpong 64 B · loopback", "of every round"]);
    assert_eq!(limits(rounds[0]), ["median < 6 µs"]);
    let drift = of(&["pingpong 64 B · loopback", "by round"]);
    assert_eq!(limits(drift[0]), ["median < 6 µs, for 1 of 2"]);
    let sweep = of(&["pingpong · loopback", "by message size"]);
    assert_eq!(limits(sweep[0]), ["median < 6 µs, for 1 of 2"]);
    for other in of(&["netns", "half round trip"]) {
        assert!(limits(other).is_empty());
    }
}

#[test]
fn a_stack_has_one_look_in_all_charts() {
    let page = page_of(&fixture::result(SMALL));
    let mut looks: BTreeMap<String, std::collections::BTreeSet<String>> = BTreeMap::new();
    for figure in elements(&page, "figure") {
        let points = figure.split("<path class=\"point ").skip(1);
        for part in points {
            let (look, rest) = part.split_once('"').unwrap();
            let Some((_, label)) = rest.split_once("</path><text") else { continue };
            let label = text(&format!("<{}", label.split("</text>").next().unwrap()));
            let Some((_, stack)) = label.split_once('/') else { continue };
            looks.entry(stack.to_string()).or_default().insert(look.to_string());
        }
    }
    assert!(looks.len() >= 4, "{looks:?}");
    assert!(looks.values().all(|of_stack| of_stack.len() == 1), "{looks:?}");
    assert_ne!(looks["tcp-spin"], looks["udp-blocking"]);
}

#[test]
fn a_sweep_has_three_sizes_and_drift_is_by_round() {
    let page = page_of(&fixture::result(SMALL));
    assert!(page.contains("by message size") && page.contains("half round trip by round"));
    assert!(!page.contains("time since the start of the run"));
    let few = fixture::Size { sizes: &[64, 1024], ..SMALL };
    assert!(!page_of(&fixture::result(few)).contains("by message size"));
}

#[test]
fn columns_of_figures_have_one_precision() {
    let run = fixture::result(SMALL);
    let decimals = |cell: &str| cell.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let mut n_columns = 0;
    for table in tables(&page_of(&run)) {
        for (at, title) in table.titles.iter().enumerate().skip(1) {
            // Rows of equal facts have one cell for all endpoints.
            let cells = table.rows.iter().filter_map(|row| row.get(at).map(String::as_str));
            let figures: Vec<&str> = cells.filter(|cell| cell.parse::<f64>().is_ok()).collect();
            let Some(first) = figures.first() else { continue };
            let is_equal = figures.iter().all(|cell| decimals(cell) == decimals(first));
            assert!(is_equal, "{title} of {}: {figures:?}", table.caption);
            n_columns += 1;
        }
    }
    assert!(n_columns > 40, "{n_columns}");
}

#[test]
fn the_first_table_of_a_group_has_few_columns() {
    let run = fixture::result(SMALL);
    let notes = Notes::collect(&run);
    let table = group_table(&view::groups(&run)[0], &notes, Detail::Main);
    let titles: Vec<&str> = table.columns.iter().map(|column| column.title.as_str()).collect();
    assert_eq!(titles, ["stack", "case", "median", "p99", "rounds", "doubts"]);
}

#[test]
fn a_rate_that_is_not_shown_is_called_so_in_every_format() {
    let mut run = fixture::result(SMALL);
    let mut series = run.series.iter().find(|s| s.key.probe == nm_model::ProbeKind::Rr).cloned();
    let mut series = series.take().unwrap();
    series.key.probe = nm_model::ProbeKind::Exchange;
    series.key.stack = "2-2-2-2".into();
    series.rounds.truncate(1);
    run.series = vec![series];
    run.verdicts.clear();
    let words = "1000: not shown (1 round)";
    let style = nm_report::style::Style { colour: false, width: 200 };
    assert!(terminal::summary(&run, &style, None).contains(words));
    assert!(markdown::report(&run).contains(words));
    assert!(page_of(&run).contains(words));
}

#[test]
fn the_summary_matrix_groups_stacks_and_repeats_the_tables() {
    let size = fixture::Size { stacks: &["shm-spin", "xdp-spin", "tcp-spin"], ..SMALL };
    let mut run = fixture::result(size);
    // One stack that an environment lacks.
    run.series.retain(|s| s.key.path() != "netns/shm-spin");
    let matrix = Matrix::of(&run).unwrap();
    let notes = Notes::collect(&run);
    let table = matrix.table(&notes);
    assert_eq!(table.caption, "median / p99 of half round trip at 64 B, µs");
    let stacks: Vec<&str> = table.rows.iter().map(|row| row.cells[0].as_str()).collect();
    assert_eq!(stacks, ["tcp-spin", "xdp-spin", "shm-spin"]);
    assert_eq!(table.rows[2].cells[3], "n/a");
    assert_eq!(matrix.environments, ["loopback", "netns"]);
    let figures = all_figures(&run);
    for row in &table.rows {
        for (at, environment) in matrix.environments.iter().enumerate() {
            let Some((median, rest)) = row.cells[at + 2].split_once(" / ") else { continue };
            let path = format!("{environment}/{}", row.cells[0]);
            let known = &figures[&(path, "64 B".to_string(), "half round trip".to_string())];
            for (title, cell) in [("median", median), ("p99", rest.split(' ').next().unwrap())] {
                let (shown, half) = number(cell, 1e3).unwrap();
                let (expected, other) = known[title].unwrap();
                assert!((shown - expected).abs() <= half + other, "{title} of {row:?}");
            }
        }
    }
    assert!(markdown::report(&run).contains("median / p99 of half round trip at 64 B"));
    run.series.retain(|s| s.key.probe != nm_model::ProbeKind::Pingpong);
    assert_eq!(Matrix::of(&run), None);
}
