//! Runs the commands of the guides in `docs/guides` as they are written.
//!
//! Each block of commands (```` ```sh ````) has a comment before it that says what happens here:
//!
//! | comment | the block |
//! | --- | --- |
//! | `<!-- run -->` | is run by `sh -e` and ends with code 0 |
//! | `<!-- run: exit 0, 1 or 3 -->` | ends with one of these codes |
//! | `<!-- run in the background -->` | is a server: it is started, listens, and is killed |
//! | `<!-- not run: REASON -->` | is not run |
//!
//! A block of `yaml` or `groovy` is a pipeline. With such a mark each of its shell commands is run:
//! the texts of `run`, `script` and `after_script`, and of `sh '…'`. Commands of `nearmetal` that
//! judge may end with the codes of the mark, all others end with 0. A pipeline begins without the
//! folder `result`.
//!
//! `<!-- prints -->` before a block of text: each of its lines stands in the output of the last
//! commands, in this order. White space counts as one blank; `…` stands for any text in a line.
//!
//! A guide is run from its top to its end. Three things differ from a reader's terminal:
//!
//! - The working directory is a temporary folder with nothing but the source's folder `clients`.
//! - The binary under test and its library come first in `PATH`.
//! - The commands run in a network namespace of their own, so that all ports are free.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nm_sys::clock::Deadline;
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::{BINARY, accelerator, root, wait_for};

/// No block takes so long unless it hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// Languages of blocks that have no commands.
const OTHER_LANGUAGES: [&str; 4] = ["text", "toml", "xml", "ini"];

/// What happens to a block of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mark {
    /// It is run and ends with one of these codes.
    Run(Vec<i32>),
    /// It is started and killed at the end of the guide.
    Background,
    /// It is not run.
    NotRun,
}

/// A block of a guide.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Block {
    /// Commands.
    Commands(Mark, String),
    /// Lines that the last commands print.
    Prints(Vec<String>),
}

/// The blocks of a guide, each with the line at which it begins, counted from 1.
fn parse(text: &str) -> Result<Vec<(usize, Block)>, String> {
    let mut blocks = vec![];
    let mut comment = "";
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            comment = line;
            continue;
        };
        let body: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```").collect();
        let at = index + 1;
        let is_output = comment == "<!-- prints -->";
        match language {
            "sh" => {
                let mark = parse_mark(comment).ok_or_else(|| {
                    format!("line {at}: commands without a mark, such as `<!-- run -->`")
                })?;
                blocks.push((at, Block::Commands(mark, body.join("\n"))));
            }
            "text" if is_output => {
                let lines = body.iter().map(|line| one_blank(line)).collect();
                blocks.push((at, Block::Prints(lines)));
            }
            // A manifest, which is only read.
            "yaml" if parse_mark(comment) == Some(Mark::NotRun) => {
                YamlLoader::load_from_str(&body.join("\n"))
                    .map_err(|fault| format!("line {at}: {fault}"))?;
            }
            "yaml" | "groovy" => {
                let mark = parse_mark(comment)
                    .ok_or_else(|| format!("line {at}: a pipeline without a mark"))?;
                let commands = match language {
                    "yaml" => yaml_commands(&body.join("\n")),
                    _ => Ok(groovy_commands(&body)),
                };
                let commands = commands.map_err(|fault| format!("line {at}: {fault}"))?;
                if commands.is_empty() {
                    return Err(format!("line {at}: a pipeline without commands"));
                }
                let clean = "rm -rf result".to_string();
                blocks.push((at, Block::Commands(Mark::Run(vec![0]), clean)));
                blocks.extend(commands.into_iter().map(|command| {
                    let is_judging = ["qualify", "compare"]
                        .iter()
                        .any(|word| command.starts_with(&format!("nearmetal {word} ")));
                    let mark = if is_judging { mark.clone() } else { Mark::Run(vec![0]) };
                    (at, Block::Commands(mark, command))
                }));
            }
            _ if OTHER_LANGUAGES.contains(&language) => {}
            _ => {
                let known = OTHER_LANGUAGES.join(", ");
                return Err(format!(
                    "line {at}: `{language}` is not the language of a block: write sh for \
                     commands, else one of {known}"
                ));
            }
        }
        comment = "";
    }
    Ok(blocks)
}

/// The shell commands of a pipeline of GitHub or GitLab.
fn yaml_commands(text: &str) -> Result<Vec<String>, String> {
    let documents = YamlLoader::load_from_str(text).map_err(|error| error.to_string())?;
    let mut commands = vec![];
    documents.iter().for_each(|document| collect_commands(document, &mut commands));
    Ok(commands)
}

fn collect_commands(node: &Yaml, commands: &mut Vec<String>) {
    let text = |node: &Yaml| node.as_str().map(str::to_string);
    match node {
        Yaml::Hash(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value) {
                    (Some("run"), value) => commands.extend(text(value)),
                    (Some("script" | "after_script"), Yaml::Array(lines)) => {
                        commands.extend(lines.iter().filter_map(text));
                    }
                    (_, value) => collect_commands(value, commands),
                }
            }
        }
        Yaml::Array(nodes) => nodes.iter().for_each(|node| collect_commands(node, commands)),
        _ => {}
    }
}

/// The shell commands of a pipeline of Jenkins.
fn groovy_commands(lines: &[&str]) -> Vec<String> {
    let command = |line: &&str| {
        let line = line.trim();
        let quoted = line.strip_prefix("sh '").or_else(|| line.strip_prefix("script: '"))?;
        quoted.strip_suffix('\'').map(str::to_string)
    };
    lines.iter().filter_map(command).collect()
}

fn parse_mark(comment: &str) -> Option<Mark> {
    let mark = comment.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    if let Some(codes) = mark.strip_prefix("run: exit ") {
        let codes: Vec<i32> =
            codes.split([',', ' ']).filter_map(|word| word.parse().ok()).collect();
        return Some(codes).filter(|codes| !codes.is_empty()).map(Mark::Run);
    }
    match mark {
        "run" => Some(Mark::Run(vec![0])),
        "run in the background" => Some(Mark::Background),
        _ => mark.strip_prefix("not run: ").map(|_| Mark::NotRun),
    }
}

/// A line with each run of white space as one blank.
fn one_blank(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first of `expected` that no line of the output matches, from the match of the line before
/// it on.
fn missing_line<'a>(expected: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines().map(one_blank);
    expected
        .iter()
        .filter(|line| !line.is_empty() && *line != "…")
        .find(|wanted| !lines.any(|line| matches(wanted, &line)))
        .map(String::as_str)
}

/// Whether the parts of `wanted` between `…` stand in the line, in order.
fn matches(wanted: &str, line: &str) -> bool {
    let mut rest = line;
    wanted.split('…').map(str::trim).all(|part| match rest.find(part) {
        Some(at) => {
            rest = &rest[at + part.len()..];
            true
        }
        None => false,
    })
}

/// Where the commands of one guide run.
struct Session {
    folder: tempfile::TempDir,
    /// Keeps the network namespace open until its input ends.
    namespace: Child,
    servers: Vec<Child>,
    /// What the last commands wrote.
    output: String,
}

impl Session {
    fn new() -> Session {
        let mut namespace = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut ready = [0; 6];
        let mut output = namespace.stdout.take().expect("a pipe");
        output.read_exact(&mut ready).expect("root can make a network namespace");
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root().join("clients"), folder.path().join("clients")).unwrap();
        Session { folder, namespace, servers: vec![], output: String::new() }
    }

    /// A shell with these commands in the namespace and the folder, in a process group of its own.
    fn shell(&self, commands: &str) -> Command {
        let programs = Path::new(BINARY).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.namespace.id()))
            .args(["sh", "-e", "-c", commands])
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("GITHUB_STEP_SUMMARY", self.folder.path().join("step-summary.md"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .process_group(0);
        command
    }

    /// Runs commands to their end: their exit code, and what they wrote in `output`.
    fn run(&mut self, commands: &str) -> Option<i32> {
        let file = tempfile::tempfile().unwrap();
        let mut command = self.shell(commands);
        command.stdout(file.try_clone().unwrap()).stderr(file.try_clone().unwrap());
        let mut child = command.spawn().expect("nsenter starts");
        let deadline = Deadline::after(LIMIT);
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status.code(),
                None if deadline.passed() => break None,
                None => sleep(Duration::from_millis(5)),
            }
        };
        kill_group(&mut child);
        self.output = read_from_start(file);
        status
    }

    /// Starts a server and waits until one more port is listened on.
    fn start(&mut self, commands: &str) {
        let before = self.listeners();
        let mut command = self.shell(commands);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.servers.push(command.spawn().expect("nsenter starts"));
        wait_for("a server of the guide", || (self.listeners() > before).then_some(()));
    }

    /// Number of TCP sockets that listen in the namespace.
    fn listeners(&self) -> usize {
        let of = |name: &str| {
            let path = format!("/proc/{}/net/{name}", self.namespace.id());
            let text = fs::read_to_string(path).unwrap_or_default();
            let state = |line: &str| line.split_whitespace().nth(3) == Some("0A");
            text.lines().filter(|line| state(line)).count()
        };
        of("tcp") + of("tcp6")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.servers.iter_mut().for_each(kill_group);
        drop(self.namespace.stdin.take());
        let _ = self.namespace.wait();
    }
}

/// Kills the process group that a child leads, and waits for the child.
fn kill_group(child: &mut Child) {
    let group = format!("-{}", child.id());
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    let _ = child.wait();
}

fn read_from_start(mut file: fs::File) -> String {
    use std::io::Seek;
    let mut bytes = vec![];
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn folder() -> PathBuf {
    root().join("docs/guides")
}

/// Runs the commands of a guide.
fn check(name: &str) {
    accelerator();
    let text = fs::read_to_string(folder().join(name)).unwrap();
    let blocks = parse(&text).unwrap_or_else(|fault| panic!("{name}, {fault}"));
    let mut session = Session::new();
    for (at, block) in blocks {
        match block {
            Block::Commands(Mark::Run(codes), commands) => {
                let code = session.run(&commands);
                assert!(
                    code.is_some_and(|code| codes.contains(&code)),
                    "{name}, line {at}: ended with code {code:?}, not {codes:?}\n{}",
                    session.output
                );
            }
            Block::Commands(Mark::Background, commands) => session.start(&commands),
            Block::Commands(Mark::NotRun, _) => {}
            Block::Prints(expected) => {
                if let Some(line) = missing_line(&expected, &session.output) {
                    panic!("{name}, line {at}: nothing like `{line}` in\n{}", session.output);
                }
            }
        }
    }
}

/// One test for each guide, and one for all that are not in the list.
macro_rules! guides {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                check($name);
            }
        )*

        #[test]
        fn other_guides() {
            let known = [$($name),*];
            for entry in fs::read_dir(folder()).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if !known.contains(&&*name) {
                    check(&name);
                }
            }
        }
    };
}

guides! {
    backups: "backups.md",
    bypass: "bypass.md",
    bypass_internals: "bypass-internals.md",
    bypass_services: "bypass-services.md",
    bypass_xdp: "bypass-xdp.md",
    clients: "clients.md",
    exchange: "exchange.md",
    exchange_controls: "exchange-controls.md",
    exchange_internals: "exchange-internals.md",
    feed: "feed.md",
    fleet: "fleet.md",
    first_report: "first-report.md",
    fix: "fix.md",
    in_ci: "in-ci.md",
    ouch: "ouch.md",
    continuous: "continuous.md",
    qualify: "qualify.md",
    kubernetes: "kubernetes.md",
    ansible: "ansible.md",
    slurm: "slurm.md",
    two_machines: "two-machines.md",
    virtual_machines: "virtual-machines.md",
    watch: "watch.md",
}

/// The blocks of a language in a guide.
fn blocks_of(name: &str, language: &str) -> Vec<String> {
    let text = fs::read_to_string(folder().join(name)).unwrap();
    let begin = format!("\n```{language}\n");
    let blocks = text.split(&begin).skip(1);
    blocks.map(|rest| rest.split("\n```").next().unwrap_or_default().to_string()).collect()
}

/// Only the form of systemd's files: sections, and variables with values.
#[test]
fn units_of_the_guide_are_well_formed() {
    let units = blocks_of("bypass-services.md", "ini");
    assert!(!units.is_empty());
    for line in units.iter().flat_map(|unit| unit.lines()) {
        let is_section = line.starts_with('[') && line.ends_with(']');
        // Without quotes a blank ends the value of a variable.
        let setting = line.strip_prefix("Environment=").is_some_and(|pair| {
            pair.split_once('=').is_some_and(|(name, _)| !name.is_empty()) && !pair.contains(' ')
        });
        assert!(is_section || setting, "{line}");
    }
}

#[test]
fn commands_have_a_mark() {
    let fault = |text: &str| parse(text).unwrap_err();
    assert!(fault("```sh\ntrue\n```").starts_with("line 1: commands without a mark"));
    assert!(fault("<!-- runs -->\n```sh\ntrue\n```").starts_with("line 2: commands without"));
    assert!(fault("<!-- run: exit -->\n```sh\ntrue\n```").starts_with("line 2: commands without"));
    assert!(fault("a\n```console\n$ true\n```").starts_with("line 2: `console` is not"));
    assert!(fault("```\nnearmetal qualify\n```").starts_with("line 1: `` is not"));
}

#[test]
fn marks_and_outputs_are_parsed() {
    let text = "# Guide\n<!-- run -->\n```sh\ntrue\n\nfalse\n```\n<!-- prints -->\n```text\na  b\n\
                ```\n<!-- run: exit 0, 1 or 3 -->\n```sh\nx\n```\n```text\nnot checked\n```\n\
                <!-- not run: needs two hosts -->\n```sh\ny\n```\n";
    let commands = |mark, text: &str| Block::Commands(mark, text.to_string());
    assert_eq!(
        parse(text).unwrap(),
        [
            (3, commands(Mark::Run(vec![0]), "true\n\nfalse")),
            (9, Block::Prints(vec!["a b".to_string()])),
            (13, commands(Mark::Run(vec![0, 1, 3]), "x")),
            (20, commands(Mark::NotRun, "y")),
        ]
    );
}

#[test]
fn commands_of_pipelines_are_found() {
    let yaml =
        "a:\n  steps:\n    - uses: x\n    - run: one\nb:\n  script:\n    - two\n    - three\n";
    assert_eq!(yaml_commands(yaml).unwrap(), ["one", "two", "three"]);
    assert!(yaml_commands("a: [").is_err());
    let groovy =
        ["  sh 'one'", "def code = sh returnStatus: true,", "    script: 'two'", "junit 'x'"];
    assert_eq!(groovy_commands(&groovy), ["one", "two"]);
    let text = "<!-- run: exit 0 or 3 -->\n```yaml\nrun: nearmetal qualify --quiet\n```";
    let blocks = parse(text).unwrap();
    let qualify = "nearmetal qualify --quiet".to_string();
    assert_eq!(blocks[1].1, Block::Commands(Mark::Run(vec![0, 3]), qualify));
    assert!(parse("```yaml\nrun: x\n```").is_err());
}

#[test]
fn printed_lines_are_found_in_their_order() {
    let expected = ["a … c", "…", "d"].map(String::from);
    assert_eq!(missing_line(&expected, "x\na   b c\nd e\n"), None);
    assert_eq!(missing_line(&expected, "d\na b c\n"), Some("d"));
    assert_eq!(missing_line(&expected, "c b a\nd\n"), Some("a … c"));
}

/// A guide whose commands do something else than it says is found.
#[test]
fn commands_that_fail_or_print_something_else_are_found() {
    let mut session = Session::new();
    assert_eq!(session.run("nearmetal --version; false; echo no"), Some(1));
    assert!(session.output.starts_with("nearmetal ") && !session.output.contains("no\n"));
    assert_eq!(session.run("exit 3"), Some(3));
}
