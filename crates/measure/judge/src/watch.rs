//! Trials of a watched machine, taken one by one: changes of level, and events between trials.

use std::collections::BTreeMap;

use nm_model::baseline::FigureKey;
use nm_model::watch::{
    BOOT, WatchChange, WatchCost, WatchEvent, WatchLine, WatchReport, WatchTrial,
};
use nm_stats::change::{LEARNED_MIN, Series, threshold};

/// Days for which less than one false alarm is promised.
const DAYS: f64 = 30.0;

/// Most figures that are followed.
pub const FIGURES_MAX: usize = 64;

/// Most changes of facts that one trial names.
const FACTS_MAX: usize = 10;

/// Most characters of a value in a sentence.
const VALUE_CHARS_MAX: usize = 80;

/// What the trials so far have shown.
#[derive(Debug)]
pub struct Watched {
    plan: String,
    every_s: u64,
    plan_hash: Option<String>,
    facts: BTreeMap<String, String>,
    lines: Vec<Line>,
    n_trials: usize,
    n_failed: usize,
    last_s: Option<i64>,
    cost: WatchCost,
    changes: Vec<WatchChange>,
    events: Vec<WatchEvent>,
}

#[derive(Debug)]
struct Line {
    figure: FigureKey,
    series: Series,
    points: Vec<(i64, f64)>,
}

impl Watched {
    /// No trial yet.
    pub fn new(plan: &str, every_s: u64) -> Watched {
        Watched {
            plan: plan.to_string(),
            every_s,
            plan_hash: None,
            facts: BTreeMap::new(),
            lines: vec![],
            n_trials: 0,
            n_failed: 0,
            last_s: None,
            cost: WatchCost::default(),
            changes: vec![],
            events: vec![],
        }
    }

    /// Facts of the last trial that had some.
    pub fn facts(&self) -> &BTreeMap<String, String> {
        &self.facts
    }

    /// Takes the next trial; the changes that it shows.
    pub fn take(&mut self, trial: &WatchTrial) -> Vec<WatchChange> {
        self.n_trials += 1;
        self.last_s = Some(trial.at_s);
        self.cost = self.cost.plus(trial.cost);
        self.note_events(trial);
        if trial.failure.is_some() {
            self.n_failed += 1;
        }
        if self.lines.is_empty() {
            self.begin(trial);
        }
        let mut changes = vec![];
        for figure in &trial.figures {
            let Some(line) = self.lines.iter_mut().find(|line| line.figure == figure.key) else {
                continue;
            };
            if !(figure.value.is_finite() && figure.value > 0.0) {
                continue;
            }
            line.points.push((trial.at_s, figure.value));
            let Some(found) = line.series.push(figure.value.ln()) else { continue };
            let first = line.points.len() - found.n_values;
            let (before_s, since_s) = (line.points[first - 1].0, line.points[first].0);
            let is_near = |event: &&WatchEvent| (before_s + 1..=since_s).contains(&event.at_s);
            changes.push(WatchChange {
                since_s,
                found_s: trial.at_s,
                figure: figure.key.clone(),
                n_trials: found.n_values,
                before: found.before.exp(),
                after: found.after.exp(),
                events: self.events.iter().filter(is_near).map(|it| it.what.clone()).collect(),
            });
        }
        self.changes.extend(changes.iter().cloned());
        changes
    }

    /// Lines for the figures of the first trial that has some.
    fn begin(&mut self, trial: &WatchTrial) {
        let n_figures = trial.figures.len().min(FIGURES_MAX);
        let trials = DAYS * 86_400.0 / self.every_s.max(1) as f64;
        let threshold = threshold(trials * n_figures as f64);
        let line = |key: &FigureKey| Line {
            figure: key.clone(),
            series: Series::new(threshold),
            points: vec![],
        };
        let figures = trial.figures.iter().take(FIGURES_MAX);
        self.lines = figures.map(|figure| line(&figure.key)).collect();
    }

    fn note_events(&mut self, trial: &WatchTrial) {
        let mut note = |what: String| self.events.push(WatchEvent { at_s: trial.at_s, what });
        if let Some(reason) = &trial.failure {
            note(format!("the trial failed: {}", shown(reason)));
        }
        if let Some(facts) = &trial.facts {
            if !self.facts.is_empty() {
                let changed = changed(&self.facts, facts);
                let n_more = changed.len().saturating_sub(FACTS_MAX);
                changed.into_iter().take(FACTS_MAX).for_each(&mut note);
                if n_more > 0 {
                    note(format!("{n_more} more facts changed"));
                }
            }
            self.facts = facts.clone();
        }
        if trial.plan.is_some() && trial.plan != self.plan_hash {
            if self.plan_hash.is_some() {
                note("the plan changed, and levels are learned anew".to_string());
                self.lines.clear();
            }
            self.plan_hash.clone_from(&trial.plan);
        }
    }

    /// What all trials show.
    pub fn report(&self) -> WatchReport {
        let mut report = self.levels();
        for (line, known) in report.lines.iter_mut().zip(&self.lines) {
            line.found_ratio = known.series.detectable(1);
        }
        report
    }

    /// The same without the slowdown that each figure shows, which takes a second to compute: too
    /// much after each trial.
    pub fn levels(&self) -> WatchReport {
        let line = |line: &Line| WatchLine {
            figure: line.figure.clone(),
            n_known: line.series.n_known(),
            n_needed: LEARNED_MIN,
            level: line.series.level().map(f64::exp),
            found_ratio: None,
            points: line.points.clone(),
        };
        WatchReport {
            plan: self.plan.clone(),
            every_s: self.every_s,
            n_trials: self.n_trials,
            n_failed: self.n_failed,
            last_s: self.last_s,
            cost: self.cost,
            lines: self.lines.iter().map(line).collect(),
            changes: self.changes.clone(),
            events: self.events.clone(),
        }
    }
}

/// A sentence for each fact that is another one.
fn changed(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let names = before.keys().chain(after.keys().filter(|name| !before.contains_key(*name)));
    let one = |name: &String| {
        let (a, b) = (before.get(name), after.get(name));
        if a == b {
            return None;
        }
        if let Some(host) = name.strip_suffix(BOOT) {
            let host = host.trim();
            let host = if host.is_empty() { "the host" } else { host };
            return Some(format!("{host} was started again"));
        }
        let text = |value: Option<&String>| value.map_or("nothing".to_string(), |it| shown(it));
        Some(format!("{name} changed from {} to {}", text(a), text(b)))
    };
    names.filter_map(one).collect()
}

fn shown(value: &str) -> String {
    match value.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None if value.is_empty() => "nothing".to_string(),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use nm_model::metric::Metric;
    use nm_model::probe::ProbeKind;
    use nm_model::statistic::Statistic;
    use nm_model::watch::WatchFigure;

    use super::*;

    fn trial(at: usize, value: f64, facts: &[(&str, &str)]) -> WatchTrial {
        let key = FigureKey {
            environment: "loopback".to_string(),
            stack: "tcp-spin".to_string(),
            probe: ProbeKind::Pingpong,
            statistic: Statistic::HalfRoundTrip,
            cases: "64 B".to_string(),
            metric: Metric::Median,
        };
        let facts = facts.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        WatchTrial {
            at_s: at as i64 * 600,
            cost: WatchCost { own_cpu_ns: 1, between_ns: 100, trial_cpu_ns: 7 },
            plan: Some("a".to_string()),
            figures: vec![WatchFigure { key, value }],
            failure: None,
            facts: Some(facts.collect()),
        }
    }

    #[test]
    fn a_change_names_what_happened_just_before_it() {
        let mut watched = Watched::new("quick", 600);
        let old = [("kernel", "6.1"), (BOOT, "x")];
        let new = [("kernel", "6.2"), (BOOT, "y")];
        let mut changes = vec![];
        for at in 0..100 {
            let facts = if at < 60 { old } else { new };
            let value = if at < 60 { 1000.0 } else { 1500.0 } + (at % 7) as f64;
            changes.extend(watched.take(&trial(at, value, &facts)));
        }
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert!(change.is_worse() && (1.4..1.6).contains(&change.ratio()), "{change:?}");
        assert_eq!(change.since_s, 60 * 600);
        let events = ["kernel changed from 6.1 to 6.2", "the host was started again"];
        assert_eq!(change.events, events);
        let report = watched.report();
        assert_eq!((report.n_trials, report.cost.share()), (100, Some(0.01)));
        assert!(report.lines[0].found_ratio.is_some_and(|ratio| ratio < 1.1), "{report:?}");
    }

    #[test]
    fn another_plan_begins_anew_and_a_failure_is_an_event() {
        let mut watched = Watched::new("quick", 600);
        watched.take(&trial(0, 10.0, &[]));
        let other = WatchTrial { plan: Some("b".to_string()), ..trial(1, 20.0, &[]) };
        watched.take(&other);
        let failure = Some("no room".to_string());
        watched.take(&WatchTrial { failure, plan: None, figures: vec![], ..other });
        let report = watched.report();
        assert_eq!((report.lines[0].n_known, report.n_failed), (1, 1));
        let what: Vec<&str> = report.events.iter().map(|event| event.what.as_str()).collect();
        let plan = "the plan changed, and levels are learned anew";
        assert_eq!(what, [plan, "the trial failed: no room"]);
    }
}
