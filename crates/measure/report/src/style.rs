//! Text for a terminal: its colours, its line breaks, and what must not reach it.

use nm_model::Outcome;

/// What begins a command to a terminal.
const ESCAPE: char = '\u{1b}';

// Codes of "select graphic rendition" (ECMA-48, 8.3.117).
const PLAIN: &str = "0";
const BOLD: &str = "1";
const FAINT: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

/// All that [`Style`] uses.
const COLOURS: [&str; 6] = [PLAIN, BOLD, FAINT, RED, GREEN, YELLOW];

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
            Tone::Good => self.paint(GREEN, text),
            Tone::Bad => self.paint(RED, text),
            Tone::Unsure | Tone::Differs => self.paint(YELLOW, text),
            Tone::Faint => self.faint(text),
        }
    }

    /// `text` less bright.
    pub fn faint(&self, text: &str) -> String {
        self.paint(FAINT, text)
    }

    /// `text` as a heading.
    pub fn bold(&self, text: &str) -> String {
        self.paint(BOLD, text)
    }

    /// With one of [`COLOURS`].
    fn paint(&self, code: &str, text: &str) -> String {
        match self.colour && !text.is_empty() {
            true => format!("{ESCAPE}[{code}m{text}{ESCAPE}[{PLAIN}m"),
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

/// Whether a terminal may obey a character: a control character, or one that changes the reading
/// direction.
pub fn is_command(c: char) -> bool {
    let marks = ['\u{200e}', '\u{200f}'];
    let turns_direction =
        marks.contains(&c) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns_direction
}

/// `text` without characters that a terminal may obey.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if is_command(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// `text` with its lines, columns and the colours of [`Style`], and nothing else that a terminal
/// obeys: parts of it may come from a peer or a file.
pub fn printable(text: &str) -> String {
    let mut parts = text.split(ESCAPE);
    let mut shown = without_commands(parts.next().unwrap_or_default());
    for part in parts {
        let after = |code: &&str| part.strip_prefix('[')?.strip_prefix(*code)?.strip_prefix('m');
        match COLOURS.iter().find_map(after) {
            Some(rest) => {
                shown.push(ESCAPE);
                shown += &part[..part.len() - rest.len()];
                shown += &without_commands(rest);
            }
            None => {
                shown.push(char::REPLACEMENT_CHARACTER);
                shown += &without_commands(part);
            }
        }
    }
    shown
}

fn without_commands(text: &str) -> String {
    let cells = |line: &str| line.split('\t').map(clean).collect::<Vec<_>>().join("\t");
    text.split('\n').map(cells).collect::<Vec<_>>().join("\n")
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

    #[test]
    fn colours_of_this_program_stay_and_other_commands_do_not() {
        let colour = Style { colour: true, width: 80 };
        let own = format!("{}\t{}\n", colour.tone(Tone::Good, "PASS"), colour.bold("x"));
        assert_eq!(printable(&own), own);
        for (hostile, shown) in [
            ("a\x1b[2Jb", "a\u{fffd}[2Jb"),
            ("\x1b]0;title\x07", "\u{fffd}]0;title\u{fffd}"),
            ("\x1b[8mhidden\x1b[0m", "\u{fffd}[8mhidden\x1b[0m"),
            ("\x1b[32\x1b[2Jm", "\u{fffd}[32\u{fffd}[2Jm"),
            ("x\ry\u{9b}1m\u{202e}\x7f\x1b", "x\u{fffd}y\u{fffd}1m\u{fffd}\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(printable(hostile), shown);
        }
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
