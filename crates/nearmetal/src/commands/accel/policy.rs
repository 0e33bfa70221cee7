//! The policy file: which connections and programs are accelerated, and how long programs spin.
//! Here it becomes the one line that the accelerator's library reads.
//!
//! ```toml
//! [[rules]]                        # the first rule that matches wins; else: allow
//! action = "deny"
//! ports = [22, "8000-8099"]        # of either end; every port if absent
//! programs = ["sshd", "curl*"]     # every program if absent
//!
//! [spin_us]
//! redis-server = 20
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use crate::exit::Stop;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    spin_us: BTreeMap<toml::Spanned<String>, u32>,
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

/// Reads a policy file and gives its compact form.
///
/// # Errors
/// One sentence with the line, if there is a mistake.
pub fn load(path: &Path) -> Result<String> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Stop::usage(format!("cannot read policy {shown}: {error}")))?;
    compact(&text)
        .map_err(|(line, message)| Stop::usage(format!("{shown}, line {line}: {message}")))
}

/// The compact form, or the line of the mistake and what it is.
fn compact(text: &str) -> Result<String, (usize, String)> {
    let line = |at: usize| text.get(..at).unwrap_or(text).matches('\n').count() + 1;
    let file: File = toml::from_str(text).map_err(|error| {
        let message = error.message().lines().next().unwrap_or("no policy").to_string();
        (line(error.span().map_or(0, |span| span.start)), message)
    })?;
    let mut words = vec![];
    for rule in &file.rules {
        let mut word = match rule.action {
            Action::Allow => "+".to_string(),
            Action::Deny => "-".to_string(),
        };
        for (index, ports) in rule.ports.iter().enumerate() {
            let (low, high) = range(ports.get_ref()).map_err(|m| (line(ports.span().start), m))?;
            let comma = if index > 0 { "," } else { "" };
            // Writing to a string does not fail.
            let _ = write!(word, "{comma}{low}-{high}");
        }
        word += &named(&rule.programs).map_err(|(at, message)| (line(at), message))?;
        words.push(word);
    }
    for (program, microseconds) in &file.spin_us {
        let programs = named(std::slice::from_ref(program)).map_err(|(at, m)| (line(at), m))?;
        words.push(format!("~{microseconds}{programs}"));
    }
    Ok(words.join(";"))
}

fn range(ports: &Ports) -> Result<(u16, u16), String> {
    match ports {
        Ports::One(port) => Ok((*port, *port)),
        Ports::Range(text) => {
            let (low, high) = text.split_once('-').unwrap_or((text, text));
            match (low.trim().parse(), high.trim().parse()) {
                (Ok(low), Ok(high)) if low <= high => Ok((low, high)),
                _ => Err(format!("`{text}` is no range of ports; write for example \"8000-8099\"")),
            }
        }
    }
}

/// `@NAME,NAME`, or nothing for every program; else where the mistake is, and which.
fn named(programs: &[toml::Spanned<String>]) -> Result<String, (usize, String)> {
    for program in programs {
        let name = program.get_ref();
        let stem = name.strip_suffix('*').unwrap_or(name);
        if name.is_empty() || stem.contains(['*', '/', ',', ';', '@', '\0']) {
            let message = format!(
                "`{name}` is no program's name; write the name of its file, with `*` at the end \
                 for any rest"
            );
            return Err((program.span().start, message));
        }
    }
    let names: Vec<&str> = programs.iter().map(|program| program.get_ref().as_str()).collect();
    Ok(if names.is_empty() { String::new() } else { format!("@{}", names.join(",")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_becomes_one_line() {
        let text = "[[rules]]\naction = \"deny\"\nports = [22, \"8000-8099\"]\n\
                    programs = [\"sshd\", \"curl*\"]\n\
                    [[rules]]\naction = \"allow\"\nports = [6379]\n\
                    [[rules]]\naction = \"deny\"\n\
                    [spin_us]\nredis-server = 20\n";
        let expected = "-22-22,8000-8099@sshd,curl*;+6379-6379;-;~20@redis-server";
        assert_eq!(compact(text), Ok(expected.to_string()));
        assert_eq!(compact(""), Ok(String::new()));
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, line, word) in [
            ("\n[[rules]]\naction = \"forbid\"\n", 3, "forbid"),
            ("[[rules]]\nports = [1]\n", 1, "action"),
            ("[[rules]]\naction = \"deny\"\nports = [70000]\n", 3, "a port is a number"),
            ("[[rules]]\naction = \"deny\"\nports = [\"9-8\"]\n", 3, "9-8"),
            ("[[rules]]\naction = \"deny\"\nprograms = [\"ok\",\n\"/bin/x\"]\n", 4, "/bin/x"),
            ("[spin_us]\n\"a;b\" = 1\n", 2, "a;b"),
            ("[spin_us]\nredis = -1\n", 2, "-1"),
            ("[rule]\n", 1, "rule"),
            ("[[rules]\n", 1, ""),
        ] {
            let (at, message) = compact(text).unwrap_err();
            assert!(at == line && message.contains(word), "{text}: line {at}: {message}");
        }
    }
}
