//! Runs a target without a fuzzer, where its toolchain cannot be had. It runs over its seeds, and
//! over mutations of them that are the same each time. `mutate TARGET SECONDS FOLDER` prints the
//! number of executions, and writes an input that fails into the folder.

use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nearmetal_fuzz::{TARGETS, Target};

/// Most bytes of an input.
const INPUT_BYTES_MAX: usize = 4096;

/// Most changes of an input.
const CHANGES_MAX: usize = 8;

/// Numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, seconds, folder] = &args[..] else {
        eprintln!("usage: mutate TARGET SECONDS FOLDER");
        return ExitCode::from(2);
    };
    let target = TARGETS.iter().find(|target| target.name == name);
    let (Some(target), Ok(seconds)) = (target, seconds.parse::<f64>()) else {
        eprintln!("`{name}` is no target, or `{seconds}` no number of seconds");
        return ExitCode::from(2);
    };
    match run(target, Duration::from_secs_f64(seconds)) {
        Ok(executions) => {
            println!("executions: {executions}");
            ExitCode::SUCCESS
        }
        Err((executions, input)) => {
            let path = Path::new(folder).join(format!("crash-{executions}"));
            if let Err(error) = std::fs::write(&path, &input) {
                eprintln!("{} cannot be written: {error}", path.display());
            }
            println!("executions: {executions}");
            ExitCode::FAILURE
        }
    }
}

/// The number of executions, and the input that failed.
fn run(target: &Target, limit: Duration) -> Result<u64, (u64, Vec<u8>)> {
    let (begin, seeds) = (Instant::now(), (target.seeds)());
    let mut executions = 0;
    let mut execute = |input: &[u8]| {
        executions += 1;
        let (run, input) = (target.run, input.to_vec());
        catch_unwind(|| run(&input)).map_err(|_| (executions, input.clone()))?;
        Ok(executions)
    };
    execute(&[])?;
    for seed in &seeds {
        execute(seed)?;
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    loop {
        let count = execute(&mutated(&seeds, &mut random))?;
        if begin.elapsed() >= limit {
            return Ok(count);
        }
    }
}

fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(CHANGES_MAX) {
        let (at, length) = (random.below(input.len()), random.below(16) + 1);
        match random.below(6) {
            _ if input.is_empty() => input.push(random.next() as u8),
            0 => input[at] ^= 1 << random.below(8),
            1 => input[at] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'-', b'"'][random.below(8)],
            2 => drop(input.drain(at..(at + length).min(input.len()))),
            3 => {
                let copy = input[at..(at + length).min(input.len())].to_vec();
                let to = random.below(input.len());
                input.splice(to..to, copy);
            }
            4 => input.truncate(at),
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX.max(seeds.iter().map(Vec::len).max().unwrap_or(0)));
    input
}
