//! Lines of minisign's texts: a comment, then bytes in base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// How a comment begins that nothing protects.
pub const UNTRUSTED: &str = "untrusted comment: ";

/// Two lines: a comment, and bytes.
pub fn text(comment: &str, bytes: &[u8]) -> String {
    format!("{UNTRUSTED}{comment}\n{}\n", STANDARD.encode(bytes))
}

/// The bytes of a line; nothing if they are others than `N`.
pub fn bytes<const N: usize>(line: &str) -> Option<[u8; N]> {
    STANDARD.decode(line).ok()?.try_into().ok()
}

/// The part at `from` of bytes that are long enough.
pub fn part<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    bytes[from..from + N].try_into().expect("the part lies within bytes of a fixed length")
}
