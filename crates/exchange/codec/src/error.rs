//! Why bytes were not decoded.

use thiserror::Error;

/// Why bytes were not decoded: which field it was, and what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("field `{field}`: {fault}")]
pub struct DecodeError {
    /// Name of the field.
    pub field: &'static str,
    /// What is wrong with it.
    pub fault: DecodeFault,
}

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeFault {
    /// The bytes end before the field does.
    #[error("the bytes end before it does")]
    Truncated,
    /// No value has this code.
    #[error("no value has the code {0}")]
    UnknownCode(u64),
    /// The field cannot have this value.
    #[error("it {0}")]
    Invalid(&'static str),
    /// The bytes are in another version of the format.
    #[error(
        "it is {found}, and this version of nearmetal reads only {known}: both ends must be of the \
         same version"
    )]
    OtherVersion {
        /// Version of the bytes.
        found: u8,
        /// The only version that is read here.
        known: u8,
    },
    /// The checksum is not that of the bytes.
    #[error("it is not the checksum of the bytes")]
    Checksum,
    /// Bytes follow the last field.
    #[error("{0} bytes follow it")]
    TrailingBytes(usize),
}

impl DecodeError {
    /// The bytes end before this field does.
    pub const fn truncated(field: &'static str) -> DecodeError {
        DecodeError { field, fault: DecodeFault::Truncated }
    }

    /// No value of this field has this code.
    pub const fn unknown_code(field: &'static str, code: u64) -> DecodeError {
        DecodeError { field, fault: DecodeFault::UnknownCode(code) }
    }

    /// This field cannot have its value; `why` completes a sentence about it, such as "is larger
    /// than a frame".
    pub const fn invalid(field: &'static str, why: &'static str) -> DecodeError {
        DecodeError { field, fault: DecodeFault::Invalid(why) }
    }

    /// This field names a version that is not read here.
    pub const fn other_version(field: &'static str, found: u8, known: u8) -> DecodeError {
        DecodeError { field, fault: DecodeFault::OtherVersion { found, known } }
    }

    /// This field is not the checksum of the bytes.
    pub const fn checksum(field: &'static str) -> DecodeError {
        DecodeError { field, fault: DecodeFault::Checksum }
    }
}
