//! The seconds of a day as a file, one line each, written while the day runs.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::second::SecondFigures;

/// Name of the file in the folder of a day.
pub const SECONDS: &str = "seconds.csv";

/// The first line.
const TITLES: &str = "second,phase,offered,sent,replies,lost,refused,mean_us,es10_us,p99_us,max_us,\
                      lateness_p99_us,state";

/// The file, open.
#[derive(Debug)]
pub struct SecondsFile(BufWriter<File>);

impl SecondsFile {
    /// Creates the file.
    ///
    /// # Errors
    /// If it exists, or cannot be created.
    pub fn create(path: &Path) -> io::Result<SecondsFile> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let mut file = BufWriter::new(file);
        writeln!(file, "{TITLES}")?;
        Ok(SecondsFile(file))
    }

    /// Writes the line of a second of a phase with this name. It is in the file when this returns,
    /// so that a killed run keeps it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn add(&mut self, second: &SecondFigures, phase: &str) -> io::Result<()> {
        writeln!(self.0, "{}", line(second, phase))?;
        self.0.flush()
    }
}

fn line(second: &SecondFigures, phase: &str) -> String {
    let us = |ns: Option<f64>| ns.map_or(String::new(), |ns| format!("{:.1}", ns / 1e3));
    let us_of_ns = |ns: Option<u64>| us(ns.map(|ns| ns as f64));
    let SecondFigures { second: number, offered, sent, replies, lost, refused, .. } = second;
    [
        number.to_string(),
        // Names of phases have no commas and no quotes.
        phase.to_string(),
        format!("{offered:.0}"),
        sent.to_string(),
        replies.to_string(),
        lost.to_string(),
        refused.to_string(),
        us(second.mean_ns),
        us(second.es10_ns),
        us(second.p99_ns),
        us_of_ns(second.max_ns),
        us_of_ns(second.lateness_p99_ns),
        second.state.name().to_string(),
    ]
    .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::day::second::SecondState;

    #[test]
    fn each_second_is_a_line_and_nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SECONDS);
        let mut file = SecondsFile::create(&path).unwrap();
        let second = SecondFigures {
            second: 4,
            phase: 1,
            offered: 99.6,
            sent: 98,
            replies: 97,
            lost: 1,
            refused: 0,
            mean_ns: Some(250_000.0),
            es10_ns: Some(400_040.0),
            p99_ns: None,
            max_ns: Some(900_000),
            lateness_p99_ns: Some(60_000),
            state: SecondState::Outside,
        };
        file.add(&second, "open").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, [TITLES, "4,open,100,98,97,1,0,250.0,400.0,,900.0,60.0,outside"]);
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
        let again = SecondsFile::create(&path).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    }
}
