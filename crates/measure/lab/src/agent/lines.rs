//! Lines of bounded length from any byte stream.

use std::io::{self, BufRead, BufReader, Read};

use nm_model::agent::LINE_BYTES_MAX;

/// Result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its line break. Bytes that are not UTF-8 are replaced; no valid line has
    /// them.
    Text(String),
    /// A line longer than [`LINE_BYTES_MAX`]; the start of the next line is unknown.
    TooLong,
    /// The stream has ended or failed.
    End,
}

/// Reads lines.
pub struct Lines<R> {
    input: BufReader<R>,
}

impl<R: Read> Lines<R> {
    /// Lines of `input`.
    pub fn new(input: R) -> Lines<R> {
        Lines { input: BufReader::new(input) }
    }

    /// Waits for the next line. Lines of white space only are skipped.
    pub fn next(&mut self) -> Line {
        loop {
            let mut bytes = vec![];
            match self.read(&mut bytes) {
                Ok(0) | Err(_) => return Line::End,
                Ok(_) if bytes.len() > LINE_BYTES_MAX => return Line::TooLong,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim();
            if !text.is_empty() {
                return Line::Text(text.to_string());
            }
        }
    }

    fn read(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        self.input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded() {
        let mut input = b"one\r\n\n  \ntwo".to_vec();
        let mut lines = Lines::new(&input[..]);
        assert_eq!(lines.next(), Line::Text("one".into()));
        assert_eq!(lines.next(), Line::Text("two".into()));
        assert_eq!(lines.next(), Line::End);

        input = vec![b'x'; LINE_BYTES_MAX - 1];
        input.push(b'\n');
        assert!(matches!(Lines::new(&input[..]).next(), Line::Text(_)));
        input.insert(0, b'x');
        assert_eq!(Lines::new(&input[..]).next(), Line::TooLong);
    }

    #[test]
    fn bytes_that_are_not_text_are_a_line() {
        let mut lines = Lines::new(&b"\xff\xfe\n"[..]);
        assert!(matches!(lines.next(), Line::Text(_)));
    }
}
