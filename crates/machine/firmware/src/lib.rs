//! Settings of a host's firmware, read and staged by its management controller.
//!
//! [`redfish`] reads what a controller says, and stages settings for the next restart. It follows
//! the links of the answers, because makers differ in their paths. How bytes move is a
//! [`Controller`]: [`Curl`] has `curl` ask, which users have and which knows their certificates.

#![forbid(unsafe_code)]

mod controller;
mod curl;
mod error;
pub mod redfish;

pub use controller::{Answer, Controller};
pub use curl::{Curl, Login, LoginError, Place, PlaceError, Trust};
pub use error::FirmwareError;
