//! Tests of journal, apply and undo on machines that stop, round, reset and restart.

mod agrees;
mod conflicts;
mod faults;
mod folder;
mod links;
mod namespaces;
mod plans;
mod random;
mod simulated;
