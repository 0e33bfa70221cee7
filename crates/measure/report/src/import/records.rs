//! Comma-separated text by RFC 4180, as records with the line on which each begins.

use super::fault::{ImportFault, fault};

/// One record: its line, counted from 1, and its cells.
pub struct Record {
    pub line: usize,
    pub cells: Vec<String>,
}

/// All records of `text`; empty lines are left out.
pub fn records(text: &str) -> Result<Vec<Record>, ImportFault> {
    let mut records = vec![];
    let (mut cells, mut cell, mut is_quoted) = (vec![], String::new(), false);
    let (mut line, mut start) = (1, 1);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (is_quoted, letter) {
            (true, '"') if letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            (_, '"') => is_quoted = !is_quoted,
            (false, ',') => cells.push(std::mem::take(&mut cell)),
            (false, '\r') if letters.peek() == Some(&'\n') => {}
            (false, '\n') => {
                cells.push(std::mem::take(&mut cell));
                push(&mut records, start, std::mem::take(&mut cells));
                start = line + 1;
            }
            (_, letter) => cell.push(letter),
        }
        line += usize::from(letter == '\n');
    }
    if is_quoted {
        return fault(start, "a quote is not closed");
    }
    cells.push(cell);
    push(&mut records, start, cells);
    Ok(records)
}

fn push(records: &mut Vec<Record>, line: usize, cells: Vec<String>) {
    let is_empty = cells.iter().all(|cell| cell.trim().is_empty());
    if !is_empty {
        records.push(Record { line, cells });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_commas_and_line_breaks_are_read() {
        let found = records("a,\"b, \"\"c\"\"\nd\"\r\n\ne,f").unwrap();
        let cells: Vec<_> =
            found.iter().map(|record| (record.line, record.cells.join("|"))).collect();
        assert_eq!(cells, [(1, "a|b, \"c\"\nd".to_string()), (4, "e|f".to_string())]);
        assert!(records("a,\"b").is_err());
    }
}
