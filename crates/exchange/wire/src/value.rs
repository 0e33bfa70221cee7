//! What has bytes on the wire: numbers, texts, lists, and what is made of them.

use nm_auth::{Nonce, Proof};
use nm_codec::{DecodeError, Put, Random, Reader};

use crate::types::Types;

/// Something that is written, read and documented. Those of the messages are made by the macros
/// [`message!`](crate::message), [`record!`](crate::record), [`choice!`](crate::choice) and
/// [`codes!`](crate::codes), so that the three cannot differ.
pub trait Value<'a>: Sized {
    /// How many bytes it has; none if that depends on the value.
    const SIZE: Option<usize>;

    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);

    /// How many bytes [`Value::put`] appends.
    #[inline]
    fn bytes(&self) -> usize {
        Self::SIZE.unwrap_or_else(|| encode(self).len())
    }

    /// Reads its bytes; `field` is the name of the field that has the value.
    ///
    /// # Errors
    /// If the bytes end too soon, or no value has them.
    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// The name of its type; adds the definitions of the types that need one.
    fn describe(types: &mut Types) -> String;

    /// Appends the bytes of some value.
    fn example(random: &mut Random, out: &mut Vec<u8>);
}

/// The sum of sizes, if all are fixed.
pub const fn total(sizes: &[Option<usize>]) -> Option<usize> {
    let (mut at, mut sum) = (0, 0);
    while at < sizes.len() {
        match sizes[at] {
            Some(size) => sum += size,
            None => return None,
        }
        at += 1;
    }
    Some(sum)
}

macro_rules! numbers {
    ($($number:ident $put:ident),+) => {$(
        impl<'a> Value<'a> for $number {
            const SIZE: Option<usize> = Some(size_of::<$number>());

            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                out.$put(*self);
            }

            #[inline]
            fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<$number, DecodeError> {
                reader.$number(field)
            }

            fn describe(_types: &mut Types) -> String {
                stringify!($number).to_string()
            }

            fn example(random: &mut Random, out: &mut Vec<u8>) {
                out.$put(random.of_any_size() as $number);
            }
        }
    )+};
}

numbers!(u8 put_u8, u16 put_u16, u32 put_u32, u64 put_u64, i64 put_i64);

impl<'a> Value<'a> for bool {
    const SIZE: Option<usize> = Some(1);

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        out.put_bool(*self);
    }

    #[inline]
    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<bool, DecodeError> {
        reader.bool(field)
    }

    fn describe(_types: &mut Types) -> String {
        "bool".to_string()
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        out.put_bool(random.below(2) == 1);
    }
}

macro_rules! arrays {
    ($($array:ident $name:literal),+) => {$(
        impl<'a> Value<'a> for $array {
            const SIZE: Option<usize> = Some(32);

            fn put(&self, out: &mut Vec<u8>) {
                out.put(&self.0);
            }

            fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<$array, DecodeError> {
                reader.array(field).map($array)
            }

            fn describe(_types: &mut Types) -> String {
                $name.to_string()
            }

            fn example(random: &mut Random, out: &mut Vec<u8>) {
                (0..32).for_each(|_| out.put_u8(random.of_any_size() as u8));
            }
        }
    )+};
}

arrays!(Nonce "32 bytes", Proof "32 bytes");

/// A text of at most 65535 bytes; what is behind them is cut off.
impl<'a> Value<'a> for String {
    const SIZE: Option<usize> = None;

    fn put(&self, out: &mut Vec<u8>) {
        let end = self.floor_char_boundary(usize::from(u16::MAX));
        out.put_u16(end as u16);
        out.put(&self.as_bytes()[..end]);
    }

    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<String, DecodeError> {
        let length = usize::from(reader.u16(field)?);
        let bytes = reader.bytes(field, length)?.to_vec();
        String::from_utf8(bytes).map_err(|_| DecodeError::invalid(field, "is not UTF-8"))
    }

    fn describe(_types: &mut Types) -> String {
        "text".to_string()
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        let length = random.below(12) as usize;
        "because é".chars().cycle().take(length).collect::<String>().put(out);
    }
}

impl<'a, T: Value<'a>> Value<'a> for Option<T> {
    const SIZE: Option<usize> = None;

    #[inline]
    fn bytes(&self) -> usize {
        1 + self.as_ref().map_or(0, Value::bytes)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_bool(self.is_some());
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<Option<T>, DecodeError> {
        reader.bool(field)?.then(|| T::take(field, reader)).transpose()
    }

    fn describe(types: &mut Types) -> String {
        format!("optional {}", T::describe(types))
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        let is_some = random.below(2) == 1;
        out.put_bool(is_some);
        if is_some {
            T::example(random, out);
        }
    }
}

impl<'a, T: Value<'a>> Value<'a> for Vec<T> {
    const SIZE: Option<usize> = None;

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.len() as u32);
        self.iter().for_each(|one| one.put(out));
    }

    /// Grows as bytes are read: a number of values that no frame can have takes no memory.
    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<Vec<T>, DecodeError> {
        let count = reader.u32(field)?;
        let mut all = vec![];
        for _ in 0..count {
            all.push(T::take(field, reader)?);
        }
        Ok(all)
    }

    fn describe(types: &mut Types) -> String {
        format!("list of {}", T::describe(types))
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        let count = random.below(4);
        out.put_u32(count as u32);
        (0..count).for_each(|_| T::example(random, out));
    }
}

/// All bytes up to the end of the message. Nothing can follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rest<'a>(pub &'a [u8]);

impl<'a> Value<'a> for Rest<'a> {
    const SIZE: Option<usize> = None;

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        out.put(self.0);
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn take(_field: &'static str, reader: &mut Reader<'a>) -> Result<Rest<'a>, DecodeError> {
        let all = reader.rest();
        *reader = Reader::new(&[]);
        Ok(Rest(all))
    }

    fn describe(_types: &mut Types) -> String {
        "bytes up to the end".to_string()
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        let count = random.below(20);
        (0..count).for_each(|_| out.put_u8(random.of_any_size() as u8));
    }
}

/// A value of which the message is all.
///
/// # Errors
/// If the bytes are not that of a value, or more follow it.
#[inline]
pub fn decode<'a, T: Value<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = T::take("message", &mut reader)?;
    reader.finish("message")?;
    Ok(value)
}

/// The bytes of a value.
pub fn encode<'a>(value: &impl Value<'a>) -> Vec<u8> {
    let mut bytes = vec![];
    value.put(&mut bytes);
    bytes
}
