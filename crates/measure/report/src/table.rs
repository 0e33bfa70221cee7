//! A table as data, and its two plain-text forms: aligned columns for a terminal, pipes for
//! Markdown. The HTML form is in `html`.

use crate::style::{Style, Tone, clean, wrap};

/// On which side of its column a cell stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Figures.
    Right,
}

/// A column: its heading, and how a table treats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub title: String,
    /// Where its cells stand.
    pub align: Align,
    /// Whether it is left out if no cell says anything.
    pub is_optional: bool,
    /// Which columns a terminal too narrow for all of them leaves out: the lowest number first. A
    /// column without a number stays.
    pub leaves: Option<u8>,
    /// Whether its cells are numbers of doubts, which a page links.
    pub has_doubts: bool,
}

impl Column {
    /// A column of text.
    pub fn text(title: impl Into<String>) -> Column {
        let (is_optional, leaves, has_doubts) = (false, None, false);
        Column { title: title.into(), align: Align::Left, is_optional, leaves, has_doubts }
    }

    /// A column of figures.
    pub fn figure(title: impl Into<String>) -> Column {
        Column { align: Align::Right, ..Column::text(title) }
    }

    /// Numbers of doubts, if there are any.
    pub fn doubts() -> Column {
        Column { has_doubts: true, ..Column::text("doubts").optional() }
    }

    /// The column, left out if no cell says anything.
    #[must_use]
    pub fn optional(self) -> Column {
        Column { is_optional: true, ..self }
    }

    /// The column, left out of a narrow terminal after those with lower numbers.
    #[must_use]
    pub fn leaves(self, number: u8) -> Column {
        Column { leaves: Some(number), ..self }
    }

    /// Whether it holds figures.
    pub fn is_figure(&self) -> bool {
        self.align == Align::Right
    }
}

/// A row of as many cells as there are columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Cells.
    pub cells: Vec<String>,
    /// Meaning of the row.
    pub tone: Tone,
}

/// A table with a caption that names statistic and unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Caption.
    pub caption: String,
    /// Columns.
    pub columns: Vec<Column>,
    /// Rows.
    pub rows: Vec<Row>,
}

impl Table {
    /// An empty table.
    pub fn new(caption: impl Into<String>, columns: impl IntoIterator<Item = Column>) -> Table {
        Table { caption: caption.into(), columns: columns.into_iter().collect(), rows: vec![] }
    }

    /// A table of equally long columns with their cells, for figures whose format depends on their
    /// whole column.
    pub fn of_columns(caption: impl Into<String>, columns: Vec<(Column, Vec<String>)>) -> Table {
        let n_rows = columns.first().map_or(0, |(_, cells)| cells.len());
        let (columns, cells): (Vec<Column>, Vec<Vec<String>>) = columns.into_iter().unzip();
        let mut table = Table::new(caption, columns);
        let mut cells: Vec<_> = cells.into_iter().map(Vec::into_iter).collect();
        for _ in 0..n_rows {
            let cells: Vec<String> = cells.iter_mut().filter_map(Iterator::next).collect();
            table.push(Tone::Plain, cells);
        }
        table
    }

    /// The table with a tone for each row.
    pub fn with_tones(mut self, tones: impl IntoIterator<Item = Tone>) -> Table {
        for (row, tone) in self.rows.iter_mut().zip(tones) {
            row.tone = tone;
        }
        self
    }

    /// Adds a row.
    pub fn push(&mut self, tone: Tone, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has one cell for each column");
        self.rows.push(Row { cells, tone });
    }

    /// Removes the optional columns that hold nothing at all.
    pub fn drop_empty(&mut self) {
        let is_nothing = |cell: &str| {
            matches!(cell, "" | "n/a") || cell.parse().is_ok_and(|value: f64| value == 0.0)
        };
        for index in (0..self.columns.len()).rev() {
            let is_empty = self.rows.iter().all(|row| is_nothing(&row.cells[index]));
            if self.columns[index].is_optional && is_empty {
                self.remove(index);
            }
        }
    }

    fn remove(&mut self, index: usize) {
        self.columns.remove(index);
        for row in &mut self.rows {
            row.cells.remove(index);
        }
    }

    /// Aligned columns, two spaces apart, in at most `style.width` characters where words allow it.
    /// Words wrap in columns of text, figures never do; columns that may be left out are left out
    /// where the others do not fit, and named below the table.
    pub fn to_text(&self, style: &Style) -> String {
        let mut shown = self.clone();
        let mut left_out = vec![];
        while line_width(&shown.fit(style.width)) > style.width {
            let Some(index) = shown.least_important() else { break };
            left_out.push(clean(&shown.columns[index].title));
            shown.remove(index);
        }
        let mut text = shown.lines_of_all(style);
        if !left_out.is_empty() {
            let line = format!("left out for want of width: {}", left_out.join(", "));
            for part in wrap(&line, style.width.saturating_sub(2).max(20)) {
                text += &format!("  {}\n", style.faint(&part));
            }
        }
        text
    }

    /// The column that a narrow terminal leaves out first.
    fn least_important(&self) -> Option<usize> {
        let leaving = self.columns.iter().enumerate();
        let leaving = leaving.filter_map(|(index, column)| Some((column.leaves?, index)));
        leaving.min().map(|(_, index)| index)
    }

    fn lines_of_all(&self, style: &Style) -> String {
        let widths = self.fit(style.width);
        let titles: Vec<String> = self.columns.iter().map(|c| c.title.clone()).collect();
        let mut text = String::new();
        for line in self.lines(&titles, &widths) {
            text += &style.faint(&line);
            text.push('\n');
        }
        for row in &self.rows {
            for line in self.lines(&row.cells, &widths) {
                text += &style.tone(row.tone, &line);
                text.push('\n');
            }
        }
        text
    }

    /// Column widths: the widest cell, columns of text narrowed from the widest down until the row
    /// fits, but none below twelve characters or a word of usual length, such as a stack's name.
    fn fit(&self, width: usize) -> Vec<usize> {
        const NARROWEST: usize = 12;
        const WORD: usize = 20;
        let longest_word = |cell: &String| cell.split(' ').map(|word| word.chars().count()).max();
        let narrowest: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let words = self.rows.iter().filter_map(|row| longest_word(&row.cells[i]));
                words.filter(|&length| length <= WORD).max().unwrap_or(0).max(NARROWEST)
            })
            .collect();
        let cell_width = |cell: &String| cell.chars().count();
        let mut widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let widest = self.rows.iter().map(|row| cell_width(&row.cells[i])).max();
                widest.unwrap_or(0).max(cell_width(&self.columns[i].title))
            })
            .collect();
        loop {
            let total = line_width(&widths);
            if total <= width {
                return widths;
            }
            let widest = (0..widths.len())
                .filter(|&i| !self.columns[i].is_figure() && widths[i] > narrowest[i])
                .max_by_key(|&i| widths[i]);
            match widest {
                Some(i) => widths[i] -= (total - width).min(widths[i] - narrowest[i]).min(4),
                None => return widths,
            }
        }
    }

    fn lines(&self, cells: &[String], widths: &[usize]) -> Vec<String> {
        let wrapped: Vec<Vec<String>> =
            cells.iter().zip(widths).map(|(cell, &width)| wrap(&clean(cell), width)).collect();
        let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
        (0..height)
            .map(|at| {
                let mut line = String::new();
                for ((column, parts), &width) in self.columns.iter().zip(&wrapped).zip(widths) {
                    let part = parts.get(at).map_or("", String::as_str);
                    let gap = " ".repeat(width.saturating_sub(part.chars().count()));
                    line += "  ";
                    match column.is_figure() {
                        true => line += &(gap + part),
                        false => line += &(part.to_string() + &gap),
                    }
                }
                line.trim_end().to_string()
            })
            .collect()
    }

    /// A Markdown table with its caption in bold above.
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        if !self.caption.is_empty() {
            text += &format!("**{}**\n\n", markdown_text(&self.caption));
        }
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        text += &line(self.columns.iter().map(|c| markdown_text(&c.title)).collect());
        let rule = |c: &Column| if c.is_figure() { "---:" } else { "---" }.to_string();
        text += &line(self.columns.iter().map(rule).collect());
        for row in &self.rows {
            text += &line(row.cells.iter().map(|cell| markdown_text(cell)).collect());
        }
        text
    }
}

/// Length of a line of columns of these widths, each with two spaces in front.
fn line_width(widths: &[usize]) -> usize {
    widths.iter().map(|width| width + 2).sum()
}

/// Text in which nothing is taken for Markdown or HTML, on one line.
pub fn markdown_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '&' => out += "&amp;",
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' => {
                out.push('\\');
                out.push(letter);
            }
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Table {
        let mut table = Table::new(
            "times",
            [Column::text("stack"), Column::figure("median"), Column::text("note")],
        );
        table.push(Tone::Plain, vec!["tcp-spin".into(), "1.421".into(), "[1]".into()]);
        table.push(Tone::Plain, vec!["udp".into(), "12.3".into(), "a longer note in words".into()]);
        table
    }

    #[test]
    fn figures_are_right_aligned_and_words_wrap() {
        let text = example().to_text(&Style { colour: false, width: 34 });
        assert_eq!(
            text,
            "  stack     median  note\n\
             \x20 tcp-spin   1.421  [1]\n\
             \x20 udp         12.3  a longer note\n\
             \x20                   in words\n"
        );
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out_by_name() {
        let mut table = Table::new(
            "",
            [
                Column::text("stack"),
                Column::figure("median"),
                Column::figure("max").leaves(2),
                Column::figure("n").leaves(1),
            ],
        );
        table.push(Tone::Plain, ["tcp-spin", "1.421", "20.5", "1000"].map(String::from).to_vec());
        let at = |width| table.to_text(&Style { colour: false, width });
        assert_eq!(at(33), "  stack     median   max     n\n  tcp-spin   1.421  20.5  1000\n");
        assert_eq!(
            at(25),
            "  stack     median   max\n  tcp-spin   1.421  20.5\n  left out for want of\n  width: \
             n\n"
        );
        assert!(at(19).starts_with("  stack     median\n"), "{}", at(19));
        assert!(table.to_markdown().contains("1000"), "only a terminal is narrow");
    }

    #[test]
    fn markdown_cells_are_escaped() {
        let mut table = Table::new("", [Column::text("a")]);
        table.push(Tone::Plain, vec!["x | <b> `y`\nz".into()]);
        assert_eq!(table.to_markdown(), "| a |\n| --- |\n| x \\| &lt;b&gt; \\`y\\` z |\n");
    }

    #[test]
    fn columns_become_rows_with_tones() {
        let columns = vec![
            (Column::text("stack"), vec!["a".into(), "b".into()]),
            (Column::figure("n"), vec!["1".into(), "2".into()]),
        ];
        let table = Table::of_columns("t", columns).with_tones([Tone::Plain, Tone::Faint]);
        assert!(!table.columns[0].is_figure() && table.columns[1].is_figure());
        assert_eq!(table.rows[1].cells, ["b", "2"]);
        assert_eq!((table.rows[0].tone, table.rows[1].tone), (Tone::Plain, Tone::Faint));
    }

    #[test]
    fn empty_columns_are_dropped_only_if_optional() {
        let mut table = Table::new(
            "",
            [Column::text("a"), Column::figure("lost").optional(), Column::figure("n")],
        );
        table.push(Tone::Plain, vec!["x".into(), "0".into(), "0".into()]);
        table.drop_empty();
        assert_eq!(table.columns.len(), 2);
        assert_eq!(table.rows[0].cells, ["x", "0"]);
    }
}
