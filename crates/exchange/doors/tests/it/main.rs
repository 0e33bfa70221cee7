//! Tests of the door from outside.

mod clients;
mod documents;
mod ouch;
mod scenarios;
