//! Reads fields one after another.

use crate::error::{DecodeError, DecodeFault};

/// Reads fields from the front of bytes. Each method takes the name of the field, for its error.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the first of these bytes on.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// The bytes that are not read yet.
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether all bytes are read.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        match self.bytes.split_first_chunk() {
            Some((front, rest)) => {
                self.bytes = rest;
                Ok(*front)
            }
            None => Err(DecodeError::truncated(field)),
        }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn bytes(&mut self, field: &'static str, count: usize) -> Result<&'a [u8], DecodeError> {
        match self.bytes.split_at_checked(count) {
            Some((front, rest)) => {
                self.bytes = rest;
                Ok(front)
            }
            None => Err(DecodeError::truncated(field)),
        }
    }

    /// The next byte.
    ///
    /// # Errors
    /// If there is none.
    #[inline]
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    /// The next 16 bits.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_le_bytes)
    }

    /// The next 32 bits.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// The next 64 bits.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// The next 64 bits, signed.
    ///
    /// # Errors
    /// If there are fewer.
    #[inline]
    pub fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.array(field).map(i64::from_le_bytes)
    }

    /// The next byte as a truth value: 0 or 1.
    ///
    /// # Errors
    /// If there is none, or it is something else.
    #[inline]
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(DecodeError::unknown_code(field, code.into())),
        }
    }

    /// Checks that all bytes are read; `last` is the name of the last field.
    ///
    /// # Errors
    /// If bytes are left.
    #[inline]
    pub fn finish(&self, last: &'static str) -> Result<(), DecodeError> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(DecodeError { field: last, fault: DecodeFault::TrailingBytes(left) }),
        }
    }
}
