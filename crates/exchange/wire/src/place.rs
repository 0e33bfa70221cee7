//! Fields at fixed places of a frame, which are read and changed without decoding the message.

use std::marker::PhantomData;

use crate::value::Value;

/// A value of a fixed number of bytes of which every bit pattern can be read.
pub trait Plain: Copy {
    /// The value in these bytes, which are as many as it has.
    fn load(bytes: &[u8]) -> Self;

    /// Writes the value to these bytes, which are as many as it has.
    fn store(self, bytes: &mut [u8]);
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Plain for $number {
            #[inline]
            fn load(bytes: &[u8]) -> $number {
                let mut array = [0; size_of::<$number>()];
                array.copy_from_slice(bytes);
                <$number>::from_le_bytes(array)
            }

            #[inline]
            fn store(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )+};
}

numbers!(u8, u16, u32, u64);

/// Anything but 0 is true here; [`Value::take`] takes 0 and 1 alone.
impl Plain for bool {
    #[inline]
    fn load(bytes: &[u8]) -> bool {
        u8::load(bytes) != 0
    }

    #[inline]
    fn store(self, bytes: &mut [u8]) {
        u8::from(self).store(bytes);
    }
}

/// Where a field is in a frame.
#[derive(Debug)]
pub struct Place<T> {
    start: usize,
    value: PhantomData<T>,
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Place<T> {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T: Plain + Value<'static>> Place<T> {
    /// The field that begins at this offset.
    pub const fn at(start: usize) -> Place<T> {
        Place { start, value: PhantomData }
    }

    /// Offset of the byte behind it.
    pub const fn end(self) -> usize {
        match T::SIZE {
            Some(size) => self.start + size,
            None => panic!("a field at a fixed place has a fixed size"),
        }
    }

    /// Its value in a frame.
    ///
    /// # Panics
    /// If the frame ends before it does.
    #[inline]
    pub fn get(self, frame: &[u8]) -> T {
        T::load(&frame[self.start..self.end()])
    }

    /// Gives it a value in a frame.
    ///
    /// # Panics
    /// If the frame ends before it does.
    #[inline]
    pub fn set(self, frame: &mut [u8], value: T) {
        value.store(&mut frame[self.start..self.end()]);
    }
}
