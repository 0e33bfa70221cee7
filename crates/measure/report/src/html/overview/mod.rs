//! One picture of all environments and stacks: a bar from median to p99 on a logarithmic axis, with
//! the limits of targets and published runs.

mod draw;
mod rows;

use maud::{Markup, html};
use nm_model::RunResult;

use super::region::region;
use crate::style::Tone;
use crate::svg::Axis;
use crate::table::{Column, Table};
use crate::units;
use crate::view::Notes;

use rows::{Group, Kind, Row};

/// The picture with its table; nothing if no latency was measured.
pub fn picture(result: &RunResult, references: &[RunResult], notes: &Notes) -> Markup {
    let groups = rows::groups(result, references, notes);
    if groups.is_empty() {
        return html! {};
    }
    let rows = || groups.iter().flat_map(|group| &group.rows);
    let values: Vec<f64> = rows()
        .flat_map(|row| {
            let limits = row.limits.iter().map(|limit| limit.ns);
            [row.median_ns].into_iter().chain(row.p99_ns).chain(limits)
        })
        .collect();
    let axis = Axis::log("", &values, units::latency_tick);
    let description = description(&groups);
    let has_published = rows().any(|row| row.kind == Kind::Published);
    let has_doubts = rows().any(|row| !row.doubts.is_empty());
    let has_failing = rows().any(|row| row.is_failing);
    let has_limits = rows().any(|row| !row.limits.is_empty());
    html! {
        figure.overview {
            figcaption { "Median to p99 of each environment and stack" }
            div.wide { (draw::draw(&groups, &axis, &draw::WIDE, &description)) }
            div.narrow { (draw::draw(&groups, &axis, &draw::NARROW, &description)) }
            p.key {
                span.swatch.k0 {} " bar: median to p99, logarithmic; blue kernel, orange AF_XDP, \
                    green same host"
                @if has_doubts { " · " span.swatch.k0.hatched {} " with doubts" }
                @if has_limits { " · " span.swatch.line {} " limit of a target" }
                @if has_failing { " · ✗ fails a target" }
                @if has_published { " · " span.swatch.kf {} " published run" }
            }
            details {
                summary { "Table: median and p99 of each environment and stack" }
                (region(&table(&groups)))
            }
        }
    }
}

fn description(groups: &[Group]) -> String {
    let sentences: Vec<String> = groups
        .iter()
        .filter_map(|group| {
            let (first, last) = (group.rows.first()?, group.rows.last()?);
            let text = |row: &Row| {
                let p99 = units::or_not_available(row.p99_ns, units::latency);
                format!("{} with median {}, p99 {p99}", row.label, units::latency(row.median_ns))
            };
            Some(match group.rows.len() {
                1 => format!("{}: {}.", group.title, text(first)),
                n => format!("{}: {n} rows, from {} to {}.", group.title, text(first), text(last)),
            })
        })
        .collect();
    format!("{} The table below holds every value.", sentences.join(" "))
}

fn table(groups: &[Group]) -> Table {
    let titles = [
        Column::text("stack"),
        Column::text("environment and case"),
        Column::figure("median"),
        Column::figure("p99"),
        Column::text("limits").optional(),
        Column::doubts(),
        Column::text("target").optional(),
    ];
    let mut table = Table::new("Median and p99 of each environment and stack", titles);
    for group in groups {
        for row in &group.rows {
            let limits: Vec<&str> = row.limits.iter().map(|limit| limit.text.as_str()).collect();
            let tone = match row.kind {
                Kind::Measured => Tone::Plain,
                Kind::Published => Tone::Faint,
            };
            table.push(
                tone,
                vec![
                    row.label.clone(),
                    group.title.clone(),
                    units::latency(row.median_ns),
                    units::or_not_available(row.p99_ns, units::latency),
                    limits.join(", "),
                    row.doubts.clone(),
                    if row.is_failing { "fails" } else { "" }.to_string(),
                ],
            );
        }
    }
    table.drop_empty();
    table
}
