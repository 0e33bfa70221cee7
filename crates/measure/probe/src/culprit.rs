//! Which thread, interrupt, timer, softirq or call of another CPU took the time of each gap.
//!
//! Where the kernel may be traced, [`trace`] reads its [`event`]s, [`contexts`] makes of them what
//! ran when, and [`blame`] compares that with the gaps. Elsewhere [`counted`] estimates it from
//! what the kernel counted. Both decisions are functions without I/O.

pub mod blame;
pub mod contexts;
pub mod counted;
pub mod event;
pub mod found;
pub mod names;
pub mod outside;
pub mod trace;
