//! The result folder: what is written reads back, reports are rebuilt byte for byte, and errors are
//! one sentence.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use nm_model::FailureKind;
use nm_report::folder::{self, ResultFolder};
use nm_test_support::system_calls;

use crate::fixture::{self, SMALL};

/// A folder of its own for each test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("nm-report-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every file below a folder with its content.
fn files(path: &std::path::Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = vec![];
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => files.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    files.sort();
    files
}

#[test]
fn a_result_is_on_the_disk_before_it_gets_its_name() {
    let scratch = Scratch::new("sync");
    let run = fixture::result(SMALL);
    let folder = ResultFolder::create(&scratch.0, &run.name).unwrap();
    let (saved, calls) = system_calls(|| folder.save(&run, &[]));
    saved.unwrap();
    let renames = [libc::SYS_rename, libc::SYS_renameat, libc::SYS_renameat2];
    let is_rename = |call: i64| renames.contains(&call);
    let calls: Vec<i64> = calls
        .into_values()
        .flatten()
        .filter(|&call| call == libc::SYS_fsync || is_rename(call))
        .collect();
    // The file, its name, and the folder that has the name.
    assert_eq!(calls, [libc::SYS_fsync, calls[1], libc::SYS_fsync]);
    assert!(is_rename(calls[1]), "{calls:?}");
}

#[test]
fn nothing_is_written_through_a_link_in_the_folder() {
    let scratch = Scratch::new("links");
    let run = fixture::result(SMALL);
    let outside = scratch.0.join("outside");
    fs::write(&outside, "kept").unwrap();
    let path = scratch.0.join("run");
    fs::create_dir(&path).unwrap();
    for name in [".try", ".result.json.tmp", ".report.html.tmp", "series.csv"] {
        symlink(&outside, path.join(name)).unwrap();
    }
    let folder = ResultFolder::at(&path).unwrap();
    folder.finish(&run, &[]).unwrap();
    assert_eq!(fs::read_to_string(&outside).unwrap(), "kept");
    assert_eq!(folder::load(&path).unwrap(), run);
    assert!(!path.join("series.csv").is_symlink(), "it was replaced");
}

#[test]
fn a_run_is_saved_and_rebuilt_byte_for_byte() {
    let scratch = Scratch::new("rebuild");
    let run = fixture::result(SMALL);
    let references = [fixture::reference()];
    let folder = ResultFolder::create(&scratch.0, &run.name).unwrap();
    folder.save(&run, &references).unwrap();
    assert_eq!(folder::load(folder.path()).unwrap(), run);
    folder.finish(&run, &references).unwrap();
    let before = files(folder.path());
    for name in
        ["report.html", "report.md", "summary.md", "series.csv", "junit.xml", "metrics.prom"]
    {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert_eq!(folder::rebuild(folder.path(), |_| ()).unwrap(), (run.clone(), folder.report()));
    assert_eq!(files(folder.path()), before);
    // The result can also be had from the page alone.
    assert_eq!(folder::load(&folder.report()).unwrap(), run);
    assert!(before.iter().all(|(path, _)| !path.to_string_lossy().ends_with(".tmp")));
}

#[test]
fn a_folder_with_a_result_is_not_reused() {
    let scratch = Scratch::new("taken");
    let run = fixture::result(SMALL);
    ResultFolder::at(&scratch.0).unwrap().save(&run, &[]).unwrap();
    let refusal = ResultFolder::at(&scratch.0).unwrap_err();
    assert_eq!(refusal.kind, FailureKind::Conflict);
    let name = run.name;
    assert_eq!(
        refusal.to_string(),
        format!(
            "{} already holds the result of `{name}`; name another folder with --out, or move that \
             one away",
            scratch.0.display()
        )
    );
}

#[test]
fn a_folder_whose_run_measured_nothing_is_used_again() {
    let scratch = Scratch::new("nothing");
    let mut run = fixture::result(SMALL);
    run.series.clear();
    run.factors.clear();
    ResultFolder::at(&scratch.0).unwrap().save(&run, &[fixture::reference()]).unwrap();
    let again = ResultFolder::at(&scratch.0).unwrap();
    assert_eq!(files(&scratch.0), vec![], "nothing of it is taken for the next run's");
    std::fs::write(scratch.0.join("agent-netns-client.log"), "").unwrap();
    std::fs::write(scratch.0.join("agent-netns-server.log"), "words").unwrap();
    again.remove_empty_logs().unwrap();
    let left: Vec<_> = files(&scratch.0).into_iter().map(|(_, content)| content).collect();
    assert_eq!(left, [b"words".to_vec()]);
}

#[test]
fn each_kind_of_damage_has_its_own_message() {
    let scratch = Scratch::new("damage");
    let run = fixture::result(SMALL);
    let folder = ResultFolder::at(&scratch.0).unwrap();
    folder.save(&run, &[]).unwrap();
    let file = scratch.0.join("result.json");
    let intact = fs::read_to_string(&file).unwrap();
    let sentence = |text: &str| {
        fs::write(&file, text).unwrap();
        let failure = folder::load(&scratch.0).unwrap_err();
        assert_eq!(failure.kind, FailureKind::BadRequest);
        failure.to_string().replace(&file.display().to_string(), "FILE")
    };
    assert_eq!(
        sentence(&intact.replacen("\"schema\": 2", "\"schema\": 9", 1)),
        "FILE has format version 9; this nearmetal reads the versions 1 to 2; use a newer nearmetal"
    );
    let lines = intact.lines().count();
    let half = &intact[..intact.len() / 2];
    assert_eq!(
        sentence(half),
        format!(
            "FILE ends too early, at line {}; it was cut off; copy it again or repeat the run",
            half.lines().count()
        )
    );
    assert!(lines > 100);
    let damaged = intact.replacen("\"half-round-trip\"", "\"half-way\"", 1);
    let line = damaged.lines().position(|l| l.contains("half-way")).unwrap() + 1;
    let text = sentence(&damaged);
    assert!(
        text.starts_with("FILE is not a nearmetal result: unknown statistic `half-way`"),
        "{text}"
    );
    // The reader stops behind the bad word.
    assert!([line, line + 1].iter().any(|l| text.contains(&format!("line {l} "))), "{text}");
    assert!(sentence("[]").starts_with("FILE is not a nearmetal result: "));
    let missing = folder::load(&scratch.0.join("nowhere")).unwrap_err().to_string();
    assert!(missing.ends_with("; give a result folder, result.json or report.html"), "{missing}");
}

#[test]
fn an_unwritable_folder_is_reported_before_anything_is_measured() {
    let scratch = Scratch::new("unwritable");
    let file = scratch.0.join("file");
    fs::write(&file, "").unwrap();
    let failure = ResultFolder::create(&file, "run").unwrap_err();
    assert!(
        failure.message.starts_with(&format!("cannot make the folder {}/run: ", file.display()))
    );
    // /proc takes no files from anyone, not even from root.
    let failure = ResultFolder::at(std::path::Path::new("/proc")).unwrap_err();
    assert!(failure.message.starts_with("cannot write into /proc: "), "{failure}");
}

/// Set in the child that runs with a limit on the size of files, which fails writes in the middle
/// as a full disk does.
const CHILD: &str = "NM_REPORT_TEST_FULL_DISK";

#[test]
fn a_full_disk_is_an_error_that_keeps_the_last_save() {
    if let Some(parent) = std::env::var_os(CHILD) {
        let folder = ResultFolder::create(parent.as_ref(), "second").unwrap();
        let mut first = fixture::reference();
        first.series.truncate(1);
        folder.save(&first, &[]).unwrap();
        let failure = folder.save(&fixture::result(SMALL), &[]).unwrap_err();
        assert!(failure.message.starts_with("cannot write "), "{failure}");
        assert!(failure.message.contains("second/result.json: File too large"), "{failure}");
        assert_eq!(
            failure.hint.as_deref(),
            Some("make room there, or choose another folder with --out")
        );
        assert_eq!(folder::load(folder.path()).unwrap(), first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        return;
    }
    let scratch = Scratch::new("full");
    let child = Command::new("sh")
        .arg("-c")
        // The signal would end the process; ignored, the write fails instead. 64 blocks are 32 KiB
        // by POSIX and 64 KiB in some shells.
        .arg("trap '' XFSZ; ulimit -f 64; exec \"$0\" --exact \"$1\"")
        .arg(std::env::current_exe().unwrap())
        .arg("folder::a_full_disk_is_an_error_that_keeps_the_last_save")
        .env(CHILD, &scratch.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
}
