//! Which charts a result gets, and the table that goes with each.

pub(crate) mod bars;
mod drift;
pub(super) mod environments;
pub(crate) mod family;
pub(crate) mod figure;
pub(crate) mod limits;
mod percentiles;
mod rounds;
mod sweep;

use nm_model::RunResult;

use crate::probes::stream;

pub use figure::Figure;
pub use percentiles::of_best;

/// Charts of one kind under one heading.
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// How to read the charts, one or two sentences.
    pub reading: &'static str,
    /// The charts, by environment in order of first appearance.
    pub environments: Vec<EnvironmentFigures>,
}

/// The charts of a section for one environment.
pub struct EnvironmentFigures {
    /// The environment.
    pub environment: String,
    /// Its charts.
    pub figures: Vec<Figure>,
}

/// A chart and its environment.
type Placed = (String, Figure);

/// All sections of charts that have something to show.
pub fn sections(result: &RunResult, references: &[RunResult]) -> Vec<Section> {
    let families = family::families(result, references);
    let sections = [
        section(
            "Distribution",
            "How slow the slowest are: each step to the right leaves a tenth of the samples. A \
             line is the median of the rounds at each percentile, the figure of the tables; the \
             band around it reaches from the lowest to the highest round. Lines end where a round \
             has fewer than ten samples beyond; the dotted rest leads to the maximum of all \
             rounds.",
            families.iter().flat_map(percentiles::figures).collect(),
        ),
        section(
            "Size sweep",
            "Median by message size, with a band from the minimum to the 99th percentile and a \
             stroke at the maximum.",
            families.iter().flat_map(sweep::figures).collect(),
        ),
        section(
            "Throughput",
            "Bars are the median over rounds, divided by flow, with ± the standard deviation over \
             rounds; circles are the rounds.",
            stream::chart::figures(result, references),
        ),
        section(
            "Rounds",
            "Every round as a dot: groups of dots are modes, lone dots are outlying rounds.",
            families.iter().flat_map(rounds::figures).collect(),
        ),
        section(
            "Drift by round",
            "Median and 99th percentile of every round, in the order in which they ran, with the \
             medians of short slices of each round as a thin line. Slopes are warm-up, frequency, \
             heat or a neighbour.",
            families.iter().flat_map(drift::figures).collect(),
        ),
    ];
    let mut sections: Vec<Section> =
        sections.into_iter().filter(|section| !section.environments.is_empty()).collect();
    for (section, index) in sections.iter_mut().zip(1..) {
        let figures = section.environments.iter_mut().flat_map(|one| &mut one.figures);
        for (figure, number) in figures.zip(1..) {
            figure.chart.id = format!("chart-{index}-{number}");
        }
    }
    sections
}

fn section(title: &'static str, reading: &'static str, figures: Vec<Placed>) -> Section {
    let mut environments: Vec<EnvironmentFigures> = vec![];
    for (environment, figure) in figures {
        match environments.iter_mut().find(|one| one.environment == environment) {
            Some(one) => one.figures.push(figure),
            None => environments.push(EnvironmentFigures { environment, figures: vec![figure] }),
        }
    }
    Section { title, reading, environments }
}

impl Section {
    /// Anchor of the section.
    pub fn anchor(&self) -> String {
        self.title.to_lowercase().replace(' ', "-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::exchange::{LATENCY, fixture};
    use crate::reference;

    #[test]
    fn references_have_different_labels_and_the_size_that_was_measured() {
        let references = [reference::load(LATENCY).unwrap()];
        let sections = sections(&fixture::result(0.9, 5), &references);
        let distribution = sections.iter().find(|s| s.title == "Distribution").unwrap();
        let chart = &distribution.environments[0].figures[0].chart;
        let labels: Vec<&str> = chart.legend.iter().map(|entry| entry.label.as_str()).collect();
        assert_eq!(
            labels,
            [
                "loopback/2-2-2-2 unix at 10000/s",
                "reference monterey-ezbrokerage-latency 2-2-2-2 at 5000/s 800 B",
                "reference monterey-ezbrokerage-latency 2-2-2-2 at 10000/s 800 B",
            ]
        );
    }
}
