//! The plans that are built in, and plans from files.

#[cfg(test)]
mod published;

use std::borrow::Cow;
use std::io::{self, Read};
use std::path::Path;

use anyhow::Result;
use nm_model::words::UnknownWord;
use nm_model::{Plan, limits};
use nm_settings::SettingId;
use nm_sys::text_file;

use crate::exit::Stop;

macro_rules! built_in {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../plans/", $name, ".toml")))),+]
    };
}

const PLANS: &[(&str, &str)] = built_in![
    "quick",
    "full",
    "two-hosts",
    "attached",
    "power",
    "deftech-hft",
    "vmware-pingpong",
    "xenserver-stream",
    "monterey-network",
    "monterey-exchange",
    "monterey-mobility",
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

/// The word for the plan on stdin.
const STDIN: &str = "-";

/// The text of a plan, and where it is from.
pub struct PlanText<'w> {
    /// In TOML.
    pub text: Cow<'static, str>,
    /// The part that is wanted, if not all of it.
    pub part: Option<&'w str>,
    /// Its name in messages.
    shown: String,
}

/// A built-in plan, or one from a file: a word with a slash or a dot is a file, and `-` is stdin.
/// `PLAN:NAME` is a part of it that the plan defines.
pub fn load(word: &str) -> Result<Plan> {
    read(word)?.parse()
}

/// The text that `word` stands for, as [`load`] reads it.
pub fn read(word: &str) -> Result<PlanText<'_>> {
    let is_file = |word: &str| word.contains(['/', '.']);
    let is_plain_file = is_file(word) && Path::new(word).exists();
    let (name, part) = match word.rsplit_once(':').filter(|_| !is_plain_file) {
        Some((name, part)) => (name, Some(part)),
        None => (word, None),
    };
    let (text, shown) = match is_file(name) {
        _ if name == STDIN => {
            let text = text_on_stdin()
                .map_err(|error| Stop::usage(format!("cannot read the plan on stdin: {error}")))?;
            (Cow::Owned(text), "plan on stdin".to_string())
        }
        true => {
            let text = text_file::read(Path::new(name), limits::PLAN_BYTES_MAX)
                .map_err(|error| Stop::usage(format!("cannot read plan {name}: {error}")))?;
            (Cow::Owned(text), name.to_string())
        }
        false => (Cow::Borrowed(text(name)?), format!("plan {name}")),
    };
    Ok(PlanText { text, part, shown })
}

impl PlanText<'_> {
    /// The plan, or the part of it.
    ///
    /// # Errors
    /// If it is none, with the place.
    pub fn parse(&self) -> Result<Plan> {
        let shown = &self.shown;
        let plan = Plan::parse_with_runs(&self.text, &nm_report::reference::for_plans())
            .map_err(|error| Stop::usage(format!("{shown}, {error}")))?;
        for name in plan.factors.iter().filter_map(|factor| factor.step.as_ref()) {
            name.parse::<SettingId>().map_err(|error| Stop::usage(format!("{shown}, {error}")))?;
        }
        match self.part {
            Some(part) => {
                plan.subplan(part).map_err(|error| Stop::usage(format!("{shown}, {error}")))
            }
            None => Ok(plan),
        }
    }
}

/// All of stdin, if it is not too long for a plan.
fn text_on_stdin() -> io::Result<String> {
    let mut text = String::new();
    let length = io::stdin().take(limits::PLAN_BYTES_MAX + 1).read_to_string(&mut text)?;
    match length as u64 > limits::PLAN_BYTES_MAX {
        true => Err(io::Error::other(format!("it has more than {} bytes", limits::PLAN_BYTES_MAX))),
        false if text.trim().is_empty() => {
            Err(io::Error::other("it is empty; write the plan's text to it"))
        }
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_plans_start_no_emulated_guests() {
        for (name, _) in built_in() {
            let plan = load(name).unwrap();
            let has_guests = plan.rows().iter().any(|row| row.environment.has_guests());
            let is_allowed = plan.guests.is_none_or(|guests| guests.emulation_allowed);
            assert!(!has_guests || !is_allowed, "{name}");
        }
    }

    #[test]
    fn built_in_plans_and_their_parts_are_read() {
        for (name, _) in built_in() {
            let plan = load(name).unwrap();
            for part in &plan.subplans {
                let word = format!("{name}:{}", part.name);
                let part = load(&word).unwrap();
                assert_eq!(part.name, word);
                assert!(!part.targets.is_empty(), "{word}");
            }
        }
        let error = load("quick:latncy").unwrap_err().to_string();
        assert_eq!(error, "plan quick, unknown sub-plan `latncy`, did you mean `latency`?");
    }
}
