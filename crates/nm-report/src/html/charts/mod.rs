//! Which charts a result gets, and the table that goes with each.

mod drift;
mod family;
mod figure;
mod percentiles;
mod rounds;
mod sweep;
mod throughput;

use nm_model::RunResult;

pub use figure::Figure;

/// Charts of one kind under one heading.
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// How to read the charts, one or two sentences.
    pub reading: &'static str,
    /// The charts.
    pub figures: Vec<Figure>,
}

/// All sections of charts that have something to show.
pub fn sections(result: &RunResult, references: &[RunResult]) -> Vec<Section> {
    let families = family::families(result, references);
    let mut sections = vec![
        Section {
            title: "Distribution",
            reading: "How slow the slowest are: each step to the right leaves a tenth of the \
                      samples. Lines end where fewer than ten samples lie beyond; the dotted rest \
                      leads to the maximum.",
            figures: percentiles::figures(&families),
        },
        Section {
            title: "Size sweep",
            reading: "Median by message size, with a band from the minimum to the 99th percentile \
                      and a stroke at the maximum.",
            figures: families.iter().flat_map(sweep::figures).collect(),
        },
        Section {
            title: "Throughput",
            reading: "Bars are the median over rounds, divided by flow, with ± the standard \
                      deviation over rounds; circles are the rounds.",
            figures: throughput::figures(result, references),
        },
        Section {
            title: "Rounds",
            reading: "Every round as a dot: groups of dots are modes, lone dots are outlying \
                      rounds.",
            figures: families.iter().flat_map(rounds::figures).collect(),
        },
        Section {
            title: "Drift over time",
            reading: "Median and 99th percentile of short slices of every round, by the time since \
                      the start of the run. Slopes are warm-up, frequency, heat or a neighbour.",
            figures: families.iter().flat_map(drift::figures).collect(),
        },
    ];
    sections.retain(|section| !section.figures.is_empty());
    for (section, index) in sections.iter_mut().zip(1..) {
        for (figure, number) in section.figures.iter_mut().zip(1..) {
            figure.chart.id = format!("chart-{index}-{number}");
        }
    }
    sections
}

impl Section {
    /// Anchor of the section.
    pub fn anchor(&self) -> String {
        self.title.to_lowercase().replace(' ', "-")
    }
}
