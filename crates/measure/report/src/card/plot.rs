//! A chart on a card: the same axes, lines and limits as on the page, in the colours of its light
//! theme.

use super::canvas::{Anchor, CARD, Canvas, Colour, GRID, INK, Letters, SOFT};
use crate::svg::{Axis, Chart, Look, Mark};

/// The colours of stacks, in the order of the style sheet.
pub const COLOURS: [Colour; 20] = [
    "#0072b2", "#4f94c4", "#5b4fc7", "#8d84dd", "#00838f", "#3d9fab", "#d55e00", "#d97f2b",
    "#a3182f", "#cf5468", "#008a63", "#35a380", "#5c7a00", "#84a017", "#33691e", "#6f9a4e",
    "#b0429b", "#cc79b8", "#33404d", "#75818d",
];

/// The colour of published runs.
pub const FAINT: Colour = "#98a2ad";

const DASHES: [&[f32]; 6] = [
    &[],
    &[7.0, 3.0],
    &[2.5, 2.5],
    &[9.0, 3.0, 2.0, 3.0],
    &[13.0, 4.0],
    &[5.0, 2.0, 1.0, 2.0, 1.0, 2.0],
];

const TICK: Letters = Letters { size: 12.0, is_bold: false, colour: SOFT };
const NAME: Letters = Letters { size: 12.0, is_bold: false, colour: INK };
const LIMIT: Letters = Letters { size: 12.0, is_bold: true, colour: INK };

const LINE_HEIGHT: f64 = 17.0;
const SWATCH: f64 = 36.0;

fn colour(look: Look) -> Colour {
    if look.is_faint { FAINT } else { COLOURS[look.colour % COLOURS.len()] }
}

fn dash(look: Look) -> &'static [f32] {
    DASHES[look.pattern % DASHES.len()]
}

/// The place of a chart on the canvas, px.
pub struct Place {
    /// Upper left corner.
    pub at: (f64, f64),
    /// Width and height.
    pub size: (f64, f64),
}

/// A chart being drawn.
struct Plot<'c> {
    chart: &'c Chart,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Plot<'_> {
    fn position(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let place =
            |axis: &Axis, value: f64, from: f64, to: f64| from + axis.share(value) * (to - from);
        (
            place(&self.chart.x, x, self.left, self.right),
            place(&self.chart.y, y, self.bottom, self.top),
        )
    }

    fn positions(&self, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        points.iter().map(|&point| self.position(point)).collect()
    }

    fn axes(&self, canvas: &mut Canvas) {
        let mut end = f64::NEG_INFINITY;
        for tick in &self.chart.x.ticks {
            let x = self.position((tick.at, self.chart.y.low)).0;
            canvas.line(vec![(x, self.top), (x, self.bottom)], GRID, 1.0, &[]);
            let half = canvas.width(&tick.label, TICK) / 2.0;
            if !tick.label.is_empty() && x - half > end + 6.0 {
                let at = (x, self.bottom + 17.0);
                canvas.text(at, Anchor::Middle, TICK, &tick.label);
                end = x + half;
            }
        }
        let mut above = f64::INFINITY;
        for tick in &self.chart.y.ticks {
            let y = self.position((self.chart.x.low, tick.at)).1;
            canvas.line(vec![(self.left, y), (self.right, y)], GRID, 1.0, &[]);
            if !tick.label.is_empty() && above - y > 14.0 {
                canvas.text((self.left - 7.0, y + 4.0), Anchor::End, TICK, &tick.label);
                above = y;
            }
        }
        let corner =
            vec![(self.left, self.top), (self.left, self.bottom), (self.right, self.bottom)];
        canvas.line(corner, SOFT, 1.0, &[]);
    }

    fn mark(&self, canvas: &mut Canvas, mark: &Mark) {
        match mark {
            Mark::Line(look, points) => {
                canvas.line(self.positions(points), colour(*look), 2.2, dash(*look));
            }
            Mark::Dotted(look, points) => {
                canvas.line(self.positions(points), colour(*look), 1.2, &[1.5, 3.0]);
            }
            Mark::Band(look, points) => {
                let upper = points.iter().map(|&(x, _, high)| (x, high));
                let lower = points.iter().rev().map(|&(x, low, _)| (x, low));
                let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
                canvas.area(self.positions(&outline), colour(*look), 0.13);
            }
            Mark::Points(look, points) => {
                for at in self.positions(points) {
                    canvas.disc(at, 3.0, colour(*look), colour(*look));
                }
            }
            Mark::Open(look, points) => {
                for at in self.positions(points) {
                    canvas.disc(at, 3.4, CARD, colour(*look));
                }
            }
            Mark::Level { x, y, .. } => {
                let ends = self.positions(&[(x.0, *y), (x.1, *y)]);
                canvas.line(ends, INK, 2.5, &[]);
            }
            // A chart of percentiles has no other marks.
            _ => {}
        }
    }

    /// The texts of limits above their lines, each moved up until it is free.
    fn limits(&self, canvas: &mut Canvas) {
        let mut taken: Vec<(f64, f64, f64)> = vec![];
        for mark in &self.chart.marks {
            let Mark::Level { x, y, text } = mark else { continue };
            let (left, mut at) = self.position((x.0, *y));
            at -= 5.0;
            let width = canvas.width(text, LIMIT);
            let left = left.min(self.right - width);
            let is_free = |at: f64, taken: &[(f64, f64, f64)]| {
                taken.iter().all(|(from, to, y)| {
                    left > *to + 4.0 || left + width + 4.0 < *from || (at - y).abs() > 13.0
                })
            };
            while !is_free(at, &taken) && at > self.top {
                at -= 4.0;
            }
            taken.push((left, left + width, at));
            canvas.text_over_lines((left, at), LIMIT, text);
        }
    }

    fn legend(&self, canvas: &mut Canvas, left: f64, top: f64) {
        for (index, entry) in self.chart.legend.iter().enumerate() {
            let y = top + index as f64 * LINE_HEIGHT;
            let (from, to) = ((left, y), (left + 28.0, y));
            canvas.line(vec![from, to], colour(entry.look), 2.2, dash(entry.look));
            canvas.disc((left + 14.0, y), 3.0, colour(entry.look), colour(entry.look));
            let room = self.right - left - SWATCH;
            let text = canvas.fitting(&entry.label, NAME, room);
            canvas.text((left + SWATCH, y + 4.0), Anchor::Start, NAME, &text);
        }
    }
}

/// Draws `chart`.
pub fn draw(canvas: &mut Canvas, chart: &Chart, place: &Place) {
    let labels = chart.y.ticks.iter().map(|tick| canvas.width(&tick.label, TICK));
    let left = place.at.0 + labels.fold(0.0, f64::max) + 12.0;
    let legend_height = chart.legend.len() as f64 * LINE_HEIGHT;
    let plot = Plot {
        chart,
        left,
        right: place.at.0 + place.size.0 - 26.0,
        top: place.at.1 + 26.0,
        bottom: place.at.1 + place.size.1 - legend_height - 48.0,
    };
    canvas.text((place.at.0, place.at.1 + 12.0), Anchor::Start, TICK, &chart.y.label);
    plot.axes(canvas);
    for mark in &chart.marks {
        plot.mark(canvas, mark);
    }
    plot.limits(canvas);
    let middle = ((plot.left + plot.right) / 2.0, plot.bottom + 34.0);
    canvas.text(middle, Anchor::Middle, TICK, &chart.x.label);
    plot.legend(canvas, plot.left, plot.bottom + 52.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_has_the_colours_of_the_page() {
        let css = include_str!("../html/charts/charts.css");
        let light = css.split("@media").next().unwrap();
        let of = |name: &str| {
            let (_, rest) = light.split_once(&format!("{name}: ")).expect("a colour");
            rest.split(';').next().unwrap().to_string()
        };
        for (index, colour) in COLOURS.iter().enumerate() {
            assert_eq!(of(&format!("--c{index}")), *colour);
        }
        assert_eq!(of("--cf"), FAINT);
    }
}
