//! Baselines as files: what is saved reads back, and nothing else is read.

use std::path::Path;
use std::sync::LazyLock;

use nm_model::baseline::{BYTES_MAX, Baseline, BaselineFigure};
use nm_report::baseline_folder::{BaselineError, json, load, parse, save};
use proptest::prelude::*;

use crate::fixture::{self, SMALL};

/// Made once: property tests ask for it hundreds of times.
static BASELINE: LazyLock<Baseline> = LazyLock::new(|| {
    let figures = nm_judge::CompareOptions::default().fail_on;
    nm_judge::baseline(&fixture::result(SMALL), &figures, &nm_judge::Selector::any())
});

fn baseline() -> Baseline {
    BASELINE.clone()
}

/// The same with these rounds in every figure, and so many copies of the figures.
fn with(rounds: &[f64], n_copies: usize) -> Baseline {
    let mut large = baseline();
    large.figures = large
        .figures
        .iter()
        .cycle()
        .take(large.figures.len() * n_copies)
        .map(|figure| BaselineFigure { rounds: rounds.to_vec(), ..figure.clone() })
        .collect();
    large
}

#[test]
fn a_saved_run_reads_back_from_a_file_and_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    for to in [folder.path().join("one.json"), folder.path().join("many")] {
        let path = save(&to, &baseline()).unwrap();
        let read = load(&to).unwrap();
        assert_eq!(read.baselines, [(path, baseline())]);
        let again = save(&to, &baseline()).unwrap_err();
        assert!(again.is_conflict(), "{again}");
    }
}

#[test]
fn a_baseline_beyond_its_limit_is_refused() {
    assert!(json(&with(&[4000.0; 100], 4)).unwrap().len() as u64 <= BYTES_MAX);
    let folder = tempfile::tempdir().unwrap();
    let refused = save(&folder.path().join("x.json"), &with(&[4000.0; 100], 400)).unwrap_err();
    assert!(matches!(refused, BaselineError::TooLarge { .. }), "{refused}");
    assert!(refused.to_string().contains("100000 are the most"), "{refused}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_run_without_figures_or_start_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = Baseline { figures: vec![], ..baseline() };
    assert!(matches!(save(folder.path(), &nothing), Err(BaselineError::NoFigure)));
    let undated = Baseline { started: None, ..baseline() };
    assert!(matches!(save(folder.path(), &undated), Err(BaselineError::NoStart)));
    assert!(save(&folder.path().join("undated.json"), &undated).is_ok());
}

proptest! {
    #[test]
    fn any_rounds_read_back(rounds in prop::collection::vec(0.0..1e15f64, 1..100)) {
        let saved = with(&rounds, 1);
        prop_assert_eq!(parse(&json(&saved).unwrap(), Path::new("x")).unwrap(), saved);
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".*", at in 0usize..4000, inserted in "[ -~]{0,4}") {
        let _ = parse(&text, Path::new("x"));
        let mut changed = json(&baseline()).unwrap();
        let at = at.min(changed.len());
        if changed.is_char_boundary(at) {
            changed.insert_str(at, &inserted);
        }
        if let Err(error) = parse(&changed, Path::new("x")) {
            prop_assert!(!error.to_string().contains('\n'), "{}", error);
        }
    }
}
