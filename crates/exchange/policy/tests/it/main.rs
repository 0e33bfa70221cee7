//! Policies on simulated networks.

mod balance;
mod hysteresis;
mod network;
mod original;
mod placement;
mod random_steps;
mod reasons;
mod reports;
mod resize;
