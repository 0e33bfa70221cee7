//! A strict reader of the small CSV tables: a header, commas, quotes around fields with commas.

/// Why a table could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Not even a header.
    #[error("the table is empty")]
    Empty,
    /// A quote is opened and not closed.
    #[error("line {line}: a quote has no end")]
    UnterminatedQuote {
        /// Line, counted from 1.
        line: usize,
    },
    /// Text between a closing quote and the next comma.
    #[error("line {line}: text follows a quote")]
    TextAfterQuote {
        /// Line, counted from 1.
        line: usize,
    },
    /// A line has more or fewer fields than the header.
    #[error("line {line}: {found} fields instead of {expected}")]
    FieldCount {
        /// Line, counted from 1.
        line: usize,
        /// Fields of the line.
        found: usize,
        /// Fields of the header.
        expected: usize,
    },
    /// The header has no such column.
    #[error("no column {0}")]
    MissingColumn(String),
    /// A field that should be a number.
    #[error("{column} is `{text}`, which is not a number")]
    NotANumber {
        /// Column.
        column: String,
        /// The field.
        text: String,
    },
    /// A field that should be an integer.
    #[error("{column} is `{text}`, which is not an integer in range")]
    NotAnInteger {
        /// Column.
        column: String,
        /// The field.
        text: String,
    },
}

/// Columns by name and lines of fields. Every line has as many fields as the header.
pub struct Table {
    columns: Vec<String>,
    lines: Vec<Vec<String>>,
}

/// One line of a table.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    columns: &'a [String],
    fields: &'a [String],
}

impl Table {
    /// Reads a table.
    pub fn parse(text: &str) -> Result<Table, TableError> {
        let mut lines = text.lines().zip(1..).map(|(text, line)| fields(text, line));
        let columns = lines.next().ok_or(TableError::Empty)??;
        let lines = lines.collect::<Result<Vec<_>, TableError>>()?;
        for (fields, line) in lines.iter().zip(2..) {
            if fields.len() != columns.len() {
                let (found, expected) = (fields.len(), columns.len());
                return Err(TableError::FieldCount { line, found, expected });
            }
        }
        Ok(Table { columns, lines })
    }

    /// Its lines, the header left out.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.lines.iter().map(|fields| Line { columns: &self.columns, fields })
    }
}

impl<'a> Line<'a> {
    /// The text of a column, which may be empty.
    pub fn text(self, column: &str) -> Result<&'a str, TableError> {
        let at = self.columns.iter().position(|known| known == column);
        at.map(|at| self.fields[at].as_str())
            .ok_or_else(|| TableError::MissingColumn(column.to_string()))
    }

    /// The number in a column.
    pub fn number(self, column: &str) -> Result<f64, TableError> {
        let text = self.text(column)?;
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| TableError::NotANumber {
            column: column.to_string(),
            text: text.to_string(),
        })
    }

    /// The integer in a column.
    pub fn integer<T: std::str::FromStr>(self, column: &str) -> Result<T, TableError> {
        let text = self.text(column)?;
        text.parse().map_err(|_| TableError::NotAnInteger {
            column: column.to_string(),
            text: text.to_string(),
        })
    }

    /// All columns as `name value`, empty ones left out.
    pub fn describe(self) -> String {
        let both = self.columns.iter().zip(self.fields).filter(|(_, field)| !field.is_empty());
        both.map(|(column, field)| format!("{column} {field}")).collect::<Vec<_>>().join(", ")
    }
}

fn fields(text: &str, line: usize) -> Result<Vec<String>, TableError> {
    let mut fields = vec![];
    let mut rest = text;
    loop {
        let field = if let Some(quoted) = rest.strip_prefix('"') {
            let (field, after) =
                quoted.split_once('"').ok_or(TableError::UnterminatedQuote { line })?;
            rest = after;
            field
        } else {
            let end = rest.find(',').unwrap_or(rest.len());
            let (field, after) = rest.split_at(end);
            rest = after;
            field
        };
        fields.push(field.to_string());
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(fields),
            None => return Err(TableError::TextAfterQuote { line }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_table_is_read_strictly() {
        let table = Table::parse("a,b\n1,\"x, y\"\n2,\n").unwrap();
        let lines: Vec<Line> = table.lines().collect();
        assert_eq!((lines[0].number("a"), lines[0].text("b")), (Ok(1.0), Ok("x, y")));
        assert_eq!(lines[1].describe(), "a 2");
        assert!(lines[1].number("b").is_err());
        assert!(lines[1].text("c").is_err());
        for bad in ["", "a,b\n1", "a\n\"x", "a\n\"x\"y"] {
            assert!(Table::parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "[a\",\n]{0,40}") {
            let _ = Table::parse(&text);
        }
    }
}
