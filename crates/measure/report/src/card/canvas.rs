//! What a card is drawn with: boxes, lines, areas, discs and texts, written as SVG or painted as
//! PNG.

use maud::{Markup, PreEscaped, html};
use tiny_skia::{
    FillRule, LineJoin, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform,
};

use super::font::{FAMILY, Font, Outline};
use crate::style::clean;

/// A colour, `#rrggbb`.
pub type Colour = &'static str;

/// Text and limits.
pub const INK: Colour = "#16202b";
/// Text that matters less, and axes.
pub const SOFT: Colour = "#55616e";
/// Lines behind all else.
pub const GRID: Colour = "#e6eaee";
/// The background.
pub const CARD: Colour = "#ffffff";

/// Where a text stands to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The text begins there.
    Start,
    /// The text is centred there.
    Middle,
    /// The text ends there.
    End,
}

/// How a text looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Letters {
    /// Height of a line, px.
    pub size: f64,
    /// Whether it is bold.
    pub is_bold: bool,
    /// Colour.
    pub colour: Colour,
}

/// Width of the edge around a text over lines, px; half of it is outside the letters.
const EDGE: f64 = 4.0;

enum Item {
    Box { at: (f64, f64), size: (f64, f64), colour: Colour },
    Line { points: Vec<(f64, f64)>, colour: Colour, width: f64, dash: &'static [f32] },
    Area { points: Vec<(f64, f64)>, colour: Colour, opacity: f64 },
    Disc { at: (f64, f64), radius: f64, fill: Colour, edge: Colour },
    Text { at: (f64, f64), anchor: Anchor, letters: Letters, text: String, has_edge: bool },
}

/// A drawing of fixed size on white.
pub struct Canvas {
    size: (u32, u32),
    fonts: [Font; 2],
    items: Vec<Item>,
}

impl Canvas {
    /// An empty drawing, px.
    pub fn new(width: u32, height: u32) -> Canvas {
        let fonts = [Font::new(false), Font::new(true)];
        Canvas { size: (width, height), fonts, items: vec![] }
    }

    fn font(&self, letters: Letters) -> &Font {
        &self.fonts[usize::from(letters.is_bold)]
    }

    /// Width of a text, px.
    pub fn width(&self, text: &str, letters: Letters) -> f64 {
        self.font(letters).width(text, letters.size)
    }

    /// `text`, cut at its end to `width` px.
    pub fn fitting(&self, text: &str, letters: Letters, width: f64) -> String {
        if self.width(text, letters) <= width {
            return text.to_string();
        }
        let mut kept = String::new();
        for letter in text.chars() {
            if self.width(&format!("{kept}{letter}…"), letters) > width {
                break;
            }
            kept.push(letter);
        }
        format!("{}…", kept.trim_end())
    }

    /// A filled box by its upper left corner.
    pub fn rect(&mut self, at: (f64, f64), size: (f64, f64), colour: Colour) {
        self.items.push(Item::Box { at, size, colour });
    }

    /// A line through points.
    pub fn line(
        &mut self,
        points: Vec<(f64, f64)>,
        colour: Colour,
        width: f64,
        dash: &'static [f32],
    ) {
        if points.len() > 1 {
            self.items.push(Item::Line { points, colour, width, dash });
        }
    }

    /// A filled area inside points.
    pub fn area(&mut self, points: Vec<(f64, f64)>, colour: Colour, opacity: f64) {
        if points.len() > 2 {
            self.items.push(Item::Area { points, colour, opacity });
        }
    }

    /// A disc with an edge.
    pub fn disc(&mut self, at: (f64, f64), radius: f64, fill: Colour, edge: Colour) {
        self.items.push(Item::Disc { at, radius, fill, edge });
    }

    /// A text on its base line.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, letters: Letters, text: &str) {
        let text = clean(text);
        self.items.push(Item::Text { at, anchor, letters, text, has_edge: false });
    }

    /// A text with an edge in the colour of the background, for a place where lines may be.
    pub fn text_over_lines(&mut self, at: (f64, f64), letters: Letters, text: &str) {
        let (anchor, text) = (Anchor::Start, clean(text));
        self.items.push(Item::Text { at, anchor, letters, text, has_edge: true });
    }

    /// The drawing as SVG that needs nothing else.
    pub fn svg(&self, title: &str) -> String {
        let (width, height) = self.size;
        let markup = html! {
            (PreEscaped("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"))
            svg xmlns="http://www.w3.org/2000/svg" role="img" width=(width) height=(height)
                viewBox=(format!("0 0 {width} {height}")) font-family=(FAMILY) {
                title { (clean(title)) }
                rect width=(width) height=(height) fill=(CARD) {}
                @for item in &self.items { (svg_item(item)) }
            }
        };
        markup.into_string() + "\n"
    }

    /// The drawing as PNG.
    pub fn png(&self) -> Vec<u8> {
        let mut pixmap = Pixmap::new(self.size.0, self.size.1).expect("a card has a size");
        pixmap.fill(tiny_skia::Color::WHITE);
        for item in &self.items {
            self.paint_item(item, &mut pixmap);
        }
        pixmap.encode_png().expect("a picture in memory can always be written")
    }

    fn paint_item(&self, item: &Item, pixmap: &mut Pixmap) {
        let mut fill = |path: Option<Path>, colour: Colour, opacity: f64| {
            if let Some(path) = path {
                let (paint, unmoved) = (paint(colour, opacity), Transform::identity());
                pixmap.fill_path(&path, &paint, FillRule::Winding, unmoved, None);
            }
        };
        match item {
            Item::Box { at, size, colour } => {
                let [x, y, width, height] = [at.0, at.1, size.0, size.1].map(|value| value as f32);
                let rect = Rect::from_xywh(x, y, width, height);
                fill(rect.map(PathBuilder::from_rect), colour, 1.0);
            }
            Item::Area { points, colour, opacity } => fill(path(points, true), colour, *opacity),
            Item::Disc { at, radius, fill: inside, edge } => {
                let disc =
                    |radius: f64| PathBuilder::from_circle(at.0 as f32, at.1 as f32, radius as f32);
                fill(disc(radius + 0.75), edge, 1.0);
                fill(disc(radius - 0.75), inside, 1.0);
            }
            Item::Text { at, anchor, letters, text, has_edge } => {
                let width = self.width(text, *letters);
                let left = match anchor {
                    Anchor::Start => at.0,
                    Anchor::Middle => at.0 - width / 2.0,
                    Anchor::End => at.0 - width,
                };
                let mut builder = PathBuilder::new();
                self.font(*letters).outline(text, letters.size, (left, at.1), &mut builder);
                let Some(path) = builder.finish() else { return };
                if *has_edge {
                    let line_join = LineJoin::Round;
                    let edge = Stroke { width: EDGE as f32, line_join, ..Stroke::default() };
                    let (paint, unmoved) = (paint(CARD, 1.0), Transform::identity());
                    pixmap.stroke_path(&path, &paint, &edge, unmoved, None);
                }
                let (paint, unmoved) = (paint(letters.colour, 1.0), Transform::identity());
                pixmap.fill_path(&path, &paint, FillRule::Winding, unmoved, None);
            }
            Item::Line { points, colour, width, dash } => {
                let Some(path) = path(points, false) else { return };
                let stroke = Stroke {
                    width: *width as f32,
                    line_join: LineJoin::Round,
                    dash: StrokeDash::new(dash.to_vec(), 0.0),
                    ..Stroke::default()
                };
                let (paint, unmoved) = (paint(colour, 1.0), Transform::identity());
                pixmap.stroke_path(&path, &paint, &stroke, unmoved, None);
            }
        }
    }
}

impl Outline for PathBuilder {
    fn start(&mut self, (x, y): (f64, f64)) {
        self.move_to(x as f32, y as f32);
    }

    fn line(&mut self, (x, y): (f64, f64)) {
        self.line_to(x as f32, y as f32);
    }

    fn curve(&mut self, by: (f64, f64), to: (f64, f64)) {
        self.quad_to(by.0 as f32, by.1 as f32, to.0 as f32, to.1 as f32);
    }

    fn close(&mut self) {
        PathBuilder::close(self);
    }
}

fn path(points: &[(f64, f64)], is_closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for (index, &point) in points.iter().enumerate() {
        match index {
            0 => builder.start(point),
            _ => builder.line(point),
        }
    }
    if is_closed {
        builder.close();
    }
    builder.finish()
}

fn paint(colour: Colour, opacity: f64) -> Paint<'static> {
    let part = |at: usize| u8::from_str_radix(&colour[at..at + 2], 16).unwrap_or(0);
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(part(1), part(3), part(5), (opacity * 255.0).round() as u8);
    paint
}

fn n(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

fn svg_path(points: &[(f64, f64)]) -> String {
    let step = |(index, (x, y)): (usize, &(f64, f64))| {
        format!("{}{} {}", if index == 0 { "M" } else { "L" }, n(*x), n(*y))
    };
    points.iter().enumerate().map(step).collect()
}

fn svg_item(item: &Item) -> Markup {
    match item {
        Item::Box { at, size, colour } => html! {
            rect x=(n(at.0)) y=(n(at.1)) width=(n(size.0)) height=(n(size.1)) fill=(colour) {}
        },
        Item::Line { points, colour, width, dash } => {
            let dash: Vec<String> = dash.iter().map(|part| n(f64::from(*part))).collect();
            let dash = (!dash.is_empty()).then(|| dash.join(" "));
            html! {
                path d=(svg_path(points)) fill="none" stroke=(colour) stroke-width=(n(*width))
                    stroke-linejoin="round" stroke-dasharray=[dash] {}
            }
        }
        Item::Area { points, colour, opacity } => html! {
            path d=(svg_path(points) + "z") fill=(colour) opacity=(format!("{opacity:.2}")) {}
        },
        Item::Disc { at, radius, fill, edge } => html! {
            circle cx=(n(at.0)) cy=(n(at.1)) r=(n(*radius)) fill=(fill) stroke=(edge)
                stroke-width="1.5" {}
        },
        Item::Text { at, anchor, letters, text, has_edge } => {
            let anchor = match anchor {
                Anchor::Start => None,
                Anchor::Middle => Some("middle"),
                Anchor::End => Some("end"),
            };
            html! {
                text x=(n(at.0)) y=(n(at.1)) font-size=(n(letters.size)) fill=(letters.colour)
                    font-weight=[letters.is_bold.then_some("bold")] text-anchor=[anchor]
                    stroke=[has_edge.then_some(CARD)] stroke-width=[has_edge.then(|| n(EDGE))]
                    stroke-linejoin=[has_edge.then_some("round")]
                    paint-order=[has_edge.then_some("stroke")] {
                    (text)
                }
            }
        }
    }
}
