//! `nearmetal reference`: the published runs that are built in.

use anyhow::Result;
use nm_report::{reference, terminal};
use serde_json::json;

use crate::cli::ReferenceCommand;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(command: &ReferenceCommand) -> Result<Exit> {
    match command {
        ReferenceCommand::List(args) => match args.format {
            Format::Json => {
                let listed = |one: reference::Listed| {
                    let reference::Listed { name, study, summary } = one;
                    json!({"name": name, "study": study, "summary": summary})
                };
                output::json(&reference::list().map(listed).collect::<Vec<_>>())?;
            }
            Format::Text => {
                for listed in reference::list() {
                    output::data(&format!("{:<32} {}\n", listed.name, listed.summary))?;
                }
            }
        },
        ReferenceCommand::Show { name, format } => {
            let run = reference::load(name).map_err(|e| Stop::usage(e.to_string()))?;
            match format.format {
                Format::Json => output::json(&run)?,
                Format::Text => {
                    output::data(&terminal::summary(&run, &output::style(), None))?;
                    output::data("\nnotes\n")?;
                    for (name, text) in &run.notes {
                        output::data(&format!("  {name}: {text}\n"))?;
                    }
                }
            }
        }
    }
    Ok(Exit::Pass)
}
