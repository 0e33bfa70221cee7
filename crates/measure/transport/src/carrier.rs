//! The transports: which file carries which protocols. Another transport is one file in this
//! folder, its `mod`, and its line in the table below.

pub(crate) mod interface;
mod kernel;
mod memory;
#[cfg(feature = "test-stack")]
mod sample;
mod xdp_tcp;
mod xdp_udp;

use nm_model::stack::{Protocol, Stack};

use crate::connection_error::ConnectionError;
use crate::handshake::Admission;
use crate::sockets::Options;
use crate::transport::Visitor;
use interface::{Destination, End, Listen, Patience};

/// Makes one type of all listeners and one of all ends.
macro_rules! carriers {
    ($($name:ident: $file:ident $(if $feature:tt)? => $($protocol:ident)|+;)+) => {
        /// A listener of any transport.
        #[derive(Debug)]
        pub(crate) enum AnyListener {
            $($(#[cfg(feature = $feature)])? $name($file::Listener)),+
        }

        /// One end of a connection over any transport.
        #[derive(Debug)]
        pub(crate) enum AnyEnd {
            $($(#[cfg(feature = $feature)])? $name(<$file::Listener as Listen>::End)),+
        }

        impl AnyListener {
            pub fn bind(
                stack: Stack,
                address: &str,
                options: &Options,
            ) -> Result<AnyListener, ConnectionError> {
                match stack.protocol {
                    $($(#[cfg(feature = $feature)])? $(Protocol::$protocol)|+ => {
                        $file::Listener::bind(stack, address, options).map(AnyListener::$name)
                    })+
                    protocol @ Protocol::Cpu => Err(ConnectionError::NoTransport { protocol }),
                }
            }

            pub fn address(&self) -> String {
                match self {
                    $($(#[cfg(feature = $feature)])? AnyListener::$name(one) => one.address()),+
                }
            }

            pub fn accept(
                &self,
                stack: Stack,
                admission: &Admission,
                patience: &Patience<'_>,
            ) -> Result<(AnyEnd, String), ConnectionError> {
                match self {
                    $($(#[cfg(feature = $feature)])? AnyListener::$name(one) => {
                        let (end, peer) = one.accept(stack, admission, patience)?;
                        Ok((AnyEnd::$name(end), peer))
                    }),+
                }
            }
        }

        impl AnyEnd {
            pub fn connect(to: &Destination<'_>) -> Result<(AnyEnd, String), ConnectionError> {
                match to.stack.protocol {
                    $($(#[cfg(feature = $feature)])? $(Protocol::$protocol)|+ => {
                        let (end, peer) = $file::Listener::connect(to)?;
                        Ok((AnyEnd::$name(end), peer))
                    })+
                    protocol @ Protocol::Cpu => Err(ConnectionError::NoTransport { protocol }),
                }
            }

            pub fn handshake(
                self,
                peer: &str,
                patience: &Patience<'_>,
            ) -> Result<AnyEnd, ConnectionError> {
                match self {
                    $($(#[cfg(feature = $feature)])? AnyEnd::$name(end) => {
                        end.handshake(peer, patience).map(AnyEnd::$name)
                    }),+
                }
            }

            pub fn datagram_bytes_max(&self) -> Option<u32> {
                match self {
                    $($(#[cfg(feature = $feature)])? AnyEnd::$name(end) => {
                        end.datagram_bytes_max()
                    }),+
                }
            }

            pub fn with<V: Visitor>(
                self,
                stack: Stack,
                visitor: V,
            ) -> Result<V::Output, ConnectionError> {
                match self {
                    $($(#[cfg(feature = $feature)])? AnyEnd::$name(end) => {
                        end.with(stack, visitor)
                    }),+
                }
            }
        }
    };
}

carriers! {
    Kernel: kernel => Tcp | Udp | Multicast | Unix;
    Memory: memory => Shm;
    XdpUdp: xdp_udp => Xdp;
    XdpTcp: xdp_tcp => XdpTcp;
    Sample: sample if "test-stack" => Sample;
}

/// Two ends in this process, connected by Unix stream sockets.
pub(crate) fn unix_pair(stack: Stack) -> Result<[(AnyEnd, String); 2], ConnectionError> {
    let ends = kernel::unix_pair(stack)?;
    Ok(ends.map(|end| (AnyEnd::Kernel(end), "unix pair".to_string())))
}
