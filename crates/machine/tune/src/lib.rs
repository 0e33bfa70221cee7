//! Changes settings of the machine by steps that can be undone exactly.
//!
//! A [`step`] says what to change and why, a [`plan`] what that means on this machine. [`apply()`]
//! writes to the [`journal`] before it writes to the [`machine`], and [`undo()`] walks the journal
//! back: it restores what was there, and stops where somebody else has changed a setting since.

#![forbid(unsafe_code)]

pub mod apply;
pub mod catalogue;
pub mod emit;
pub mod journal;
pub mod machine;
pub mod plan;
pub mod record;
pub mod run;
pub mod step;
pub mod target;
pub mod undo;
pub mod value;

mod expand;
mod names;

pub use apply::apply;
pub use undo::undo;
