//! The figures of all rounds, by case.

use std::collections::BTreeMap;

use anyhow::Result;

/// One measured quantity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub name: String,
    /// Message or block size; 0 where there is none.
    pub size_bytes: u32,
}

impl Case {
    pub fn new(name: impl Into<String>, size_bytes: u32) -> Case {
        Case { name: name.into(), size_bytes }
    }

    pub fn size(&self) -> String {
        if self.size_bytes == 0 { String::new() } else { self.size_bytes.to_string() }
    }

    /// Whether the figure is a rate: more is better.
    pub fn is_rate(&self) -> bool {
        self.name.contains("/s")
    }
}

/// One measurement of a case.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Median latency, ns, or what the case's name says.
    pub value: f64,
    pub p99: Option<f64>,
    pub samples: Option<u64>,
    /// The cache-line limit right after it, ns.
    pub limit_ns: Option<f64>,
}

impl Figure {
    pub fn of(value: f64) -> Figure {
        Figure { value, p99: None, samples: None, limit_ns: None }
    }
}

/// For each case one figure or none a round, and the reason where one is missing.
#[derive(Default)]
pub struct Figures {
    pub order: Vec<Case>,
    rounds: BTreeMap<Case, Vec<Option<Figure>>>,
    /// Reasons of the last round without a figure.
    pub failures: BTreeMap<Case, String>,
}

impl Figures {
    /// Fixes the order of the cases in the table.
    pub fn set_order<'a>(&mut self, cases: impl Iterator<Item = &'a Case>) {
        self.order = cases.cloned().collect();
    }

    /// Adds a round's figures of `cases`, or the reason why there are none.
    pub fn add(&mut self, cases: &[Case], measured: Result<Vec<Figure>>) {
        if let Err(error) = &measured {
            let text = format!("{error:#}");
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let short: String = line.replace('|', "/").chars().take(200).collect();
            eprintln!("    not available: {short}");
            for case in cases {
                self.failures.insert(case.clone(), short.clone());
            }
        }
        let mut figures = measured.unwrap_or_default().into_iter();
        for case in cases {
            self.rounds.entry(case.clone()).or_default().push(figures.next());
        }
    }

    /// The figures of a case, one a round.
    pub fn of(&self, case: &Case) -> &[Option<Figure>] {
        self.rounds.get(case).map_or(&[], Vec::as_slice)
    }
}
