//! `nearmetal reference`: the published runs that are built in.

use anyhow::Result;
use nm_report::{reference, terminal};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::ReferenceCommand;
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// The built-in runs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct References {
    references: Vec<Reference>,
}

/// A built-in run.
#[derive(Debug, Serialize, JsonSchema)]
struct Reference {
    /// What it is named in commands and plans.
    name: String,
    /// The study that published it.
    study: String,
    /// What it is, in words.
    summary: String,
}

impl Document for References {
    const NAME: &'static str = "references";
}

pub fn run(command: &ReferenceCommand) -> Result<Exit> {
    match command {
        ReferenceCommand::List(args) => match args.format {
            Format::Json => {
                let listed = |one: reference::Listed| {
                    let reference::Listed { name, study, summary } = one;
                    let (study, summary) = (study.to_string(), summary.to_string());
                    Reference { name: name.to_string(), study, summary }
                };
                output::json(&References { references: reference::list().map(listed).collect() })?;
            }
            Format::Text => {
                for listed in reference::list() {
                    output::text(&format!("{:<32} {}\n", listed.name, listed.summary))?;
                }
            }
        },
        ReferenceCommand::Show { name, format } => {
            let run = reference::load(name).map_err(|e| Stop::usage(e.to_string()))?;
            match format.format {
                Format::Json => output::json_file(&run)?,
                Format::Text => {
                    output::text(&terminal::summary(&run, &output::style(), None))?;
                    output::text("\nnotes\n")?;
                    for (name, text) in &run.notes {
                        output::text(&format!("  {name}: {text}\n"))?;
                    }
                }
            }
        }
    }
    Ok(Exit::Pass)
}
