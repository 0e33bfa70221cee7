//! A few bytes as words of eight, little-endian, without loops over bytes and calls of `memcpy`:
//! for messages that lie in one cache line.

/// Calls `store` with the index and value of each word that `bytes` fill; the last one is filled up
/// with zeros.
#[inline(always)]
pub fn store_bytes(bytes: &[u8], mut store: impl FnMut(usize, u64)) {
    let (complete, rest) = bytes.as_chunks::<8>();
    for (idx, chunk) in complete.iter().enumerate() {
        store(idx, u64::from_le_bytes(*chunk));
    }
    if rest.is_empty() {
        return;
    }
    let last = match bytes.last_chunk::<8>() {
        Some(end) => u64::from_le_bytes(*end) >> (8 * (8 - rest.len())),
        None => short_word(rest),
    };
    store(complete.len(), last);
}

/// Fills `bytes` from the words that `load` returns by index.
#[inline(always)]
pub fn load_bytes(bytes: &mut [u8], load: impl Fn(usize) -> u64) {
    let (complete, rest) = bytes.as_chunks_mut::<8>();
    for (idx, chunk) in complete.iter_mut().enumerate() {
        *chunk = load(idx).to_le_bytes();
    }
    if rest.is_empty() {
        return;
    }
    let (count, bits) = (complete.len(), 8 * rest.len());
    let last = load(count);
    match bytes.last_chunk_mut::<8>() {
        // The end of the word before, and the last one behind it.
        Some(end) => *end = (load(count - 1) >> bits | last << (64 - bits)).to_le_bytes(),
        None => fill_from_word(bytes, last),
    }
}

/// One to seven bytes as a word: from both ends, where they may overlap.
#[inline(always)]
fn short_word(bytes: &[u8]) -> u64 {
    let count = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return u64::from(first) | u64::from(last) << (8 * (count - 4));
    }
    let byte = |idx: usize| u64::from(bytes[idx]) << (8 * idx);
    byte(0) | byte(count / 2) | byte(count - 1)
}

/// Fills one to seven bytes from a word: from both ends, where they may overlap.
#[inline(always)]
fn fill_from_word(bytes: &mut [u8], word: u64) {
    let count = bytes.len();
    if let Some(first) = bytes.first_chunk_mut::<4>() {
        *first = (word as u32).to_le_bytes();
        if let Some(last) = bytes.last_chunk_mut::<4>() {
            *last = ((word >> (8 * (count - 4))) as u32).to_le_bytes();
        }
        return;
    }
    for idx in [0, count / 2, count - 1] {
        bytes[idx] = (word >> (8 * idx)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_return_from_words() {
        let source: [u8; 56] = std::array::from_fn(|idx| (idx * 37 + 11) as u8);
        for count in 0..=source.len() {
            let mut words = [u64::MAX; 8];
            store_bytes(&source[..count], |idx, word| words[idx] = word);
            assert_eq!(words[count.div_ceil(8)], u64::MAX, "{count}: no more words than needed");
            let expected = source[..count].chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(word)
            });
            assert!(words[..count.div_ceil(8)].iter().copied().eq(expected), "{count}");
            let mut target = [0xee; 57];
            load_bytes(&mut target[..count], |idx| words[idx]);
            assert_eq!(target[..count], source[..count]);
            assert!(target[count..].iter().all(|byte| *byte == 0xee), "{count}");
        }
    }
}
