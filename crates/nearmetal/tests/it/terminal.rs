//! What a terminal shows: the verdict last, less on request, lines that fit, and progress.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Run, command, finish, run, small_plan};

/// Runs a plan of one second with the targets of a kind, and more words.
fn qualify(folder: &Path, target: &str, rounds: u32, words: &[&str]) -> (Run, PathBuf) {
    let plan = small_plan(folder, r#"["loopback"]"#, rounds, 20);
    let text = fs::read_to_string(&plan).unwrap().replace("median < 1s", target);
    fs::write(&plan, text).unwrap();
    let out = folder.join("out");
    let mut all = vec!["qualify", "--plan", plan.to_str().unwrap()];
    all.extend(["--out", out.to_str().unwrap()]);
    all.extend(words);
    (run(&all), out)
}

fn last_lines(text: &str, count: usize) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}

#[test]
fn verdict_and_report_stand_last() {
    for (target, rounds, code, word) in [
        ("median < 1s", 5, 0, "PASS: "),
        ("median < 1ns", 5, 1, "FAIL: "),
        ("median < 1s", 1, 3, "INCONCLUSIVE: "),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (run, out) = qualify(folder.path(), target, rounds, &[]);
        assert_eq!(run.code, code, "{}{}", run.stdout, run.stderr);
        let report = format!("report: {}", out.join("report.html").display());
        let end = last_lines(&run.stdout, 24);
        assert_eq!(end.last(), Some(&report.as_str()), "{}", run.stdout);
        assert!(end.iter().any(|line| line.starts_with(word)), "{end:?}");
        assert!(
            end.iter().any(|line| line.contains(target)),
            "the reasons stand beside it: {end:?}"
        );
        let table = run.stdout.find("pingpong · half round trip").unwrap();
        assert!(table < run.stdout.find(word).unwrap(), "{}", run.stdout);
    }
}

#[test]
fn summary_and_quiet_leave_the_rest_out() {
    let folder = tempfile::tempdir().unwrap();
    let (summary, _) = qualify(&folder.path().join("a").made(), "median < 1s", 5, &["--summary"]);
    assert_eq!(summary.code, 0, "{}", summary.stderr);
    assert!(summary.stdout.starts_with("targets\n  pass "), "{}", summary.stdout);
    assert!(
        summary.stdout.contains("\nPASS: The target is met; nearest to "),
        "{}",
        summary.stdout
    );
    assert!(!summary.stdout.contains("half round trip, "), "{}", summary.stdout);

    let (quiet, out) = qualify(&folder.path().join("b").made(), "median < 1s", 5, &["--quiet"]);
    let report = out.join("report.html");
    assert!(quiet.stdout.starts_with("PASS: The target is met; nearest to "), "{}", quiet.stdout);
    let end = format!("\nreport: {}\n", report.display());
    assert!(quiet.stdout.ends_with(&end), "{}", quiet.stdout);
    let is_warning = |line: &str| line.starts_with("nearmetal: warning: another nearmetal");
    assert!(quiet.stderr.lines().all(is_warning), "no progress: {}", quiet.stderr);

    let again = run(&["report", out.to_str().unwrap(), "--quiet"]);
    assert_eq!((again.code, again.stdout), (0, quiet.stdout));
    let (refused, _) =
        qualify(folder.path(), "median < 1s", 1, &["--quiet", "--out", "/proc/nearmetal"]);
    assert_eq!(refused.code, 2, "an error is never quiet: {}", refused.stderr);

    let both = run(&["report", out.to_str().unwrap(), "--summary", "--format", "json"]);
    assert_eq!((both.code, both.errors().len()), (2, 1), "{}", both.stderr);
    assert_eq!(run(&["qualify", "--summary", "--quiet"]).code, 2);
}

/// A folder that is there.
trait Made {
    fn made(self) -> PathBuf;
}

impl Made for PathBuf {
    fn made(self) -> PathBuf {
        fs::create_dir_all(&self).unwrap();
        self
    }
}

#[test]
fn progress_is_lines_where_stderr_is_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (run, _) = qualify(folder.path(), "median < 1s", 2, &[]);
    let lines: Vec<&str> = run.stderr.lines().collect();
    let announced = lines.iter().position(|line| {
        line.starts_with("plan small, 4 trials: about ") && line.ends_with("keeps what is done")
    });
    let first = lines.iter().position(|line| {
        line.contains(" %  round 1/2  loopback/tcp-blocking pingpong  ") && line.ends_with(" left")
    });
    assert!(announced.is_some() && announced < first, "{}", run.stderr);
    let full = run_full_dry();
    assert!(full.contains(" h "), "hours: {full}");
}

/// The longest time of the plan `full`, as its dry run states it.
fn run_full_dry() -> String {
    let run = run(&["qualify", "--plan", "full", "--dry-run"]);
    run.stdout.lines().next().unwrap_or_default().to_string()
}

#[test]
fn lines_fit_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (first, out) = qualify(folder.path(), "median < 1s", 5, &[]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    let widest = |text: &str, skip: &str| {
        let lines = text.lines().filter(|line| skip.is_empty() || !line.starts_with(skip));
        lines.map(|line| line.trim_end().chars().count()).max().unwrap_or(0)
    };
    for columns in [64, 80] {
        let mut narrow = command(&["report", out.to_str().unwrap()]);
        let narrow = finish(narrow.env("COLUMNS", columns.to_string()));
        assert!(widest(&narrow.stdout, "report: ") <= columns, "{columns}: {}", narrow.stdout);
    }
    // On a terminal its own size counts, whatever the variable says.
    let script = format!(
        "stty cols 70 rows 30; COLUMNS=200 NO_COLOR=1 {} report {}",
        crate::support::BINARY,
        out.display()
    );
    let mut terminal = std::process::Command::new("script");
    terminal.args(["-qec", &script, "/dev/null"]).stdin(std::process::Stdio::null());
    let shown = finish(&mut terminal);
    assert!(shown.stdout.contains("PASS: "), "{}{}", shown.stdout, shown.stderr);
    let width = widest(&shown.stdout, "report: ");
    assert!((40..=70).contains(&width), "{width}: {}", shown.stdout);
}
