//! A strict reader of the small CSV tables: a header, commas, quotes around fields with commas.

/// Columns by name and lines of fields. Every line has as many fields as the header.
pub(super) struct Table {
    columns: Vec<String>,
    lines: Vec<Vec<String>>,
}

/// One line of a table.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    columns: &'a [String],
    fields: &'a [String],
}

impl Table {
    /// Reads a table.
    pub fn parse(text: &str) -> Result<Table, String> {
        let mut lines = text
            .lines()
            .enumerate()
            .map(|(at, line)| fields(line).map_err(|fault| format!("line {}: {fault}", at + 1)));
        let columns = lines.next().ok_or("the table is empty")??;
        let lines = lines.collect::<Result<Vec<_>, String>>()?;
        if let Some(at) = lines.iter().position(|line| line.len() != columns.len()) {
            return Err(format!(
                "line {}: {} fields instead of {}",
                at + 2,
                lines[at].len(),
                columns.len()
            ));
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
    pub fn text(self, column: &str) -> Result<&'a str, String> {
        let at = self.columns.iter().position(|known| known == column);
        at.map(|at| self.fields[at].as_str()).ok_or_else(|| format!("no column {column}"))
    }

    /// The number in a column.
    pub fn number(self, column: &str) -> Result<f64, String> {
        let text = self.text(column)?;
        let number = text.parse().ok().filter(|number: &f64| number.is_finite());
        number.ok_or_else(|| format!("{column} is `{text}`, which is no number"))
    }

    /// The whole number in a column.
    pub fn whole<T: std::str::FromStr>(self, column: &str) -> Result<T, String> {
        let text = self.text(column)?;
        text.parse().map_err(|_| format!("{column} is `{text}`, which is no whole number"))
    }

    /// All columns as `name value`, empty ones left out.
    pub fn describe(self) -> String {
        let both = self.columns.iter().zip(self.fields).filter(|(_, field)| !field.is_empty());
        both.map(|(column, field)| format!("{column} {field}")).collect::<Vec<_>>().join(", ")
    }
}

fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut fields = vec![];
    let mut rest = line;
    loop {
        let field = if let Some(quoted) = rest.strip_prefix('"') {
            let (field, after) = quoted.split_once('"').ok_or("a quote has no end")?;
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
            None => return Err("text follows a quote".to_string()),
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
