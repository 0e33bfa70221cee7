//! `nearmetal exchange verify`: checks after a run, from the client log and the journals of the
//! replicas, that every guarantee was kept.

use std::fmt::Write as _;
use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nm_report::style::Tone;
use nm_verify::{Cuts, Findings, Verdict};
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::exchange::VerifyArgs;
use crate::cli::format::Format;
use crate::document::Document;
use crate::exit::{Exit, Stop};
use crate::output;

/// One folder and its findings.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Checked {
    folder: PathBuf,
    verdict: Verdict,
    is_clean: bool,
    #[serde(flatten)]
    findings: Findings,
}

/// What was checked.
#[derive(Debug, Serialize, JsonSchema)]
pub struct VerifiedDocument<'a> {
    rounds: &'a [Checked],
}

impl Document for VerifiedDocument<'_> {
    const NAME: &'static str = "exchange-verified";
}

/// Checks a folder, or each folder of a round below it.
pub fn run(args: &VerifyArgs) -> Result<Exit> {
    let mut all = vec![];
    let folders = rounds(&args.folder)?;
    if let Some(file) = &args.history {
        write_history(&folders, file)?;
    }
    for folder in folders {
        let cuts = Cuts { count: args.cuts, seed: args.seed };
        let findings = nm_verify::folder_cut(&folder, cuts)?;
        let (verdict, is_clean) = (findings.verdict(), findings.is_clean());
        all.push(Checked { folder, verdict, is_clean, findings });
    }
    match args.format.format {
        Format::Json => output::json(&VerifiedDocument { rounds: &all })?,
        Format::Text => {
            let texts: Vec<String> = all.iter().map(text).collect();
            output::text(&texts.join("\n"))?;
        }
    }
    let worst = all.iter().map(|checked| checked.verdict).max();
    Ok(match worst {
        None | Some(Verdict::Proven) => Exit::Pass,
        Some(Verdict::Doubtful) => Exit::Inconclusive,
        Some(Verdict::Damaged) => Exit::Usage,
        Some(Verdict::Violated) => Exit::Fail,
    })
}

/// Writes the history of the only round into a file.
fn write_history(folders: &[PathBuf], file: &Path) -> Result<()> {
    let [folder] = folders else {
        return Err(Stop::usage(format!(
            "--history is of one round, and there are {}: name the folder of one",
            folders.len()
        )));
    };
    let created = fs::File::create(file).map_err(|error| {
        let message = format!("{} cannot be written: {error}", file.display());
        Stop::with(Exit::Environment, message)
    })?;
    let written = nm_verify::write_history(folder, &mut BufWriter::new(created))?;
    output::message(&format!("{written} requests are in {}", file.display()));
    Ok(())
}

/// The folders to check: those that have a network's file.
fn rounds(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_round = |path: &Path| path.join("network.toml").is_file();
    if is_round(folder) {
        return Ok(vec![folder.to_path_buf()]);
    }
    let entries = fs::read_dir(folder)
        .map_err(|error| Stop::usage(format!("{} cannot be read: {error}", folder.display())))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| is_round(path))
        .collect();
    found.sort();
    if found.is_empty() {
        return Err(Stop::usage(format!(
            "neither {0} nor a folder in it has a network.toml; run the exchange with --record \
             --out {0} first",
            folder.display()
        )));
    }
    Ok(found)
}

fn text(checked: &Checked) -> String {
    let Checked { folder, findings, .. } = checked;
    let (tone, verdict) = match checked.verdict {
        Verdict::Proven => (Tone::Good, "nothing lost, doubled or reordered"),
        Verdict::Doubtful => (Tone::Unsure, "nothing wrong was found, but evidence is missing"),
        Verdict::Damaged => (Tone::Bad, "the recording was changed, so it proves nothing"),
        Verdict::Violated => (Tone::Bad, "the network violated its guarantees"),
    };
    let mut text = format!("{}: {}\n", folder.display(), output::style().tone(tone, verdict));
    if checked.verdict == Verdict::Damaged {
        for difference in &findings.damage {
            let _ = writeln!(text, "  {difference}");
        }
        return text;
    }
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "  {what:<28}{value}");
    };
    line("durability", findings.durability.to_string());
    line("requests sent", findings.sent.to_string());
    line("answered", findings.answered.to_string());
    line("carried out", findings.executed.to_string());
    line("carried out, not answered", findings.unanswered_executed.to_string());
    line("batches replayed", format!("{} from {} journals", findings.batches, findings.journals));
    line("states compared", findings.hashes.to_string());
    if findings.moves > 0 {
        let Findings { moves, moved_states, .. } = findings;
        line("moves to another cell", format!("{moves}, {moved_states} compared before and after"));
    }
    if findings.cuts > 0 {
        line("replayed from a snapshot", format!("{} times", findings.cuts));
    }
    if findings.in_snapshots > 0 {
        line("known from a snapshot only", findings.in_snapshots.to_string());
    }
    for (violation, count) in &findings.violations {
        line(&violation.to_string(), count.to_string());
    }
    for (violation, count) in &findings.not_guaranteed {
        line(&violation.to_string(), format!("{count}, not excluded by the durability"));
    }
    for sentence in findings.sentences.iter().chain(&findings.doubts).chain(&findings.notes) {
        let _ = writeln!(text, "  {sentence}");
    }
    text
}
