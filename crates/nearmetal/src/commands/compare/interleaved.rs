//! `compare --against`: both sides are measured in turn, one round each, so that what the machine
//! does meanwhile meets both. Each round is a run of its own, so the rounds show how much runs
//! differ.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nm_model::hosts::Destination;
use nm_model::{DoubtKind, RunResult};
use nm_report::folder;
use nm_report::style::clean;
use nm_report::units;
use nm_ssh::{Patience, quoted};
use nm_sys::private_folder::{PrivateFolder, remove_abandoned};
use nm_sys::process::{ChildProcess, Signal, own_program};

use crate::campaign::interrupt;
use crate::cli::compare::InterleavedArgs;
use crate::exit::{Exit, Stop};
use crate::{output, plans};

/// What begins the names of temporary folders.
const FOLDER: &str = "nearmetal-compare-";

/// How often a side that measures is looked at.
const STEP: Duration = Duration::from_millis(50);

/// How long an interrupted side may take to end, and to remove what it made.
const END_LIMIT: Duration = Duration::from_secs(20);

/// The program on another host, by its PATH.
const PROGRAM: &str = "nearmetal";

/// What differs on side B.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Against {
    /// Another program with the same plan.
    Program(PathBuf),
    /// Another plan of this program.
    Plan(String),
    /// This plan on another host.
    Host(Destination),
}

impl Against {
    /// A file that can be executed is a program, unless its name ends as that of a plan: some file
    /// systems have all files executable. Other files and the names of built-in plans are plans;
    /// everything else is a host.
    fn of(word: &str) -> Result<Against> {
        use std::os::unix::fs::PermissionsExt;
        let path = Path::new(word);
        let file = path.metadata().ok().filter(fs::Metadata::is_file);
        let is_program = |file: &fs::Metadata| {
            file.permissions().mode() & 0o111 != 0 && path.extension() != Some("toml".as_ref())
        };
        if file.as_ref().is_some_and(is_program) {
            return Ok(Against::Program(path.canonicalize()?));
        }
        let name = word.split(':').next().unwrap_or(word);
        let has_part = Path::new(name).is_file();
        let is_built_in = plans::built_in().iter().any(|(known, _)| *known == name);
        if file.is_some() || has_part || is_built_in {
            return Ok(Against::Plan(word.to_string()));
        }
        if word.contains('/') && !word.starts_with("ssh://") {
            return Err(Stop::usage(format!(
                "--against {word}: there is no such file; name a program, a plan or a host"
            )));
        }
        let destination = word.parse().map_err(|error| {
            Stop::usage(format!(
                "--against {word}: {error}; name a program by its path, a plan or a host"
            ))
        })?;
        Ok(Against::Host(destination))
    }

    /// The name of the side.
    fn name(&self) -> String {
        match self {
            Against::Program(path) => path.display().to_string(),
            Against::Plan(word) => format!("plan {word}"),
            Against::Host(destination) => destination.to_string(),
        }
    }
}

/// One side with what it runs.
struct Side {
    name: String,
    program: PathBuf,
    host: Option<Destination>,
    /// The text of its plan, and the part of it that is wanted.
    plan: (String, Option<String>),
    only: Vec<String>,
}

/// Both sides measured: their results with all rounds.
pub struct Interleaved {
    pub results: [RunResult; 2],
    pub names: [String; 2],
}

/// Measures this program with the plan, and the side that `args` names, in turn.
///
/// # Errors
/// If a side cannot run or gives no result, or the user ends the run.
pub fn measure(args: &InterleavedArgs, word: &str, out: Option<&Path>) -> Result<Interleaved> {
    let against = Against::of(word)?;
    let sides = sides(args, &against)?;
    let interrupted = interrupt::flag()?;
    let all = std::env::temp_dir();
    // Those of comparisons that were killed.
    remove_abandoned(&all, FOLDER);
    let temporary = PrivateFolder::create(&all, FOLDER)
        .map_err(|error| Stop::with(Exit::Environment, error.to_string()))?;
    let rounds = units::plural(args.rounds as usize, "round", "rounds");
    let [a, b] = &sides;
    output::message(&format!("A is {}, B is {}: {rounds} of each in turn", a.name, b.name));
    let mut results: [Option<RunResult>; 2] = [None, None];
    for round in 0..args.rounds {
        // In every second round B is first, so that both come as early.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for index in order {
            let side = &sides[index];
            output::message(&format!("round {}/{}  {}", round + 1, args.rounds, side.name));
            let folder = temporary.path().join(format!("{round}-{index}"));
            let measured = side.round(&folder, &interrupted)?;
            match &mut results[index] {
                Some(result) => append(result, measured, round),
                none => *none = Some(measured),
            }
        }
    }
    let results = results.map(|result| {
        let mut result = result.expect("each side has a round");
        conclude(&mut result, args.rounds);
        result
    });
    if let Some(out) = out {
        for (result, name) in results.iter().zip(["a", "b"]) {
            folder::ResultFolder::at(&out.join(name))?.finish(result, &[])?;
        }
    }
    Ok(Interleaved { results, names: sides.map(|side| side.name) })
}

fn sides(args: &InterleavedArgs, against: &Against) -> Result<[Side; 2]> {
    let own = own_program().context("cannot find this program's own file")?;
    // A bad plan is refused before anything runs.
    let plan_of = |word: &str| -> Result<(String, Option<String>)> {
        let plan = plans::read(word)?;
        plan.parse()?;
        Ok((plan.text.to_string(), plan.part.map(str::to_string)))
    };
    let plan = plan_of(&args.plan)?;
    let side = |name: String| Side {
        name,
        program: own.clone(),
        host: None,
        plan: plan.clone(),
        only: args.only.clone(),
    };
    let a = match against {
        Against::Plan(_) => side(format!("plan {}", args.plan)),
        Against::Program(_) => side("this program".to_string()),
        Against::Host(_) => side("this host".to_string()),
    };
    let b = side(against.name());
    let b = match against {
        Against::Program(path) => Side { program: path.clone(), ..b },
        Against::Host(destination) => Side { host: Some(destination.clone()), ..b },
        Against::Plan(word) => Side { plan: plan_of(word)?, ..b },
    };
    Ok([a, b])
}

impl Side {
    /// Runs one round and loads its result.
    fn round(&self, folder: &Path, interrupted: &Arc<AtomicBool>) -> Result<RunResult> {
        fs::create_dir(folder)?;
        let mut command = match &self.host {
            None => self.here(folder)?,
            Some(destination) => self.there(destination, folder)?,
        };
        let errors = folder.join("stderr");
        command.stderr(fs::File::create(&errors)?);
        let unstarted = || format!("cannot start {}", self.name);
        let mut child = ChildProcess::spawn(command).with_context(unstarted)?;
        let sending = self.send_plan(&mut child);
        let status = loop {
            if let Some(status) = child.wait_timeout(STEP) {
                break status;
            }
            if interrupted.load(Ordering::Relaxed) {
                child.signal(Signal::INT);
                // A host ends its run when its input ends.
                drop(sending);
                child.wait_timeout(END_LIMIT);
                let message = format!("{} was interrupted; nothing is compared", self.name);
                return Err(Stop::with(Exit::Interrupted, message));
            }
        };
        drop(sending);
        // Pass, fail and inconclusive: each has a result.
        if !matches!(status.code(), Some(0 | 1 | 3)) {
            let text = fs::read_to_string(&errors).unwrap_or_default();
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            let (name, last) = (&self.name, clean(last.trim()));
            let message = format!("{name} ended with {status}: {last}");
            return Err(Stop::with(Exit::Environment, message));
        }
        let result = match self.host {
            None => folder.join("result"),
            Some(_) => folder.join("result.json"),
        };
        Ok(folder::load(&result)?)
    }

    /// `plan.toml` in a folder, with the part that is wanted.
    fn plan_in(&self, folder: &str) -> String {
        let part = self.plan.1.as_ref().map_or(String::new(), |part| format!(":{part}"));
        format!("{folder}/plan.toml{part}")
    }

    fn here(&self, folder: &Path) -> Result<Command> {
        fs::write(folder.join("plan.toml"), &self.plan.0)?;
        let plan = self.plan_in(&folder.to_string_lossy());
        let mut command = Command::new(&self.program);
        command.args(["qualify", "--plan", &plan, "--rounds", "1", "--quiet", "--out"]);
        command.arg(folder.join("result")).stdin(Stdio::null()).stdout(Stdio::null());
        if !self.only.is_empty() {
            command.args(["--only", &self.only.join(",")]);
        }
        Ok(command)
    }

    /// The same on another host: it gets the plan's text, and its result comes back.
    fn there(&self, destination: &Destination, folder: &Path) -> Result<Command> {
        let only = match self.only.is_empty() {
            true => String::new(),
            false => format!(" --only {}", quoted(&self.only.join(","))),
        };
        let (bytes, plan) = (self.plan.0.len(), self.plan_in("$d"));
        // A shell without a terminal does not learn that ssh has ended, but its input ends then.
        let script = format!(
            "d=$(mktemp -d) || exit 4; trap 'rm -rf \"$d\"' EXIT; exec 3<&0; \
             head -c {bytes} <&3 >\"$d/plan.toml\"; \
             {PROGRAM} qualify --plan \"{plan}\" --rounds 1 --quiet \
             --out \"$d/result\"{only} >&2 </dev/null & p=$!; \
             {{ cat <&3; kill -INT $p; }} >/dev/null 2>&1 & q=$!; \
             wait $p; c=$?; kill $q 2>/dev/null; cat \"$d/result/result.json\"; exit $c"
        );
        let mut command = nm_ssh::command(destination, &script, Patience::Short);
        command.stdin(Stdio::piped()).stdout(fs::File::create(folder.join("result.json"))?);
        Ok(command)
    }

    /// Gives the plan to a host. Its input stays open until what is returned is dropped.
    fn send_plan(&self, child: &mut ChildProcess) -> Option<thread::JoinHandle<ChildStdin>> {
        let mut input = child.take_stdin()?;
        let text = self.plan.0.clone();
        // A host that reads nothing must not stop this process.
        Some(thread::spawn(move || {
            let _ = input.write_all(text.as_bytes());
            input
        }))
    }
}

/// Adds a round of its own run to the result.
fn append(result: &mut RunResult, measured: RunResult, number: u32) {
    for mut series in measured.series {
        series.rounds.iter_mut().for_each(|round| round.round = number);
        match result.series.iter_mut().find(|known| known.key == series.key) {
            Some(known) => {
                known.rounds.append(&mut series.rounds);
                for doubt in series.doubts {
                    if !known.doubts.iter().any(|one| one.kind == doubt.kind) {
                        known.doubts.push(doubt);
                    }
                }
            }
            None => result.series.push(series),
        }
    }
    result.failures.extend(measured.failures);
    for missing in measured.not_available {
        if !result.not_available.contains(&missing) {
            result.not_available.push(missing);
        }
    }
    let duration_s = result.duration_s.zip(measured.duration_s);
    result.duration_s = duration_s.map(|(so_far, more)| so_far + more);
}

/// Figures and verdicts over all rounds.
fn conclude(result: &mut RunResult, rounds: u32) {
    if let Some(plan) = &mut result.plan {
        plan.rounds = rounds;
    }
    for series in &mut result.series {
        // One round of each run is too few, but all of them may not be.
        series.doubts.retain(|doubt| doubt.kind != DoubtKind::TooFewRounds);
        series.estimates.clear();
        nm_stats::rounds::estimate(series);
    }
    nm_judge::judge(result, &|name| nm_report::reference::load(name).ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_side_is_a_program_a_plan_or_a_host() {
        let own = std::env::current_exe().unwrap();
        let against = |word: &str| Against::of(word).map_err(|error| error.to_string());
        assert_eq!(against(own.to_str().unwrap()), Ok(Against::Program(own)));
        for plan in ["quick", "quick:latency", "../../plans/full.toml"] {
            assert_eq!(against(plan), Ok(Against::Plan(plan.to_string())), "{plan}");
        }
        let folder = tempfile::tempdir().unwrap();
        let executable = folder.path().join("plan.toml");
        fs::write(&executable, "").unwrap();
        fs::set_permissions(&executable, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        for plan in [executable.display().to_string(), format!("{}:part", executable.display())] {
            assert_eq!(against(&plan), Ok(Against::Plan(plan.clone())), "{plan}");
        }
        for host in ["alice@db1", "db1", "ssh://bob@db1:2222"] {
            assert_eq!(against(host), Ok(Against::Host(host.parse().unwrap())), "{host}");
        }
        assert!(against("./none").unwrap_err().contains("there is no such file"));
        assert!(against("-x").unwrap_err().contains("is no destination for ssh"));
    }
}
