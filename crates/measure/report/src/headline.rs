//! The verdict of a result in words: the headline, and what was not judged.

use nm_model::result::{RunState, Source};
use nm_model::{NotJudged, NotJudgedReason, Outcome, PlanItem, RunResult};

use crate::style::Tone;
use crate::units;

/// The outcome in one word and one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headline {
    /// `PASS`, `PASS FOR A PART`, `FAIL`, `INCONCLUSIVE` or `NOT JUDGED`.
    pub word: &'static str,
    /// What it means here: what was counted, and the remarks.
    pub sentence: String,
    /// How many targets are met, or why there is no verdict.
    pub counted: String,
    /// What was left out, failed or ended early.
    pub remarks: Vec<String>,
    /// Its colour.
    pub tone: Tone,
}

/// The verdict of `result` in words.
pub fn headline(result: &RunResult) -> Headline {
    let counts = Counts::of(result);
    let is_judged = counts.targets > 0 || !result.comparisons.is_empty();
    let word = match result.outcome {
        _ if !is_judged && result.not_judged.is_empty() => "NOT JUDGED",
        Outcome::Pass if result.part.is_some() => "PASS FOR A PART",
        Outcome::Pass => "PASS",
        Outcome::Fail => "FAIL",
        Outcome::Inconclusive => "INCONCLUSIVE",
    };
    let counted = match is_judged {
        true => judged(&counts),
        false if result.not_judged.is_empty() => without_verdict(result),
        false => String::new(),
    };
    let counted = match &result.part {
        None => counted,
        Some(part) => {
            let plan = result.plan.as_ref().map_or("", |plan| &plan.name);
            format!("The part `--only {}` of plan {plan}: {counted}", part.only)
        }
    };
    let mut remarks = incomplete(result, &counts);
    remarks.extend(failed_trials(result));
    remarks.extend(left_out(result));
    remarks.extend(emulated(result));
    remarks.extend(match result.state {
        RunState::Complete => None,
        RunState::Interrupted => Some("The run was interrupted; completed trials are kept.".into()),
        RunState::Running => Some("The run did not end; completed trials are kept.".into()),
    });
    let sentences = [counted.trim_end()].into_iter().chain(remarks.iter().map(String::as_str));
    let sentences: Vec<&str> = sentences.filter(|text| !text.is_empty()).collect();
    let sentence = sentences.join(" ");
    let tone = if word == "NOT JUDGED" { Tone::Plain } else { result.outcome.into() };
    Headline { word, sentence, counted, remarks, tone }
}

/// Numbers of targets.
struct Counts {
    /// With a verdict.
    targets: usize,
    failed: usize,
    open: usize,
    /// Met, but only by stacks that need both ends on one host.
    same_host_only: usize,
    /// Without a verdict.
    not_judged: usize,
}

impl Counts {
    fn of(result: &RunResult) -> Counts {
        let n_of = |outcome| result.verdicts.iter().filter(|v| v.outcome == outcome).count();
        let is_target = |one: &&NotJudged| one.item == PlanItem::Target;
        let targets = result.not_judged.iter().filter(is_target);
        Counts {
            targets: result.verdicts.len(),
            failed: n_of(Outcome::Fail),
            open: n_of(Outcome::Inconclusive),
            same_host_only: result.verdicts.iter().filter(|v| v.is_same_host_only).count(),
            not_judged: targets.filter(|one| !one.is_partial()).count(),
        }
    }

    /// `target` or `judged target`, if there are others.
    fn nouns(&self) -> [&'static str; 2] {
        match self.not_judged {
            0 => ["target", "targets"],
            _ => ["judged target", "judged targets"],
        }
    }
}

fn is_are(n: usize) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

/// What the verdicts show.
fn judged(counts: &Counts) -> String {
    let Counts { targets: n_targets, failed, open, same_host_only, .. } = *counts;
    let [one, several] = counts.nouns();
    let targets = units::plural(n_targets, one, several);
    if n_targets == 0 {
        return "No target was judged, so there is no verdict; see the comparisons.".to_string();
    }
    if failed > 0 {
        let mut sentence = format!("{failed} of {targets} {} not met.", is_are(failed));
        if open > 0 {
            sentence += &format!(" {open} more could not be decided.");
        }
        return sentence;
    }
    if open > 0 {
        let they = if open == 1 { "it is" } else { "they are" };
        return format!(
            "For {open} of {targets} the evidence shows neither that {they} met nor that {they} \
             not."
        );
    }
    let all = match n_targets {
        1 => format!("The {one} is met"),
        _ => format!("All {targets} are met"),
    };
    match same_host_only {
        0 => format!("{all}."),
        _ if n_targets == 1 => format!("{all}, on this host only."),
        n => format!("{all}, {n} of them on this host only."),
    }
}

/// Which targets of the plan have no verdict, and what that means for the outcome.
fn incomplete(result: &RunResult, counts: &Counts) -> Vec<String> {
    let mut sentences = vec![];
    let n_all = counts.targets + counts.not_judged;
    if counts.not_judged > 0 {
        let were = if counts.not_judged == 1 { "was" } else { "were" };
        let their = if counts.not_judged == 1 { "its" } else { "their" };
        let is_emulated = |one: &NotJudged| matches!(one.reason, NotJudgedReason::Emulated { .. });
        let is_left_out = result.not_judged.iter().any(NotJudged::is_left_out);
        let because = match (is_left_out, result.not_judged.iter().any(is_emulated)) {
            (true, _) => String::new(),
            (false, true) => format!(
                ", as all of {their} rows are optional and cannot run here or ran in EMULATED \
                 guests"
            ),
            (false, false) => format!(", as all of {their} rows are optional and cannot run here"),
        };
        sentences.push(format!(
            "{} of the {n_all} targets of the plan {were} not judged{because}.",
            counts.not_judged
        ));
    }
    let n_partial = result.not_judged.iter().filter(|one| one.is_partial()).count();
    if n_partial > 0 {
        let were = if n_partial == 1 { "was" } else { "were" };
        sentences.push(format!("{n_partial} {were} judged on some of the rows only."));
    }
    let is_alone = result.part.as_ref().is_none_or(|part| part.is_judged_alone);
    if !is_alone && counts.targets > 0 && counts.failed + counts.open == 0 {
        sentences.push(
            "A part does not pass for its plan; --only-targets judges the part alone.".to_string(),
        );
    }
    sentences
}

/// How many trials failed, and the first of them. What they measured before they failed, or
/// although a node of the exchange ended, is kept with its doubts.
fn failed_trials(result: &RunResult) -> Option<String> {
    let is_pass = result.outcome == Outcome::Pass;
    let first = result.failures.first().filter(|_| is_pass)?.to_string();
    let first = first.trim_end_matches('.');
    Some(match result.failures.len() {
        1 => format!("1 trial failed ({first})."),
        n => format!("{n} trials failed; the first: {first}."),
    })
}

/// How many optional rows are missing.
fn left_out(result: &RunResult) -> Option<String> {
    let n_rows = result.left_out_rows().len();
    let rows = units::plural(n_rows, "optional row", "optional rows");
    let (was, it) = if n_rows == 1 { ("was", "it") } else { ("were", "they") };
    (n_rows > 0).then(|| format!("{rows} {was} left out, as {it} cannot run here."))
}

/// How many series of emulated guests there are, which count for nothing.
fn emulated(result: &RunResult) -> Option<String> {
    let n_series = result.series.iter().filter(|series| series.is_emulated()).count();
    let (series, is) = (units::plural(n_series, "series", "series"), is_are(n_series));
    (n_series > 0).then(|| format!("{series} of EMULATED guests {is} neither judged nor compared."))
}

/// Whether the plan has something to judge.
fn has_targets(result: &RunResult) -> bool {
    let plan = result.plan.as_ref();
    plan.is_some_and(|plan| !plan.targets.is_empty() || !plan.comparisons.is_empty())
}

/// Why there is no verdict.
fn without_verdict(result: &RunResult) -> String {
    match &result.source {
        Source::Measured { .. } if result.plan.is_none() => "Measured without targets.".to_string(),
        Source::Measured { .. } if has_targets(result) => "No target was judged yet.".to_string(),
        Source::Measured { .. } => "The plan has no targets and no comparisons.".to_string(),
        Source::Reference { study, .. } => format!("Figures of a published run: {study}."),
        Source::Imported { tool } => format!("Figures read from the output of {tool}."),
    }
}

/// A sentence for each target and comparison that was not judged, or not on all of its rows.
pub fn not_judged(result: &RunResult) -> Vec<String> {
    result.not_judged.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use nm_model::result::TrialFailure;
    use nm_model::{Plan, PlanPart, RowFilter};

    use super::*;

    #[test]
    fn failed_trials_are_named_beside_a_pass() {
        let source = Source::Measured { version: "0".to_string() };
        let mut result = RunResult::new("lost", source);
        let lost = |round| TrialFailure {
            row: None,
            reason: format!("round {round}: the agent was killed."),
        };
        result.failures = vec![lost(2)];
        assert!(!headline(&result).sentence.contains("failed"), "nothing passed");
        result.outcome = Outcome::Pass;
        let shown = headline(&result).sentence;
        let one = "1 trial failed (round 2: the agent was killed).";
        assert!(shown.ends_with(one), "{shown}");
        result.failures.push(lost(4));
        let shown = headline(&result).sentence;
        let several = "2 trials failed; the first: round 2: the agent was killed.";
        assert!(shown.ends_with(several), "{shown}");
    }

    #[test]
    fn a_run_that_was_killed_does_not_claim_that_its_plan_has_no_targets() {
        let source = Source::Measured { version: "0".to_string() };
        let mut result = RunResult::new("killed", source);
        let plan = "name='p'\n[[trials]]\nenvironments=['netns']\nstacks=['tcp-spin']\n\
                    probe='pingpong'\n";
        result.state = RunState::Running;
        result.plan =
            Some(Plan::parse(&format!("{plan}[[targets]]\nrequire='p99 < 1ms'")).unwrap());
        let kept = "The run did not end; completed trials are kept.";
        let shown = headline(&result);
        assert_eq!(shown.word, "NOT JUDGED");
        assert_eq!(shown.sentence, format!("No target was judged yet. {kept}"));
        let only = RowFilter::parse(&["netns"]).unwrap();
        result.part = Some(PlanPart { only, is_judged_alone: false });
        let part = "The part `--only netns` of plan p: ";
        assert_eq!(headline(&result).sentence, format!("{part}No target was judged yet. {kept}"));
        result.part = None;
        result.plan = Some(Plan::parse(plan).unwrap());
        assert!(headline(&result).sentence.starts_with("The plan has no targets"));
    }
}
