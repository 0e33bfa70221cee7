//! What the primary figures of a pair of results decide.
//!
//! Two runs of one system differ by more than their rounds show, so each figure is measured against
//! the deviation between runs (see `nm_stats::run_effect`). The outcome is fail if one is worse
//! beyond its limit and the margin. It is pass if none is worse by more than the pair can find,
//! else inconclusive with what would decide.

use nm_model::comparison::{Detection, change_text};
use nm_model::verdict::{Interval, Outcome, Relation};
use nm_stats::run_effect::{
    self, Deviation, FOUND_MAX, Family, Found, ROUND_DEVIATION, RUN_DEVIATION,
};

use crate::options::Setup;
use crate::rows::Draft;
use crate::wording::count;

/// What was decided, and why.
pub(crate) struct Gate {
    pub outcome: Outcome,
    /// The deciding sentence, if no figure is worse: that one speaks for itself.
    pub sentence: Option<String>,
    pub detection: Option<Detection>,
}

/// One primary figure with what is expected of equal systems.
struct Figure<'d> {
    draft: &'d mut Draft,
    deviation: Deviation,
    /// Logarithm of the ratio, positive where B is worse; absent if a side is zero.
    log_ratio: Option<f64>,
    found: Found,
}

/// Decides on the primary figures and sets their relations. `is_one_run`: both sides are parts of
/// one run, whose rounds are interleaved.
pub(crate) fn decide<'d>(
    primary: impl Iterator<Item = &'d mut Draft>,
    is_one_run: bool,
    setup: &Setup,
) -> Gate {
    let given = setup.options.run_deviation_percent;
    let of_run = if is_one_run { 0.0 } else { given.map_or(RUN_DEVIATION, |p| p / 100.0) };
    let figure = |draft: &'d mut Draft| {
        let sign = if draft.row.metric.more_is_better() { -1.0 } else { 1.0 };
        let log = draft.row.ratio.map(|ratio| sign * ratio.ln()).filter(|log| log.is_finite());
        let deviation = run_effect::deviation(of_run, &draft.rounds[0], &draft.rounds[1]);
        Figure { draft, deviation, log_ratio: log, found: Found::Undecided }
    };
    let mut figures: Vec<Figure> = primary.map(figure).collect();
    let n_figures = figures.len();
    if figures.is_empty() {
        return Gate { outcome: Outcome::Inconclusive, sentence: None, detection: None };
    }
    let family = Family::of_pair(n_figures);
    let margin = (1.0 + setup.options.margin_percent.max(0.0) / 100.0).ln();
    figures.iter_mut().for_each(|figure| figure.decide(family, margin));
    let smallest = |figure: &Figure| figure.deviation.smallest_found(family, 0.0);
    let finds = figures.iter().map(smallest).fold(0.0, f64::max);
    let detection = Detection {
        run_deviation_percent: of_run * 100.0,
        is_assumed: !is_one_run && given.is_none(),
        n_figures: u32::try_from(n_figures).unwrap_or(u32::MAX),
        finds_percent: finds.exp_m1().min(1e9) * 100.0,
        has_few_rounds: figures.iter().any(|figure| figure.deviation.is_assumed),
    };
    let is = |found| figures.iter().any(|figure| figure.found == found);
    let (outcome, sentence) = match () {
        () if is(Found::Worse) => (Outcome::Fail, None),
        () if is(Found::Undecided) => (Outcome::Inconclusive, undecided(&figures, is_one_run)),
        () => (Outcome::Pass, Some(as_good(&figures, setup))),
    };
    Gate { outcome, sentence, detection: Some(detection) }
}

impl Figure<'_> {
    fn decide(&mut self, family: Family, margin: f64) {
        let Some(log_ratio) = self.log_ratio else {
            // Zeros have no ratio: only equal ones and better ones are as good.
            let row = &mut self.draft.row;
            if row.a == Some(0.0) && row.b == Some(0.0) {
                row.relation = Relation::Equivalent;
                self.found = Found::NotWorse;
            }
            return;
        };
        let [a, b] = &self.draft.rounds;
        self.found = run_effect::decide(&self.deviation, log_ratio, [a, b], family, margin);
        let limit = self.deviation.limit(family);
        let log = self.draft.row.ratio.unwrap_or(1.0).ln();
        let row = &mut self.draft.row;
        row.bounds =
            Some(Interval { low: (log - limit).exp(), high: (log + limit).exp(), level: 0.95 });
        row.relation = match self.found {
            Found::Worse => Relation::Worse,
            Found::Better => Relation::Better,
            Found::NotWorse => Relation::Equivalent,
            // Over the cases of runs with few rounds, a tendency is still shown.
            Found::Undecided if self.deviation.is_assumed => row.relation,
            Found::Undecided => Relation::Unclear,
        };
    }

    /// Most by which B is worse, %.
    fn upper_percent(&self, family: Family) -> f64 {
        let upper = |log| self.deviation.upper_bound(log, family).exp_m1() * 100.0;
        self.log_ratio.map_or(0.0, upper).max(0.0)
    }
}

fn as_good(figures: &[Figure], setup: &Setup) -> String {
    let family = Family::of_pair(figures.len());
    let upper = figures.iter().map(|figure| figure.upper_percent(family)).fold(0.0, f64::max);
    let [a, b] = setup.names();
    let of = count(figures.len(), "primary figure", "primary figures");
    format!("{b} is not worse than {a} by more than {upper:.0} % in {of}")
}

/// Which figure is undecided, and what would decide.
fn undecided(figures: &[Figure], is_one_run: bool) -> Option<String> {
    let open = figures.iter().filter(|figure| figure.found == Found::Undecided);
    let family = Family::of_pair(figures.len());
    let size = |figure: &&Figure| figure.deviation.smallest_found(family, 0.0);
    let figure = open.max_by(|x, y| size(x).total_cmp(&size(y)))?;
    let row = &figure.draft.row;
    let change = row.ratio.and_then(|ratio| change_text(row.metric, ratio));
    let change = change.unwrap_or_else(|| "not a ratio".to_string());
    let n_rounds = figure.draft.rounds.iter().map(Vec::len).min().unwrap_or_default();
    let is_wide = size(&figure) > FOUND_MAX;
    let needed = figure.deviation.rounds_for(FOUND_MAX, family, n_rounds);
    let wanted = match needed {
        _ if figure.deviation.is_assumed => "five rounds a side or more would decide".to_string(),
        Some(rounds) if is_wide => format!("about {rounds} rounds a side would decide"),
        _ if is_one_run => "more rounds would decide".to_string(),
        _ => "another pair of runs, or both in one plan with their rounds interleaved, would \
              decide"
            .to_string(),
    };
    let found = match is_wide {
        true => format!("its rounds hide less than {}", found_text(size(&figure))),
        false => "too much for equal, too little for worse".to_string(),
    };
    Some(format!("{} is {change} {}: {found}; {wanted}", row.metric, row.place()))
}

/// `a slowdown of 140 %`, `a factor of 13`.
pub(crate) fn found_text(log: f64) -> String {
    match log.exp() {
        factor if factor < 3.0 => format!("a change of {:.0} %", (factor - 1.0) * 100.0),
        factor => format!("a factor of {factor:.0}"),
    }
}

/// What the pair can find, as a reason.
pub(crate) fn detection_text(detection: &Detection) -> String {
    let Detection { run_deviation_percent, is_assumed, n_figures, finds_percent, .. } = *detection;
    let finds = match finds_percent {
        percent if percent < 200.0 => format!("{percent:.0} %"),
        percent => format!("a factor of {:.0}", percent / 100.0 + 1.0),
    };
    let basis = match (run_deviation_percent, is_assumed) {
        (0.0, _) => "the rounds of both sides are interleaved in one run".to_string(),
        (percent, true) => {
            format!("assumed: runs of one system differ by {percent} % (--run-deviation)")
        }
        (percent, false) => format!("runs of one system differ by {percent} %, as stated"),
    };
    let few = match detection.has_few_rounds {
        true => format!(
            "; a side has fewer than five rounds, so a round is taken to differ by {:.0} %",
            ROUND_DEVIATION * 100.0
        ),
        false => String::new(),
    };
    let figures = count(n_figures as usize, "primary figure", "primary figures");
    format!(
        "this pair finds {finds} and more in {figures}, with 95 % power and 5 % false alarms; \
         {basis}{few}"
    )
}
