//! Histograms in the common form: HdrHistogram V2 with deflate, in base64, and the text log of
//! them that existing tools read.
//!
//! Values are ns, kept to three digits, from 1 ns to 1 h; longer ones count as 1 h.

use std::fmt::Write as _;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};

/// A histogram of latencies, ns.
pub type Histogram = hdrhistogram::Histogram<u64>;

/// Largest value, ns: one hour. Longer latencies count as this one.
pub const VALUE_MAX_NS: u64 = 3_600_000_000_000;

/// Significant digits to which values are kept.
pub const DIGITS: u8 = 3;

/// Longest text that [`decode`] accepts, bytes. Ours are below 200 kB.
pub const TEXT_BYTES_MAX: usize = 4 << 20;

/// Most bytes that a text may inflate to.
const INFLATED_BYTES_MAX: usize = 8 << 20;

/// With more digits than this, 40 bytes of input could make the reader allocate 50 MB.
const FOREIGN_DIGITS_MAX: u32 = 4;

const COOKIE_V2: u32 = 0x1c84_9303 | 0x10;
const COOKIE_V2_DEFLATE: u32 = 0x1c84_9304 | 0x10;
const HEADER_BYTES: usize = 40;

/// Why a text is not a histogram, or a histogram cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum HistogramError {
    /// Longer than any histogram that nearmetal writes.
    #[error("histogram is too large: more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// Not base64.
    #[error("histogram is not base64: {0}")]
    Base64(#[from] base64::DecodeError),
    /// Not a deflate stream.
    #[error("histogram cannot be inflated: {0}")]
    Deflate(std::io::Error),
    /// Something else, or an older version.
    #[error("not a compressed HdrHistogram V2")]
    Cookie,
    /// It is inconsistent or would need too much memory.
    #[error("histogram is damaged: {0}")]
    Damaged(&'static str),
    /// Refused by the reader of the format.
    #[error("histogram cannot be read: {0}")]
    Read(#[from] hdrhistogram::serialization::DeserializeError),
    /// Refused by the writer of the format.
    #[error("histogram cannot be written: {0}")]
    Write(#[from] hdrhistogram::serialization::V2DeflateSerializeError),
}

/// An empty histogram with our range and precision.
pub fn empty() -> Histogram {
    Histogram::new_with_bounds(1, VALUE_MAX_NS, DIGITS).expect("the bounds are right")
}

/// The histogram of `sorted` latencies, ns, encoded.
///
/// # Errors
/// See [`encode`].
pub fn encode_sorted(sorted: &[u64]) -> Result<String, HistogramError> {
    let mut histogram = empty();
    for same in sorted.chunk_by(|x, y| x == y) {
        histogram.saturating_record_n(same[0], same.len() as u64);
    }
    encode(&histogram)
}

/// Writes `histogram` as base64 of HdrHistogram V2 with deflate.
///
/// # Errors
/// If a count exceeds 2^63.
pub fn encode(histogram: &Histogram) -> Result<String, HistogramError> {
    let mut bytes = vec![];
    V2DeflateSerializer::new().serialize(histogram, &mut bytes)?;
    Ok(STANDARD.encode(bytes))
}

/// Reads what [`encode`] or another tool wrote. Memory is bounded for any text.
///
/// # Errors
/// If the text is too long or is not a histogram.
pub fn decode(text: &str) -> Result<Histogram, HistogramError> {
    let text = text.trim();
    if text.len() > TEXT_BYTES_MAX {
        return Err(HistogramError::TooLarge { limit: TEXT_BYTES_MAX });
    }
    let bytes = STANDARD.decode(text)?;
    if bytes.len() < 8 || be_u32(&bytes, 0) != COOKIE_V2_DEFLATE {
        return Err(HistogramError::Cookie);
    }
    let length = be_u32(&bytes, 4) as usize;
    let deflated = bytes
        .get(8..8 + length)
        .ok_or(HistogramError::Damaged("it is shorter than its length field"))?;
    let mut inflated = vec![];
    ZlibDecoder::new(deflated)
        .take(INFLATED_BYTES_MAX as u64 + 1)
        .read_to_end(&mut inflated)
        .map_err(HistogramError::Deflate)?;
    if inflated.len() > INFLATED_BYTES_MAX {
        return Err(HistogramError::TooLarge { limit: INFLATED_BYTES_MAX });
    }
    check(&inflated)?;
    Ok(Deserializer::new().deserialize(&mut inflated.as_slice())?)
}

/// A big-endian number; `bytes` must reach that far.
fn be_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Checks what the reader of the format does not: lengths that it allocates, and numbers on which
/// its arithmetic overflows.
fn check(inflated: &[u8]) -> Result<(), HistogramError> {
    if inflated.len() < HEADER_BYTES || be_u32(inflated, 0) != COOKIE_V2 {
        return Err(HistogramError::Cookie);
    }
    let payload = &inflated[HEADER_BYTES..];
    if be_u32(inflated, 4) as usize > payload.len() {
        return Err(HistogramError::Damaged("its counts are shorter than their length field"));
    }
    if be_u32(inflated, 12) > FOREIGN_DIGITS_MAX {
        return Err(HistogramError::Damaged("it has more than four significant digits"));
    }
    let payload = &payload[..be_u32(inflated, 4) as usize];
    let (mut at, mut total) = (0, 0u64);
    while at < payload.len() {
        let (count, size) =
            varint(&payload[at..]).ok_or(HistogramError::Damaged("its last count is cut short"))?;
        at += size;
        if count < -i64::from(u32::MAX) {
            return Err(HistogramError::Damaged("it skips more than any histogram has"));
        }
        total = total
            .checked_add(count.max(0).unsigned_abs())
            .ok_or(HistogramError::Damaged("its counts overflow"))?;
    }
    Ok(())
}

/// A zig-zag LEB128 number in at most nine bytes, of which the ninth has eight bits of the number,
/// and its size in bytes.
fn varint(bytes: &[u8]) -> Option<(i64, usize)> {
    let mut value = 0u64;
    for i in 0..9 {
        let byte = u64::from(*bytes.get(i)?);
        let last = i == 8 || byte & 0x80 == 0;
        let bits = if i == 8 { byte } else { byte & 0x7f };
        value |= bits << (7 * i);
        if last {
            return Some(((value >> 1) as i64 ^ -((value & 1) as i64), i + 1));
        }
    }
    None
}

/// A log of histograms, one line each, as HdrHistogram's tools read and plot it (`.hlog`).
#[derive(Debug, Clone)]
pub struct HistogramLog {
    text: String,
}

impl HistogramLog {
    /// A log with `comment` in its head, a line each. Times in it count from `base_unix_s`, s
    /// since 1970; from 0 if that is not known.
    pub fn new(comment: &str, base_unix_s: Option<f64>) -> HistogramLog {
        let mut text = String::new();
        for line in comment.lines() {
            let _ = writeln!(text, "#{line}");
        }
        text.push_str("#[Histogram log format version 1.3]\n");
        if let Some(base) = base_unix_s.filter(|base| base.is_finite()) {
            let _ = writeln!(text, "#[StartTime: {base:.3} (seconds since epoch)]");
            let _ = writeln!(text, "#[BaseTime: {base:.3} (seconds since epoch)]");
        }
        text.push_str(
            "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\
             \"Interval_Compressed_Histogram\"\n",
        );
        HistogramLog { text }
    }

    /// Adds a histogram under `tag` for the `length_s` seconds from `start_s` on. Characters that
    /// are not allowed in a tag (blanks, commas) become `_`. The line's maximum is in ms, as other
    /// writers give it; the values inside stay ns.
    ///
    /// # Errors
    /// See [`encode`].
    pub fn add(
        &mut self,
        tag: &str,
        start_s: f64,
        length_s: f64,
        histogram: &Histogram,
    ) -> Result<(), HistogramError> {
        let encoded = encode(histogram)?;
        let fits = |c: char| if c == ',' || c.is_whitespace() || c.is_control() { '_' } else { c };
        let tag: String = tag.chars().map(fits).collect();
        if !tag.is_empty() {
            let _ = write!(self.text, "Tag={tag},");
        }
        // NaN and negative times would make the line unreadable.
        let (start_s, length_s) = (start_s.max(0.0), length_s.max(0.0));
        let max_ms = histogram.max() as f64 / 1e6;
        let _ = writeln!(self.text, "{start_s:.3},{length_s:.3},{max_ms:.3},{encoded}");
        Ok(())
    }

    /// The text of the log.
    pub fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use proptest::prelude::*;

    /// A text around any inner bytes, as a malicious writer would make it.
    fn wrapped(inner: &[u8]) -> String {
        let mut deflated = flate2::write::ZlibEncoder::new(vec![], flate2::Compression::fast());
        std::io::Write::write_all(&mut deflated, inner).unwrap();
        let deflated = deflated.finish().unwrap();
        let mut bytes = COOKIE_V2_DEFLATE.to_be_bytes().to_vec();
        bytes.extend((deflated.len() as u32).to_be_bytes());
        bytes.extend(deflated);
        STANDARD.encode(bytes)
    }

    fn inner(payload_bytes: u32, digits: u32, high: u64, payload: &[u8]) -> Vec<u8> {
        let mut bytes = COOKIE_V2.to_be_bytes().to_vec();
        for number in [payload_bytes, 0, digits] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(1u64.to_be_bytes());
        bytes.extend(high.to_be_bytes());
        bytes.extend(1.0f64.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn each_kind_of_malicious_text_is_rejected() {
        let error = |text: &str| decode(text).unwrap_err().to_string();
        assert_eq!(error(""), "not a compressed HdrHistogram V2");
        assert!(error("a,b").starts_with("histogram is not base64"));
        assert_eq!(
            error(&"A".repeat(TEXT_BYTES_MAX + 4)),
            format!("histogram is too large: more than {TEXT_BYTES_MAX} bytes")
        );
        let bomb = wrapped(&vec![0; INFLATED_BYTES_MAX + 1]);
        assert!(bomb.len() < INFLATED_BYTES_MAX / 50, "{}", bomb.len());
        assert_eq!(
            error(&bomb),
            format!("histogram is too large: more than {INFLATED_BYTES_MAX} bytes")
        );
        let huge = wrapped(&inner(u32::MAX, 3, VALUE_MAX_NS, &[]));
        assert_eq!(
            error(&huge),
            "histogram is damaged: its counts are shorter than their length field"
        );
        let digits = wrapped(&inner(0, 5, u64::MAX, &[]));
        assert_eq!(
            error(&digits),
            "histogram is damaged: it has more than four significant digits"
        );
        let least = wrapped(&inner(9, 3, VALUE_MAX_NS, &[0xff; 9]));
        assert_eq!(error(&least), "histogram is damaged: it skips more than any histogram has");
        assert!(decode(&wrapped(&inner(0, 3, VALUE_MAX_NS, &[]))).unwrap().is_empty());
    }

    #[test]
    fn log_is_parsed_with_its_tags() {
        let mut histogram = empty();
        histogram.record(4000).unwrap();
        let mut log = HistogramLog::new("nearmetal\ntwo lines", Some(1_700_000_000.5));
        log.add("loopback/tcp-spin 64 B, half", 1.5, 3.0, &histogram).unwrap();
        log.add("", f64::NAN, 3.0, &histogram).unwrap();
        let text = log.finish();
        let entries: Vec<_> =
            IntervalLogIterator::new(text.as_bytes()).map(Result::unwrap).collect();
        assert!(matches!(entries[0], LogEntry::StartTime(_)));
        assert!(matches!(entries[1], LogEntry::BaseTime(_)));
        let LogEntry::Interval(line) = &entries[2] else { panic!("{text}") };
        assert_eq!(line.tag().unwrap().as_str(), "loopback/tcp-spin_64_B__half");
        assert_eq!(line.start_timestamp().as_millis(), 1500);
        assert_eq!(decode(line.encoded_histogram()).unwrap(), histogram);
        assert_eq!(entries.len(), 4);
    }

    proptest! {
        #[test]
        fn encoded_histogram_decodes_to_itself(
            values in prop::collection::vec(any::<u64>(), 0..300),
        ) {
            let mut sorted = values;
            sorted.sort_unstable();
            let back = decode(&encode_sorted(&sorted).unwrap()).unwrap();
            prop_assert_eq!(back.len(), sorted.len() as u64);
            if let Some(max) = sorted.last() {
                prop_assert!(back.equivalent(back.max(), (*max).min(back.high())));
            }
        }

        #[test]
        fn any_text_is_decoded_or_rejected(text in "\\PC{0,200}") {
            let _ = decode(&text);
        }

        #[test]
        fn any_bytes_at_any_depth_are_decoded_or_rejected(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            digits in 0u32..8, high: u64,
        ) {
            let _ = decode(&STANDARD.encode(&bytes));
            let _ = decode(&wrapped(&bytes));
            let _ = decode(&wrapped(&inner(bytes.len() as u32, digits, high, &bytes)));
        }

        #[test]
        fn one_changed_byte_is_decoded_or_rejected(at in 0usize..400, to: u8) {
            let text = encode_sorted(&(1..2000).map(|i| i * 7).collect::<Vec<u64>>()).unwrap();
            let mut bytes = STANDARD.decode(text).unwrap();
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = decode(&STANDARD.encode(bytes));
        }
    }
}
