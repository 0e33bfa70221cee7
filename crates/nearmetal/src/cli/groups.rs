//! The list of commands in `nearmetal --help`: those to start with come first, the others stand
//! below what they are for.

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use nm_report::style;

use super::Cli;
use crate::output;

/// Headings, each with its commands. Every command that is not hidden stands in one of them.
const GROUPS: &[(&str, &[&str])] = &[
    ("Start with", &["doctor", "qualify", "compare", "audit", "tune", "pingpong"]),
    ("Many machines", &["fleet", "controller", "agent"]),
    ("Measure one thing", &["stream", "rr", "compute", "jitter"]),
    (
        "Results",
        &[
            "report",
            "trend",
            "watch",
            "baseline",
            "certify",
            "verify-certificate",
            "import",
            "reference",
        ],
    ),
    ("Programs and virtual machines", &["accel", "lab", "generate", "firmware"]),
    ("The exchange", &["exchange"]),
    ("This program", &["plans", "schema", "completions", "man", "help"]),
];

/// What clap says of its own command is longer.
const HELP_ABOUT: &str = "The help of a command";

/// Columns of the names.
const NAME_COLUMNS: usize = 20;

/// Longest line of a help text, as clap has it.
const COLUMNS_MAX: usize = 100;

/// Reads the words of the command line.
///
/// # Errors
/// Wrong words, and the text of `--help` and `--version`.
pub fn parse() -> Result<Cli, clap::Error> {
    let mut matches: ArgMatches = command().try_get_matches()?;
    Cli::from_arg_matches_mut(&mut matches)
}

/// The command tree with the grouped list in its help.
fn command() -> Command {
    let command = Cli::command();
    let list = list(&command, output::style().width.min(COLUMNS_MAX));
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}\
         {{after-help}}"
    ))
}

/// The groups, at most `width` columns wide.
fn list(command: &Command, width: usize) -> String {
    let about = |name: &str| match command.find_subcommand(name) {
        Some(found) => found.get_about().map_or(String::new(), ToString::to_string),
        None => HELP_ABOUT.to_string(),
    };
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text += &format!("{heading}:\n");
        for name in *names {
            let lines = style::wrap(&about(name), width.saturating_sub(NAME_COLUMNS + 2).max(18));
            for (index, line) in lines.iter().enumerate() {
                let name = if index == 0 { name } else { "" };
                text += &format!("  {name:<NAME_COLUMNS$}{line}\n");
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_stands_in_one_group() {
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        let mut commands: Vec<&str> = shown.map(Command::get_name).chain(["help"]).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        commands.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, commands);
    }

    #[test]
    fn the_list_keeps_the_width() {
        for width in [40, 80, 100] {
            let text = list(&Cli::command(), width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
    }
}
