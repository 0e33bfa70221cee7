//! Values one after another, and bytes with their number.

use std::marker::PhantomData;

use nm_codec::{DecodeError, Put, Random, Reader};

use crate::types::Types;
use crate::value::Value;

/// Values one after another up to the end of the message. They are read one at a time, without
/// memory of their own; an error is the last item.
pub struct Series<'a, T> {
    /// The bytes of those that were not read yet.
    pub bytes: &'a [u8],
    value: PhantomData<T>,
}

impl<'a, T> Series<'a, T> {
    /// The values in these bytes.
    #[inline]
    pub const fn of(bytes: &'a [u8]) -> Series<'a, T> {
        Series { bytes, value: PhantomData }
    }
}

impl<T> Clone for Series<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Series<'_, T> {}

impl<T> PartialEq for Series<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<T> Eq for Series<'_, T> {}

impl<T> std::fmt::Debug for Series<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Series({:?})", self.bytes)
    }
}

impl<'a, T: Value<'a>> Iterator for Series<'a, T> {
    type Item = Result<T, DecodeError>;

    fn next(&mut self) -> Option<Result<T, DecodeError>> {
        if self.bytes.is_empty() {
            return None;
        }
        let mut reader = Reader::new(self.bytes);
        let value = T::take("series", &mut reader);
        self.bytes = if value.is_ok() { reader.rest() } else { &[] };
        Some(value)
    }
}

impl<'a, T: Value<'a>> Value<'a> for Series<'a, T> {
    const SIZE: Option<usize> = None;

    #[inline]
    fn put(&self, out: &mut Vec<u8>) {
        out.put(self.bytes);
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn take(_field: &'static str, reader: &mut Reader<'a>) -> Result<Series<'a, T>, DecodeError> {
        let bytes = reader.rest();
        *reader = Reader::new(&[]);
        Ok(Series::of(bytes))
    }

    fn describe(types: &mut Types) -> String {
        format!("series of {}", T::describe(types))
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        (0..random.below(4)).for_each(|_| T::example(random, out));
    }
}

/// Bytes, behind how many they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<'a>(pub &'a [u8]);

impl<'a> Value<'a> for Block<'a> {
    const SIZE: Option<usize> = None;

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.0.len() as u32);
        out.put(self.0);
    }

    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<Block<'a>, DecodeError> {
        let length = reader.u32(field)? as usize;
        reader.bytes(field, length).map(Block)
    }

    fn describe(_types: &mut Types) -> String {
        "block".to_string()
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        let length = random.below(20) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| random.of_any_size() as u8).collect();
        out.put_u32(length as u32);
        out.put(&bytes);
    }
}

/// A block of its own.
impl<'a> Value<'a> for Box<[u8]> {
    const SIZE: Option<usize> = None;

    fn put(&self, out: &mut Vec<u8>) {
        Block(self).put(out);
    }

    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<Box<[u8]>, DecodeError> {
        Block::take(field, reader).map(|block| block.0.into())
    }

    fn describe(types: &mut Types) -> String {
        Block::describe(types)
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        Block::example(random, out);
    }
}
