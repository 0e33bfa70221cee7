//! A socket as the registrations of epoll sets refer to it.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::wait_socket::WaitSocket;
use crate::socket::Socket;
use crate::table;

/// A socket, and the generation that it had when it was registered.
#[derive(Clone, Copy)]
pub struct SocketRef {
    /// The socket; its memory is reused, never freed.
    pub socket: &'static Socket,
    /// Detects that the object was reused for another socket.
    generation: u32,
}

impl SocketRef {
    /// The socket as it is now.
    pub fn new(socket: &'static Socket) -> SocketRef {
        SocketRef { socket, generation: socket.generation() }
    }

    /// Whether it is still the socket that was registered.
    #[inline]
    fn is_current(&self) -> bool {
        self.socket.generation() == self.generation
    }
}

impl PartialEq for SocketRef {
    fn eq(&self, other: &SocketRef) -> bool {
        std::ptr::eq(self.socket, other.socket) && self.generation == other.generation
    }
}

impl WaitSocket for SocketRef {
    fn is_open_without(&self, fd: c_int) -> bool {
        let is_bound = table::get(fd).is_some_and(|socket| std::ptr::eq(socket, self.socket));
        let count = self.socket.descriptors.load(Ordering::SeqCst);
        self.is_current() && count > u32::from(is_bound)
    }

    fn is_held_elsewhere(&self) -> bool {
        self.is_current() && self.socket.record().holders.load(Ordering::Acquire) > 0
    }

    #[inline]
    fn is_joined(&self) -> bool {
        self.is_current() && self.socket.is_joined()
    }

    #[inline]
    fn has_memory_bytes(&self) -> bool {
        self.is_joined() && self.socket.has_memory_bytes()
    }

    #[inline]
    fn memory_arrivals(&self) -> u64 {
        if self.is_joined() { self.socket.memory_arrivals() } else { 0 }
    }

    #[inline]
    fn has_kernel_bytes(&self) -> bool {
        self.is_joined() && self.socket.kernel_has_bytes_for_us()
    }

    fn is_writable(&self, fd: c_int) -> bool {
        self.is_joined() && self.socket.is_writable(fd)
    }

    /// Before it has joined, its calls ask the kernel anyway, and so does the first one after.
    #[inline]
    fn note_kernel_event(&self) {
        if self.is_joined() {
            self.socket.note_kernel_event();
        }
    }

    fn rely_on_kernel(&self) {
        if self.is_current() {
            self.socket.rely_on_kernel();
        }
    }

    fn end_reliance(&self) {
        if self.is_current() {
            self.socket.end_reliance();
        }
    }
}
