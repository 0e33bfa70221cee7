//! Lines that other programs write to files while a page is shown: decisions of `exchange policy`,
//! sessions of a door, what a feed tells.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::str::FromStr;

/// Files that are followed.
pub const FOLLOWED_MAX: usize = 8;

/// Bytes of a file that one look reads; a longer line is left out.
pub const LOOK_BYTES_MAX: usize = 64 << 10;

/// Lines of a file that one look shows, the latest.
pub const LOOK_LINES_MAX: usize = 50;

/// Characters of the name of a file.
const NAME_LENGTH_MAX: usize = 16;

/// A file that is followed, and what its lines are called: `NAME=FILE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    name: String,
    file: PathBuf,
    /// Up to where it is read; none before the first look.
    offset: Option<u64>,
}

impl FromStr for Followed {
    type Err = String;

    fn from_str(text: &str) -> Result<Followed, String> {
        let (name, file) = text.split_once('=').unwrap_or_default();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let is_name = (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.chars().all(is_plain);
        if !is_name || file.is_empty() {
            let what = format!(
                "it is NAME=FILE, such as policy=policy.log, with a name of 1 to \
                 {NAME_LENGTH_MAX} letters, digits and -"
            );
            return Err(what);
        }
        Ok(Followed { name: name.to_string(), file: file.into(), offset: None })
    }
}

impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.file.display())
    }
}

impl Followed {
    /// What its lines are called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was written since the look before; at first, the end of what is there. A file that is
    /// not there, or cannot be read, has no lines.
    pub fn new_lines(&mut self) -> Vec<String> {
        self.read().unwrap_or_default()
    }

    fn read(&mut self) -> io::Result<Vec<String>> {
        // A pipe would be waited for.
        if !self.file.metadata()?.is_file() {
            return Ok(vec![]);
        }
        let mut file = File::open(&self.file)?;
        let length = file.metadata()?.len();
        let newest = length.saturating_sub(LOOK_BYTES_MAX as u64);
        // A shorter file is another one, and a line that was cut is not shown.
        let begin = self.offset.filter(|offset| *offset <= length).unwrap_or(0).max(newest);
        let is_cut = begin == newest && newest > 0 && self.offset != Some(begin);
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = vec![];
        file.take(LOOK_BYTES_MAX as u64).read_to_end(&mut bytes)?;
        let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            // Up to its limit, the rest of the line may come.
            self.offset = Some(if bytes.len() < LOOK_BYTES_MAX { begin } else { length });
            return Ok(vec![]);
        };
        self.offset = Some(begin + end as u64 + 1);
        let text = String::from_utf8_lossy(&bytes[..end]);
        let lines = text.lines().skip(usize::from(is_cut)).map(str::trim);
        let mut lines: Vec<String> =
            lines.filter(|line| !line.is_empty()).map(str::to_string).collect();
        lines.drain(..lines.len().saturating_sub(LOOK_LINES_MAX));
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn followed(file: &std::path::Path) -> Followed {
        format!("policy={}", file.display()).parse().unwrap()
    }

    #[test]
    fn new_lines_are_shown_once_and_only_when_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.log");
        let mut followed = followed(&path);
        assert_eq!(followed.new_lines(), [""; 0], "there is no file yet");
        let mut file = File::create(&path).unwrap();
        write!(file, "  1.0 s  move\n\nhal").unwrap();
        assert_eq!(followed.new_lines(), ["1.0 s  move"]);
        write!(file, "f\nmore\n").unwrap();
        assert_eq!(followed.new_lines(), ["half", "more"]);
        assert_eq!(followed.new_lines(), [""; 0]);
        fs::write(&path, "anew\n").unwrap();
        assert_eq!(followed.new_lines(), ["anew"], "the file was begun anew");
    }

    #[test]
    fn of_much_the_latest_lines_are_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fix.log");
        let mut followed = followed(&path);
        fs::write(&path, (0..100_000).map(|at| format!("{at}\n")).collect::<String>()).unwrap();
        let shown = followed.new_lines();
        assert_eq!(shown.len(), LOOK_LINES_MAX);
        assert_eq!(shown.last().unwrap(), "99999");
        let endless = vec![b'x'; 3 * LOOK_BYTES_MAX];
        File::options().append(true).open(&path).unwrap().write_all(&endless).unwrap();
        assert_eq!(followed.new_lines(), [""; 0]);
        File::options().append(true).open(&path).unwrap().write_all(b"\nend\n").unwrap();
        assert_eq!(followed.new_lines(), ["end"]);
        followed.file = "/dev/zero".into();
        assert_eq!(followed.new_lines(), [""; 0], "a device has no end");
    }

    #[test]
    fn a_name_is_plain() {
        for wrong in
            ["", "policy", "=file", "policy=", "two words=file", "a-name-that-is-too-long=f"]
        {
            assert!(
                wrong.parse::<Followed>().unwrap_err().starts_with("it is NAME=FILE"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn limits_are_those_of_the_page() {
        let page = include_str!("../../../../docs/limits.md");
        for line in [
            format!("| files that the page follows | {FOLLOWED_MAX} |"),
            format!("| bytes of a followed file in one look | {LOOK_BYTES_MAX} |"),
            format!("| lines of a followed file in one look | {LOOK_LINES_MAX} |"),
        ] {
            assert!(page.contains(&line), "{line}");
        }
    }
}
