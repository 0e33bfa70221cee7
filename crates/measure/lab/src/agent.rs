//! Agents: the end that runs tasks ([`serve`], [`listen`]) and the controller's end ([`Handle`]),
//! over any byte stream.
//!
//! Every request has exactly one answer, except `alive`, which has none, and `cancel`. The request
//! that it cancels is answered as done or failed, and a `cancel` without a running request has no
//! answer. `attach` is answered by the greeting, whatever was asked before.

mod handle;
mod lines;
mod listen;
mod peer_filter;
mod port;
mod samples;
mod serve;
mod stream;
mod thread;

pub use handle::{Event, Handle};
pub use listen::{Notice, listen};
pub use port::serve_on_port;
pub use serve::{IDLE_MAX, serve};
pub(crate) use stream::{Stream, is_hung_up};
