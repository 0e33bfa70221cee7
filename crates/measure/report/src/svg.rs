//! A small chart library: one chart is one `<svg>`, drawn from numbers alone.
//!
//! Colours, dashes and text styles are classes (`k0`… colour, `d0`… dash) that `charts.css`
//! defines, so light, dark and print share one drawing. The legend is below the
//! plot; labels that would overlap are left out. Widths of text are estimated, on the
//! safe side.

mod look;
pub mod text_size;

use maud::{Markup, html};

pub use look::Look;

use look::N_PATTERNS;

/// Width of every chart in its own units, px at full size.
pub const WIDTH: f64 = 860.0;

const LETTER_WIDTH: f64 = 6.9;
const LINE_HEIGHT: f64 = 16.0;
/// Height of a line of text that marks a limit, px.
const LIMIT_LINE_HEIGHT: f64 = 12.0;

/// How values map to positions on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Equal factors; values must be above zero.
    Log,
}

/// A label on an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// Where.
    pub at: f64,
    /// Label; empty for a line only.
    pub label: String,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What it shows, with its unit.
    pub label: String,
    /// How values map to positions.
    pub scale: Scale,
    /// Value at the left or the bottom.
    pub low: f64,
    /// Value at the right or the top.
    pub high: f64,
    /// Labels.
    pub ticks: Vec<Tick>,
}

/// A box of a heat map: from and to on the x axis, and on the y axis.
pub type HeatBox = ((f64, f64), (f64, f64));

/// Something that is drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    /// A line through points.
    Line(Look, Vec<(f64, f64)>),
    /// A thin dotted line through points: what a line continues with when less is known.
    Dotted(Look, Vec<(f64, f64)>),
    /// An area between two values at each x.
    Band(Look, Vec<(f64, f64, f64)>),
    /// Filled points in the entry's shape.
    Points(Look, Vec<(f64, f64)>),
    /// Open points in the entry's shape.
    Open(Look, Vec<(f64, f64)>),
    /// Short strokes across, such as maxima.
    Strokes(Look, Vec<(f64, f64)>),
    /// A bar lying at `y` with its thickness.
    Bar {
        /// LegendEntry.
        look: Look,
        /// Middle and thickness on the y axis.
        y: (f64, f64),
        /// From and to on the x axis.
        x: (f64, f64),
    },
    /// A text to the right of a point.
    Label((f64, f64), String),
    /// A text in the place of a bar at a height of the y axis, from the left end of the plot area,
    /// shortened to the width of the chart.
    Note(f64, String),
    /// A range: an area behind all else, from and to on both axes.
    Range {
        /// From and to on the x axis.
        x: (f64, f64),
        /// From and to on the y axis.
        y: (f64, f64),
    },
    /// A limit of the x axis: an upright line at `x` between two values of the y axis.
    Limit {
        /// Where on the x axis.
        x: f64,
        /// From and to on the y axis.
        y: (f64, f64),
        /// Short text at its head.
        text: String,
    },
    /// A limit of the y axis: a level line at `y` between two values of the x axis.
    Level {
        /// From and to on the x axis.
        x: (f64, f64),
        /// Where on the y axis.
        y: f64,
        /// Short text above its start.
        text: String,
    },
    /// Boxes of one shade, as a heat map has them.
    Heat {
        /// Class of the colour in the style sheet.
        class: &'static str,
        /// Shade from 1, the lightest.
        shade: usize,
        /// Where.
        boxes: Vec<HeatBox>,
    },
    /// An interval lying at `y`.
    Interval(Look, f64, (f64, f64)),
}

/// Symbol of a legend entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swatch {
    /// A line with the entry's shape on it.
    Line,
    /// The shape alone, filled.
    Filled,
    /// The shape alone, open.
    Open,
}

/// A line of the legend.
#[derive(Debug, Clone, PartialEq)]
pub struct LegendEntry {
    /// Symbol.
    pub swatch: Swatch,
    /// Look of its marks.
    pub look: Look,
    /// Name.
    pub label: String,
}

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Unique in the page; ids of title and description start with it.
    pub id: String,
    /// What it shows, in one line.
    pub title: String,
    /// What it shows, in sentences, for those who do not see it.
    pub description: String,
    /// Axis from left to right.
    pub x: Axis,
    /// Axis from bottom to top.
    pub y: Axis,
    /// Height of the plot area.
    pub plot_height: f64,
    /// What is drawn, in order.
    pub marks: Vec<Mark>,
    /// Legend; empty for none.
    pub legend: Vec<LegendEntry>,
    /// Meaning of the marks: `line: median`, …
    pub key: String,
}

/// Position of the plot area in a drawing.
struct Frame {
    /// Width of the drawing.
    width: f64,
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

/// Where the text of a limit stands: left end and base line.
struct LimitText<'a> {
    text: &'a str,
    left: f64,
    width: f64,
    y: f64,
}

impl LimitText<'_> {
    fn is_clear_of(&self, other: &LimitText<'_>) -> bool {
        let is_beside =
            self.left + self.width + 4.0 < other.left || other.left + other.width + 4.0 < self.left;
        is_beside || (self.y - other.y).abs() >= LIMIT_LINE_HEIGHT
    }
}

impl Axis {
    /// Share of the way from low to high, 0 to 1 inside the axis.
    pub(crate) fn share(&self, value: f64) -> f64 {
        let (value, low, high) = match self.scale {
            Scale::Linear => (value, self.low, self.high),
            Scale::Log => (value.log10(), self.low.log10(), self.high.log10()),
        };
        let share = (value - low) / (high - low);
        if share.is_finite() { share.clamp(-0.02, 1.02) } else { 0.0 }
    }

    /// A logarithmic axis over `values`, with ticks at 1, 2 and 5 of each decade, or at the decades
    /// alone where there are many. `label_of` names a tick.
    pub fn log(label: &str, values: &[f64], label_of: impl Fn(f64) -> String) -> Axis {
        // Beyond, ticks would be zero or infinite.
        let is_usable = |v: &&f64| (1e-300..=1e300).contains(*v);
        let low = values.iter().filter(is_usable).copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().filter(is_usable).copied().fold(0.0, f64::max);
        let (low, high) = if high > 0.0 { (low / 1.04, high * 1.04) } else { (1.0, 10.0) };
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let steps: Vec<f64> = (first..=last)
            .flat_map(|decade| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(decade)))
            .collect();
        let below = steps.iter().copied().filter(|s| *s <= low).fold(steps[0], f64::max);
        let above = steps.iter().copied().find(|s| *s >= high).unwrap_or(high);
        let n_decades = (above / below).log10();
        let is_labelled = |step: f64| {
            let is_decade = (step.log10() - step.log10().round()).abs() < 1e-9;
            is_decade || n_decades <= 3.0
        };
        let ticks = steps
            .into_iter()
            .filter(|s| *s >= below * 0.999 && *s <= above * 1.001)
            .map(|at| Tick {
                at,
                label: if is_labelled(at) { label_of(at) } else { String::new() },
            })
            .collect();
        Axis { label: label.to_string(), scale: Scale::Log, low: below, high: above, ticks }
    }

    /// A linear axis from `low` to at least `high`, with about `n_ticks` ticks at 1, 2 or 5 times
    /// a power of ten.
    pub fn linear(
        label: &str,
        low: f64,
        high: f64,
        n_ticks: usize,
        label_of: impl Fn(f64) -> String,
    ) -> Axis {
        let high = if high.is_finite() && high > low { high } else { low + 1.0 };
        let rough = (high - low) / n_ticks.max(1) as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power);
        let step = step.into_iter().find(|s| *s >= rough).unwrap_or(rough);
        let first = (low / step).floor() as i64;
        let last = (high / step).ceil() as i64;
        let ticks: Vec<Tick> = (first..=last)
            .map(|i| i as f64 * step)
            .map(|at| Tick { at, label: label_of(at) })
            .collect();
        let (low, high) = (first as f64 * step, last as f64 * step);
        Axis { label: label.to_string(), scale: Scale::Linear, low, high, ticks }
    }

    /// An axis of rows, the first at the top: row `i` lies at `-i`.
    pub fn rows(label: &str, names: &[String]) -> Axis {
        let ticks = names
            .iter()
            .enumerate()
            .map(|(i, name)| Tick { at: -(i as f64), label: name.clone() })
            .collect();
        let low = 0.5 - names.len().max(1) as f64;
        Axis { label: label.to_string(), scale: Scale::Linear, low, high: 0.5, ticks }
    }
}

/// Path of the entry's shape around a point.
fn shape(look: Look, x: f64, y: f64, size: f64) -> String {
    let (x, y, s) = (x, y, size);
    let at = |dx: f64, dy: f64| format!("{} {}", n(x + dx), n(y + dy));
    match look.pattern % N_PATTERNS {
        0 => format!(
            "M{}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z",
            at(-s, 0.0),
            r = n(s),
            d = n(2.0 * s)
        ),
        1 => format!("M{}h{w}v{w}h-{w}z", at(-s * 0.9, -s * 0.9), w = n(s * 1.8)),
        2 => format!("M{}L{}L{}z", at(0.0, -s * 1.1), at(s * 1.1, s * 0.9), at(-s * 1.1, s * 0.9)),
        3 => format!(
            "M{}L{}L{}L{}z",
            at(0.0, -s * 1.3),
            at(s * 1.3, 0.0),
            at(0.0, s * 1.3),
            at(-s * 1.3, 0.0)
        ),
        4 => format!("M{}L{}L{}z", at(0.0, s * 1.1), at(s * 1.1, -s * 0.9), at(-s * 1.1, -s * 0.9)),
        _ => format!(
            "M{}h{w}v{a}h{a}v{w}h-{a}v{a}h-{w}v-{a}h-{a}v-{w}h{a}z",
            at(-s * 0.4, -s * 1.2),
            w = n(s * 0.8),
            a = n(s * 0.8)
        ),
    }
}

/// A coordinate with at most one decimal.
fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_string(),
        Some(integer) => integer.to_string(),
        None => text,
    }
}

/// A coordinate in tenths, far inside the range of the type.
fn tenths(value: f64) -> i64 {
    (value * 10.0).round().clamp(-1e9, 1e9) as i64
}

/// A step of a path, in tenths, without what a reader of paths does not need: the separator before
/// a sign, and a zero before the point.
fn step(separator: &str, tenths: i64) -> String {
    let size = n(tenths.abs() as f64 / 10.0);
    let size = match size.strip_prefix("0.") {
        Some(fraction) => format!(".{fraction}"),
        None => size,
    };
    if tenths < 0 { format!("-{size}") } else { format!("{separator}{size}") }
}

fn text_width(text: &str) -> f64 {
    text_size::width(text, LETTER_WIDTH)
}

fn shortened(text: &str, width: f64) -> String {
    text_size::shortened(text, width, LETTER_WIDTH)
}

impl Chart {
    /// The chart as an `<svg>` element.
    pub fn draw(&self) -> Markup {
        self.draw_wide(WIDTH)
    }

    /// The chart as an `<svg>` element of this width, px.
    pub fn draw_wide(&self, width: f64) -> Markup {
        let left = self.left_margin();
        let frame = Frame {
            width,
            left,
            top: 26.0,
            right: width - self.right_margin(),
            bottom: 26.0 + self.plot_height,
        };
        let legend_top = frame.bottom + 44.0;
        let (legend, legend_height) = self.draw_legend(width, legend_top);
        let height = legend_top + legend_height + 6.0;
        let (title_id, description_id) = (format!("{}-t", self.id), format!("{}-d", self.id));
        html! {
            svg id=(self.id) class="chart" role="img"
                aria-labelledby=(format!("{title_id} {description_id}"))
                viewBox=(format!("0 0 {} {}", n(width), n(height)))
                width=(n(width)) height=(n(height)) xmlns="http://www.w3.org/2000/svg" {
                title id=(title_id) { (self.title) }
                desc id=(description_id) { (self.description) }
                (self.draw_axes(&frame))
                @for mark in &self.marks { (self.draw_mark(&frame, mark)) }
                (self.draw_limit_texts(&frame))
                (legend)
            }
        }
    }

    fn left_margin(&self) -> f64 {
        let widest = self.y.ticks.iter().map(|t| text_width(&t.label)).fold(0.0, f64::max);
        (widest + 14.0).clamp(40.0, 340.0)
    }

    /// Room for the texts behind bars, which would leave the plot area otherwise, and for the right
    /// half of the last label of the x axis.
    fn right_margin(&self) -> f64 {
        let width = |mark: &Mark| match mark {
            Mark::Label(_, text) => text_width(text) + 30.0,
            _ => 0.0,
        };
        let last = self.x.ticks.iter().rev().find(|tick| !tick.label.is_empty());
        let half = last.map_or(0.0, |tick| text_width(&tick.label) / 2.0 + 4.0);
        self.marks.iter().map(width).fold(half.max(30.0), f64::max)
    }

    fn position(&self, frame: &Frame, x: f64, y: f64) -> (f64, f64) {
        (
            frame.left + self.x.share(x) * (frame.right - frame.left),
            frame.bottom - self.y.share(y) * (frame.bottom - frame.top),
        )
    }

    /// Labels of the x axis with their positions; those that would overlap are left out, but never
    /// the last.
    fn x_labels(&self, frame: &Frame) -> Vec<(f64, String)> {
        let ticks = self.x.ticks.iter().filter(|tick| !tick.label.is_empty());
        let all: Vec<(f64, String)> = ticks
            .map(|tick| (self.position(frame, tick.at, self.y.low).0, tick.label.clone()))
            .collect();
        let edges = |(x, label): &(f64, String)| {
            let half = text_width(label) / 2.0;
            (x - half, x + half)
        };
        let Some((last, rest)) = all.split_last() else { return vec![] };
        let mut labels: Vec<(f64, String)> = vec![];
        for label in rest {
            let is_after = labels.last().is_none_or(|l| edges(l).1 + 6.0 < edges(label).0);
            if is_after && edges(label).1 + 6.0 < edges(last).0 {
                labels.push(label.clone());
            }
        }
        labels.push(last.clone());
        labels
    }

    fn draw_axes(&self, frame: &Frame) -> Markup {
        let x_labels = self.x_labels(frame);
        let mut last_y = f64::INFINITY;
        let is_rows = self.y.high == 0.5;
        let mut y_ticks: Vec<(f64, &Tick)> =
            self.y.ticks.iter().map(|t| (self.position(frame, self.x.low, t.at).1, t)).collect();
        y_ticks.sort_by(|a, b| b.0.total_cmp(&a.0));
        let y_labels: Vec<(f64, String)> = y_ticks
            .iter()
            .filter(|(y, tick)| {
                let fits = !tick.label.is_empty() && last_y - y > 13.0;
                if fits {
                    last_y = *y;
                }
                fits
            })
            .map(|(y, tick)| (*y, shortened(&tick.label, frame.left - 14.0)))
            .collect();
        let grid_x: String = self
            .x
            .ticks
            .iter()
            .map(|t| self.position(frame, t.at, self.y.low).0)
            .map(|x| format!("M{} {}V{}", n(x), n(frame.top), n(frame.bottom)))
            .collect();
        let grid_y: String = y_ticks
            .iter()
            .map(|(y, _)| format!("M{} {}H{}", n(frame.left), n(*y), n(frame.right)))
            .collect();
        let (left, right) = (n(frame.left), n(frame.right));
        let corner = format!("M{left} {}V{}H{right}", n(frame.top), n(frame.bottom));
        html! {
            path class="grid" d=(grid_x) {}
            @if !is_rows { path class="grid" d=(grid_y) {} }
            path class="axis" d=(corner) {}
            @for (x, label) in &x_labels {
                text x=(n(*x)) y=(n(frame.bottom + 16.0)) text-anchor="middle" { (label) }
            }
            @for (y, label) in &y_labels {
                text x=(n(frame.left - 7.0)) y=(n(y + 4.0)) text-anchor="end" { (label) }
            }
            text class="al" x=(n((frame.left + frame.right) / 2.0)) y=(n(frame.bottom + 33.0))
                text-anchor="middle" { (self.x.label) }
            text class="al" x="2" y="14" { (self.y.label) }
        }
    }

    /// A line through `points`. All but the first are written as steps from the one before: lines
    /// are most of a page, and steps are short.
    fn path(&self, frame: &Frame, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        let (mut last_x, mut last_y) = (0, 0);
        for (index, &(x, y)) in points.iter().enumerate() {
            let (x, y) = self.position(frame, x, y);
            let (x, y) = (tenths(x), tenths(y));
            path += &match index {
                0 => format!("M{} {}", n(x as f64 / 10.0), n(y as f64 / 10.0)),
                1 => format!("l{}{}", step("", x - last_x), step(" ", y - last_y)),
                _ => step(" ", x - last_x) + &step(" ", y - last_y),
            };
            (last_x, last_y) = (x, y);
        }
        path
    }

    /// Nothing else is in the row of a note, so it may reach into the right margin.
    fn draw_note(&self, frame: &Frame, y: f64, text: &str) -> Markup {
        let y = self.position(frame, self.x.low, y).1;
        let text = shortened(text, frame.width - frame.left - 12.0);
        html! { text class="al" x=(n(frame.left + 6.0)) y=(n(y + 4.0)) { (text) } }
    }

    fn draw_mark(&self, frame: &Frame, mark: &Mark) -> Markup {
        match mark {
            Mark::Line(look, points) => html! {
                path class=(format!("line {}", look.class())) d=(self.path(frame, points)) {}
            },
            Mark::Dotted(look, points) => html! {
                path class=(format!("dotted {}", look.class())) d=(self.path(frame, points)) {}
            },
            Mark::Band(_, points) if points.is_empty() => html! {},
            Mark::Band(look, points) => {
                let upper = points.iter().map(|&(x, _, high)| (x, high));
                let lower = points.iter().rev().map(|&(x, low, _)| (x, low));
                let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
                html! {
                    path class=(format!("band {}", look.class()))
                        d=(self.path(frame, &outline) + "z") {}
                }
            }
            Mark::Points(look, points) => self.draw_points(frame, "point", *look, points),
            Mark::Open(look, points) => self.draw_points(frame, "open", *look, points),
            Mark::Strokes(look, points) => {
                let strokes: String = points
                    .iter()
                    .map(|&(x, y)| self.position(frame, x, y))
                    .map(|(x, y)| format!("M{} {}h8", n(x - 4.0), n(y)))
                    .collect();
                html! { path class=(format!("stroke {}", look.class())) d=(strokes) {} }
            }
            Mark::Bar { look, y, x } => {
                let class = format!("bar {}", look.class());
                self.draw_box(frame, &class, (y.0 - y.1 / 2.0, y.0 + y.1 / 2.0), *x)
            }
            Mark::Range { x, y } => self.draw_box(frame, "range", *y, *x),
            Mark::Heat { class, shade, boxes } => {
                self.draw_boxes(frame, &format!("heat {class} h{shade}"), boxes)
            }
            Mark::Label((x, y), text) => {
                let (x, y) = self.position(frame, *x, *y);
                html! { text x=(n(x + 9.0)) y=(n(y + 4.0)) { (text) } }
            }
            Mark::Note(y, text) => self.draw_note(frame, *y, text),
            Mark::Limit { x, y, .. } => {
                let (left, top) = self.position(frame, *x, y.1);
                let (_, bottom) = self.position(frame, *x, y.0);
                html! {
                    path class="limit" d=(format!("M{} {}V{}", n(left), n(top), n(bottom))) {}
                }
            }
            Mark::Level { x, y, .. } => {
                let (left, at) = self.position(frame, x.0, *y);
                let (right, _) = self.position(frame, x.1, *y);
                html! {
                    path class="limit" d=(format!("M{} {}H{}", n(left), n(at), n(right))) {}
                }
            }
            Mark::Interval(look, y, (low, high)) => {
                let (left, at) = self.position(frame, *low, *y);
                let (right, _) = self.position(frame, *high, *y);
                let (left, right, top) = (n(left), n(right), n(at - 4.0));
                let path = format!("M{left} {}H{right}M{left} {top}v8M{right} {top}v8", n(at));
                html! { path class=(format!("stroke {}", look.class())) d=(path) {} }
            }
        }
    }

    /// The texts of all limits, each moved up or down from its line until it overlaps no other.
    fn draw_limit_texts(&self, frame: &Frame) -> Markup {
        let mut placed: Vec<LimitText<'_>> = vec![];
        for mark in &self.marks {
            let (x, y, text) = match mark {
                Mark::Limit { x, y, text } => {
                    let (x, y) = self.position(frame, *x, y.1);
                    (x, y + 2.0, text)
                }
                Mark::Level { x, y, text } => {
                    let (x, y) = self.position(frame, x.0, *y);
                    (x - 4.0, y - 4.0, text)
                }
                _ => continue,
            };
            let width = text_width(text);
            let is_late = x + 4.0 + width > frame.width - 8.0;
            let left = if is_late { x - 4.0 - width } else { x + 4.0 };
            let steps = (0..12).flat_map(|step| [f64::from(step), -f64::from(step)]);
            let candidates = steps
                .map(|step| LimitText { text, left, width, y: y - step * LIMIT_LINE_HEIGHT })
                .filter(|one| frame.top - 8.0 < one.y && one.y < frame.bottom);
            let free = candidates.into_iter().find(|one| placed.iter().all(|p| p.is_clear_of(one)));
            placed.push(free.unwrap_or(LimitText { text, left, width, y }));
        }
        html! {
            @for one in &placed {
                text class="lt" x=(n(one.left)) y=(n(one.y)) { (one.text) }
            }
        }
    }

    fn draw_points(&self, frame: &Frame, class: &str, look: Look, points: &[(f64, f64)]) -> Markup {
        let path: String = points
            .iter()
            .map(|&(x, y)| self.position(frame, x, y))
            .map(|(x, y)| shape(look, x, y, 3.6))
            .collect();
        html! { path class=(format!("{class} {}", look.class())) d=(path) {} }
    }

    fn draw_box(&self, frame: &Frame, class: &str, y: (f64, f64), x: (f64, f64)) -> Markup {
        let (left, top) = self.position(frame, x.0, y.1);
        let (right, bottom) = self.position(frame, x.1, y.0);
        html! {
            rect class=(class) x=(n(left)) y=(n(top))
                width=(n((right - left).max(0.5))) height=(n((bottom - top).max(0.5))) {}
        }
    }

    fn draw_boxes(&self, frame: &Frame, class: &str, boxes: &[HeatBox]) -> Markup {
        let path = |(x, y): &HeatBox| {
            let (left, top) = self.position(frame, x.0, y.1);
            let (right, bottom) = self.position(frame, x.1, y.0);
            format!("M{} {}H{}V{}H{}z", n(left), n(top), n(right), n(bottom), n(left))
        };
        html! { path class=(class) d=(boxes.iter().map(path).collect::<String>()) {} }
    }

    /// The legend and its height.
    fn draw_legend(&self, width: f64, top: f64) -> (Markup, f64) {
        const SWATCH: f64 = 38.0;
        let widest = self.legend.iter().map(|e| text_width(&e.label)).fold(0.0, f64::max);
        let column = (widest + SWATCH + 18.0).clamp(120.0, width - 8.0);
        let n_columns = ((width - 8.0) / column).floor().max(1.0) as usize;
        let n_rows = self.legend.len().div_ceil(n_columns);
        let key_height = if self.key.is_empty() { 0.0 } else { LINE_HEIGHT };
        let markup = html! {
            @if !self.key.is_empty() {
                text class="key" x="4" y=(n(top + 11.0)) { (self.key) }
            }
            @for (index, entry) in self.legend.iter().enumerate() {
                @let x = 4.0 + (index % n_columns) as f64 * column;
                @let y = top + key_height + (index / n_columns) as f64 * LINE_HEIGHT + 7.0;
                @let class = entry.look.class();
                @if entry.swatch == Swatch::Line {
                    path class=(format!("line {class}")) d=(format!("M{} {}h30", n(x), n(y))) {}
                }
                @let point = if entry.swatch == Swatch::Open { "open" } else { "point" };
                path class=(format!("{point} {class}")) d=(shape(entry.look, x + 15.0, y, 3.6)) {}
                text x=(n(x + SWATCH)) y=(n(y + 4.0)) {
                    (shortened(&entry.label, column - SWATCH - 6.0))
                }
            }
        };
        (markup, key_height + n_rows as f64 * LINE_HEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn logarithmic_ticks_are_round_and_hold_the_values() {
        let axis = Axis::log("t", &[1420.0, 39_777.0], |v| v.to_string());
        assert_eq!((axis.low, axis.high), (1000.0, 50_000.0));
        let labels: Vec<&str> = axis.ticks.iter().map(|t| t.label.as_str()).collect();
        assert_eq!(labels, ["1000", "2000", "5000", "10000", "20000", "50000"]);
    }

    #[test]
    fn the_largest_and_smallest_numbers_make_no_endless_axis() {
        for value in [f64::MAX, f64::MIN_POSITIVE, 5e-324] {
            let axis = Axis::log("t", &[value, 20.0], |v| v.to_string());
            assert_eq!((axis.low, axis.high), (10.0, 50.0), "{value}");
        }
    }

    fn chart(x: Axis, y: Axis, marks: Vec<Mark>) -> Chart {
        Chart {
            id: "c".into(),
            title: "t".into(),
            description: "d".into(),
            x,
            y,
            plot_height: 100.0,
            marks,
            legend: vec![],
            key: String::new(),
        }
    }

    /// Position and content of every text of a chart whose class starts with `class`.
    fn texts(chart: &Chart, class: &str) -> Vec<(f64, f64, String)> {
        let page = chart.draw().into_string();
        let of = |part: &str, name: &str| -> f64 {
            let (_, rest) = part.split_once(&format!(" {name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let parts = page.split("<text").skip(1).filter(|part| part.starts_with(class));
        parts
            .map(|part| {
                let text = part.split_once('>').unwrap().1.split_once('<').unwrap().0;
                (of(part, "x"), of(part, "y"), text.to_string())
            })
            .collect()
    }

    #[test]
    fn a_band_without_points_is_not_drawn() {
        let axis = |label: &str| Axis::linear(label, 0.0, 10.0, 5, |v| v.to_string());
        let page = chart(axis("x"), axis("y"), vec![Mark::Band(Look::of(1), vec![])]).draw();
        assert!(!page.into_string().contains("d=\"z\""));
    }

    #[test]
    fn the_last_label_of_the_axis_is_not_cut() {
        let ticks = [0.0, 6.0].map(|at| Tick { at, label: "99.9999 %".into() }).to_vec();
        let x = Axis { label: "p".into(), scale: Scale::Linear, low: 0.0, high: 6.0, ticks };
        let chart = chart(x, Axis::linear("y", 0.0, 1.0, 2, |v| v.to_string()), vec![]);
        let labels = texts(&chart, " x=");
        let (middle, _, _) =
            labels.iter().rfind(|(.., text)| text == "99.9999 %").expect("the label is drawn");
        assert!(middle + text_width("99.9999 %") / 2.0 <= WIDTH, "{middle}");
    }

    #[test]
    fn texts_of_near_limits_do_not_overlap() {
        let level = |y: f64| Mark::Level { x: (1.0, 3.0), y, text: format!("p99 < {y} µs") };
        let upright = Mark::Limit { x: 2.0, y: (4.0, 5.0), text: "median < 5 µs".into() };
        let marks = vec![level(5.0), level(5.1), level(4.9), level(9.9), level(0.1), upright];
        let axis = |label: &str| Axis::linear(label, 0.0, 10.0, 5, |v| v.to_string());
        let placed = texts(&chart(axis("x"), axis("y"), marks), " class=\"lt\"");
        assert_eq!(placed.len(), 6);
        for (index, a) in placed.iter().enumerate() {
            assert!(a.1 > 10.0 && a.1 < 126.0, "{a:?}");
            for b in &placed[index + 1..] {
                let is_beside = a.0 + text_width(&a.2) <= b.0 || b.0 + text_width(&b.2) <= a.0;
                assert!(is_beside || (a.1 - b.1).abs() > 11.0, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn steps_of_a_line_lead_where_its_points_are() {
        let axis = |label: &str| Axis::linear(label, 0.0, 10.0, 5, |v| v.to_string());
        let chart = chart(axis("x"), axis("y"), vec![]);
        let frame = Frame { width: 100.0, left: 0.0, right: 100.0, top: 0.0, bottom: 50.0 };
        let points = [(0.0, 0.0), (0.5, 0.1), (0.4, 9.99), (10.0, 9.99), (10.0, 0.0)];
        assert_eq!(chart.path(&frame, &points), "M0 50l5-.5-1-49.5 96 0 0 50");
    }

    #[test]
    fn a_long_label_keeps_both_ends() {
        assert_eq!(shortened("abcdefghij", 5.0 * LETTER_WIDTH), "ab…ij");
        assert_eq!(shortened("abc", 100.0), "abc");
    }

    proptest! {
        #[test]
        fn any_values_make_an_axis_that_holds_them(
            values in prop::collection::vec(1e-3f64..1e12, 0..20),
        ) {
            let axis = Axis::log("t", &values, |v| v.to_string());
            prop_assert!(axis.low < axis.high);
            prop_assert!(values.iter().all(|v| axis.low <= *v && *v <= axis.high));
            prop_assert!(axis.ticks.len() < 80);
        }

        #[test]
        fn any_numbers_are_drawn_inside_the_chart(
            points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..9),
        ) {
            let ys: Vec<f64> = points.iter().map(|p| p.1).collect();
            let x = Axis::linear("x", 0.0, 10.0, 5, |v| v.to_string());
            let y = Axis::log("y", &ys, |v| v.to_string());
            let level = |y| Mark::Level { x: (0.0, y), y, text: "l".into() };
            let mut marks: Vec<Mark> = ys.iter().map(|y| level(*y)).collect();
            marks.push(Mark::Line(Look::of(0), points));
            let text = chart(x, y, marks).draw().into_string();
            prop_assert!(!text.contains("NaN") && !text.contains("inf"));
        }
    }
}
