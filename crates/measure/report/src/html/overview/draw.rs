//! The overview picture as SVG, once for a wide page and once for a narrow one.

use maud::{Markup, html};

use super::rows::{Group, Kind, Limit, Row};
use crate::svg::{Axis, text_size};
use crate::units::{self, LatencyUnit, NOT_AVAILABLE};

/// Sizes of a drawing, in px.
pub struct Layout {
    /// Start of the ids in the drawing.
    pub id: &'static str,
    /// Entire width.
    pub width: f64,
    /// Room for the names at the left.
    pub label_width: f64,
    /// Room for the figures at the right.
    pub value_width: f64,
}

/// Beside the answer on a wide page.
pub const WIDE: Layout =
    Layout { id: "overview", width: 660.0, label_width: 172.0, value_width: 104.0 };

/// On a telephone.
pub const NARROW: Layout =
    Layout { id: "overview-narrow", width: 352.0, label_width: 124.0, value_width: 100.0 };

const LETTER_WIDTH: f64 = 6.6;
const ROW_HEIGHT: f64 = 13.0;
const BAR_HEIGHT: f64 = 8.0;
const AXIS_HEIGHT: f64 = 20.0;

/// Distance between the lines of a hatched bar.
const HATCH_STEP: f64 = 5.0;

/// A limit with its place in the picture.
struct PlacedLabel<'a> {
    line: usize,
    x: f64,
    is_before: bool,
    text: &'a str,
}

/// A drawing in the making.
struct Drawing<'a> {
    layout: &'a Layout,
    axis: &'a Axis,
}

/// The picture of `groups`, described by `description`.
pub fn draw(groups: &[Group], axis: &Axis, layout: &Layout, description: &str) -> Markup {
    let drawing = Drawing { layout, axis };
    let mut y = 2.0;
    let mut parts = vec![];
    for group in groups {
        let (part, height) = drawing.group(group, y);
        parts.push(part);
        y += height;
    }
    let height = y + AXIS_HEIGHT;
    let (title_id, description_id) = (format!("{}-t", layout.id), format!("{}-d", layout.id));
    html! {
        svg id=(layout.id) class="chart overview" role="img"
            aria-labelledby=(format!("{title_id} {description_id}"))
            viewBox=(format!("0 0 {} {}", n(layout.width), n(height)))
            width=(n(layout.width)) height=(n(height)) xmlns="http://www.w3.org/2000/svg" {
            title id=(title_id) { "Median to p99 of each environment and stack" }
            desc id=(description_id) { (description) }
            (drawing.ticks(y))
            @for part in &parts { (part) }
        }
    }
}

impl Drawing<'_> {
    fn left(&self) -> f64 {
        self.layout.label_width + 6.0
    }

    fn right(&self) -> f64 {
        self.layout.width - self.layout.value_width - 6.0
    }

    fn x(&self, ns: f64) -> f64 {
        let (low, high) = (self.axis.low.log10(), self.axis.high.log10());
        let share = ((ns.log10() - low) / (high - low)).clamp(0.0, 1.0);
        self.left() + share * (self.right() - self.left())
    }

    /// Lines over all rows and their labels below; labels that would overlap are left out.
    fn ticks(&self, bottom: f64) -> Markup {
        let mut grid = String::new();
        let mut labels: Vec<(f64, &str)> = vec![];
        let mut end = f64::NEG_INFINITY;
        for tick in &self.axis.ticks {
            let x = self.x(tick.at);
            grid += &format!("M{} 2V{}", n(x), n(bottom + 3.0));
            let half = text_width(&tick.label) / 2.0;
            if !tick.label.is_empty() && x - half > end + 6.0 {
                labels.push((x, &tick.label));
                end = x + half;
            }
        }
        html! {
            path class="grid" d=(grid) {}
            text class="al" x=(n(self.layout.width)) y=(n(bottom + 14.0)) text-anchor="end" {
                "median / p99"
            }
            @for (x, label) in labels {
                text class="al" x=(n(x)) y=(n(bottom + 14.0)) text-anchor="middle" { (label) }
            }
        }
    }

    /// A group from `top` on, and its height.
    fn group(&self, group: &Group, top: f64) -> (Markup, f64) {
        let title = self.title(group);
        let labels = self.labels(group, text_width(&title) * 1.06);
        let n_head_lines = labels.iter().map(|label| label.line + 1).max().unwrap_or(1);
        let rows_top = top + n_head_lines as f64 * ROW_HEIGHT + 2.0;
        let height = rows_top - top + group.rows.len() as f64 * ROW_HEIGHT + 3.0;
        let markup = html! {
            text class="head" x="0" y=(n(top + 11.0)) { (title) }
            @for label in &labels {
                text class="lt" x=(n(label.x)) y=(n(top + 11.0 + label.line as f64 * ROW_HEIGHT))
                    text-anchor=(if label.is_before { "end" } else { "start" }) { (label.text) }
            }
            @for (index, row) in group.rows.iter().enumerate() {
                (self.row(row, rows_top + index as f64 * ROW_HEIGHT))
            }
        };
        (markup, height)
    }

    fn title(&self, group: &Group) -> String {
        let more = match group.n_left_out {
            0 => String::new(),
            n => format!(" ({n} more below)"),
        };
        shortened(&format!("{}{more}", group.title), self.layout.width * 0.94)
    }

    /// The labels of the limits of a group, in as few lines as they need.
    fn labels<'g>(&self, group: &'g Group, title_width: f64) -> Vec<PlacedLabel<'g>> {
        let mut limits: Vec<&Limit> = vec![];
        for limit in group.rows.iter().flat_map(|row| &row.limits) {
            if !limits.iter().any(|known| known.text == limit.text) {
                limits.push(limit);
            }
        }
        limits.sort_by(|a, b| a.ns.total_cmp(&b.ns));
        // How far each line is taken.
        let mut lines = vec![title_width + 8.0];
        let mut labels = vec![];
        for limit in limits {
            let (at, width) = (self.x(limit.ns), text_width(&limit.text));
            let is_before = at + 3.0 + width > self.layout.width;
            let (start, x) =
                if is_before { (at - 3.0 - width, at - 3.0) } else { (at + 3.0, at + 3.0) };
            let line = lines.iter().position(|end| *end <= start).unwrap_or(lines.len());
            if line == lines.len() {
                lines.push(0.0);
            }
            lines[line] = start + width + 8.0;
            labels.push(PlacedLabel { line, x, is_before, text: &limit.text });
        }
        labels
    }

    fn row(&self, row: &Row, top: f64) -> Markup {
        let middle = top + ROW_HEIGHT / 2.0;
        let (from, to) = (self.x(row.median_ns), self.x(row.p99_ns.unwrap_or(row.median_ns)));
        let (from, to) = (from.min(to), from.max(to).max(from.min(to) + 2.0));
        let colour = row.look.colour_class();
        let is_hatched = !row.doubts.is_empty();
        let class = format!("bar {colour}{}", if is_hatched { " pale" } else { "" });
        let label = shortened(&row.label, self.layout.label_width);
        let limits: String = row
            .limits
            .iter()
            .map(|limit| format!("M{} {}v{}", n(self.x(limit.ns)), n(top), n(ROW_HEIGHT)))
            .collect();
        let figures_class = if row.is_failing { "failing" } else { "figures" };
        html! {
            text class=[(row.kind == Kind::Published).then_some("al")]
                x=(n(self.layout.label_width)) y=(n(middle + 4.0)) text-anchor="end" { (label) }
            rect class=(class) x=(n(from)) y=(n(middle - BAR_HEIGHT / 2.0))
                width=(n(to - from)) height=(n(BAR_HEIGHT)) {}
            @if is_hatched {
                path class=(format!("hatch {colour}")) d=(hatch(from, to, middle)) {}
            }
            @if !limits.is_empty() { path class="limit" d=(limits) {} }
            text class=(figures_class) x=(n(self.layout.width)) y=(n(middle + 4.0))
                text-anchor="end" { (figures(row)) }
        }
    }
}

/// Slanted lines from `from` to `to` over the height of a bar.
fn hatch(from: f64, to: f64, middle: f64) -> String {
    let (top, bottom) = (middle - BAR_HEIGHT / 2.0, middle + BAR_HEIGHT / 2.0);
    let n_lines = ((to - from) / HATCH_STEP).ceil().clamp(1.0, 200.0) as usize;
    let mut path = String::new();
    for line in 0..n_lines {
        let low = from + line as f64 * HATCH_STEP;
        let room = (to - low).min(BAR_HEIGHT);
        path += &format!("M{} {}L{} {}", n(low), n(bottom), n(low + room), n(bottom - room));
        debug_assert!(bottom - room >= top - 1e-9);
    }
    path
}

/// `2.23 / 3.65 µs`, with a sign where the row fails a target.
fn figures(row: &Row) -> String {
    let unit = LatencyUnit::of(row.median_ns);
    let number = |ns: f64| units::significant(ns / unit.ns(), 3);
    let p99 = match row.p99_ns {
        None => NOT_AVAILABLE.to_string(),
        Some(ns) if ns < 1000.0 * row.median_ns => format!("{} {}", number(ns), unit.name()),
        Some(ns) => units::latency(ns),
    };
    let sign = if row.is_failing { "✗ " } else { "" };
    format!("{sign}{} / {p99}", number(row.median_ns))
}

fn text_width(text: &str) -> f64 {
    text_size::width(text, LETTER_WIDTH)
}

fn shortened(text: &str, width: f64) -> String {
    text_size::shortened(text, width, LETTER_WIDTH)
}

/// A coordinate with at most one decimal.
fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}
