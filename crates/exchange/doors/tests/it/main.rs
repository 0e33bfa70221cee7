//! Tests of the door from outside.
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod clients;
mod copies;
mod documents;
mod market;
mod ouch;
mod scenarios;
