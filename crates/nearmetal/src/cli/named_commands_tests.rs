//! The commands that README, CONTRIBUTING and the guides name exist, with their options.
//!
//! The end-to-end tests run the commands of the guides that can be run here. For the others, such
//! as those for two hosts, the guide has the reason; they are read here as the program reads them.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, Parser};

use super::Cli;

/// Commands of cargo in the documents, and what runs them. Tasks of `xtask` are looked up.
const CARGO: &[(&str, &str)] = &[
    ("cargo build --release", "cargo xtask ci"),
    ("cargo install --locked --path crates/nearmetal", "cargo xtask ci"),
    ("cargo test --workspace", "cargo xtask ci"),
    ("cargo test --release -p nm-replica --lib -- cell_simulation", "cargo xtask ci"),
    (
        "cargo test --release -p nm-exchange --lib -- --nocapture no_fault_of_a_network",
        "cargo xtask ci",
    ),
    ("cargo test -p nm-exchange --lib -- --nocapture no_fault_of_a_network", "cargo xtask ci"),
    ("cargo install --locked cargo-deny", "by hand: CI checks licences by the same list in tidy"),
    ("cargo deny check licenses bans sources", "by hand, as the line before"),
    ("cargo deny check advisories", "by hand: it needs a network"),
    ("cargo vendor --locked --versioned-dirs vendor > vendor.toml", "by hand: 190 MB"),
    ("cargo build --release --offline --config vendor.toml", "by hand, as the line before"),
    ("cargo test --profile dist -p nm-wire", "by hand: the profile is built for minutes"),
    ("cargo test …", "stands for the command before it"),
    ("cargo test -p nm-report -p nearmetal schema", "without UPDATE: cargo xtask ci"),
    ("cargo +nightly fuzz run cover", "by `cargo xtask fuzz`, where there is a nightly toolchain"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README, CONTRIBUTING and the guides.
struct Document {
    name: String,
    /// Where its links begin.
    folder: PathBuf,
    text: String,
}

fn documents() -> Vec<Document> {
    let guides = root().join("docs/guides");
    let entries = fs::read_dir(&guides).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut places: Vec<(PathBuf, String)> = names.map(|name| (guides.clone(), name)).collect();
    places.extend(["README.md", "CONTRIBUTING.md"].map(|name| (root(), name.to_string())));
    let read = |(folder, name): (PathBuf, String)| {
        let text = fs::read_to_string(folder.join(&name)).unwrap();
        Document { name, folder, text }
    };
    places.into_iter().map(read).collect()
}

/// Blocks of commands: the line before, and the lines with continued ones joined.
fn blocks(text: &str) -> Vec<(String, Vec<String>)> {
    let mut blocks = vec![];
    let mut before = "";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if ["sh", "console"].contains(&language) {
                let joined = body.join("\n").replace("\\\n", " ");
                blocks.push((before.to_string(), joined.lines().map(str::to_string).collect()));
            }
        }
        before = line;
    }
    blocks
}

/// Texts in single backquotes outside of blocks.
fn inline(text: &str) -> Vec<String> {
    let mut is_block = false;
    let mut prose = String::new();
    for line in text.lines() {
        is_block ^= line.starts_with("```");
        if !is_block && !line.starts_with("```") {
            prose += line;
            prose.push(' ');
        }
    }
    prose.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

/// The commands of a line of a shell, each as words; a part that is redirected is left out.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word, mut quote) = (vec![], vec![], String::new(), None);
    let mut is_word = false;
    for letter in line.chars().chain(['\n']) {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (Some(_), letter) => word.push(letter),
            (None, '\'' | '"') => (quote, is_word) = (Some(letter), true),
            (None, ' ' | '\n' | '|' | '&' | ';') => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
                if letter != ' ' {
                    all.push(std::mem::take(&mut words));
                }
            }
            (None, letter) => {
                word.push(letter);
                is_word = true;
            }
        }
    }
    for words in &mut all {
        let end = |word: &String| word.starts_with(['>', '<', '#']) || word.starts_with("2>");
        let end = words.iter().position(end).unwrap_or(words.len());
        words.truncate(end);
        let is_program = |word: &String| word.ends_with("nearmetal");
        words.drain(..words.iter().position(is_program).unwrap_or(0));
    }
    // A name alone is a place to which the program is copied.
    all.retain(|words| words.len() > 1 && words[0].ends_with("nearmetal"));
    all
}

/// Fails if the program refuses the words before it does anything.
fn check_words(words: &[String]) -> Result<(), String> {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
    match Cli::try_parse_from(words) {
        Err(error) if ![DisplayHelp, DisplayVersion].contains(&error.kind()) => {
            Err(error.to_string())
        }
        _ => Ok(()),
    }
}

/// Fails if a command of prose names a command or an option that there is not. Its values may be
/// placeholders.
fn check_names(text: &str) -> Result<(), String> {
    let root = Cli::command();
    let mut command: &Command = &root;
    let mut is_path = true;
    for word in text.split_whitespace().skip(1) {
        if word == "--" || command.get_name() == "accel" && !word.starts_with('-') {
            break;
        }
        let found = command.find_subcommand(word).filter(|_| is_path);
        let long = word.trim_start_matches('[').strip_prefix("--");
        match (found, long) {
            (Some(found), _) => command = found,
            (None, Some(long)) => {
                let long = long.split(['=', ']', ',']).next().unwrap_or(long);
                let is_known = |arg: &clap::Arg| arg.get_long() == Some(long);
                if !command.get_arguments().any(is_known) && !["help", "version"].contains(&long) {
                    return Err(format!("`{text}`: {} has no --{long}", command.get_name()));
                }
            }
            (None, None) => {
                if is_path
                    && command.has_subcommands()
                    && command.get_positionals().next().is_none()
                {
                    return Err(format!("`{text}`: {} has no {word}", command.get_name()));
                }
                is_path = false;
            }
        }
    }
    Ok(())
}

#[test]
fn commands_that_are_not_run_are_read_as_they_are_written() {
    let mut count = 0;
    for Document { name, text, .. } in documents() {
        for (before, lines) in blocks(&text) {
            let is_run = before.starts_with("<!-- run");
            for words in lines.iter().filter(|_| !is_run).flat_map(|line| commands(line)) {
                check_words(&words).unwrap_or_else(|fault| panic!("{name}: {words:?}: {fault}"));
                count += 1;
            }
        }
    }
    assert!(count > 30, "{count}");
}

#[test]
fn commands_in_prose_exist_with_their_options() {
    let mut count = 0;
    for Document { name, text, .. } in documents() {
        for text in inline(&text).iter().filter(|text| text.starts_with("nearmetal ")) {
            check_names(text).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
    assert!(check_names("nearmetal qualfy").is_err());
    assert!(check_names("nearmetal qualify --plam x").is_err());
    assert!(check_names("nearmetal exchange rnu").is_err());
}

#[test]
fn words_of_a_shell_are_read() {
    let of = |line: &str| commands(line).iter().map(|words| words.join("|")).collect::<Vec<_>>();
    assert_eq!(
        of("sed x | nearmetal a 'b c' > d && nearmetal e"),
        ["nearmetal|a|b c", "nearmetal|e"]
    );
    assert_eq!(of("$ target/release/nearmetal q   # why"), ["target/release/nearmetal|q"]);
    assert_eq!(of("onload nearmetal p 2>&1"), ["nearmetal|p"]);
    assert_eq!(of("ls nothing"), Vec::<String>::new());
}

#[test]
fn commands_of_cargo_are_tasks_or_run_by_ci() {
    let tasks = fs::read_to_string(root().join("xtask/src/main.rs")).unwrap();
    let ci = fs::read_to_string(root().join("xtask/src/ci.rs")).unwrap();
    let mut seen = vec![];
    for Document { name, text, .. } in documents() {
        let in_blocks = blocks(&text).into_iter().flat_map(|(_, lines)| lines);
        let all = inline(&text).into_iter().chain(in_blocks);
        for text in all.filter_map(|text| text.find("cargo ").map(|at| text[at..].to_string())) {
            let text = text.split("  #").next().unwrap().split("; ").next().unwrap().trim();
            if let Some(task) = text.strip_prefix("cargo xtask ") {
                let task = task.split(' ').next().unwrap();
                assert!(tasks.contains(&format!("Some(\"{task}\")")), "{name}: {text}");
                continue;
            }
            assert!(CARGO.iter().any(|(known, _)| *known == text), "{name}: {text}");
            seen.push(text.to_string());
        }
    }
    for (command, _) in CARGO {
        assert!(seen.iter().any(|text| text == command), "{command} is named nowhere");
    }
    for part in ["cargo build --release", "cargo install --locked --path", "cell_simulation"] {
        assert!(ci.contains(part), "CI does not run {part}");
    }
}

/// Targets of Markdown links that are no addresses.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let is_local = |target: &&str| !target.contains("://") && !target.starts_with('#');
    targets.filter(is_local).map(|target| target.split('#').next().unwrap().to_string()).collect()
}

#[test]
fn links_of_the_documents_lead_to_files() {
    let mut count = 0;
    for Document { name, folder, text } in documents() {
        for link in links(&text) {
            assert!(folder.join(&link).exists(), "{name}: there is no {link}");
            count += 1;
        }
    }
    assert!(count > 50, "{count}");
}

#[test]
fn the_readme_fits_a_screen_and_the_index_has_every_guide_and_command() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 70, "README.md has {} lines", readme.lines().count());
    let index = fs::read_to_string(root().join("docs/guides/README.md")).unwrap();
    let guides = fs::read_dir(root().join("docs/guides")).unwrap();
    for name in guides.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        let is_listed = name == "README.md" || index.contains(&format!("({name})"));
        assert!(is_listed, "docs/guides/README.md lacks {name}");
    }
    let guides: String = documents().into_iter().map(|document| document.text).collect();
    for command in Cli::command().get_subcommands().filter(|one| !one.is_hide_set()) {
        let name = format!("nearmetal {}", command.get_name());
        assert!(guides.contains(&name), "no guide names `{name}`");
    }
}
