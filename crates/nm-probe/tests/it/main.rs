//! Both ends of each probe over loopback: that figures come out, and that nothing hangs.

mod faults;
mod matrix;
mod pair;
mod quiet;
mod stalls;
mod streams;
