//! Results that are named on the command line: a folder, a file, or a published run.

use std::path::Path;

use anyhow::Result;
use nm_model::RunResult;
use nm_report::output_folder::{OutputError, write_new};
use nm_report::{folder, reference};

use crate::exit::{Exit, Stop};
use crate::output;

/// What a published run begins with.
const REFERENCE: &str = "reference:";

/// Loads a result folder, a result file, or `reference:NAME`.
pub fn load(text: &str) -> Result<RunResult> {
    match text.strip_prefix(REFERENCE) {
        Some(name) => reference::load(name).map_err(|error| Stop::usage(error.to_string())),
        None => Ok(folder::load(Path::new(text))?),
    }
}

/// Short names for results, one each: the folder or the published run, or all that was written
/// where two would be equal.
pub fn names(texts: &[&str]) -> Vec<String> {
    let short: Vec<String> = texts.iter().map(|text| short_name(text)).collect();
    let n_of = |name: &String| short.iter().filter(|other| *other == name).count();
    let names = short.iter().zip(texts);
    names.map(|(name, text)| if n_of(name) > 1 { text.to_string() } else { name.clone() }).collect()
}

fn short_name(text: &str) -> String {
    if let Some(name) = text.strip_prefix(REFERENCE) {
        return name.to_string();
    }
    let path = Path::new(text);
    let is_in_folder = path
        .file_name()
        .is_some_and(|name| [folder::RESULT, folder::REPORT].iter().any(|usual| name == *usual));
    let named = if is_in_folder { path.parent().unwrap_or(path) } else { path };
    // `.` and `..` have no name of their own.
    let found = match named.file_name() {
        Some(name) => Some(name.to_os_string()),
        None => {
            let named = if named.as_os_str().is_empty() { Path::new(".") } else { named };
            named.canonicalize().ok().and_then(|path| path.file_name().map(ToOwned::to_owned))
        }
    };
    found.map_or_else(|| text.to_string(), |name| name.to_string_lossy().into_owned())
}

/// Writes reports into a folder that holds no other result, and says where the page is.
pub fn write_reports(out: &Path, files: &[(&str, String)]) -> Result<()> {
    write_new(out, files).map_err(|error| match error {
        OutputError::Taken { .. } => Stop::with(Exit::Conflict, error.to_string()),
        OutputError::Io { .. } => Stop::with(Exit::Environment, error.to_string()),
    })?;
    if let Some((name, _)) = files.iter().find(|(name, _)| name.ends_with(".html")) {
        output::message(&format!("report: {}", out.join(name).display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_the_name_of_its_folder_or_of_the_published_run() {
        assert_eq!(names(&["results/before/", "x/after/result.json"]), ["before", "after"]);
        assert_eq!(names(&["a/report.html", "saved.json"]), ["a", "saved.json"]);
        assert_eq!(names(&["reference:deftech-hft-vm-pf"]), ["deftech-hft-vm-pf"]);
        assert_eq!(names(&["one/run", "two/run", "b"]), ["one/run", "two/run", "b"]);
        assert!(!names(&["."])[0].is_empty() && names(&["."])[0] != ".");
    }
}
