//! Fields at fixed places of a header.

use std::marker::PhantomData;
use std::ops::Range;

/// An unsigned number in a header.
pub trait Number: Copy {
    /// The number in these bytes, which are as many as it has.
    fn load(bytes: &[u8]) -> Self;

    /// Writes the number to these bytes, which are as many as it has.
    fn store(self, bytes: &mut [u8]);
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Number for $number {
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

/// A number at a fixed place of a header, declared once for those who write it and those who read
/// it:
///
/// ```
/// use nm_codec::Field;
///
/// const LENGTH: Field<u32> = Field::first("length");
/// const KIND: Field<u8> = Field::after("kind", &LENGTH);
/// const HEADER_BYTES: usize = KIND.end();
///
/// let mut header = [0; HEADER_BYTES];
/// LENGTH.set(&mut header, 700);
/// KIND.set(&mut header, 3);
/// assert_eq!((LENGTH.get(&header), KIND.get(&header)), (700, 3));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Field<T> {
    /// Its name, for errors.
    pub name: &'static str,
    start: usize,
    number: PhantomData<T>,
}

impl<T> Field<T> {
    /// The first field of a header.
    pub const fn first(name: &'static str) -> Field<T> {
        Field::at(name, 0)
    }

    /// The field behind another one.
    pub const fn after<P>(name: &'static str, previous: &Field<P>) -> Field<T> {
        Field::at(name, previous.end())
    }

    /// The field at a place.
    pub const fn at(name: &'static str, start: usize) -> Field<T> {
        Field { name, start, number: PhantomData }
    }

    /// Offset of its first byte.
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Offset of the byte behind it.
    pub const fn end(&self) -> usize {
        self.start + size_of::<T>()
    }

    /// Its bytes.
    pub const fn range(&self) -> Range<usize> {
        self.start()..self.end()
    }
}

impl<T: Number> Field<T> {
    /// Its value.
    ///
    /// # Panics
    /// If the header ends before it does.
    #[inline]
    pub fn get(&self, header: &[u8]) -> T {
        T::load(&header[self.range()])
    }

    /// Gives it a value.
    ///
    /// # Panics
    /// If the header ends before it does.
    #[inline]
    pub fn set(&self, header: &mut [u8], value: T) {
        value.store(&mut header[self.range()]);
    }
}
