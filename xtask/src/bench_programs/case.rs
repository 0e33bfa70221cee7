//! What is measured of a program, and what the rounds gave.

use anyhow::{Context, Result};

use crate::bench::NotInstalled;
use crate::bench_programs::launch::{Folder, Launcher, Outcome};

type Measure = Box<dyn Fn(&Launcher<'_>) -> Result<Outcome>>;

/// A program, what is measured of it, and how.
pub struct Case {
    pub name: String,
    /// The unit of its rate: more is better.
    pub unit: &'static str,
    measure: Measure,
}

impl Case {
    pub fn new(
        name: impl Into<String>,
        unit: &'static str,
        measure: impl Fn(&Launcher<'_>) -> Result<Outcome> + 'static,
    ) -> Case {
        Case { name: name.into(), unit, measure: Box::new(measure) }
    }
}

/// Both runs of one case in one round; none where a run failed.
pub struct Pair {
    pub plain: Outcome,
    pub accelerated: Outcome,
}

/// All rounds of a case.
pub struct Row {
    pub case: Case,
    pub pairs: Vec<Pair>,
    /// The reason of the last run that failed, and how many did.
    pub failure: Option<String>,
    pub failures: usize,
    /// What is not installed here, so that the case was not run.
    pub missing: Option<String>,
}

impl Row {
    pub fn new(case: Case) -> Row {
        Row { case, pairs: vec![], failure: None, failures: 0, missing: None }
    }

    /// Runs the case plain and accelerated, or the other way round.
    pub fn measure(&mut self, folder: &Folder, is_backwards: bool) {
        let run = |is_accelerated: bool| {
            let launcher = Launcher { folder, is_accelerated };
            let way = if is_accelerated { "accelerated" } else { "plain" };
            (self.case.measure)(&launcher).context(way)
        };
        let pair = || -> Result<Pair> {
            let first = run(is_backwards)?;
            let second = run(!is_backwards)?;
            let (plain, accelerated) = if is_backwards { (second, first) } else { (first, second) };
            Ok(Pair { plain, accelerated })
        };
        match pair() {
            Ok(pair) => self.pairs.push(pair),
            Err(error) if error.downcast_ref::<NotInstalled>().is_some() => {
                self.missing = error.downcast_ref::<NotInstalled>().map(NotInstalled::to_string);
            }
            Err(error) => {
                let text = format!("{error:#}");
                eprintln!("    failed: {text}");
                let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
                self.failure = Some(words.replace('|', "/").chars().take(300).collect());
                self.failures += 1;
            }
        }
    }
}
