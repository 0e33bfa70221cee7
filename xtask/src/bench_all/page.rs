//! The ratios of a page of `docs/results`, read from its tables.

/// A page with its ratios.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    pub name: String,
    /// Its line `date`; `unknown` if it has none.
    pub date: String,
    /// Its line `commit`; `unknown` if it has none.
    pub commit: String,
    pub ratios: Vec<Ratio>,
}

/// A figure against its peer: below 1 is better.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// What was measured.
    pub label: String,
    pub median: f64,
    /// Lowest round.
    pub low: f64,
    /// Highest round.
    pub high: f64,
}

impl Ratio {
    pub fn is_better(&self) -> bool {
        self.high < 1.0
    }

    pub fn is_worse(&self) -> bool {
        self.low > 1.0
    }

    fn turned(self) -> Ratio {
        let Ratio { label, median, low, high } = self;
        Ratio { label, median: 1.0 / median, low: 1.0 / high, high: 1.0 / low }
    }
}

/// Columns that name a figure.
const LABELS: [&str; 9] =
    ["what", "case", "size", "program", "mix", "rate /s", "ours", "peer", "figure"];

/// Ratios to something else than a peer: the limit of the hardware, or another figure.
const NO_PEER: [&str; 2] = ["÷ limit", "÷ median"];

impl Page {
    /// Reads all tables that have the columns `ratio` (or `ratio, median`) and `range`.
    pub fn read(name: &str, text: &str) -> Page {
        let fact = |start: &str| {
            let found = text.lines().find(|line| line.starts_with(start));
            let value = found.and_then(|line| line.rsplit(": ").next());
            value.unwrap_or("unknown").to_string()
        };
        let mut page = Page {
            name: name.to_string(),
            date: fact("- date: "),
            commit: fact("- commit"),
            ratios: vec![],
        };
        let mut heading = "";
        let mut header: Vec<&str> = vec![];
        for line in text.lines() {
            match cells(line) {
                None if line.starts_with('#') => heading = line,
                None => header.clear(),
                Some(of_line) if header.is_empty() => header = of_line,
                Some(of_line) => page.ratios.extend(ratio(heading, &header, &of_line)),
            }
        }
        page
    }
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

/// The ratio of a row; none if the table has none, or the row has no number.
fn ratio(heading: &str, header: &[&str], row: &[&str]) -> Option<Ratio> {
    let cell = |name: &str| {
        let at = header.iter().position(|column| *column == name)?;
        row.get(at).copied()
    };
    let median = number(cell("ratio").or_else(|| cell("ratio, median"))?)?;
    let (low, high) = cell("range")?.split_once(" to ")?;
    let (low, high) = (number(low)?, number(high)?);
    let mut label: Vec<&str> = vec![];
    // A column of figures may have the name of one of labels.
    for (column, text) in header.iter().zip(row) {
        let is_figure = text.parse::<f64>().is_ok() && !["size", "rate /s"].contains(column);
        if LABELS.contains(column) && !is_figure {
            label.push(text);
        }
    }
    let label = label.join(", ").replace('`', "");
    if NO_PEER.iter().any(|other| label.contains(other)) {
        return None;
    }
    let ratio = Ratio { label, median, low, high };
    let is_rate = cell("unit").is_some_and(|unit| unit.contains("/s"));
    let is_more_better = is_rate
        || heading.contains("Throughput")
        || cell("goal").is_some_and(|goal| goal.starts_with('≥'));
    Some(if is_more_better { ratio.turned() } else { ratio })
}

/// `0.42` or `1/153.7`.
fn number(text: &str) -> Option<f64> {
    let value: f64 = match text.strip_prefix("1/") {
        Some(below) => 1.0 / below.parse::<f64>().ok()?,
        None => text.parse().ok()?,
    };
    (value.is_finite() && value > 0.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_with_a_ratio_and_its_range_are_read_and_turned_where_more_is_better() {
        let text = "# Page\n\n- date: 2026-01-02\n- commit, and -dirty if changed: abc\n\n\
            | what | goal | ratio | range | rounds |\n|---|---|---|---|---|\n\
            | a ÷ b | ≤ 2 | 1/4.0 | 1/5.0 to 1/2.0 | 3 |\n\
            | c ÷ d | ≥ 2 | 4.00 | 2.00 to 5.00 | 3 |\n\
            | e ÷ f | ≤ 2 | n/a | n/a | 0 |\n\
            | g ÷ limit | ≤ 2 | 2.0 | 2.0 to 2.0 | 1 |\n\n## Throughput\n\n\
            | case | ours | peer | ratio, median | range |\n|---|---|---|---|---|\n\
            | one | 8.1 | 4.0 | 2.00 | 1.00 to 4.00 |\n\n| case | median |\n|---|---|\n| x | 3 |\n";
        let page = Page::read("name", text);
        assert_eq!((page.date.as_str(), page.commit.as_str()), ("2026-01-02", "abc"));
        let ratio =
            |label: &str, median, low, high| Ratio { label: label.into(), median, low, high };
        let wanted = [
            ratio("a ÷ b", 0.25, 0.2, 0.5),
            ratio("c ÷ d", 0.25, 0.2, 0.5),
            ratio("one", 0.5, 0.25, 1.0),
        ];
        assert_eq!(page.ratios, wanted);
        assert!(page.ratios[0].is_better() && !page.ratios[2].is_better());
    }
}
