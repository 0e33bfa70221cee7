//! Sizes of text in drawings, estimated from its letters, on the safe side.

/// Width of `text` whose letters are `letter_width` wide.
pub fn width(text: &str, letter_width: f64) -> f64 {
    text.chars().count() as f64 * letter_width
}

/// `text`, shortened in the middle to at most `width`, so that labels stay distinguishable.
pub fn shortened(text: &str, width: f64, letter_width: f64) -> String {
    let letters: Vec<char> = text.chars().collect();
    let room = ((width / letter_width) as usize).max(3);
    if letters.len() <= room {
        return text.to_string();
    }
    let head = (room - 1).div_ceil(2);
    let tail = &letters[letters.len() - (room - 1 - head)..];
    format!("{}…{}", String::from_iter(&letters[..head]), String::from_iter(tail))
}
