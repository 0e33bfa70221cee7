//! What the macros of this crate use, wherever they are used.

pub use nm_codec::{self, DecodeError, Random, Reader};

pub use crate::frame::{Frame, FrameMut, Listed, PREFIX_BYTES, Sealed};
pub use crate::place::Place;
pub use crate::row::{Party, Row};
pub use crate::types::{Alternative, Definition, Field, Types, prose};
pub use crate::value::{Value, decode, encode, total};
