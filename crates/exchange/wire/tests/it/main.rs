//! Tests of the messages: all of them by their table.
mod demonstration;
mod document;
mod frame;
mod messages;
