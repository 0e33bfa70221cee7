//! `nearmetal plans`: the built-in plans, or the text of one.

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::Exit;
use crate::{output, plans};

/// The built-in plans.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ListedPlans {
    plans: Vec<ListedPlan>,
}

/// A built-in plan.
#[derive(Debug, Serialize, JsonSchema)]
struct ListedPlan {
    name: String,
    /// What it is for.
    summary: String,
    rounds: u32,
    /// Time of measuring, s.
    measuring_s: f64,
    /// Names of its parts, for `--plan NAME:PART`.
    subplans: Vec<String>,
}

impl Document for ListedPlans {
    const NAME: &'static str = "plans";
}

pub fn run(name: Option<&str>, format: Format) -> Result<Exit> {
    match (name, format) {
        (Some(name), Format::Text) => output::text(plans::text(name)?)?,
        (Some(name), Format::Json) => {
            // Its text, so that a file is not taken for a built-in plan.
            plans::text(name)?;
            output::json_file(&plans::load(name)?)?;
        }
        (None, Format::Text) => {
            for (name, _) in plans::built_in() {
                let plan = plans::load(name)?;
                output::text(&format!("{name:<18} {}\n", plan.summary))?;
                for part in &plan.subplans {
                    let name = format!("{name}:{}", part.name);
                    output::text(&format!("  {name:<16} {}\n", part.summary))?;
                }
            }
        }
        (None, Format::Json) => {
            let listed = |(name, _): &(&str, &str)| -> Result<ListedPlan> {
                let plan = plans::load(name)?;
                Ok(ListedPlan {
                    name: name.to_string(),
                    rounds: plan.rounds,
                    measuring_s: plan.duration_s(),
                    subplans: plan.subplans.iter().map(|part| part.name.clone()).collect(),
                    summary: plan.summary,
                })
            };
            let plans = plans::built_in().iter().map(listed).collect::<Result<_>>()?;
            output::json(&ListedPlans { plans })?;
        }
    }
    Ok(Exit::Pass)
}
