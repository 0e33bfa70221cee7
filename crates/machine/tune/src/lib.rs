//! Changes settings of the machine by steps that can be undone exactly.
//!
//! A step applies one entry of the catalogue (`nm-settings`), which says what to change and why. A
//! [`plan`] says what that means on this machine. [`apply()`] writes to the [`journal`] before it
//! writes to the [`machine`]. [`undo()`] walks the journal back: it restores what was there, and
//! stops where somebody else has changed a setting since.

#![forbid(unsafe_code)]

pub mod apply;
pub mod emit;
pub mod journal;
pub mod machine;
pub mod plan;
pub mod record;
pub mod run;
pub mod undo;

mod expand;

pub use apply::apply;
pub use undo::undo;
