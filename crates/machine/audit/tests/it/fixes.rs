//! What findings tell people to type is a command.

use std::collections::BTreeSet;
use std::process::Command;

use nm_audit::{audit, checks, pair_checks};
use nm_model::FindingStatus;
use nm_model::finding::{Finding, Fix, FixKind};

use crate::{foreign, tree};

/// All that a fix says, where it is a command or words of the kernel's command line.
fn is_typed(fix: &Fix) -> bool {
    matches!(fix.kind, FixKind::Command | FixKind::KernelCommandLine)
}

/// Findings of all trees.
fn findings() -> Vec<Finding> {
    let snapshots = tree::names().into_iter().map(|name| tree::snapshot_of(&name));
    let foreign = foreign::snapshots().iter().map(|(_, snapshot)| snapshot.clone());
    snapshots.chain(foreign).flat_map(|snapshot| audit(&snapshot).findings).collect()
}

fn is_parsed_by_a_shell(text: &str) -> bool {
    let status = Command::new("sh").args(["-n", "-c", text]).output().unwrap().status;
    status.success()
}

#[test]
fn every_fix_of_every_tree_is_parsed_by_a_shell() {
    let declared = checks::all()
        .chain(checks::of_firmware())
        .chain(pair_checks())
        .map(|check| check.reasons(&[]).fix);
    let found = findings().into_iter().map(|finding| finding.fix);
    let fixes: BTreeSet<String> =
        declared.chain(found).filter(is_typed).map(|fix| fix.text).collect();
    assert!(fixes.len() > 100, "{} fixes", fixes.len());
    let wrong: Vec<&String> = fixes
        .iter()
        // A loop over nothing is parsed, and does nothing.
        .filter(|text| !is_parsed_by_a_shell(text) || text.contains(" in ;") || text.contains("= "))
        .collect();
    assert_eq!(wrong, Vec::<&String>::new());
    assert!(!is_parsed_by_a_shell("for c in 1; echo $c"), "the shell refuses what is no command");
}

#[test]
fn words_for_the_kernel_s_command_line_are_words() {
    for finding in findings() {
        let Fix { kind: FixKind::KernelCommandLine, text } = &finding.fix else { continue };
        let words = text.split('#').next().unwrap_or_default();
        for word in words.split(';').flat_map(str::split_whitespace) {
            let is_word = word.split('=').next().is_some_and(|name| {
                name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
            });
            assert!(is_word && word.contains('='), "{}: {word}", finding.id);
        }
        let is_open = words.contains("CPUS") || words.contains("HOUSEKEEPING");
        assert!(finding.status != FindingStatus::Fail || !is_open, "{}: {text}", finding.id);
    }
}
