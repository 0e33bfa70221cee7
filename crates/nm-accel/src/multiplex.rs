//! Stand-in until the new readiness code lands.
use crate::socket::Socket;
use std::ffi::c_int;
pub fn socket_registered(_fd: c_int, _socket: &'static Socket) {}
pub fn descriptor_closed(_fd: c_int) {}
pub fn descriptor_copied(_old: c_int, _new: c_int) {}
pub fn before_fork() {}
pub fn after_fork_in_parent() {}
pub fn forked_child() {}
