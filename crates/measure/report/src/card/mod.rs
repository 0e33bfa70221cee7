//! One picture of a result to share: verdict, machine, three sentences and the curves of the best
//! stacks, 1200 × 630 px, as SVG or PNG.

mod canvas;
mod font;
mod plot;

use std::path::Path;

use nm_model::RunResult;

use crate::first_screen::{Line, Topic, first_screen};
use crate::html::best_curves;
use crate::style::Tone;
use crate::title::title;

use canvas::{Anchor, Canvas, Colour, GRID, INK, Letters, SOFT};

/// Width and height, px: the size that previews of links have.
pub const SIZE: (u32, u32) = (1200, 630);

/// Edges of what is drawn, px.
const LEFT: f64 = 48.0;
const RIGHT: f64 = 1164.0;

/// Where the three sentences begin, and where everything ends, px.
const SENTENCES_TOP: f64 = 222.0;
const BOTTOM: f64 = 612.0;

/// Where the curves begin, px.
const CURVES_LEFT: f64 = 560.0;

const LINE_HEIGHT: f64 = 20.0;

const WORD: f64 = 50.0;
const VERDICT: Letters = Letters { size: 19.0, is_bold: false, colour: INK };
const TEXT: Letters = Letters { size: 14.5, is_bold: false, colour: INK };
const LABEL: Letters = Letters { size: 14.5, is_bold: true, colour: INK };
const SMALL: Letters = Letters { size: 14.5, is_bold: false, colour: SOFT };

/// The formats of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text and lines, which stay sharp at every size.
    Svg,
    /// Pixels, for places that show no SVG.
    Png,
}

impl Format {
    /// The format that the end of a file's name asks for.
    pub fn of(file: &Path) -> Option<Format> {
        let extension = file.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "svg" => Some(Format::Svg),
            "png" => Some(Format::Png),
            _ => None,
        }
    }
}

/// The card of `result` in a format; `references` are drawn faintly.
pub fn card(result: &RunResult, references: &[RunResult], format: Format) -> Vec<u8> {
    let screen = first_screen(result);
    let mut canvas = Canvas::new(SIZE.0, SIZE.1);
    let tone = colour(screen.tone);
    canvas.rect((0.0, 0.0), (14.0, f64::from(SIZE.1)), tone);
    let title = title(result);
    let brand = Letters { is_bold: true, ..SMALL };
    canvas.text((RIGHT, 40.0), Anchor::End, brand, "nearmetal");
    let shown = canvas.fitting(&title, SMALL, RIGHT - LEFT - 120.0);
    canvas.text((LEFT, 40.0), Anchor::Start, SMALL, &shown);
    let word = Letters { size: WORD, is_bold: true, colour: tone };
    canvas.text((LEFT, 96.0), Anchor::Start, word, screen.word);
    let line = |topic: Topic| screen.lines.iter().find(|line| line.topic == topic);
    if let Some(verdict) = line(Topic::Verdict) {
        let lines = wrapped(&canvas, &verdict.text, VERDICT, 0.0, RIGHT - LEFT, 2);
        for (index, text) in lines.iter().enumerate() {
            let at = (LEFT, 130.0 + index as f64 * 26.0);
            canvas.text(at, Anchor::Start, VERDICT, text);
        }
    }
    if let Some(machine) = line(Topic::Machine) {
        let text = canvas.fitting(&machine.text, SMALL, RIGHT - LEFT);
        canvas.text((LEFT, 186.0), Anchor::Start, SMALL, &text);
    }
    canvas.line(vec![(LEFT, 200.0), (RIGHT, 200.0)], GRID, 1.5, &[]);
    let curves = best_curves(result, references);
    let right = if curves.is_some() { CURVES_LEFT - 36.0 } else { RIGHT };
    let stacks = screen.lines.iter().filter(|line| line.topic.is_of_stacks());
    sentences(&mut canvas, &stacks.collect::<Vec<_>>(), right - LEFT);
    if let Some(chart) = curves {
        let at = (CURVES_LEFT, 210.0);
        let place = plot::Place { at, size: (RIGHT - at.0, BOTTOM - at.1) };
        plot::draw(&mut canvas, &chart, &place);
    }
    match format {
        Format::Svg => canvas.svg(&format!("{}: {title}", screen.word)).into_bytes(),
        Format::Png => canvas.png(),
    }
}

fn colour(tone: Tone) -> Colour {
    match tone {
        Tone::Good => "#006b4a",
        Tone::Bad => "#a32b00",
        Tone::Unsure | Tone::Differs => "#7a5200",
        Tone::Plain | Tone::Faint => SOFT,
    }
}

/// The sentences below each other, each with its label; what does not fit is cut with an ellipsis.
fn sentences(canvas: &mut Canvas, lines: &[&Line], width: f64) {
    let n_lines = ((BOTTOM - SENTENCES_TOP) / LINE_HEIGHT) as usize;
    let mut y = SENTENCES_TOP + 6.0;
    let mut n_left = n_lines;
    for (index, line) in lines.iter().enumerate() {
        // Each of the others keeps room for three lines.
        let n_others = lines.len() - index - 1;
        let n_lines_max = n_left.saturating_sub(n_others * 3).max(1);
        let label = format!("{}: ", line.topic.label().unwrap_or_default());
        let indent = canvas.width(&label, LABEL);
        canvas.text((LEFT, y), Anchor::Start, LABEL, label.trim_end());
        let wrapped = wrapped(canvas, &line.text, TEXT, indent, width, n_lines_max);
        for (row, text) in wrapped.iter().enumerate() {
            let left = if row == 0 { LEFT + indent } else { LEFT };
            canvas.text((left, y), Anchor::Start, TEXT, text);
            y += LINE_HEIGHT;
        }
        n_left = n_left.saturating_sub(wrapped.len());
        y += 9.0;
    }
}

/// `text` in lines of at most `width` px, the first one `indent` px shorter. The last of `n_max`
/// lines takes the rest, cut.
fn wrapped(
    canvas: &Canvas,
    text: &str,
    letters: Letters,
    indent: f64,
    width: f64,
    n_max: usize,
) -> Vec<String> {
    let mut lines = vec![String::new()];
    let words: Vec<&str> = text.split(' ').collect();
    for (index, word) in words.iter().enumerate() {
        let n_lines = lines.len();
        let room = if n_lines == 1 { width - indent } else { width };
        let last = lines.last_mut().expect("there is a first line");
        let longer = if last.is_empty() { word.to_string() } else { format!("{last} {word}") };
        if canvas.width(&longer, letters) <= room {
            *last = longer;
        } else if n_lines == n_max {
            let rest = words[index + 1..].join(" ");
            *last = canvas.fitting(&format!("{longer} {rest}"), letters, room);
            break;
        } else {
            lines.push(canvas.fitting(word, letters, width));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_line_is_wider_than_its_room(text in "\\PC{0,120}", n_max in 1usize..5) {
            let canvas = Canvas::new(10, 10);
            let lines = wrapped(&canvas, &text, TEXT, 30.0, 200.0, n_max);
            prop_assert!(lines.len() <= n_max);
            for (index, line) in lines.iter().enumerate() {
                let room = if index == 0 { 170.0 } else { 200.0 };
                prop_assert!(canvas.width(line, TEXT) <= room + 1e-6, "{line}");
            }
        }
    }
}
