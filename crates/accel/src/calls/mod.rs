//! The functions of libc that are replaced, one family per file.

pub mod aio;
mod by_number;
mod control;
pub mod data;
pub mod descriptors;
pub mod epoll;
pub mod handover;
pub mod poll;
pub mod processes;
mod second_names;
pub mod select;
pub mod sendfile;
pub mod signals;
pub mod sockets;

/// Prepares everything that the functions need before the program's first call.
pub fn prepare() {
    aio::prepare();
    descriptors::prepare();
    handover::prepare();
    signals::prepare();
    sockets::prepare();
    processes::prepare();
}
