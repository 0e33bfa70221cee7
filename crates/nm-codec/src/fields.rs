//! Takes fields from bytes, one after another, little-endian.

/// Bytes that mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaningless;

impl std::fmt::Display for Meaningless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("these bytes are no message of the exchange")
    }
}

impl std::error::Error for Meaningless {}

/// Takes fields from the front of bytes.
#[derive(Debug, Clone)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Meaningless> {
        let (front, rest) = self.0.split_first_chunk().ok_or(Meaningless)?;
        self.0 = rest;
        Ok(*front)
    }

    /// The next byte.
    ///
    /// # Errors
    /// At the end.
    pub fn u8(&mut self) -> Result<u8, Meaningless> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next 16 bits.
    ///
    /// # Errors
    /// At the end.
    pub fn u16(&mut self) -> Result<u16, Meaningless> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 32 bits.
    ///
    /// # Errors
    /// At the end.
    pub fn u32(&mut self) -> Result<u32, Meaningless> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 64 bits.
    ///
    /// # Errors
    /// At the end.
    pub fn u64(&mut self) -> Result<u64, Meaningless> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next 64 bits, signed.
    ///
    /// # Errors
    /// At the end.
    pub fn i64(&mut self) -> Result<i64, Meaningless> {
        self.array().map(i64::from_le_bytes)
    }

    /// The next so many bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Meaningless> {
        let (front, rest) = self.0.split_at_checked(count).ok_or(Meaningless)?;
        self.0 = rest;
        Ok(front)
    }
}

impl From<crate::error::DecodeError> for Meaningless {
    fn from(_: crate::error::DecodeError) -> Meaningless {
        Meaningless
    }
}
