//! `nearmetal import`: other tools' output becomes a result.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::io::Read;
use std::path::Path;

use anyhow::Result;
use nm_report::folder::ResultFolder;
use nm_report::{import, terminal};

use crate::cli::ImportArgs;
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

/// Bytes that are read of an input: enough to see that it is too long.
const INPUT_BYTES_MAX: u64 = import::TEXT_BYTES_MAX as u64 + 1;

pub fn run(args: &ImportArgs) -> Result<Exit> {
    let mut imported = vec![];
    let mut seen: HashMap<String, String> = HashMap::new();
    for file in &args.files {
        let name = file.display().to_string();
        let text = read(file).map_err(|e| Stop::usage(format!("cannot read {name}: {e}")))?;
        imported.push(import::read(&text, &name).map_err(|e| Stop::usage(e.to_string()))?);
        match seen.entry(text) {
            Entry::Vacant(new) => drop(new.insert(name)),
            Entry::Occupied(known) => return Err(same_text(known.get(), &name)),
        }
    }
    let mut imported = imported.into_iter();
    let Some(mut result) = imported.next() else { return Err(Stop::usage("no file given")) };
    import::join(&mut result, imported);
    let mut report = None;
    if let Some(out) = &args.out {
        let folder = ResultFolder::at(out)?;
        folder.finish(&result, &[])?;
        report = Some(folder.report().display().to_string());
    }
    match args.format.format {
        Format::Json => output::json_file(&result)?,
        Format::Text => {
            output::text(&terminal::summary(&result, &output::style(), report.as_deref()))?;
        }
    }
    Ok(Exit::Pass)
}

/// Two equal outputs are one run, which would count as two rounds.
fn same_text(first: &str, second: &str) -> anyhow::Error {
    Stop::usage(match first == second {
        true => format!("{first} is named twice; its run would count twice"),
        false => format!(
            "{second} has the same text as {first}, so one run would count twice; name one of them"
        ),
    })
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = vec![];
    if path == Path::new("-") {
        std::io::stdin().take(INPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    } else {
        fs::File::open(path)?.take(INPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
