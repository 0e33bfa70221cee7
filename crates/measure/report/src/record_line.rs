//! Lines of logs that are only appended to: a checksum, a space, JSON, a line feed. A line that a
//! crash has cut off has the wrong checksum.

/// Hexadecimal digits of a checksum.
const CHECKSUM_DIGITS: usize = 8;

/// The line of a record.
pub fn sealed(json: &str) -> String {
    format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()))
}

/// The JSON of a complete line with the right checksum.
pub fn opened(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (checksum, json) = text.split_at_checked(CHECKSUM_DIGITS)?;
    let json = json.strip_prefix(' ')?;
    (u32::from_str_radix(checksum, 16).ok()? == crc32c::crc32c(json.as_bytes())).then_some(json)
}
