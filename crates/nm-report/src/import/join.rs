//! Several imports as one result.

use nm_model::result::{RunResult, Series, Source};

/// Joins `more` to `result`. Series with a known key become further rounds of it; of notes with
/// equal names the first is kept, and so is the earlier start.
pub fn join(result: &mut RunResult, more: RunResult) {
    for series in more.series {
        match result.series.iter_mut().find(|known| known.key == series.key) {
            Some(known) => add_rounds(known, series),
            None => result.series.push(series),
        }
    }
    for (name, text) in more.notes {
        result.notes.entry(name).or_insert(text);
    }
    for doubt in more.doubts {
        if !result.doubts.contains(&doubt) {
            result.doubts.push(doubt);
        }
    }
    result.started = match (result.started.take(), more.started) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    if let (Source::Imported { tool }, Source::Imported { tool: other }) =
        (&mut result.source, more.source)
        && !tool.split(" and ").any(|known| known == other)
    {
        *tool = format!("{tool} and {other}");
    }
}

fn add_rounds(known: &mut Series, more: Series) {
    for mut round in more.rounds {
        round.round = known.rounds.len() as u32;
        known.rounds.push(round);
    }
    for doubt in more.doubts {
        if !known.doubts.contains(&doubt) {
            known.doubts.push(doubt);
        }
    }
    nm_stats::rounds::estimate(known);
}
