//! `nearmetal compare`: two results side by side, and an exit code by what counts.

mod interleaved;

use anyhow::Result;
use nm_judge::{CompareOptions, Selector};
use nm_model::RunResult;
use nm_report::output_folder::comparison_files;
use nm_report::{comparison, comparison_brief};

use super::{fail_on, result_source};
use crate::cli::compare::{CompareArgs, DocumentFormat};
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &CompareArgs) -> Result<Exit> {
    let Sides { results: [a, b], names } = sides(args)?;
    fail_on::check(&args.fail_on, &[&a, &b]).map_err(|error| Stop::usage(error.to_string()))?;
    let mut names = names.into_iter();
    let part = |name: Option<String>, on: &Option<String>| match (name, on) {
        (Some(name), Some(on)) => Some(format!("{name} {on}")),
        (name, _) => name,
    };
    let selector = |on: &Option<String>| on.as_deref().map_or(Selector::any(), Selector::new);
    let options = CompareOptions {
        margin_percent: args.margin,
        run_deviation_percent: args.run_deviation,
        is_interleaved: args.interleaved.against.is_some(),
        fail_on: args.fail_on.clone(),
        name_a: part(names.next(), &args.a_on),
        name_b: part(names.next(), &args.b_on),
        a: selector(&args.a_on),
        b: selector(&args.b_on),
        ..CompareOptions::default()
    };
    let compared = nm_judge::compare(&a, &b, &options);
    if let Some(out) = &args.document.out.out {
        result_source::write_reports(out, &comparison_files(&compared))?;
    }
    match args.document.format {
        DocumentFormat::Json => output::json(&compared)?,
        DocumentFormat::Text if args.all => {
            output::text(&comparison::text(&compared, &output::style()))?;
        }
        DocumentFormat::Text => output::text(&comparison_brief::text(&compared, &output::style()))?,
        DocumentFormat::Markdown => output::text(&comparison::markdown(&compared))?,
    }
    Ok(compared.outcome.into())
}

/// What is compared.
struct Sides {
    results: [RunResult; 2],
    names: Vec<String>,
}

/// Two results that are there, or both sides measured in turn.
fn sides(args: &CompareArgs) -> Result<Sides> {
    if let Some(word) = &args.interleaved.against {
        let out = args.document.out.out.as_deref();
        let measured = interleaved::measure(&args.interleaved, word, out)?;
        return Ok(Sides { results: measured.results, names: measured.names.to_vec() });
    }
    let words = [&args.a, &args.b].map(|word| word.as_deref().unwrap_or_default());
    Ok(Sides {
        results: [result_source::load(words[0])?, result_source::load(words[1])?],
        names: result_source::names(&words),
    })
}
