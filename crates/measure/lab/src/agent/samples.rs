//! Raw samples as text: little-endian u32 nanoseconds in base64.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

/// Encodes a block of samples.
pub fn encode(samples: &[u32]) -> String {
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

/// Decodes a block of [`encode`]; none if it is malformed.
pub fn decode(block: &str) -> Option<Vec<u32>> {
    let bytes = BASE64_STANDARD.decode(block).ok()?;
    let (words, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_decoded_as_encoded() {
        let samples = vec![0, 1, 4_000, u32::MAX];
        assert_eq!(decode(&encode(&samples)), Some(samples));
        assert_eq!(decode("AAAA"), None);
        assert_eq!(decode("no base64!"), None);
    }
}
