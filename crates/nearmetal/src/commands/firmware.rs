//! `nearmetal firmware`: settings of a host's firmware, by its management controller.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use nm_firmware::FirmwareError;
use nm_firmware::redfish::Change;
use nm_model::firmware::Firmware;
use nm_settings::firmware::FIRMWARE;
use nm_sys::{complete_file, text_file};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bmc::{Bmc, stop};
use crate::cli::firmware::{
    FirmwareCommand, FirmwareShowArgs, FirmwareStageArgs, FirmwareUndoArgs, NamedBmcArgs,
};
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// Longest file of wanted or former settings that is read, bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Version of the file that `undo` reads.
const UNDO_VERSION: u32 = 1;

/// What `show` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FirmwareDocument {
    /// All that the controller says.
    firmware: Firmware,
    /// Settings that are not as the file of wanted ones says; absent without such a file.
    differing: Option<Vec<Difference>>,
}

impl Document for FirmwareDocument {
    const NAME: &'static str = "firmware";
    const VERSION: u32 = 1;
}

/// A setting that is not as it should be.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct Difference {
    /// Its name.
    name: String,
    /// What it should be.
    wanted: String,
    /// What is in force; absent if the firmware has no such setting.
    found: Option<String>,
    /// What it will be after a restart, if that is something else.
    waiting: Option<String>,
}

/// What `stage` has changed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Undo {
    schema: u32,
    /// The controller, as it was named.
    bmc: String,
    /// The maker's name of the host.
    model: String,
    /// Former values by name.
    before: BTreeMap<String, String>,
}

pub fn run(command: &FirmwareCommand) -> Result<Exit> {
    match command {
        FirmwareCommand::Show(args) => show(args),
        FirmwareCommand::Stage(args) => stage(args),
        FirmwareCommand::Undo(args) => undo(args),
    }
}

fn controller(args: &NamedBmcArgs) -> Result<Bmc> {
    Bmc::new(&args.bmc, &args.access)
}

fn show(args: &FirmwareShowArgs) -> Result<Exit> {
    let wanted = args.wanted.as_deref().map(wanted).transpose()?;
    let firmware = controller(&args.bmc)?.read()?.firmware;
    let differing = wanted.as_ref().map(|wanted| differing(&firmware, wanted));
    let exit = differing.as_deref().map_or(Exit::Pass, judged);
    let document = FirmwareDocument { firmware, differing };
    match args.format.format {
        Format::Json => output::json(&document)?,
        Format::Text => output::text(&text(&document))?,
    }
    Ok(exit)
}

fn judged(differing: &[Difference]) -> Exit {
    match differing {
        [] => Exit::Pass,
        some if some.iter().all(|one| one.found.is_none()) => Exit::Inconclusive,
        _ => Exit::Fail,
    }
}

fn text(document: &FirmwareDocument) -> String {
    let FirmwareDocument { firmware, differing } = document;
    let host = format!("{} {}", firmware.manufacturer, firmware.model);
    let mut text = format!(
        "{}, firmware {}, {}\n",
        host.trim(),
        or_unknown(&firmware.bios_version),
        or_unknown(&firmware.controller)
    );
    for setting in FIRMWARE {
        for reading in setting.readings(&firmware.attributes) {
            text += &format!("  {}: {} = {}\n", setting.title, reading.name, reading.value);
        }
    }
    text += &format!("  {} settings in all, with --format json\n", firmware.attributes.len());
    match &firmware.waiting {
        None => text += "nothing tells which settings wait for a restart\n",
        Some(waiting) if waiting.is_empty() => text += "no setting waits for a restart\n",
        Some(waiting) => {
            for (name, value) in waiting {
                let now = firmware.attributes.get(name).map_or("nothing", String::as_str);
                text += &format!("waits for a restart: {name} = {value} (now {now})\n");
            }
        }
    }
    for one in differing.iter().flatten() {
        let Difference { name, wanted, found, waiting } = one;
        let found = found.as_deref().unwrap_or("no such setting");
        let after = waiting.as_ref().map_or(String::new(), |it| format!(", {it} after a restart"));
        text += &format!("differs: {name} = {found}, wanted {wanted}{after}\n");
    }
    if differing.as_ref().is_some_and(Vec::is_empty) {
        text += "all wanted settings are in force\n";
    }
    text
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

/// Reads wanted settings.
fn wanted(path: &Path) -> Result<BTreeMap<String, String>> {
    let name = path.display();
    let unreadable = || format!("--wanted {name} cannot be read");
    let text = text_file::read(path, FILE_BYTES_MAX).with_context(unreadable)?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| {
        Stop::usage(format!("--wanted {name}: {}", error.to_string().trim_end()))
    })?;
    let one = |(name, value): (String, toml::Value)| match value {
        toml::Value::String(text) => Ok((name, text)),
        toml::Value::Integer(_) | toml::Value::Boolean(_) => Ok((name, value.to_string())),
        _ => Err(Stop::usage(format!(
            "--wanted {}: `{name}` must be a text, a number, true or false",
            path.display()
        ))),
    };
    let wanted: BTreeMap<String, String> = table.into_iter().map(one).collect::<Result<_>>()?;
    match wanted.is_empty() {
        true => Err(Stop::usage(format!("--wanted {name}: it names no setting"))),
        false => Ok(wanted),
    }
}

fn differing(firmware: &Firmware, wanted: &BTreeMap<String, String>) -> Vec<Difference> {
    let one = |(name, wanted): (&String, &String)| {
        let found = firmware.attributes.get(name);
        let waiting = firmware.waiting.as_ref().and_then(|list| list.get(name));
        (found != Some(wanted)).then(|| Difference {
            name: name.clone(),
            wanted: wanted.clone(),
            found: found.cloned(),
            waiting: waiting.cloned(),
        })
    };
    wanted.iter().filter_map(one).collect()
}

fn stage(args: &FirmwareStageArgs) -> Result<Exit> {
    let wanted = pairs(&args.settings)?;
    let mut bmc = controller(&args.bmc)?;
    let host = bmc.read()?;
    let changes = host.changes(&wanted).map_err(|error| stop(&error))?;
    if changes.is_empty() {
        output::text("all these settings are in force, or wait for a restart already\n")?;
        return Ok(Exit::Pass);
    }
    let undo = Undo {
        schema: UNDO_VERSION,
        bmc: args.bmc.bmc.clone(),
        model: host.firmware.model.clone(),
        before: changes.iter().map(|one| (one.name.clone(), one.before.clone())).collect(),
    };
    // Before anything is changed: whatever happens then, there is a way back.
    let text = serde_json::to_string_pretty(&undo)? + "\n";
    complete_file::create(&args.undo_file, text.as_bytes(), 0o600)
        .map_err(|error| output::file_error(&args.undo_file, &error))?;
    if let Err(error) = bmc.stage(&host, &changes) {
        // Where nothing was changed, there is nothing to undo.
        if !matches!(error, FirmwareError::Unknown { .. }) {
            let _ = std::fs::remove_file(&args.undo_file);
        }
        return Err(stop(&error));
    }
    output::text(&format!(
        "`nearmetal firmware undo {} --bmc {}` takes back:\n",
        args.undo_file.display(),
        args.bmc.bmc
    ))?;
    told(&mut bmc, &changes)?;
    Ok(Exit::Pass)
}

/// The settings of the command line.
fn pairs(words: &[String]) -> Result<Vec<(String, String)>> {
    let mut pairs = BTreeMap::new();
    for word in words {
        let pair = word.split_once('=').filter(|(name, _)| !name.is_empty());
        let Some((name, value)) = pair else {
            return Err(Stop::usage(format!("`{word}` is no NAME=VALUE")));
        };
        if pairs.insert(name.to_string(), value.to_string()).is_some() {
            return Err(Stop::usage(format!("`{name}` has two values")));
        }
    }
    Ok(pairs.into_iter().collect())
}

/// Says what the controller says afterwards: it may still be working on it.
fn told(bmc: &mut Bmc, changes: &[Change]) -> Result<()> {
    // The change was accepted, whether it can be seen or not.
    let seen = bmc.read().ok().map(|host| host.firmware);
    let waits = |change: &Change| {
        let seen = seen.as_ref()?;
        seen.waiting.as_ref()?.get(&change.name).or(seen.attributes.get(&change.name))
    };
    for change in changes {
        let Change { name, before, after } = change;
        let text = match waits(change) {
            Some(value) if value == after && before == after => "as it is now",
            Some(value) if value == after => "after the next restart of the host",
            _ => "was accepted, and is not shown yet; look with `nearmetal firmware show`",
        };
        output::text(&format!("{name}: {before} → {after}, {text}\n"))?;
    }
    Ok(())
}

fn undo(args: &FirmwareUndoArgs) -> Result<Exit> {
    let name = args.file.display();
    let text = text_file::read(&args.file, FILE_BYTES_MAX)
        .with_context(|| format!("{name} cannot be read"))?;
    let undo: Undo = serde_json::from_str(&text)
        .map_err(|error| Stop::usage(format!("{name} is no file of `firmware stage`: {error}")))?;
    if undo.schema != UNDO_VERSION {
        return Err(Stop::usage(format!("{name} has version {}, read is 1", undo.schema)));
    }
    if undo.bmc != args.bmc.bmc {
        return Err(Stop::usage(format!("{name} is of --bmc {}, not {}", undo.bmc, args.bmc.bmc)));
    }
    let mut bmc = controller(&args.bmc)?;
    let host = bmc.read()?;
    if host.firmware.model != undo.model {
        let found = &host.firmware.model;
        let message = format!("{name} is of a host {}, this one is {found}", undo.model);
        return Err(Stop::with(Exit::Conflict, message));
    }
    let wanted: Vec<(String, String)> = undo.before.into_iter().collect();
    let changes = host.changes_back(&wanted).map_err(|error| stop(&error))?;
    bmc.stage(&host, &changes).map_err(|error| stop(&error))?;
    told(&mut bmc, &changes)?;
    Ok(Exit::Pass)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn what_differs_decides_and_what_is_lacking_does_not() {
        let firmware = Firmware {
            attributes: map(&[("A", "1"), ("B", "2")]),
            waiting: Some(map(&[("B", "3")])),
            ..Firmware::default()
        };
        let judge = |wanted| judged(&differing(&firmware, &map(wanted)));
        assert_eq!(judge(&[("A", "1")]), Exit::Pass);
        assert_eq!(judge(&[("A", "1"), ("C", "1")]), Exit::Inconclusive);
        assert_eq!(judge(&[("B", "3"), ("C", "1")]), Exit::Fail);
        let one = &differing(&firmware, &map(&[("B", "3")]))[0];
        assert_eq!((one.found.as_deref(), one.waiting.as_deref()), (Some("2"), Some("3")));
    }

    #[test]
    fn settings_of_the_command_line_are_pairs_and_each_is_named_once() {
        let pairs =
            |words: &[&str]| pairs(&words.iter().map(|it| it.to_string()).collect::<Vec<_>>());
        assert_eq!(pairs(&["A=1=2"]).unwrap(), [("A".to_string(), "1=2".to_string())]);
        for words in [&["A"][..], &["=1"], &["A=1", "A=2"]] {
            assert!(pairs(words).is_err(), "{words:?}");
        }
    }
}
