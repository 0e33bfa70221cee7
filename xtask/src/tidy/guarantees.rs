//! The tables of SPECIFICATION.md. Every guarantee has a number, a place where it was seen, and
//! tests that exist, or says that no test enforces it.
//!
//! A test is named in the last column as `` `crate::test_function` ``, or `` `crate::module::*` ``
//! for all tests of a file or folder of that name.

use std::path::Path;

use crate::tidy::fault::{Check, Fault};
use crate::tidy::house;
use crate::tidy::workspace::{Files, is_rust};

const SPECIFICATION: &str = "SPECIFICATION.md";

/// Columns of a table of guarantees: number, guarantee, seen on, tests.
const COLUMNS: usize = 4;

/// What the last column says of a guarantee without a test.
const NO_TEST: &str = "**no test**";

pub fn check(files: &Files) -> Vec<Fault> {
    let Some(text) = files.get(Path::new(SPECIFICATION)) else { return vec![] };
    let (mut faults, mut numbers) = (vec![], vec![]);
    for (index, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else { continue };
        let mut add = |text: String| {
            faults.push(Fault::new(Check::Guarantees, Path::new(SPECIFICATION), index + 1, text));
        };
        let [number, guarantee, seen, tests] = cells;
        if !is_number(number) || numbers.contains(&number) {
            add(format!("`{number}` is no number of its own; write for example M3"));
        }
        numbers.push(number);
        if guarantee.is_empty() || seen.is_empty() {
            add(format!("{number} says what is guaranteed and where it was seen; write both"));
        }
        let named: Vec<&str> = named(tests).collect();
        if named.is_empty() != tests.contains(NO_TEST) {
            add(format!("{number} names either tests that enforce it or {NO_TEST}; write one"));
        }
        for test in named.into_iter().filter(|test| !exists(files, test)) {
            add(format!("there is no test `{test}`; correct the name or mark {number} {NO_TEST}"));
        }
    }
    faults
}

/// The tests that a guarantee names.
pub(super) fn tests_of(files: &Files, number: &str) -> Vec<String> {
    let text = files.get(Path::new(SPECIFICATION)).map_or("", String::as_str);
    let mut rows = text.lines().filter_map(cells);
    let row = rows.find(|[own, ..]| *own == number);
    row.map(|[.., tests]| named(tests).map(str::to_string).collect()).unwrap_or_default()
}

/// The cells of a guarantee; none for other lines, heads of tables included.
fn cells(line: &str) -> Option<[&str; COLUMNS]> {
    let inner = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
    let cells: [&str; COLUMNS] = cells.try_into().ok()?;
    let is_head = cells[0] == "no." || cells[0].starts_with("---");
    (!is_head).then_some(cells)
}

/// A letter for the area, and a number.
fn is_number(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|letter| letter.is_ascii_uppercase())
        && !chars.as_str().is_empty()
        && chars.all(|digit| digit.is_ascii_digit())
}

/// The words in backticks that have the form of a test.
fn named(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2).filter(|word| word.contains("::"))
}

fn exists(files: &Files, test: &str) -> bool {
    let Some((owner, name)) = test.split_once("::") else { return false };
    let folder = house::folder(owner);
    let mut own = files.iter().filter(|(path, _)| path.starts_with(&folder) && is_rust(path));
    match name.strip_suffix("::*") {
        Some(module) => own.any(|(path, text)| is_of_module(path, module) && has_tests(text)),
        None => own.any(|(_, text)| is_test(text, name)),
    }
}

fn is_of_module(path: &Path, module: &str) -> bool {
    let is_named = |part: &std::ffi::OsStr| part == module;
    path.file_stem().is_some_and(is_named) || path.iter().any(is_named)
}

/// Whether it has tests; the macros are those of the accelerator's conformance suite.
fn has_tests(text: &str) -> bool {
    ["#[test]", "behaviours![", "accelerated_only!["].iter().any(|code| text.contains(code))
}

/// Whether a function of this name is marked as a test.
fn is_test(text: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().enumerate().any(|(at, line)| {
        let mut above = lines[..at].iter().rev().take_while(|line| !line.trim().is_empty());
        line.contains(&function) && above.any(|line| line.trim() == "#[test]")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(row: &str) -> Vec<String> {
        let code = "#[test]\nfn it_holds() {}\n\nfn helper() {}\n";
        let files = Files::from([
            (SPECIFICATION.into(), format!("| no. | guarantee | seen on | test |\n{row}\n")),
            ("crates/measure/model/tests/it/faults.rs".into(), code.to_string()),
        ]);
        check(&files).iter().map(Fault::to_string).collect()
    }

    #[test]
    fn tests_that_exist_and_marked_guarantees_pass() {
        for tests in
            ["`nm-model::it_holds`", "`nm-model::faults::*`, and `cargo xtask soak`", "**no test**"]
        {
            let row = format!("| A1 | It holds. | any machine | {tests} |");
            assert_eq!(faults_of(&row), Vec::<String>::new(), "{row}");
        }
        assert_eq!(faults_of("| two | columns |\n|---|---|---|---|"), Vec::<String>::new());
    }

    #[test]
    fn missing_tests_and_cells_are_faults() {
        for (row, why) in [
            (
                "| A1 | It holds. | any | `nm-model::it_does_not` |",
                "no test `nm-model::it_does_not`",
            ),
            ("| A1 | It holds. | any | `nm-model::helper` |", "no test `nm-model::helper`"),
            ("| A1 | It holds. | any | `nm-b::it_holds` |", "no test `nm-b::it_holds`"),
            ("| A1 | It holds. | any | `nm-model::other::*` |", "no test `nm-model::other::*`"),
            ("| A1 | It holds. | any | reviews |", "names either tests"),
            ("| A1 | It holds. | any | **no test** `nm-model::it_holds` |", "names either tests"),
            ("| A1 | It holds. | | **no test** |", "write both"),
            ("| 1 | It holds. | any | **no test** |", "`1` is no number"),
        ] {
            let faults = faults_of(row);
            assert_eq!(faults.len(), 1, "{row}: {faults:?}");
            assert!(faults[0].contains(why), "{faults:?}");
        }
        let twice = "| A1 | x | any | **no test** |\n| A1 | y | any | **no test** |";
        assert_eq!(faults_of(twice).len(), 1);
    }
}
