//! `nearmetal watch`, as a user runs it.

use std::fs;
use std::path::Path;

use nm_model::watch::WatchTrial;
use nm_report::watch_log::{self, WatchLog};
use serde_json::Value;

use crate::support::{Run, Running, run, run_in, signal, small_plan, wait_for};

/// Words of a watch in `folder`.
fn words<'a>(plan: &'a str, keep: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["watch", plan, "--keep", keep, "--every", "5s"], more].concat()
}

/// A folder with a plan, and the paths of both and of what is kept.
struct Place {
    folder: tempfile::TempDir,
    plan: String,
    keep: String,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let plan = small_plan(folder.path(), r#"["loopback"]"#, 1, 5).display().to_string();
        let keep = folder.path().join("watched").display().to_string();
        Place { folder, plan, keep }
    }

    fn once(&self) -> Run {
        run(&words(&self.plan, &self.keep, &["--once"]))
    }

    fn trials(&self) -> Vec<WatchTrial> {
        watch_log::read(&Path::new(&self.keep).join("trials.log")).unwrap_or_default()
    }
}

#[test]
fn two_watches_of_one_folder_are_refused() {
    let place = Place::new();
    let first = Running::start(&words(&place.plan, &place.keep, &["--for", "1h"]));
    wait_for("a trial", || (!place.trials().is_empty()).then_some(()));
    let second = place.once();
    assert_eq!(second.code, 5, "{}", second.stderr);
    let message = format!("another watch writes into {}", place.keep);
    assert!(second.errors()[0].contains(&message) && second.errors().len() == 1);
    signal("INT", first.pid());
    assert_eq!(first.finish().code, 130);
    assert!(!Path::new(&place.keep).join("trial").exists(), "the trial that was interrupted");
}

#[test]
fn a_folder_with_files_of_others_is_not_used() {
    let place = Place::new();
    let theirs = Path::new(&place.keep).join("trial/theirs");
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, "kept").unwrap();
    let found = place.once();
    assert_eq!(found.code, 5, "{}", found.stderr);
    assert!(found.errors()[0].contains("holds other files and no watch"), "{}", found.stderr);
    assert_eq!(fs::read_to_string(&theirs).unwrap(), "kept");
    assert_eq!(fs::read_dir(&place.keep).unwrap().count(), 1);
}

#[test]
fn a_change_for_the_worse_is_announced() {
    let place = Place::new();
    assert_eq!(place.once().code, 0);
    let pattern = place.trials().remove(0);
    let (mut log, _) = WatchLog::open(&Path::new(&place.keep).join("trials.log")).unwrap();
    // Before, the machine was a hundred times as fast, and had another kernel.
    fs::remove_file(Path::new(&place.keep).join("trials.log")).unwrap();
    drop(log);
    (log, _) = WatchLog::open(&Path::new(&place.keep).join("trials.log")).unwrap();
    for at in 0..43_i64 {
        let mut trial = pattern.clone();
        trial.at_s += (at - 50) * 600;
        for figure in &mut trial.figures {
            figure.value *= if at < 40 { 0.01 } else { 1.0 } + 0.0001 * (at % 5) as f64;
        }
        if at < 40 {
            let facts = trial.facts.as_mut().unwrap();
            facts.insert("kernel".to_string(), "0.1".to_string());
        }
        log.append(&trial).unwrap();
    }
    let file = place.folder.path().join("alert");
    let command = format!("printf '%s\\n' \"$NEARMETAL_ALERT\" >> {}", file.display());
    let found = run(&words(&place.plan, &place.keep, &["--once", "--on-alert", &command]));
    assert_eq!(found.code, 1, "{}", found.stderr);
    let sentence = fs::read_to_string(&file).unwrap();
    assert!(sentence.contains("times what it was"), "{sentence}");
    assert!(sentence.contains("just before: kernel changed from 0.1 to "), "{sentence}");

    let status = run(&["watch", "status", &place.keep, "--format", "json"]);
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["n_trials"], 44);
    assert!(!status["changes"].as_array().unwrap().is_empty());
    let page = run_in(place.folder.path(), &["watch", "report", &place.keep, "--out", "p.html"]);
    assert_eq!(page.code, 0, "{}", page.stderr);
    let page = fs::read_to_string(place.folder.path().join("p.html")).unwrap();
    assert!(page.contains("kernel changed from 0.1") && page.contains("<svg"));
    let metrics = fs::read_to_string(Path::new(&place.keep).join("metrics.prom")).unwrap();
    assert!(metrics.contains("nearmetal_watch_trials 44") && metrics.ends_with("# EOF\n"));
}

#[test]
fn what_cannot_be_watched_is_refused_in_one_sentence() {
    let place = Place::new();
    let (plan, keep) = (place.plan.as_str(), place.keep.as_str());
    for (args, code, sentence) in [
        (vec!["watch", "-", "--keep", keep], 2, "a plan on stdin cannot be read for each trial"),
        (vec!["watch", "quick", "--keep", keep, "--every", "9s"], 2, "and --every is 9 s"),
        (vec!["watch", plan, "--keep", "/dev/null/x", "--once"], 4, "cannot be written"),
        (vec!["watch", "status", keep], 2, "holds no watch"),
        (vec!["watch", "report", keep, "--out", "x.html"], 2, "holds no watch"),
    ] {
        let found = run(&args);
        assert_eq!(found.code, code, "{args:?}: {}", found.stderr);
        let errors = found.errors();
        assert!(errors.len() == 1 && errors[0].contains(sentence), "{args:?}: {errors:?}");
    }
    assert_eq!(place.once().code, 0);
    let log = Path::new(keep).join("trials.log");
    let whole = fs::read_to_string(&log).unwrap();
    fs::write(&log, format!("x{whole}{whole}")).unwrap();
    let found = place.once();
    assert_eq!(found.code, 2);
    assert!(found.errors()[0].contains("record 1 is damaged; move it away"), "{}", found.stderr);
}
