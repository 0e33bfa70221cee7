//! Judging and comparing whole results, made by hand.

mod compare;
mod factors;
mod gate;
mod guests;
mod judge;
mod make;
mod trend;
mod undecided;
