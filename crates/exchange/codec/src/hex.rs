//! Bytes as hexadecimal digits, where a format is text.

/// The digits of bytes.
pub fn write(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of digits; none if it is something else.
pub fn read(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_their_digits_and_nothing_from_other_text() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(read(&write(&all)), Some(all));
        assert_eq!((read(""), read("0aF0")), (Some(vec![]), Some(vec![10, 240])));
        for wrong in ["0", "0g", "+1", " 1", "é1"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
