//! Tests of the faces: golden files, formats, hostile texts, the folder, and the report in a real
//! browser.

mod browser;
mod faces;
mod fixture;
mod folder;
mod formats;
mod golden;
mod import;
mod published;
mod reference;
mod v1;
