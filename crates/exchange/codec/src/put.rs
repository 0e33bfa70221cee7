//! Appends fields one after another.

/// Appends fields to bytes, as [`Reader`](crate::Reader) reads them.
pub trait Put {
    /// Appends bytes as they are.
    fn put(&mut self, bytes: &[u8]);

    /// Appends a byte.
    #[inline]
    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    /// Appends 16 bits.
    #[inline]
    fn put_u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    /// Appends 32 bits.
    #[inline]
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// Appends 64 bits.
    #[inline]
    fn put_u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// Appends numbers of 64 bits.
    #[inline]
    fn put_u64s(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.put_u64(*value));
    }

    /// Appends 64 bits, signed.
    #[inline]
    fn put_i64(&mut self, value: i64) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a truth value as a byte: 0 or 1.
    #[inline]
    fn put_bool(&mut self, value: bool) {
        self.put_u8(value.into());
    }
}

impl Put for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
