//! End-to-end tests: each runs the built binary as a user would.

mod accel;
mod audit;
mod command_line;
mod compare;
mod compute;
mod concurrent;
mod exchange;
mod exchange_faults;
mod exchange_net;
mod exchange_proof;
mod exchange_transports;
mod factors;
mod faults;
mod generate;
mod guides;
mod jitter;
mod machine;
mod offline;
mod programs;
mod qualify;
mod stall;
mod standalone;
mod support;
mod targets;
mod terminal;
mod tune;
