//! The deliberate faults in `mutations/`: for each, a guarantee that it breaks, the change of the
//! code, and the test that must fail then.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The folder of the lists, below the root. Each file has the guarantees of one letter.
pub const FOLDER: &str = "mutations";

/// A deliberate fault.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// The number of the guarantee, such as `T15`.
    pub guarantee: String,
    /// What is wrong then, as a sentence without a full stop.
    pub fault: String,
    /// The file that is changed, from the root.
    pub file: PathBuf,
    /// The text that is replaced; it occurs once in the file.
    pub find: String,
    /// What stands there instead.
    pub replace: String,
    /// The test that must fail, as SPECIFICATION.md names it.
    pub test: String,
}

/// A file of the folder.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutation: Vec<Mutation>,
}

impl Mutation {
    /// The crate of its test, and the name of the test in it, or of a module of tests.
    pub fn package_and_name(&self) -> Option<(&str, &str)> {
        let (package, name) = self.test.split_once("::")?;
        Some((package, name.trim_end_matches("::*")))
    }

    /// The text of its file with the fault.
    ///
    /// # Errors
    /// If what is to be replaced does not occur exactly once, or the change is none.
    pub fn applied(&self, text: &str) -> Result<String> {
        match text.matches(&self.find).count() {
            1 if self.find != self.replace => Ok(text.replacen(&self.find, &self.replace, 1)),
            1 => bail!("`{}` changes nothing", self.fault),
            n => bail!("what `{}` replaces occurs {n} times, and not once", self.fault),
        }
    }
}

/// The mutations of one file.
///
/// # Errors
/// If it has another form.
pub fn parse(path: &Path, text: &str) -> Result<Vec<Mutation>> {
    let list: List = toml::from_str(text).with_context(|| format!("in {}", path.display()))?;
    Ok(list.mutation)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[[mutation]]\nguarantee = 'T1'\nfault = 'one is two'\nfile = 'a.rs'\n\
                        find = '1'\nreplace = '2'\ntest = 'nm-a::module::*'\n";

    #[test]
    fn a_mutation_replaces_what_occurs_once() {
        let [mutation] = &parse(Path::new("T.toml"), TEXT).unwrap()[..] else { panic!() };
        assert_eq!(mutation.package_and_name(), Some(("nm-a", "module")));
        assert_eq!(mutation.applied("x = 1;").unwrap(), "x = 2;");
        for (text, why) in [("x = 0;", "0 times"), ("1 + 1", "2 times")] {
            let error = mutation.applied(text).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(parse(Path::new("T.toml"), "[[mutation]]\nfault = 'x'\n").is_err());
    }
}
