//! Initiators that others wrote against the FIX acceptor: QuickFIX/J from Maven Central, and
//! asyncfix from PyPI. Each logs on, trades, gets a fill, loses its connection and recovers a fill
//! by resend.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{peer, python, shell};

/// Where the door listens.
const PORT: u16 = 24_091;

/// Folder of the network, the stores and the logs.
const FOLDER: &str = "target/fix-initiators";

const CLASSES: [&str; 4] = ["router", "mediator", "processor", "gateway"];

const SESSIONS: &str = r#"venue = "NEARMETAL"

[[symbol]]
name = "JAVA"
instrument = 1
tick = "0.01"
lot = "1"

[[symbol]]
name = "PYTHON"
instrument = 2
tick = "0.01"
lot = "1"

[[session]]
client = "ALICE"
version = "FIX.4.4"
session = 1

[[session]]
client = "BOB"
version = "FIXT.1.1"
session = 2

[[session]]
client = "CAROL"
version = "FIX.4.4"
session = 3

[[session]]
client = "DAVE"
version = "FIX.4.4"
session = 4
"#;

/// A process that is killed when it goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs all initiators.
pub fn run(args: &[String]) -> Result<()> {
    if let Some(other) = args.first() {
        bail!("unknown argument `{other}`: `cargo xtask fix-initiators` has none");
    }
    shell::run("cargo build -p nearmetal --locked")?;
    let python = python()?;
    let java = peer::prepare("quickfixj", "Initiator")?;
    let folder = shell::root().join(FOLDER);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let _running = start(&folder)?;
    let (jars, classes) = (java.join("jars"), java.join("classes"));
    shell::run(&format!("java -cp {}/*:{} Initiator {PORT}", jars.display(), classes.display()))?;
    let script = "xtask/peers/asyncfix/initiator.py";
    shell::run(&format!("{} {script} {PORT}", python.display()))
}

/// An interpreter with asyncfix.
fn python() -> Result<PathBuf> {
    let programs = python::ASYNCFIX.programs()?;
    Ok(programs.context("PyPI does not answer")?.join("python3"))
}

/// Starts a network of four nodes, and the door.
fn start(folder: &Path) -> Result<Vec<Running>> {
    let node =
        |class: &str| format!("[[{class}]]\naddress = \"unix:{}/{class}\"\n", folder.display());
    let network: String = CLASSES.iter().map(|class| node(class)).collect();
    fs::write(folder.join("network.toml"), network)?;
    fs::write(folder.join("sessions.toml"), SESSIONS)?;
    let mut running = vec![];
    for class in CLASSES {
        let line = format!("node --role {class} --index 0 --network {FOLDER}/network.toml");
        running.push(exchange(folder, class, &line)?);
    }
    let line = format!(
        "fix --network {FOLDER}/network.toml --sessions {FOLDER}/sessions.toml \
         --store {FOLDER}/store --listen 127.0.0.1:{PORT}"
    );
    running.push(exchange(folder, "fix", &line)?);
    for _ in 0..100 {
        if TcpStream::connect(("127.0.0.1", PORT)).is_ok() {
            return Ok(running);
        }
        sleep(Duration::from_millis(100));
    }
    let log = fs::read_to_string(folder.join("fix.log")).unwrap_or_default();
    bail!("the door does not listen: {log}")
}

/// Starts a command of the exchange, whose input is open as long as it is to run.
fn exchange(folder: &Path, name: &str, line: &str) -> Result<Running> {
    let log = File::create(folder.join(format!("{name}.log")))?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| shell::root().join("target"), PathBuf::from);
    let program = target.join("debug/nearmetal");
    let mut command = shell::command(&format!("{} exchange {line}", program.display()));
    command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
    Ok(Running(command.spawn().with_context(|| format!("cannot start {name}"))?))
}
