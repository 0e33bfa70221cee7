//! Configurations of OpenStack and libvirt for one latency-critical guest, and files for the
//! engines that run many hosts. A guest's configuration follows from the layout of its host.
//!
//! [`read`] reads a [`HostLayout`] below a root, perhaps of a recorded tree. [`place`] decides for
//! a [`Request`] which vCPU runs where, or says why the host cannot satisfy it. [`openstack`] and
//! [`libvirt`] write a [`Placement`] down; equal input gives equal bytes. Nothing is changed on the
//! host.
//!
//! [`engine`] writes files for what runs nearmetal on many hosts or at many times.

#![forbid(unsafe_code)]

pub mod engine;
mod layout;
pub mod libvirt;
pub mod libvirt_pair;
pub mod openstack;
mod pair;
mod place;
pub mod qemu_pair;
mod read;
mod request;
mod xml;

pub use layout::{Core, HostLayout, HugePages, Nic, NicFunction, PciAddress};
pub use pair::{PairError, PairNetwork, PairPlacement, PairRequest, place_pair};
pub use place::{PlaceError, Placement, place};
pub use read::read;
pub use request::{PageSize, Request, RequestError, parse_memory};
