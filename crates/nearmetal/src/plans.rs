//! The plans that are built in, and plans from files.

use std::fs;

use anyhow::Result;
use nm_model::Plan;
use nm_model::words::UnknownWord;

use crate::exit::Stop;

macro_rules! built_in {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../plans/", $name, ".toml")))),+]
    };
}

const PLANS: &[(&str, &str)] = built_in![
    "quick",
    "full",
    "deftech-hft",
    "vmware-pingpong",
    "xenserver-stream",
    "monterey-network",
    "monterey-exchange",
];

/// Names and texts of the built-in plans, the shortest to run first.
pub fn built_in() -> &'static [(&'static str, &'static str)] {
    PLANS
}

/// The text of a built-in plan.
pub fn text(name: &str) -> Result<&'static str> {
    PLANS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text).ok_or_else(|| {
        let names: Vec<&str> = PLANS.iter().map(|(name, _)| *name).collect();
        Stop::usage(UnknownWord::new("plan", name, &names).to_string())
    })
}

/// A built-in plan, or one from a file: a word with a slash or a dot is a file.
pub fn load(name: &str) -> Result<Plan> {
    if !name.contains(['/', '.']) {
        return Plan::parse(text(name)?)
            .map_err(|error| Stop::usage(format!("plan {name}, {error}")));
    }
    let text = fs::read_to_string(name)
        .map_err(|error| Stop::usage(format!("cannot read plan {name}: {error}")))?;
    Plan::parse(&text).map_err(|error| Stop::usage(format!("{name}, {error}")))
}
