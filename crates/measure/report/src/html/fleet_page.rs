//! The page of a fleet: verdict, outliers in sentences, a map of its pairs, hosts, reasons, trials.

use std::collections::BTreeMap;

use maud::{Markup, PreEscaped, html};
use nm_fleet::result::FleetResult;
use nm_model::Outcome;

use super::badge::badge;
use super::page::{Page, folded, reading, section};
use super::region::region;
use crate::fleet::{hosts_table, pairs_table, title};
use crate::units;

/// Side of the map, in its own units.
const SIDE: usize = 512;

/// Limits of the map's classes, as ratios to the median pair; the last class has no upper one.
const CLASSES: [(f64, &str); 6] = [
    (0.9, "#2166ac"),
    (1.05, "#92c5de"),
    (1.2, "#fddbc7"),
    (1.5, "#f4a582"),
    (2.0, "#d6604d"),
    (f64::INFINITY, "#8b0f22"),
];

/// Colour of pairs without a result.
const NO_RESULT: &str = "#777777";

/// The page of `found`.
pub fn page(found: &FleetResult) -> String {
    let heading = title(found);
    let page = Page {
        title: format!("{}: {heading} · nearmetal", found.outcome.to_string().to_uppercase()),
        kind: "report of a fleet".to_string(),
        heading: &heading,
        first: "verdict",
        footer: html! { p { "Made by nearmetal " (found.nearmetal_version) "." } },
    };
    let sections = html! {
        (section("verdict", "Verdict", &verdict(found)))
        (section("outliers", "What stands out", &outliers(found)))
        (section("map", "Map of the pairs", &map(found)))
        (section("hosts", "Hosts", &region(&hosts_table(found))))
        (section("aside", "Hosts that were set aside", &aside(found)))
        (section("trials", "Trials", &folded("All trials", &region(&pairs_table(found)))))
    };
    page.with(&sections, &html! {})
}

fn verdict(found: &FleetResult) -> Markup {
    let n = |outcome: Outcome| found.pairs.iter().filter(|it| it.outcome == Some(outcome)).count();
    let n_without = found.pairs.len() - found.n_measured();
    html! {
        p.sentence { (badge(found.outcome)) }
        p {
            (n(Outcome::Pass)) " trials pass, " (n(Outcome::Fail)) " fail, "
            (n(Outcome::Inconclusive)) " are inconclusive, and " (n_without) " have no result."
        }
        @for figure in &found.figures {
            p {
                (figure.metric) " of " (figure.series) ": the median pair takes "
                (units::latency(figure.fleet_ns)) ", and pairs vary by "
                (format!("{:.1}", figure.scale_percent)) " % beside what their hosts explain."
            }
        }
    }
}

fn outliers(found: &FleetResult) -> Markup {
    let sentences = found.sentences();
    html! {
        @if sentences.is_empty() {
            p { "No host and no pair stands out." }
        } @else {
            ul { @for sentence in &sentences { li { (sentence) } } }
        }
        (reading(
            "Each pair's figure is split into an effect of each of its hosts and what is left. A \
             host stands out by its effect, a pair by what is left, beyond what the largest one of \
             a fleet without outliers is in 99 of 100 simulated fleets, and by 5 % at least. Only \
             hosts with three pairs or more are judged, in fleets of five such hosts or more. What \
             a host alone has need not be the cause.",
        ))
    }
}

/// The first figure of each pair, as a ratio to the median pair.
fn map(found: &FleetResult) -> Markup {
    let Some(figure) = found.figures.first() else {
        return html! { p { "Nothing was measured." } };
    };
    let n = found.hosts.len();
    let at: BTreeMap<&str, usize> =
        found.hosts.iter().enumerate().map(|(at, host)| (host.host.name.as_str(), at)).collect();
    let mut cells: BTreeMap<usize, String> = BTreeMap::new();
    for pair in &found.pairs {
        let class = match pair.median_ns {
            Some(ns) => {
                let ratio = ns / figure.fleet_ns;
                CLASSES.iter().position(|(limit, _)| ratio < *limit).unwrap_or(CLASSES.len() - 1)
            }
            None => CLASSES.len(),
        };
        let (client, server) = (at[pair.client.as_str()], at[pair.server.as_str()]);
        let mut places = vec![(client, server)];
        if !found.both_ways {
            places.push((server, client));
        }
        let path = cells.entry(class).or_default();
        places.iter().for_each(|(x, y)| *path += &format!("M{x} {y}h1v1h-1z"));
    }
    let colour = |class: usize| CLASSES.get(class).map_or(NO_RESULT, |(_, colour)| *colour);
    let label = format!(
        "Map: {} of each pair, client across and server down, in the order of the list; the table \
         of trials has the figures",
        figure.metric
    );
    html! {
        p {
            "Client across, server down, in the order of the list: " (found.hosts[0].host.name)
            " is first, " (found.hosts[n - 1].host.name) " last. A host that is slow is a cross, \
            a pair that is slow a spot. The figures are in the table of trials below."
        }
        svg viewBox=(format!("0 0 {n} {n}")) width=(SIDE) height=(SIDE) role="img"
            aria-label=(label) style="max-width:100%;height:auto;border:1px solid var(--line)"
            shape-rendering="crispEdges" {
            @for (class, path) in &cells { path d=(PreEscaped(path)) fill=(colour(*class)) {} }
        }
        ul style="list-style:none;padding:0" {
            @for class in 0..=CLASSES.len() {
                li {
                    span aria-hidden="true" style=(format!("color:{}", colour(class))) { "■" } " "
                    (class_text(class))
                }
            }
        }
    }
}

/// What a class of the map holds.
fn class_text(class: usize) -> String {
    let limit = |at: usize| CLASSES[at].0;
    match class {
        0 => format!("less than {} times the median pair", limit(0)),
        _ if class == CLASSES.len() => "no result".to_string(),
        _ if limit(class).is_infinite() => format!("{} times or more", limit(class - 1)),
        _ => format!("{} to {} times", limit(class - 1), limit(class)),
    }
}

fn aside(found: &FleetResult) -> Markup {
    let all: Vec<(&str, &str)> = found.set_aside().collect();
    html! {
        @if all.is_empty() {
            p { "None." }
        } @else {
            ul { @for (name, reason) in &all { li { b { (name) } ": " (reason) } } }
        }
    }
}
