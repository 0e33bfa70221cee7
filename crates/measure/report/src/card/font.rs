//! The letters of the card: DejaVu Sans, regular and bold, reduced to Latin letters and signs. The
//! same metrics break lines in both formats; PNG is drawn from the outlines.

use ttf_parser::{Face, GlyphId, OutlineBuilder};

const REGULAR: &[u8] = include_bytes!("../../fonts/DejaVuSans-subset.ttf");
const BOLD: &[u8] = include_bytes!("../../fonts/DejaVuSans-Bold-subset.ttf");

/// The family name that SVG asks for, and what is as wide as it.
pub const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// Stands for a letter that the font lacks.
const UNKNOWN: char = '\u{fffd}';

/// A font of one weight.
pub struct Font {
    face: Face<'static>,
}

impl Font {
    /// The built-in font.
    pub fn new(is_bold: bool) -> Font {
        let bytes = if is_bold { BOLD } else { REGULAR };
        Font { face: Face::parse(bytes, 0).expect("the built-in font is a font") }
    }

    fn glyph(&self, letter: char) -> GlyphId {
        let known = self.face.glyph_index(letter).or_else(|| self.face.glyph_index(UNKNOWN));
        known.unwrap_or(GlyphId(0))
    }

    fn scale(&self, size: f64) -> f64 {
        size / f64::from(self.face.units_per_em())
    }

    fn advance(&self, letter: char) -> f64 {
        f64::from(self.face.glyph_hor_advance(self.glyph(letter)).unwrap_or(0))
    }

    /// Width of `text` at this size, px.
    pub fn width(&self, text: &str, size: f64) -> f64 {
        text.chars().map(|letter| self.advance(letter)).sum::<f64>() * self.scale(size)
    }

    /// Draws the outlines of `text` from the point on its base line.
    pub fn outline(&self, text: &str, size: f64, (x, y): (f64, f64), into: &mut dyn Outline) {
        let scale = self.scale(size);
        let mut left = x;
        for letter in text.chars() {
            let mut pen = Pen { x: left, y, scale, into: &mut *into };
            let _ = self.face.outline_glyph(self.glyph(letter), &mut pen);
            left += self.advance(letter) * scale;
        }
    }
}

/// What takes outlines, in px.
pub trait Outline {
    /// Begins a contour.
    fn start(&mut self, to: (f64, f64));
    /// A straight line.
    fn line(&mut self, to: (f64, f64));
    /// A quadratic curve by its control point and its end.
    fn curve(&mut self, by: (f64, f64), to: (f64, f64));
    /// Ends the contour.
    fn close(&mut self);
}

/// From units of the font, whose y axis points up, to px.
struct Pen<'o> {
    x: f64,
    y: f64,
    scale: f64,
    into: &'o mut dyn Outline,
}

impl Pen<'_> {
    fn at(&self, x: f32, y: f32) -> (f64, f64) {
        (self.x + f64::from(x) * self.scale, self.y - f64::from(y) * self.scale)
    }
}

impl OutlineBuilder for Pen<'_> {
    fn move_to(&mut self, x: f32, y: f32) {
        self.into.start(self.at(x, y));
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.into.line(self.at(x, y));
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.into.curve(self.at(x1, y1), self.at(x, y));
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        // A TrueType font has no cubic curves; should one appear, its middle comes near enough.
        let middle = ((x1 + x2) / 2.0, (y1 + y2) / 2.0);
        self.into.curve(self.at(middle.0, middle.1), self.at(x, y));
    }

    fn close(&mut self) {
        self.into.close();
    }
}
