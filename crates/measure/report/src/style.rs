//! Text for a terminal: its colours, its line breaks, and what must not reach it.

use nm_model::Outcome;

/// Meaning of a row or word; it is shown as a colour, never by colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// Nothing special.
    #[default]
    Plain,
    /// A target that is met, a figure that is better.
    Good,
    /// A target that is missed, a figure that is worse.
    Bad,
    /// Neither shown.
    Unsure,
    /// Less important: reference figures.
    Faint,
    /// Values of a row differ where one would expect them equal.
    Differs,
}

impl From<Outcome> for Tone {
    fn from(outcome: Outcome) -> Tone {
        match outcome {
            Outcome::Pass => Tone::Good,
            Outcome::Fail => Tone::Bad,
            Outcome::Inconclusive => Tone::Unsure,
        }
    }
}

/// How to write for the terminal at hand; the binary decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether to colour.
    pub colour: bool,
    /// Columns of the terminal.
    pub width: usize,
}

impl Style {
    /// `text` in the colour of `tone`.
    pub fn tone(&self, tone: Tone, text: &str) -> String {
        match tone {
            Tone::Plain => text.to_string(),
            Tone::Good => self.paint("32", text),
            Tone::Bad => self.paint("31", text),
            Tone::Unsure | Tone::Differs => self.paint("33", text),
            Tone::Faint => self.faint(text),
        }
    }

    /// `text` less bright.
    pub fn faint(&self, text: &str) -> String {
        self.paint("2", text)
    }

    /// `text` as a heading.
    pub fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        match self.colour && !text.is_empty() {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }
}

/// Breaks `text` into lines of at most `width` characters, between words where it can.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    let mut line = String::new();
    let mut line_width = 0;
    for word in text.split(' ') {
        let word: Vec<char> = word.chars().collect();
        if line_width > 0 && line_width + 1 + word.len() > width {
            lines.push(std::mem::take(&mut line));
            line_width = 0;
        }
        if line_width > 0 {
            line.push(' ');
            line_width += 1;
        }
        for letter in word {
            if line_width >= width.max(1) {
                lines.push(std::mem::take(&mut line));
                line_width = 0;
            }
            line.push(letter);
            line_width += 1;
        }
    }
    lines.push(line);
    lines
}

/// `text` without control characters and without characters that change the reading direction.
pub fn clean(text: &str) -> String {
    let turns_direction = |c: char| {
        let marks = ['\u{200e}', '\u{200f}'];
        marks.contains(&c) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let is_command = |c: char| c.is_control() || turns_direction(c);
    text.chars().map(|c| if is_command(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn colour_is_added_only_if_enabled() {
        let plain = Style { colour: false, width: 80 };
        let colour = Style { colour: true, width: 80 };
        assert_eq!(plain.tone(Tone::Bad, "FAIL"), "FAIL");
        assert_eq!(colour.tone(Tone::Bad, "FAIL"), "\x1b[31mFAIL\x1b[0m");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(clean("a\x1b[31mb\u{202e}c"), "a\u{fffd}[31mb\u{fffd}c");
    }

    proptest! {
        #[test]
        fn wrapping_keeps_every_letter_and_the_width(text in "[a-zé ]{0,80}", width in 1usize..20) {
            let lines = wrap(&text, width);
            let letters = |t: &str| t.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
            prop_assert!(lines.iter().all(|l| l.chars().count() <= width));
        }
    }
}
