//! Tests of the door from outside.
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod clients;
mod documents;
mod ouch;
mod scenarios;
