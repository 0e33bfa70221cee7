//! Tests of the door from outside.

mod documents;
mod scenarios;
