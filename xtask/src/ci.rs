//! Everything that must hold before a change lands, in the order in which it fails fastest.

use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Result, bail};
use nm_sys::clock::Moment;
use nm_sys::counters::children_cpu_ns;

use crate::suite::{self, Counts};
use crate::{python, rolling_upgrade, setup, shell};

/// Trials need random numbers of tokio that depend on a seed. The release build has the flag as
/// well, so that both share their libraries.
const SEEDED: (&str, &str) = ("RUSTFLAGS", "--cfg tokio_unstable");

/// The time of each part, in the order of their ends.
#[derive(Default)]
struct Parts(Mutex<Vec<(&'static str, Duration)>>);

impl Parts {
    fn run<T>(&self, name: &'static str, part: impl FnOnce() -> Result<T>) -> Result<T> {
        let begin = Moment::now();
        let result = part();
        let mut parts = self.0.lock().expect("no part panics here");
        parts.push((name, begin.elapsed()));
        result
    }

    fn print(&self) {
        for (name, time) in &*self.0.lock().expect("no part panics here") {
            eprintln!("{:6} s  {name}", time.as_secs());
        }
    }
}

pub fn run() -> Result<()> {
    let (parts, beside) = (Parts::default(), Parts::default());
    let begin = Moment::now();
    // Packages come over the network while the processor checks; a fault ends neither halfway.
    let result = thread::scope(|scope| run_parts(&parts, &beside, scope.spawn(setup::run)));
    eprintln!("time of each part:");
    parts.print();
    eprintln!("{:6} s  total", begin.elapsed().as_secs());
    eprintln!("{:6} s  of a CPU, all of them", children_cpu_ns() / 1_000_000_000);
    eprintln!("of which, beside the tests:");
    beside.print();
    result?.conclude()
}

fn run_parts(
    parts: &Parts,
    beside: &Parts,
    installing: ScopedJoinHandle<'_, Result<()>>,
) -> Result<Counts> {
    // The short lane, which has nothing to test here.
    parts.run("tidy and fmt", || shell::run("cargo xtask check --base HEAD"))?;
    // Its lock file does not follow a change of our dependencies, and is needed at the very end.
    parts.run("lock file of fuzz", || {
        shell::run("cargo tree --locked --depth 0 --quiet --manifest-path fuzz/Cargo.toml")
    })?;
    parts.run("clippy", || {
        shell::run("cargo clippy --workspace --all-targets --locked -- -D warnings")
    })?;
    // Uses what clippy has checked.
    parts.run("doc", || {
        let line = "cargo doc --workspace --no-deps --locked --quiet";
        shell::run_with(line, &[("RUSTDOCFLAGS", "-D warnings")])
    })?;
    parts.run("rings under loom", check_rings_under_loom)?;
    parts.run("another stack", || {
        shell::run("cargo test -p nm-probe --locked --features test-stack --test it test_stack")
    })?;
    parts.run("setup, the rest of it", || {
        installing.join().expect("the installing thread does not panic")
    })?;
    // Before that of the tests, which takes its place.
    parts.run("build of the version that comes next", rolling_upgrade::build_next)?;
    parts.run("build of the tests", || {
        shell::run("cargo test --workspace --locked --no-run --quiet")
    })?;
    // Most tests wait for something, so the processor has time for what only computes.
    let counts = thread::scope(|scope| {
        let computing = scope.spawn(|| run_beside_tests(beside));
        let counts = parts
            .run("tests", || suite::cargo_test("cargo test --workspace --locked --no-fail-fast"))?;
        parts.run("what runs beside them, the rest of it", || {
            computing.join().expect("the computing thread does not panic")
        })?;
        anyhow::Ok(counts)
    })?;
    parts.run("a decoder of others", check_decoder)?;
    parts.run("engines by their own programs", check_engines)?;
    parts.run("qualify", check_qualify)?;
    Ok(counts)
}

/// The parts that have low priority, in two rows, because some of them use one CPU only.
fn run_beside_tests(parts: &Parts) -> Result<()> {
    // It may install a toolchain, which fuzzing needs as well.
    let has_miri = parts.run("setup of Miri", || Ok(has_miri()))?;
    let run = |name, line: &str| parts.run(name, || shell::run(&format!("nice -n 19 {line}")));
    thread::scope(|scope| {
        let simulating = scope.spawn(move || {
            parts.run("trials of replicas", simulate_replicas)?;
            parts.run("trials of the exchange", simulate_exchange)?;
            parts.run("rolling upgrade", rolling_upgrade::check)?;
            parts.run("codecs under Miri", || check_codecs_under_miri(has_miri))
        });
        let run_seeded = |name, line: &str| {
            parts.run(name, || shell::run_with(&format!("nice -n 19 {line}"), &[SEEDED]))
        };
        run_seeded("release build", "cargo build --release --locked")?;
        // Uses what was just built.
        let install = "cargo install --locked --path crates/nearmetal --no-track";
        run_seeded("install", &format!("{install} --root target/ci-install --force"))?;
        run("fuzzing", "cargo xtask fuzz --seconds 2 --fast-build")?;
        // Three quarters of making a root are waiting for packages.
        thread::scope(|scope| {
            let roots = scope.spawn(|| run("roots of Debian", "cargo xtask dist roots"));
            // Optimised for two processors, they would take a third of all the time.
            run("packages", "cargo xtask dist --fast-build")?;
            roots.join().expect("the thread that makes roots does not panic")
        })?;
        // Its measurement is disturbed by the tests: only that it ends and reports is looked at.
        run("check of the packages", "cargo xtask dist check")?;
        simulating.join().expect("the simulating thread does not panic")
    })
}

/// The rings' protocol in every order of accesses that the memory model allows. The `cfg` changes
/// what all dependencies are built with, so they have a folder of their own.
fn check_rings_under_loom() -> Result<()> {
    let line = "cargo test -p nm-ring --lib --release --locked --target-dir target/loom loom";
    let fast_build = ("CARGO_PROFILE_RELEASE_LTO", "off");
    shell::run_with(line, &[("RUSTFLAGS", "--cfg loom"), fast_build])
}

/// ITCH messages beside the decoder of PyPI's `itchfeed`, where PyPI can be reached.
fn check_decoder() -> Result<()> {
    let line = "cargo test -p nm-feed --test it --locked -- --ignored \
                a_decoder_of_others_reads_every_message_as_it_was_written";
    python::ITCHFEED.check("a decoder of others", "NM_ITCHFEED", line)
}

/// Manifests by the schemas of Kubernetes, and the role of Ansible on two hosts, where PyPI can be
/// reached.
fn check_engines() -> Result<()> {
    let test = "cargo test -p nearmetal --test it --locked -- --ignored";
    let kubernetes = format!("{test} engine_kubernetes");
    python::KUBERNETES.check("manifests of Kubernetes", "NM_KUBERNETES", &kubernetes)?;
    python::ANSIBLE.check("the role of Ansible", "NM_ANSIBLE", &format!("{test} engine_ansible"))
}

/// Whether there is a nightly toolchain with Miri, or one can be installed.
fn has_miri() -> bool {
    let works = |line: &str| shell::output(line).is_ok_and(|(_, is_ok)| is_ok);
    let is_there = || works("rustup run nightly cargo miri --version");
    let install = "rustup toolchain install nightly --profile minimal --component miri,rust-src";
    // Miri first builds a standard library of its own.
    (is_there() || works(install) && is_there())
        && works("nice -n 19 rustup run nightly cargo miri setup")
}

/// What all binary formats are made of, by an interpreter that reports undefined behaviour. It is
/// a thousand times slower, so the property tests have fewer cases than natively.
fn check_codecs_under_miri(has_miri: bool) -> Result<()> {
    if !has_miri {
        println!("codecs under Miri: NOT RUN, because rustup has no nightly toolchain with Miri");
        return Ok(());
    }
    let line = "nice -n 19 rustup run nightly cargo miri test -p nm-codec --locked \
                --target-dir target/miri";
    // Property tests read the environment and the time.
    let variables = [("MIRIFLAGS", "-Zmiri-disable-isolation"), ("PROPTEST_CASES", "32")];
    shell::run_with(line, &variables)
}

/// Trials of a group of replicas with faults, and of their disks.
fn simulate_replicas() -> Result<()> {
    let line = "nice -n 19 cargo test -p nm-replica --lib --release --locked \
                -- --nocapture cell_simulation disk_fault";
    shell::run_with(line, &[SEEDED, ("NM_TRIALS", "10000")])
}

/// Trials of a whole network with faults.
fn simulate_exchange() -> Result<()> {
    let line = "nice -n 19 cargo test -p nm-exchange --lib --release --locked \
                -- --nocapture no_fault_of_a_network";
    shell::run_with(line, &[SEEDED, ("NM_TRIALS", "3000")])
}

/// The README's first command: it must end with a verdict and leave a complete result.
fn check_qualify() -> Result<()> {
    let out = shell::root().join("target/ci-qualify");
    let _ = std::fs::remove_dir_all(&out);
    let namespaces = || shell::output("ip netns list").map(|(text, _)| text);
    let before = namespaces()?;
    let line = format!("target/release/nearmetal qualify --plan quick --out {}", out.display());
    eprintln!("$ {line}");
    let status = shell::command(&line).status()?;
    match status.code() {
        Some(0 | 1 | 3) => {}
        _ => bail!("`{line}` ended with {status}, which is no verdict"),
    }
    for name in ["result.json", "report.html", "report.md"] {
        let path = out.join(name);
        if !path.is_file() {
            bail!("`{line}` left no {name}");
        }
    }
    if namespaces()? != before {
        bail!("`{line}` changed `ip netns`");
    }
    Ok(())
}
