//! Several imports as one result.

use nm_model::result::{RunResult, Series, Source};

use super::builder::SeriesIndex;

/// Joins `more` to `result`. Series with a known key become further rounds of it; of notes with
/// equal names the first is kept, and so is the earlier start.
pub fn join(result: &mut RunResult, more: impl IntoIterator<Item = RunResult>) {
    let mut index = SeriesIndex::default();
    for (at, series) in result.series.iter().enumerate() {
        index.find_or_insert(&series.key, at);
    }
    for more in more {
        join_one(result, more, &mut index);
    }
    result.series.iter_mut().for_each(nm_stats::rounds::estimate);
}

fn join_one(result: &mut RunResult, more: RunResult, index: &mut SeriesIndex) {
    for series in more.series {
        let at = index.find_or_insert(&series.key, result.series.len());
        match result.series.get_mut(at) {
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
}
