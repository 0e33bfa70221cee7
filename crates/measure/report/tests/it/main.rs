//! Tests of the reports: golden files, formats, hostile texts, the folder, and the report in a real
//! browser.

mod baseline;
mod browser;
mod card;
mod factors;
mod figures;
mod first_screen;
mod fixture;
mod folder;
mod formats;
mod golden;
mod guests;
mod import;
mod pictures;
mod published;
mod reference;
mod reports;
mod sentences;
mod trend;
mod trial_log;
mod v1;

#[global_allocator]
static ALLOCATOR: nm_test_support::CountingAllocator = nm_test_support::CountingAllocator;
