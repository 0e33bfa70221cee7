//! Facts of the machine.
