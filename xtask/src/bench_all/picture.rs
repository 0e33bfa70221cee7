//! The picture of all ratios: a row each, on a logarithmic axis, in an SVG file of its own.

use std::fmt::Write as _;

use crate::bench_all::page::{Page, Ratio};

/// Columns of the picture, px: labels, plot, figures.
const LABEL_WIDTH: f64 = 430.0;
const PLOT_WIDTH: f64 = 420.0;
const FIGURE_WIDTH: f64 = 70.0;
const ROW_HEIGHT: f64 = 16.0;
/// Height of the axis.
const AXIS_HEIGHT: f64 = 34.0;
/// Letters of a label that fit.
const LETTERS_MAX: usize = 66;

/// Marks of the axis; what lies beyond its ends is drawn at them.
const MARKS: [(f64, &str); 7] = [
    (0.001, "1/1000"),
    (0.01, "1/100"),
    (0.1, "1/10"),
    (0.5, "1/2"),
    (1.0, "1"),
    (2.0, "2"),
    (10.0, "10"),
];

/// Position of a ratio, px from the left.
fn x(ratio: f64) -> f64 {
    let (low, high) = (MARKS[0].0, MARKS[MARKS.len() - 1].0);
    let share = (ratio.clamp(low, high) / low).ln() / (high / low).ln();
    LABEL_WIDTH + PLOT_WIDTH * share
}

/// All pages, one below the other.
pub fn draw(pages: &[Page]) -> String {
    let n_rows: usize = pages.iter().map(|page| page.ratios.len() + 2).sum();
    let (width, height) =
        (LABEL_WIDTH + PLOT_WIDTH + FIGURE_WIDTH, AXIS_HEIGHT + n_rows as f64 * ROW_HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\" role=\"img\" \
         aria-label=\"ratio of each figure to its peer\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (mark, label) in MARKS {
        let (at, colour) = (x(mark), if mark == 1.0 { "#333333" } else { "#dddddd" });
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{AXIS_HEIGHT}\" y2=\"{height}\" \
             stroke=\"{colour}\"/><text x=\"{at:.1}\" y=\"28\" text-anchor=\"middle\" \
             fill=\"#333333\">{label}</text>"
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LABEL_WIDTH}\" y=\"12\" fill=\"#333333\">ratio to the peer; below 1 is \
         better</text>"
    );
    let mut y = AXIS_HEIGHT;
    for page in pages {
        y += ROW_HEIGHT;
        let _ = writeln!(
            svg,
            "<text x=\"6\" y=\"{:.1}\" font-weight=\"bold\" fill=\"#111111\">{}</text>",
            y + 11.0,
            escaped(&page.name)
        );
        y += ROW_HEIGHT;
        for one in &page.ratios {
            svg += &row(one, y + ROW_HEIGHT / 2.0);
            y += ROW_HEIGHT;
        }
    }
    svg + "</svg>\n"
}

/// Label, range, median and its figure; `y` is the middle of the row.
fn row(ratio: &Ratio, y: f64) -> String {
    let colour = match (ratio.is_better(), ratio.is_worse()) {
        (true, _) => "#1a7f4b",
        (_, true) => "#b3261e",
        _ => "#777777",
    };
    let Ratio { label, median, low, high } = ratio;
    let shown: String = match label.chars().count() > LETTERS_MAX {
        true => label.chars().take(LETTERS_MAX - 1).chain(['…']).collect(),
        false => label.clone(),
    };
    format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#333333\">{}</text>\
         <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" \
         stroke-width=\"3\" stroke-opacity=\"0.45\"/>\
         <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>\n",
        LABEL_WIDTH - 8.0,
        y + 4.0,
        escaped(&shown),
        x(*low),
        x(*high),
        x(*median),
        LABEL_WIDTH + PLOT_WIDTH + 8.0,
        y + 4.0,
        figure(*median)
    )
}

/// `0.42`, or `1/154` where it is small.
fn figure(ratio: f64) -> String {
    if ratio < 0.1 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.2}") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ratio_is_a_row_in_the_colour_of_its_side_and_inside_the_picture() {
        let ratio = |label: &str, low, high| Ratio { label: label.into(), median: low, low, high };
        let ratios = vec![ratio("a<b", 1e-9, 0.5), ratio("c", 0.5, 2.0), ratio("d", 3.0, 1e9)];
        let page = Page { name: "n".into(), date: String::new(), commit: String::new(), ratios };
        let svg = draw(&[page]);
        assert_eq!(svg.matches("<circle").count(), 3);
        for colour in ["#1a7f4b\"/>", "#777777\"/>", "#b3261e\"/>"] {
            assert_eq!(svg.matches(&format!("r=\"3.5\" fill=\"{colour}")).count(), 1, "{svg}");
        }
        assert!(svg.contains("a&lt;b"));
        assert_eq!((x(1e-9), x(1e9)), (LABEL_WIDTH, LABEL_WIDTH + PLOT_WIDTH));
        assert!((x(1.0) - (LABEL_WIDTH + PLOT_WIDTH * 0.75)).abs() < 1e-9);
    }

    #[test]
    fn small_ratios_are_fractions() {
        assert_eq!((figure(0.0065), figure(0.42)), ("1/154".to_string(), "0.42".to_string()));
    }
}
