//! Words that files of engines may hold, and how each kind of file quotes them.

use std::fmt;
use std::str::FromStr;

use nm_model::limits;

/// Longest name, bytes: that of a label of Kubernetes.
pub(super) const NAME_BYTES_MAX: usize = 63;

/// Most limits of a plan of a node.
pub(super) const LIMITS_MAX: usize = 64;

/// A word that no file of an engine can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A name with other letters.
    #[error(
        "the name `{0}` must have 1 to {max} small letters, digits or `-`, the first and the last \
         a letter or digit", max = NAME_BYTES_MAX
    )]
    Name(String),
    /// A partition with other letters.
    #[error(
        "the partition `{0}` must have 1 to {max} letters, digits, `-` or `_`, the first no `-`",
        max = NAME_BYTES_MAX
    )]
    Partition(String),
    /// A path that is not absolute, or that a line cannot hold.
    #[error("the path {0:?} must be absolute, of at most {max} bytes, without control characters",
            max = limits::PATH_BYTES_MAX)]
    Path(String),
    /// A plan that is neither built in nor an absolute path.
    #[error(
        "the plan {0:?} must be the name of a built-in plan or an absolute path, perhaps with \
             `:PART`, because the file is read elsewhere"
    )]
    Plan(String),
    /// Nothing to judge by.
    #[error("nothing would be judged; give a limit, such as --limit 'p99 < 50us', or --baseline")]
    NoGate,
    /// More limits than a plan of a node has.
    #[error("{0} limits: at most {max}", max = LIMITS_MAX)]
    Limits(usize),
    /// More words than a manifest has.
    #[error("{option} is given {n} times: at most {max}")]
    TooMany {
        /// The option.
        option: &'static str,
        /// How often.
        n: usize,
        /// At most.
        max: usize,
    },
    /// A word that is given again.
    #[error("{option}: `{word}` is given twice")]
    Twice {
        /// The option.
        option: &'static str,
        /// The word.
        word: String,
    },
    /// A plan that no ConfigMap holds.
    #[error("the plan has {0} bytes: at most {max} fit in a ConfigMap",
            max = super::kubernetes::PLAN_BYTES_MAX)]
    PlanBytes(usize),
    /// A stack that does not reach another pod.
    #[error("--pair: `{0}` does not reach another pod; use tcp or udp, such as tcp-spin")]
    PairStack(String),
    /// A plan of a node with these limits is refused.
    #[error("--limit: {0}")]
    Plans(String),
}

/// A name of a job, a partition, a unit or an object: what all engines accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

/// The name of a partition of Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition(String);

/// Which pairs `fleet run --pairs` measures: a word that the fleet has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairsName(String);

impl PairsName {
    /// The word of what the fleet has read, which has letters, a colon and digits.
    pub fn of(read: &impl fmt::Display) -> PairsName {
        PairsName(read.to_string())
    }
}

/// An absolute path on the machine that will use the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsolutePath(String);

/// A built-in plan or an absolute path, as `--plan` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanName(String);

/// At most 80 letters of a refused word.
pub(super) fn shown(word: &str) -> String {
    word.chars().take(80).collect()
}

impl FromStr for Name {
    type Err = EngineError;

    fn from_str(word: &str) -> Result<Name, EngineError> {
        let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let is_ok = word.len() <= NAME_BYTES_MAX
            && is_end(word.chars().next())
            && is_end(word.chars().next_back())
            && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if !is_ok {
            return Err(EngineError::Name(shown(word)));
        }
        Ok(Name(word.to_string()))
    }
}

impl FromStr for Partition {
    type Err = EngineError;

    fn from_str(word: &str) -> Result<Partition, EngineError> {
        let is_ok = (1..=NAME_BYTES_MAX).contains(&word.len())
            && !word.starts_with('-')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        if !is_ok {
            return Err(EngineError::Partition(shown(word)));
        }
        Ok(Partition(word.to_string()))
    }
}

impl FromStr for AbsolutePath {
    type Err = EngineError;

    fn from_str(word: &str) -> Result<AbsolutePath, EngineError> {
        let is_ok = word.starts_with('/')
            && word.len() <= limits::PATH_BYTES_MAX
            && !word.chars().any(char::is_control);
        if !is_ok {
            return Err(EngineError::Path(shown(word)));
        }
        Ok(AbsolutePath(word.to_string()))
    }
}

impl FromStr for PlanName {
    type Err = EngineError;

    fn from_str(word: &str) -> Result<PlanName, EngineError> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-_:".contains(c);
        let is_builtin = word.starts_with(|c: char| c.is_ascii_alphanumeric())
            && word.len() <= NAME_BYTES_MAX
            && word.chars().all(is_word);
        if !is_builtin && word.parse::<AbsolutePath>().is_err() {
            return Err(EngineError::Plan(shown(word)));
        }
        Ok(PlanName(word.to_string()))
    }
}

impl PlanName {
    /// The file and the part of it, which may be empty; absent for a built-in plan.
    pub(super) fn file(&self) -> Option<(&str, &str)> {
        if !self.0.starts_with('/') {
            return None;
        }
        let (path, name) = self.0.rsplit_once('/')?;
        match name.rsplit_once(':') {
            Some((file, part)) => Some((&self.0[..path.len() + 1 + file.len()], part)),
            None => Some((&self.0, "")),
        }
    }
}

/// How messages write a word, and files that need no quotes.
macro_rules! displayed {
    ($($word:ty),*) => {
        $(
            impl fmt::Display for $word {
                fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                    formatter.write_str(&self.0)
                }
            }
        )*
    };
}

displayed!(Name, Partition, AbsolutePath, PairsName, PlanName);

/// The word for a shell.
pub(super) fn for_shell(word: &impl fmt::Display) -> String {
    nm_ssh::quoted(&word.to_string())
}

/// The word in a line of a unit that starts a program.
pub(super) fn for_unit(word: &impl fmt::Display) -> String {
    let text = word.to_string().replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace('%', "%%").replace('$', "$$"))
}

/// Shell: `worse CODE` keeps the worst exit code of nearmetal in `code`. A missed target weighs
/// most, and of the others the first.
pub(super) const WORSE: &str = r#"code=0
worse() {
  case $1 in
  0) ;;
  1) code=1 ;;
  *) [ "$code" -ne 0 ] || code=$1 ;;
  esac
}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_that_break_files_are_refused() {
        for word in ["", "-a", "a-", "a b", "a\nb", "a;b", "A", "$(x)", "ä", &"a".repeat(64)] {
            let fault = word.parse::<Name>().unwrap_err().to_string();
            assert!(fault.starts_with("the name `") && fault.len() < 300, "{fault}");
        }
        for word in ["", "a", "./a", "/a\nb", "/a\u{7f}", &format!("/{}", "a".repeat(5_000))] {
            assert!(word.parse::<AbsolutePath>().is_err(), "{word}");
            assert!(word == "a" || word.parse::<PlanName>().is_err(), "{word}");
        }
        for word in ["-", "--out", "a b", "plan.toml", "$x"] {
            assert!(word.parse::<PlanName>().is_err(), "{word}");
        }
        assert!("two-hosts:latency".parse::<PlanName>().is_ok());
    }

    #[test]
    fn a_plan_of_a_file_has_a_part_behind_the_colon() {
        let file = |word: &str| {
            let plan: PlanName = word.parse().unwrap();
            plan.file().map(|(file, part)| (file.to_string(), part.to_string()))
        };
        let some = |file: &str, part: &str| Some((file.to_string(), part.to_string()));
        assert_eq!(file("quick"), None);
        assert_eq!(file("two-hosts:latency"), None);
        assert_eq!(file("/a:b/c.toml"), some("/a:b/c.toml", ""));
        assert_eq!(file("/a/v1.2.toml:x"), some("/a/v1.2.toml", "x"));
    }

    #[test]
    fn hostile_paths_are_quoted_for_shells_and_units() {
        let path: AbsolutePath = "/a b/$(c)'\"%h\\".parse().unwrap();
        let script = format!("printf %s {}", for_shell(&path));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), path.to_string());
        assert_eq!(for_unit(&path), r#""/a b/$$(c)'\"%%h\\""#);
    }
}
