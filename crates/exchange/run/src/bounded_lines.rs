//! Lines of another process, which may write what it likes: no line takes more than a limit of
//! memory.

use std::io::{BufRead, Read};

/// A longer line is read as several, each of this length, bytes.
const LINE_BYTES_MAX: usize = nm_model::agent::LINE_BYTES_MAX;

/// The lines of a stream, without their line breaks, until it ends or fails. Bytes that are not
/// UTF-8 are replaced.
#[derive(Debug)]
pub struct BoundedLines<R> {
    input: R,
}

impl<R: BufRead> BoundedLines<R> {
    /// Lines of `input`.
    pub fn new(input: R) -> BoundedLines<R> {
        BoundedLines { input }
    }
}

impl<R: BufRead> Iterator for BoundedLines<R> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut bytes = vec![];
        let mut limited = self.input.by_ref().take(LINE_BYTES_MAX as u64);
        if limited.read_until(b'\n', &mut bytes).ok()? == 0 {
            return None;
        }
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Some(String::from_utf8_lossy(line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, BufReader};

    #[test]
    fn lines_of_any_bytes_are_read() {
        let lines: Vec<String> = BoundedLines::new(&b"one\r\n\n\xff two\nend"[..]).collect();
        assert_eq!(lines, ["one", "", "\u{fffd} two", "end"]);
    }

    #[test]
    fn a_line_without_end_is_read_in_pieces() {
        let endless = BufReader::new(io::repeat(b'{').take(3 * LINE_BYTES_MAX as u64 + 7));
        let lengths: Vec<usize> = BoundedLines::new(endless).map(|line| line.len()).collect();
        assert_eq!(lengths, [LINE_BYTES_MAX, LINE_BYTES_MAX, LINE_BYTES_MAX, 7]);
    }
}
