//! The catalogue of settings: each is declared once, and everything else reads its entry.
//!
//! An entry of the [`catalogue`] says where the setting is, what it should be, and why. It also
//! says who says so, what it costs and how it is undone. `audit` judges it, `tune` applies it,
//! `tune emit` writes it for other tools, and `lab plan` advises it. A [`target`] is one place of a
//! setting on a machine, and [`wanted`] decides what the value there should become. Settings that
//! only the firmware has are in [`firmware`].

#![forbid(unsafe_code)]

pub mod catalogue;
pub mod firmware;
pub mod setting;
pub mod source;
pub mod target;
pub mod value;
pub mod wanted;

mod fix;
mod goal;
mod names;

pub use catalogue::setting;
pub use names::RunId;
pub use setting::{Setting, SettingId};
