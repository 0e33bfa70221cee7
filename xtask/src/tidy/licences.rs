//! Licences of everything that is linked.
//!
//! Security advisories are not checked. Their database is a git repository of its own that must be
//! fetched and be recent. A check without a network would say nothing, or say it of old data.

use std::path::Path;

use serde_json::Value;

use crate::tidy::fault::{Check, Fault};
use crate::tidy::workspace::{list, text};

/// Licences that may be linked; an expression needs one of its alternatives here.
const LICENCES: [&str; 11] = [
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "ISC",
    "Zlib",
    "Unlicense",
    "Unicode-3.0",
];

pub fn check(metadata: &Value) -> Vec<Fault> {
    let packages = list(metadata, "packages").iter();
    let refused = packages.filter(|package| !is_allowed(text(package, "license")));
    let faults = refused.map(|package| {
        let (name, expression) = (text(package, "name"), text(package, "license"));
        let problem = format!(
            "{name} has licence `{expression}`, which may not be linked; take another crate"
        );
        Fault::new(Check::Licences, Path::new("Cargo.lock"), 1, problem)
    });
    faults.collect()
}

/// Whether an SPDX expression can be met with [`LICENCES`]: every part joined by AND needs one
/// alternative that is allowed.
fn is_allowed(expression: &str) -> bool {
    let flat = expression.replace('/', " OR ").replace(['(', ')'], " ");
    flat.split(" AND ")
        .all(|part| part.split(" OR ").map(str::trim).any(|licence| LICENCES.contains(&licence)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn licences_need_one_allowed_alternative_in_each_part() {
        for good in
            ["MIT", "MIT OR Apache-2.0", "(MIT OR GPL-3.0) AND Unicode-3.0", "MIT/Apache-2.0"]
        {
            assert!(is_allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "EUPL-1.2", "MIT AND MPL-2.0"] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn package_with_refused_licence_is_a_fault() {
        let metadata = json!({"packages": [
            {"name": "good", "license": "MIT"},
            {"name": "bad", "license": "GPL-3.0"},
        ]});
        let faults = check(&metadata);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].text.contains("bad has licence `GPL-3.0`"));
    }

    #[test]
    fn cargo_deny_allows_the_same_licences() {
        let text = std::fs::read_to_string(crate::shell::root().join("deny.toml")).unwrap();
        let file: toml::Table = toml::from_str(&text).unwrap();
        let allowed = file["licenses"]["allow"].as_array().unwrap();
        assert!(allowed.iter().map(|licence| licence.as_str().unwrap()).eq(LICENCES));
    }
}
