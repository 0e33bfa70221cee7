//! `nearmetal man`: man pages of the program and of its commands, made from the command tree.

use std::fs;
use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use nm_model::words::UnknownWord;
use nm_sys::complete_file::{self, Origin};

use crate::cli::Cli;
use crate::exit::{Exit, Stop};
use crate::output;

/// Writes the page of a command to stdout, or those of all commands into a folder.
pub fn run(words: &[String], out: Option<&Path>) -> Result<Exit> {
    let root = root();
    match out {
        Some(folder) => {
            fs::create_dir_all(folder).map_err(|error| output::file_error(folder, &error))?;
            write_all(&root, folder)?;
        }
        None => output::data(&page(find(&root, words)?)?)?,
    }
    Ok(Exit::Pass)
}

/// The command tree with the names of all pages.
fn root() -> Command {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    root
}

/// Subcommands that have a page.
fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help")
}

/// The command that `words` name: `exchange run` or `exchange-run`.
fn find<'a>(root: &'a Command, words: &[String]) -> Result<&'a Command> {
    let mut command = root;
    for word in words.iter().flat_map(|word| word.split('-')).filter(|word| !word.is_empty()) {
        let names: Vec<&str> = subcommands(command).map(Command::get_name).collect();
        let unknown = || Stop::usage(UnknownWord::new("command", word, &names).to_string());
        let found = subcommands(command).find(|one| one.get_name() == word);
        command = found.ok_or_else(unknown)?;
    }
    Ok(command)
}

fn page(command: &Command) -> Result<String> {
    let mut text = vec![];
    Man::new(command.clone()).render(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `nearmetal-exchange-run`.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_string()
}

fn write_all(command: &Command, folder: &Path) -> Result<()> {
    let path = folder.join(format!("{}.1", page_name(command)));
    complete_file::replace(&path, page(command)?.as_bytes(), Origin::Derived)
        .map_err(|error| output::file_error(&path, &error))?;
    subcommands(command).try_for_each(|one| write_all(one, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_by_words_or_by_the_name_of_their_page() {
        let root = root();
        let name = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            find(&root, &words).map(page_name)
        };
        assert_eq!(name(&[]).unwrap(), "nearmetal");
        assert_eq!(name(&["exchange", "run"]).unwrap(), "nearmetal-exchange-run");
        assert_eq!(name(&["exchange-run"]).unwrap(), "nearmetal-exchange-run");
        let wrong = name(&["exchange-rnu"]).unwrap_err().to_string();
        assert!(wrong.contains("`rnu`, did you mean `run`?"), "{wrong}");
        assert!(name(&["lab-wire"]).is_err(), "hidden commands have no page");
    }
}
