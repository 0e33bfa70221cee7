//! Judging and comparing whole results, made by hand.

mod compare;
mod judge;
mod make;
mod trend;
