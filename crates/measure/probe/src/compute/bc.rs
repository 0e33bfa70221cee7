//! The work of the published study: `echo "scale=2000; 4*a(1)" | bc -l`, by the `bc` that is
//! installed.
//!
//! Implementations of `bc` differ by more than a factor of two for the same digits, so which one
//! it was belongs to the figure.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::measured_child::{EndedChild, MeasuredChild};

use super::pi;

/// The study's script.
pub const SCRIPT: &str = "scale=2000; 4*a(1)\n";

/// Digits behind the point that the script prints.
const DIGITS: usize = 2_000;

/// Digits that are compared. `bc` truncates each step, so the last ones may differ.
const COMPARED: usize = DIGITS - 10;

/// Most bytes of output that are read.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;

/// How long one job may take.
pub const JOB_TIME_MAX: Duration = Duration::from_secs(600);

/// How long `bc --version` may take.
const VERSION_TIME_MAX: Duration = Duration::from_secs(10);

/// How long one wait lasts, so that a cancel is noticed soon.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Why `bc` could not be used.
#[derive(Debug, thiserror::Error)]
pub enum BcError {
    /// No such program.
    #[error("bc is not installed")]
    NotInstalled,
    /// A program of this name that does not say what it is.
    #[error("{program} does not tell its version")]
    UnknownVersion {
        /// Its path.
        program: PathBuf,
    },
    /// It could not be started, or its pipes failed.
    #[error("{program} cannot be run")]
    Run {
        /// Its path.
        program: PathBuf,
        /// The error of the call.
        source: io::Error,
    },
    /// It ended with an error.
    #[error("{program} failed: {status}")]
    Failed {
        /// Its path.
        program: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
    },
    /// It took longer than [`JOB_TIME_MAX`].
    #[error("{program} did not end in {limit:?}")]
    Timeout {
        /// Its path.
        program: PathBuf,
        /// The time.
        limit: Duration,
    },
}

/// What one job gave.
#[derive(Debug)]
pub struct BcJob {
    /// How it ended, with its CPU time.
    pub ended: EndedChild,
    /// What it printed.
    pub output: String,
}

/// An installed `bc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bc {
    program: PathBuf,
    /// `GNU bc 1.07.1`.
    implementation: String,
}

impl Bc {
    /// The first `bc` of the `PATH`.
    ///
    /// # Errors
    /// [`BcError::NotInstalled`], and those of asking it for its version.
    pub fn find() -> Result<Bc, BcError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut programs = std::env::split_paths(&path).map(|folder| folder.join("bc"));
        Bc::at(&programs.find(|file| is_program(file)).ok_or(BcError::NotInstalled)?)
    }

    /// The `bc` at a path.
    ///
    /// # Errors
    /// If it cannot be run or does not tell its version.
    pub fn at(program: &Path) -> Result<Bc, BcError> {
        let resolved = program.canonicalize().unwrap_or_else(|_| program.to_path_buf());
        let bc = |implementation| Bc { program: program.to_path_buf(), implementation };
        let job = bc(String::new()).run(&["--version"], "", VERSION_TIME_MAX, &|| false)?;
        let file_name = resolved.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let implementation = job.and_then(|job| implementation(&file_name, &job.output));
        implementation
            .map(bc)
            .ok_or_else(|| BcError::UnknownVersion { program: program.to_path_buf() })
    }

    /// Its name and version, such as `GNU bc 1.07.1`.
    pub fn implementation(&self) -> &str {
        &self.implementation
    }

    /// Runs the script on the CPUs of the current thread. None if it was cancelled.
    ///
    /// # Errors
    /// If it cannot be run, fails or takes too long.
    pub fn job(&self, cancelled: &dyn Fn() -> bool) -> Result<Option<BcJob>, BcError> {
        self.run(&["-l"], SCRIPT, JOB_TIME_MAX, cancelled)
    }

    fn run(
        &self,
        arguments: &[&str],
        input: &str,
        limit: Duration,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<BcJob>, BcError> {
        let program = || self.program.clone();
        let failed = |source| BcError::Run { program: program(), source };
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        // These change its options and its output.
        command.stderr(Stdio::null()).env_remove("BC_ENV_ARGS").env_remove("BC_LINE_LENGTH");
        let mut child = MeasuredChild::spawn(command).map_err(failed)?;
        let stdin = child.take_stdin();
        match stdin.map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes())) {
            // It may end without reading its input.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(failed(error)),
            _ => {}
        }
        let deadline = Deadline::after(limit);
        // A pipe holds all of the output, so it is read when the program has ended.
        let ended = loop {
            if cancelled() {
                return Ok(None);
            }
            if let Some(ended) = child.wait_timeout(POLL_INTERVAL).map_err(failed)? {
                break ended;
            }
            if deadline.passed() {
                return Err(BcError::Timeout { program: program(), limit });
            }
        };
        if !ended.status.success() {
            return Err(BcError::Failed { program: program(), status: ended.status });
        }
        let mut output = vec![];
        if let Some(stdout) = child.take_stdout() {
            stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut output).map_err(failed)?;
        }
        let output = String::from_utf8_lossy(&output).into_owned();
        Ok(Some(BcJob { ended, output }))
    }
}

/// Whether `output` is what the script has to print, given π with at least as many digits.
pub fn is_correct(output: &str, pi: &str) -> bool {
    let digits = digits_of(output);
    digits.len() >= "3.".len() + DIGITS - 1
        && digits.get(.."3.".len() + COMPARED) == pi.get(.."3.".len() + COMPARED)
}

/// π with the digits of the script, computed here.
pub fn expected() -> String {
    pi::digits(DIGITS, &|| false).unwrap_or_default()
}

/// What `bc` printed, without the breaks of its lines.
pub fn digits_of(output: &str) -> String {
    output.replace("\\\n", "").trim().to_string()
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Name and version from what `bc --version` printed. The name of the file tells the programs that
/// have several names, whose `bc` is another implementation.
fn implementation(file_name: &str, output: &str) -> Option<String> {
    let first = output.lines().next()?.strip_prefix("bc ")?;
    let is_number =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    let version = first.split_whitespace().find(is_number)?;
    let is_busybox = file_name.contains("busybox") || output.contains("Adapted from");
    let family = match output {
        _ if is_busybox => "busybox bc",
        _ if file_name.contains("toybox") => "toybox bc",
        _ if output.contains("Free Software Foundation") => "GNU bc",
        _ if output.contains("Gavin") => "Howard's bc",
        _ => "bc",
    };
    Some(format!("{family} {version}"))
}

#[cfg(test)]
mod tests {
    use nm_test_support::skip::can_run;

    use super::*;

    #[test]
    fn implementations_are_distinguished() {
        let gnu = "bc 1.07.1\nCopyright 1991-1994, 1997 Free Software Foundation, Inc.\n";
        assert_eq!(implementation("bc", gnu).as_deref(), Some("GNU bc 1.07.1"));
        let howard = "bc 6.5.0\nCopyright (c) 2018-2023 Gavin D. Howard and contributors\n";
        assert_eq!(implementation("bc", howard).as_deref(), Some("Howard's bc 6.5.0"));
        let busybox = "bc 1.35.0\nAdapted from https://github.com/gavinhoward/bc\n";
        assert_eq!(implementation("busybox", busybox).as_deref(), Some("busybox bc 1.35.0"));
        assert_eq!(implementation("bc", busybox).as_deref(), Some("busybox bc 1.35.0"));
        assert_eq!(implementation("bc", "true (GNU coreutils) 9.1\n"), None);
        assert_eq!(implementation("bc", "unknown option"), None);
        assert_eq!(implementation("bc", ""), None);
    }

    #[test]
    fn only_the_digits_of_pi_are_correct() {
        let pi = expected();
        let lines = format!("{}\\\n{}\n", &pi[..68], &pi[68..]);
        assert!(is_correct(&lines, &pi));
        assert!(!is_correct(&pi.replacen("14159", "14158", 1), &pi));
        assert!(!is_correct(&pi[..1_000], &pi));
        assert!(!is_correct("", &pi) && !is_correct(&pi, ""));
        let last_differs = format!("{}9", &pi[..pi.len() - 1]);
        assert!(is_correct(&last_differs, &pi));
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let error = Bc::at(Path::new("/nothing/of/this/name")).unwrap_err();
        assert!(matches!(error, BcError::Run { .. }), "{error:?}");
        let error = Bc::at(Path::new("/bin/true")).unwrap_err();
        assert!(matches!(error, BcError::UnknownVersion { .. }), "{error:?}");
    }

    #[test]
    fn the_installed_bc_agrees_with_the_built_in_work() {
        let found = Bc::find();
        if !can_run(!matches!(found, Err(BcError::NotInstalled)), "bc is not installed") {
            return;
        }
        let bc = found.expect("it is installed, and can be used");
        let job = bc.job(&|| false).unwrap().expect("it is not cancelled");
        assert!(is_correct(&job.output, &expected()), "{}", job.output);
        assert!(job.ended.user_ns > 0);
        let digits = digits_of(&job.output);
        let ours = expected();
        let same = digits.bytes().zip(ours.bytes()).take_while(|(a, b)| a == b).count();
        assert!(same >= DIGITS, "{same} digits of {} agree", bc.implementation());
        assert!(bc.job(&|| true).unwrap().is_none(), "a cancelled job has no result");
    }
}
