//! Programs of other projects that ours are measured beside: fetched and compiled once, started,
//! and asked for one measurement after the other.

use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;

/// A program that measures once for each line that it is sent, and answers with a line.
pub struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The line that it wrote before it was ready; empty if there was none.
    pub title: String,
}

impl Peer {
    /// Starts a program and waits until it writes `ready`.
    pub fn start(line: &str) -> Result<Peer> {
        eprintln!("$ {line}");
        let mut command = shell::command(line);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut peer = Peer { child, input, output, title: String::new() };
        loop {
            match peer.line().with_context(|| format!("`{line}` failed"))? {
                ready if ready == "ready" => return Ok(peer),
                title => peer.title = title,
            }
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("it has ended");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Lets it measure once; its answer.
    pub fn ask(&mut self) -> Result<String> {
        self.input.write_all(b"\n")?;
        self.line()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its input, but may be in the middle of something.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Fetches what `xtask/peers/NAME/pom.xml` lists into `jars`, and compiles its class into `classes`
/// of the folder that is returned.
pub fn prepare(name: &str, class: &str) -> Result<PathBuf> {
    for tool in ["java", "javac", "mvn"] {
        if shell::output(&format!("{tool} -version")).is_err() {
            bail!("not available: --peers needs `{tool}`; install a JDK and Maven");
        }
    }
    let folder = shell::root().join("target/peers").join(name);
    let jars = folder.join("jars");
    shell::run(&format!(
        "mvn -q -B -f xtask/peers/{name}/pom.xml dependency:copy-dependencies \
         -DincludeScope=runtime -DoutputDirectory={}",
        jars.display()
    ))?;
    shell::run(&format!(
        "javac -cp {}/* -d {} xtask/peers/{name}/{class}.java",
        jars.display(),
        folder.join("classes").display()
    ))?;
    Ok(folder)
}
