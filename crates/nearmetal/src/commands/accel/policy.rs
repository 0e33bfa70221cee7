//! The policy file: which connections and programs are accelerated, how long programs spin, and
//! what they use io_uring for. It is translated into the one-line form that the accelerator's
//! library reads.
//!
//! ```toml
//! [[rules]]                        # the first rule that matches wins; else: allow
//! action = "deny"
//! ports = [22, "8000-8099"]        # of either end; all ports if absent
//! programs = ["sshd", "curl*"]     # all programs if absent
//!
//! [spin_us]
//! redis-server = 20
//!
//! [io_uring]                       # "sockets" (the default), "files" or "refuse"
//! mariadbd = "files"
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use nm_sys::text_file;
use serde::Deserialize;

use crate::exit::Stop;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    spin_us: BTreeMap<toml::Spanned<String>, u32>,
    #[serde(default)]
    io_uring: BTreeMap<toml::Spanned<String>, RingUse>,
}

/// What a program's rings of io_uring serve.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RingUse {
    Sockets,
    Files,
    Refuse,
}

impl RingUse {
    /// The word of the compact form.
    fn word(self) -> &'static str {
        match self {
            RingUse::Sockets => "sockets",
            RingUse::Files => "files",
            RingUse::Refuse => "refuse",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    action: Action,
    #[serde(default)]
    ports: Vec<toml::Spanned<Ports>>,
    #[serde(default)]
    programs: Vec<toml::Spanned<String>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Allow,
    Deny,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a port is a number, or a range such as \"8000-8099\"")]
enum Ports {
    One(u16),
    Range(String),
}

/// A mistake in a policy file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Mistake {
    /// What the TOML parser reports, first line.
    #[error("{0}")]
    Toml(String),
    #[error("`{0}` is not a range of ports; write for example \"8000-8099\"")]
    PortRange(String),
    #[error(
        "`{0}` is not the name of a program; write the name of its file, with `*` at the end for \
         any rest"
    )]
    ProgramName(String),
}

/// A mistake, and the byte offset in the file where it is.
type Located = (usize, Mistake);

/// Bytes of a policy file.
const POLICY_BYTES_MAX: u64 = 1 << 20;

/// Reads a policy file and returns its compact form.
///
/// # Errors
/// One sentence with the line, if there is a mistake.
pub fn load(path: &Path) -> Result<String> {
    let shown = path.display();
    let text = text_file::read(path, POLICY_BYTES_MAX)
        .map_err(|error| Stop::usage(format!("cannot read policy {shown}: {error}")))?;
    compact(&text).map_err(|(offset, mistake)| {
        let line = line_of(&text, offset);
        Stop::usage(format!("{shown}, line {line}: {mistake}"))
    })
}

/// The number of the line, from 1 on, in which a byte of `text` is.
fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}

/// The compact form.
fn compact(text: &str) -> Result<String, Located> {
    let file: File = toml::from_str(text).map_err(|error| {
        let message = error.message().lines().next().unwrap_or("not a policy file").to_string();
        (error.span().map_or(0, |span| span.start), Mistake::Toml(message))
    })?;
    let mut parts = vec![];
    for rule in &file.rules {
        let mut part = match rule.action {
            Action::Allow => "+".to_string(),
            Action::Deny => "-".to_string(),
        };
        for (index, ports) in rule.ports.iter().enumerate() {
            let (low, high) = range(ports.get_ref()).map_err(|m| (ports.span().start, m))?;
            let comma = if index > 0 { "," } else { "" };
            // Writing to a string does not fail.
            let _ = write!(part, "{comma}{low}-{high}");
        }
        part += &program_list(&rule.programs)?;
        parts.push(part);
    }
    for (program, microseconds) in &file.spin_us {
        let programs = program_list(std::slice::from_ref(program))?;
        parts.push(format!("~{microseconds}{programs}"));
    }
    for (program, used_for) in &file.io_uring {
        let programs = program_list(std::slice::from_ref(program))?;
        parts.push(format!("%{}{programs}", used_for.word()));
    }
    Ok(parts.join(";"))
}

fn range(ports: &Ports) -> Result<(u16, u16), Mistake> {
    match ports {
        Ports::One(port) => Ok((*port, *port)),
        Ports::Range(text) => {
            let (low, high) = text.split_once('-').unwrap_or((text, text));
            match (low.trim().parse(), high.trim().parse()) {
                (Ok(low), Ok(high)) if low <= high => Ok((low, high)),
                _ => Err(Mistake::PortRange(text.clone())),
            }
        }
    }
}

/// `@NAME,NAME`, or nothing for all programs.
fn program_list(programs: &[toml::Spanned<String>]) -> Result<String, Located> {
    for program in programs {
        let name = program.get_ref();
        let stem = name.strip_suffix('*').unwrap_or(name);
        if name.is_empty() || stem.contains(['*', '/', ',', ';', '@', '\0']) {
            return Err((program.span().start, Mistake::ProgramName(name.clone())));
        }
    }
    let names: Vec<&str> = programs.iter().map(|program| program.get_ref().as_str()).collect();
    Ok(if names.is_empty() { String::new() } else { format!("@{}", names.join(",")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_or_a_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        std::fs::File::create(&path).unwrap().set_len(POLICY_BYTES_MAX + 1).unwrap();
        for (path, why) in [(path.as_path(), "more than"), (Path::new("/dev/zero"), "a device")] {
            let refused = load(path).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let page = include_str!("../../../../../docs/limits.md");
        assert!(page.contains(&format!("\n| policy of the accelerator | {POLICY_BYTES_MAX} | ")));
    }

    #[test]
    fn policy_is_compacted_to_one_line() {
        let text = "[[rules]]\naction = \"deny\"\nports = [22, \"8000-8099\"]\n\
                    programs = [\"sshd\", \"curl*\"]\n\
                    [[rules]]\naction = \"allow\"\nports = [6379]\n\
                    [[rules]]\naction = \"deny\"\n\
                    [spin_us]\nredis-server = 20\n\
                    [io_uring]\nmariadbd = \"files\"\n\"my-*\" = \"refuse\"\n";
        let expected = "-22-22,8000-8099@sshd,curl*;+6379-6379;-;~20@redis-server;\
                        %files@mariadbd;%refuse@my-*";
        assert_eq!(compact(text), Ok(expected.to_string()));
        assert_eq!(compact(""), Ok(String::new()));
    }

    #[test]
    fn mistake_is_reported_with_its_line() {
        for (text, line, word) in [
            ("\n[[rules]]\naction = \"forbid\"\n", 3, "forbid"),
            ("[[rules]]\nports = [1]\n", 1, "action"),
            ("[[rules]]\naction = \"deny\"\nports = [70000]\n", 3, "a port is a number"),
            ("[[rules]]\naction = \"deny\"\nports = [\"9-8\"]\n", 3, "9-8"),
            ("[[rules]]\naction = \"deny\"\nprograms = [\"ok\",\n\"/bin/x\"]\n", 4, "/bin/x"),
            ("[spin_us]\n\"a;b\" = 1\n", 2, "a;b"),
            ("[spin_us]\nredis = -1\n", 2, "-1"),
            ("[io_uring]\nmariadbd = \"disks\"\n", 2, "disks"),
            ("[io_uring]\n\"a,b\" = \"files\"\n", 2, "a,b"),
            ("[rule]\n", 1, "rule"),
            ("[[rules]\n", 1, ""),
        ] {
            let (offset, mistake) = compact(text).unwrap_err();
            let (at, message) = (line_of(text, offset), mistake.to_string());
            assert!(at == line && message.contains(word), "{text}: line {at}: {message}");
        }
    }
}
