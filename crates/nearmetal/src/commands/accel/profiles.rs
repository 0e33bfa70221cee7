//! `nearmetal accel profiles`: the named profiles, and every variable of the accelerator. Checks
//! the variables that the user has set.

use std::collections::BTreeMap;

use anyhow::Result;
use nm_report::style::{Style, Tone, clean, wrap};
use nm_report::table::{Column, Table};
use nm_ring::variables::{self, PROFILES, Profile, Variable};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::Exit;
use crate::output;

/// Beginning of the names of all variables.
const PREFIX: &str = "NEARMETAL_ACCEL_";

/// A variable in the environment that the library would not read as meant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// A value outside its range.
    #[error("{name} is `{value}`; write {range}")]
    Value {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        range: String,
    },
    /// No variable has this name.
    #[error("there is no variable {0}; `nearmetal accel profiles` lists them")]
    Name(String),
}

/// The profiles and variables, for programs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Profiles {
    /// Every profile.
    profiles: Vec<ListedProfile>,
    /// Every variable.
    variables: Vec<ListedVariable>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedProfile {
    name: &'static str,
    /// For programs of which this holds.
    meaning: &'static str,
    /// What it sets, by the names of variables.
    values: BTreeMap<&'static str, u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ListedVariable {
    name: &'static str,
    /// The option that sets it; empty if there is none.
    option: &'static str,
    /// Unit of its value; empty if it has none.
    unit: &'static str,
    /// What holds if it is not set.
    default: &'static str,
    /// The values that it may have.
    range: String,
    meaning: &'static str,
}

impl Document for Profiles {
    const NAME: &'static str = "accel-profiles";
}

pub fn run(format: Format) -> Result<Exit> {
    match format {
        Format::Text => output::text(&to_text(&output::style()))?,
        Format::Json => output::json(&Profiles::new())?,
    }
    Ok(Exit::Pass)
}

/// The value of a variable by a profile, unless the user has set that variable.
pub fn value(profile: Option<&Profile>, variable: &Variable) -> Option<u32> {
    let is_set = std::env::var_os(variable.name()).is_some_and(|value| !value.is_empty());
    profile.filter(|_| !is_set)?.value(variable)
}

/// Checks the variables in the environment.
///
/// # Errors
/// The first variable that the library would ignore or not read.
pub fn check_environment() -> Result<(), Mistake> {
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if name.starts_with(PREFIX) {
            check(&name, &value)?;
        }
    }
    Ok(())
}

fn check(name: &str, value: &str) -> Result<(), Mistake> {
    let known = variables::ALL.iter().find(|variable| variable.name() == name);
    let variable = known.ok_or_else(|| Mistake::Name(clean(name)))?;
    let mistake =
        || Mistake::Value { name: variable.name(), value: clean(value), range: variable.range() };
    if variable.allows(value) { Ok(()) } else { Err(mistake()) }
}

/// What a profile sets: `NAME=value`, separated by blanks.
fn values(profile: &Profile) -> String {
    let pair = |(variable, value): &(&Variable, u32)| format!("{}={value}", variable.name());
    profile.values.iter().map(pair).collect::<Vec<_>>().join(" ")
}

impl Profiles {
    fn new() -> Profiles {
        let values = |profile: &Profile| {
            let pairs = profile.values.iter();
            pairs.map(|(variable, value)| (variable.name(), *value)).collect()
        };
        let profiles = PROFILES.iter().map(|profile| ListedProfile {
            name: profile.name,
            meaning: profile.meaning,
            values: values(profile),
        });
        let variables = variables::ALL.iter().map(|one| ListedVariable {
            name: one.name(),
            option: one.option,
            unit: one.unit,
            default: one.default,
            range: one.range(),
            meaning: one.meaning,
        });
        Profiles { profiles: profiles.collect(), variables: variables.collect() }
    }
}

fn to_text(style: &Style) -> String {
    let mut profiles =
        Table::new("profiles", ["name", "for programs of which", "sets"].map(Column::text));
    for profile in &PROFILES {
        let row = [profile.name, profile.meaning, &values(profile)];
        profiles.push(Tone::Plain, row.map(str::to_string).to_vec());
    }
    let mut all = "variables\n".to_string();
    for one in variables::ALL {
        let unit = if one.unit.is_empty() { String::new() } else { format!(" {}", one.unit) };
        let option = if one.option.is_empty() { "none" } else { one.option };
        let values = format!(
            "{}{unit}; default {}; option {option}; {}",
            one.range(),
            one.default,
            one.meaning
        );
        all += &format!("  {}\n", one.name());
        for line in wrap(&values, style.width.saturating_sub(4).max(20)) {
            all += &format!("    {line}\n");
        }
    }
    format!(
        "{}\n{all}\nAn option wins over a variable, a variable over the profile, the profile over \
         the default.\n",
        profiles.to_text(style),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_checked_with_the_range() {
        assert_eq!(check("NEARMETAL_ACCEL_SPIN_US", "20"), Ok(()));
        let text = |name, value| check(name, value).unwrap_err().to_string();
        assert_eq!(
            text("NEARMETAL_ACCEL_SPIN_US", "much"),
            "NEARMETAL_ACCEL_SPIN_US is `much`; write 0 to 10000000"
        );
        let unknown = text("NEARMETAL_ACCEL_SPIN", "1");
        assert!(unknown.starts_with("there is no variable NEARMETAL_ACCEL_SPIN; "), "{unknown}");
    }

    /// The tables of the guide are those of the code.
    #[test]
    fn guide_lists_all_variables_and_profiles() {
        let guide = include_str!("../../../../../docs/guides/bypass-services.md");
        let filled = |text: &str| match text {
            "" => "–".to_string(),
            text => text.to_string(),
        };
        for one in variables::ALL {
            let option =
                if one.option.is_empty() { String::new() } else { format!("`{}`", one.option) };
            let cells = [&option, one.unit, one.default, &one.range(), one.meaning].map(filled);
            let row = format!("| `{}` | {} |", one.name(), cells.join(" | "));
            assert!(guide.contains(&row), "the guide lacks:\n{row}");
        }
        for profile in &PROFILES {
            let pairs = values(profile).replace(' ', "`, `");
            let row = format!("| `{}` | {} | `{pairs}` |", profile.name, profile.meaning);
            assert!(guide.contains(&row), "the guide lacks:\n{row}");
        }
        let names = guide.split(PREFIX).skip(1);
        for rest in names {
            let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_');
            let name = format!("{PREFIX}{}", &rest[..end.unwrap_or(rest.len())]);
            let is_known = variables::ALL.iter().any(|variable| variable.name() == name);
            assert!(is_known || name == PREFIX, "{name} is in the guide only");
        }
    }
}
