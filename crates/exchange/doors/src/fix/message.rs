//! A FIX message: its fields in order, and how one is written.

use std::fmt::{Display, Write as _};
use std::ops::Range;

use thiserror::Error;

use super::tag;
use crate::limits::MESSAGE_FIELDS_MAX;

/// The byte that ends a field.
pub const SOH: u8 = 1;

/// Why bytes are not a message. They are ignored then, and use no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Garbled {
    /// It does not begin with fields 8, 9 and 35.
    #[error("a message begins with the fields 8, 9 and 35")]
    Start,
    /// Field 9 does not lead to field 10.
    #[error("BodyLength does not lead to CheckSum")]
    Length,
    /// Field 10 is wrong.
    #[error("CheckSum is wrong")]
    CheckSum,
    /// A field is not `tag=value`.
    #[error("a field is not tag=value")]
    Field,
    /// It has more fields than it may have.
    #[error("it has more than {MESSAGE_FIELDS_MAX} fields")]
    TooManyFields,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    tag: u32,
    value: Range<usize>,
}

/// A message that is complete: length and checksum are right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    bytes: Vec<u8>,
    fields: Vec<Field>,
    /// The first tag that is no positive number.
    pub bad_tag: Option<String>,
}

/// Value that stands for bytes that are no text.
const NO_TEXT: &str = "\u{fffd}";

/// The field of bytes whose number this field gives.
fn data_tag(length_tag: u32) -> Option<u32> {
    match length_tag {
        90 | 348 | 350 | 352 | 354 | 356 | 358 | 360 | 362 | 364 | 618 | 621 => {
            Some(length_tag + 1)
        }
        93 => Some(89),
        95 => Some(96),
        212 => Some(213),
        445 => Some(446),
        _ => None,
    }
}

impl Message {
    /// The message that these bytes are, up to and with the end of field 10.
    ///
    /// # Errors
    /// If they are none.
    pub fn parse(bytes: &[u8]) -> Result<Message, Garbled> {
        let mut message = Message { bytes: bytes.to_vec(), fields: vec![], bad_tag: None };
        let (mut at, mut data) = (0, None);
        while at < bytes.len() {
            let Some(equals) = bytes[at..].iter().position(|byte| *byte == b'=') else {
                return Err(Garbled::Field);
            };
            let (name, start) = (&bytes[at..at + equals], at + equals + 1);
            let tag = tag_of(name);
            let length = match data.take() {
                Some((of, length)) if Some(of) == tag => length,
                _ => bytes[start..].iter().position(|it| *it == SOH).ok_or(Garbled::Field)?,
            };
            let end = start.checked_add(length).ok_or(Garbled::Field)?;
            if equals == 0 || bytes.get(end) != Some(&SOH) || name.contains(&SOH) {
                return Err(Garbled::Field);
            }
            if message.fields.len() == MESSAGE_FIELDS_MAX {
                return Err(Garbled::TooManyFields);
            }
            if tag.is_none() && message.bad_tag.is_none() {
                message.bad_tag = Some(String::from_utf8_lossy(name).into_owned());
            }
            message.fields.push(Field { tag: tag.unwrap_or(0), value: start..end });
            data = tag.and_then(data_tag).and_then(|of| Some((of, message.last_number()?)));
            at = end + 1;
        }
        message.check_frame()?;
        Ok(message)
    }

    fn last_number(&self) -> Option<usize> {
        let value = &self.bytes[self.fields.last()?.value.clone()];
        std::str::from_utf8(value).ok()?.parse().ok()
    }

    /// Checks the fields at both ends.
    fn check_frame(&self) -> Result<(), Garbled> {
        let tags: Vec<u32> = self.fields.iter().take(3).map(|field| field.tag).collect();
        if tags != [tag::BEGIN_STRING, tag::BODY_LENGTH, tag::MSG_TYPE] {
            return Err(Garbled::Start);
        }
        let last = &self.fields[self.fields.len() - 1];
        let body_start = self.fields[1].value.end + 1;
        let trailer = last.value.start - "10=".len();
        let length: Option<usize> = self.get(tag::BODY_LENGTH).and_then(|text| text.parse().ok());
        if last.tag != tag::CHECK_SUM || length != trailer.checked_sub(body_start) {
            return Err(Garbled::Length);
        }
        let expected = format!("{:03}", check_sum(&self.bytes[..trailer]));
        match self.bytes[last.value.clone()] == *expected.as_bytes() {
            true => Ok(()),
            false => Err(Garbled::CheckSum),
        }
    }

    /// The value of the first field with this tag.
    pub fn get(&self, tag: u32) -> Option<&str> {
        let field = self.fields.iter().find(|field| field.tag == tag)?;
        Some(std::str::from_utf8(&self.bytes[field.value.clone()]).unwrap_or(NO_TEXT))
    }

    /// The number that a field is.
    pub fn number(&self, tag: u32) -> Option<u64> {
        self.get(tag)?.parse().ok()
    }

    /// Whether a field is `Y`.
    pub fn is_set(&self, tag: u32) -> bool {
        self.get(tag) == Some("Y")
    }

    /// Its type.
    pub fn kind(&self) -> &str {
        self.get(tag::MSG_TYPE).unwrap_or_default()
    }

    /// Its number; 0 if it has none.
    pub fn seq(&self) -> u64 {
        self.number(tag::MSG_SEQ_NUM).unwrap_or(0)
    }

    /// All fields in order.
    pub fn fields(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.fields.iter().map(|field| (field.tag, &self.bytes[field.value.clone()]))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The routing fields of an answer: those of the message, with the ends swapped.
    pub fn route_back(&self) -> Body {
        let mut route = Body::default();
        for (there, back) in ROUTES {
            if let Some(value) = self.get(there).filter(|value| !value.is_empty()) {
                route.push(back, value);
            }
        }
        route
    }
}

/// Routing fields of a message, and those of its answer.
const ROUTES: [(u32, u32); 6] = [
    (tag::DELIVER_TO_COMP_ID, tag::ON_BEHALF_OF_COMP_ID),
    (tag::DELIVER_TO_SUB_ID, tag::ON_BEHALF_OF_SUB_ID),
    (tag::ON_BEHALF_OF_COMP_ID, tag::DELIVER_TO_COMP_ID),
    (tag::ON_BEHALF_OF_SUB_ID, tag::DELIVER_TO_SUB_ID),
    (tag::DELIVER_TO_LOCATION_ID, tag::ON_BEHALF_OF_LOCATION_ID),
    (tag::ON_BEHALF_OF_LOCATION_ID, tag::DELIVER_TO_LOCATION_ID),
];

/// A tag: digits of a positive number without leading zeros.
fn tag_of(name: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(name).ok()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    is_plain.then(|| text.parse().ok()).flatten()
}

/// The sum of all bytes, modulo 256.
pub fn check_sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// Fields one after another, as they are on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Body(pub String);

impl Body {
    /// Appends a field.
    pub fn push(&mut self, tag: u32, value: impl Display) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{tag}={value}\u{1}");
    }

    /// With one more field.
    #[must_use]
    pub fn with(mut self, tag: u32, value: impl Display) -> Body {
        self.push(tag, value);
        self
    }
}

/// Puts fields 8, 9 and 10 around the others, of which the first is 35.
pub fn seal(begin_string: &str, fields: &str) -> Vec<u8> {
    let mut text = format!("8={begin_string}\u{1}9={}\u{1}{fields}", fields.len());
    let sum = check_sum(text.as_bytes());
    let _ = write!(text, "10={sum:03}\u{1}");
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(fields: &str) -> Vec<u8> {
        seal("FIX.4.4", &fields.replace('|', "\u{1}"))
    }

    #[test]
    fn a_field_of_bytes_may_have_the_byte_that_ends_fields() {
        let message = Message::parse(&sealed("35=A|95=5|96=a|b=c|58=x|")).unwrap();
        assert_eq!((message.get(96), message.get(58)), (Some("a\u{1}b=c"), Some("x")));
        assert_eq!(message.fields().count(), 7);
        for wrong in ["35=A|95=4|96=a|b=c|58=x|", "35=A|95=999|96=a|"] {
            assert_eq!(Message::parse(&sealed(wrong)), Err(Garbled::Field), "{wrong}");
        }
        let other = Message::parse(&sealed("35=A|95=5|58=x|96=a|")).unwrap();
        assert_eq!(other.get(58), Some("x"), "the length is of no other field");
    }

    #[test]
    fn a_message_with_a_wrong_frame_is_garbled() {
        let good = sealed("35=0|34=2|");
        assert!(Message::parse(&good).is_ok());
        let text = String::from_utf8(good).unwrap();
        for (from, to, why) in [
            ("9=10", "9=11", Garbled::Length),
            ("34=2", "34=3", Garbled::CheckSum),
            ("35=0\u{1}34=2", "34=2\u{1}35=0", Garbled::Start),
            ("34=2", "3402", Garbled::Field),
            ("34=2\u{1}", "=2\u{1}34", Garbled::Field),
        ] {
            assert_eq!(Message::parse(text.replace(from, to).as_bytes()), Err(why), "{to}");
        }
        let short = text.trim_end_matches('\u{1}').as_bytes();
        assert_eq!(Message::parse(short), Err(Garbled::Field));
    }

    #[test]
    fn a_message_has_a_number_of_fields() {
        let of = |count: usize| sealed(&format!("35=D|{}", "58=x|".repeat(count)));
        assert!(Message::parse(&of(MESSAGE_FIELDS_MAX - 4)).is_ok());
        assert_eq!(Message::parse(&of(MESSAGE_FIELDS_MAX - 3)), Err(Garbled::TooManyFields));
    }

    #[test]
    fn an_answer_goes_back_the_way_that_the_message_came() {
        let message = Message::parse(&sealed("35=D|115=a|116=b|128=c|144=|")).unwrap();
        assert_eq!(message.route_back().0.replace('\u{1}', "|"), "115=c|128=a|129=b|");
    }

    proptest! {
        #[test]
        fn fields_are_read_as_they_were_written(
            values in proptest::collection::vec((1_u32..2_000, "[ -~]{0,20}"), 0..40),
        ) {
            let is_plain = |tag: u32| data_tag(tag).is_none();
            let values: Vec<_> = values.into_iter().filter(|(tag, _)| is_plain(*tag)).collect();
            let mut body = Body::default().with(tag::MSG_TYPE, "D");
            values.iter().for_each(|(tag, value)| body.push(*tag, value));
            let message = Message::parse(&seal("FIX.4.4", &body.0)).unwrap();
            let read: Vec<_> = message.fields().skip(3).collect();
            let written = values.iter().map(|(tag, value)| (*tag, value.as_bytes()));
            prop_assert_eq!(read.len(), values.len() + 1);
            prop_assert!(read.into_iter().zip(written).all(|(read, written)| read == written));
        }

        #[test]
        fn any_bytes_are_a_message_or_garbled(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Message::parse(&bytes);
        }
    }
}
