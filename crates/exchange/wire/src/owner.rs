//! Who a connection and its sessions belong to: what quotas are for.
//!
//! The number is 0 for nobody, and otherwise has the kind in its upper 16 bits. An IPv6 address
//! counts by its first 64 bits, the network that one subscriber has. These are the whole number: no
//! such network begins with the kinds.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use nm_book::order::UserId;
use nm_codec::{DecodeError, Random, Reader};
use thiserror::Error;

use crate::place::Plain;
use crate::types::Types;
use crate::value::Value;

/// Where the kind begins.
const KIND_BITS: u32 = 48;

const SESSION: u64 = 1;
const IPV4: u64 = 2;
const USER: u64 = 3;
const FIRM: u64 = 4;

/// Who a connection, a session, an instrument or an order belongs to: the firm of the session,
/// where the network has firms. Otherwise, where it has a secret, whoever has the key of a session.
/// Or else the address that a connection comes from: an IPv4 address, the first 64 bits of an IPv6
/// address, or the user of a process of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Owner(u64);

impl Owner {
    /// Nobody: no quota applies.
    pub const NOBODY: Owner = Owner(0);

    /// Whoever has the key of this session.
    pub const fn of_session(session: UserId) -> Owner {
        Owner(SESSION << KIND_BITS | session as u64)
    }

    /// Whoever is at this address.
    pub fn of_address(address: IpAddr) -> Owner {
        let v4 = |bits: u32| Owner(IPV4 << KIND_BITS | u64::from(bits));
        match address.to_canonical() {
            IpAddr::V4(address) => v4(address.to_bits()),
            IpAddr::V6(Ipv6Addr::LOCALHOST) => v4(Ipv4Addr::LOCALHOST.to_bits()),
            IpAddr::V6(address) => match (address.to_bits() >> 64) as u64 {
                // Addresses with an IPv4 address in them.
                prefix if prefix >> KIND_BITS <= FIRM => v4(address.to_bits() as u32),
                prefix => Owner(prefix),
            },
        }
    }

    /// The user of a process on this machine, by the number.
    pub const fn of_user(uid: u32) -> Owner {
        Owner(USER << KIND_BITS | uid as u64)
    }

    /// A firm of the network's file, by the number.
    pub const fn of_firm(number: u32) -> Owner {
        Owner(FIRM << KIND_BITS | number as u64)
    }

    /// Whether it is somebody.
    pub fn is_somebody(self) -> bool {
        self != Owner::NOBODY
    }
}

/// As a command takes it: `session:17`, `address:10.0.0.7`, `address:2001:db8::/64`, `user:1000`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = self.0 as u32;
        match self.0 >> KIND_BITS {
            0 => f.write_str("nobody"),
            SESSION => write!(f, "session:{low}"),
            IPV4 => write!(f, "address:{}", Ipv4Addr::from_bits(low)),
            USER => write!(f, "user:{low}"),
            FIRM => write!(f, "firm:{low}"),
            _ => write!(f, "address:{}/64", Ipv6Addr::from_bits(u128::from(self.0) << 64)),
        }
    }
}

/// A text that names no owner.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{0}` names no owner: write session:NUMBER, address:ADDRESS, user:NUMBER or firm:NUMBER, \
     such as address:10.0.0.7"
)]
pub struct UnknownOwner(String);

impl FromStr for Owner {
    type Err = UnknownOwner;

    fn from_str(text: &str) -> Result<Owner, UnknownOwner> {
        let parse = || {
            let (kind, rest) = text.split_once(':')?;
            Some(match kind {
                "session" => Owner::of_session(rest.parse().ok()?),
                "user" => Owner::of_user(rest.parse().ok()?),
                "firm" => Owner::of_firm(rest.parse().ok()?),
                "address" => {
                    Owner::of_address(rest.strip_suffix("/64").unwrap_or(rest).parse().ok()?)
                }
                _ => return None,
            })
        };
        parse().ok_or_else(|| UnknownOwner(text.to_string()))
    }
}

impl<'a> Value<'a> for Owner {
    const SIZE: Option<usize> = u64::SIZE;

    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }

    fn take(field: &'static str, reader: &mut Reader<'a>) -> Result<Owner, DecodeError> {
        u64::take(field, reader).map(Owner)
    }

    fn describe(types: &mut Types) -> String {
        u64::describe(types)
    }

    fn example(random: &mut Random, out: &mut Vec<u8>) {
        u64::example(random, out);
    }
}

impl Plain for Owner {
    fn load(bytes: &[u8]) -> Owner {
        Owner(u64::load(bytes))
    }

    fn store(self, bytes: &mut [u8]) {
        self.0.store(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(address: &str) -> Owner {
        Owner::of_address(address.parse().unwrap())
    }

    #[test]
    fn hosts_of_one_network_of_ipv6_are_one_owner() {
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:7"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("2001:db8::1").to_string(), "address:2001:db8::/64");
        assert_eq!((of("::ffff:10.0.0.7"), of("::1")), (of("10.0.0.7"), of("127.0.0.1")));
    }

    #[test]
    fn owners_of_each_kind_differ() {
        let (user, firm) = (Owner::of_user(7), Owner::of_firm(7));
        let all = [Owner::NOBODY, Owner::of_session(7), user, firm, of("0.0.0.7")];
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != one), "{one}");
        }
        for wrong in ["", "7", "session:", "session:-1", "address:x", "shop:7", "nobody"] {
            assert!(wrong.parse::<Owner>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn an_owner_is_read_back_from_its_text(bits: u128, number: u32) {
            let (v4, v6) = (Ipv4Addr::from_bits(number).into(), Ipv6Addr::from_bits(bits).into());
            let addresses = [v4, v6].map(Owner::of_address);
            let of_number = [Owner::of_session, Owner::of_user, Owner::of_firm];
            let others = of_number.map(|of| of(number));
            for owner in others.iter().chain(&addresses) {
                prop_assert_eq!(owner.to_string().parse(), Ok(*owner));
            }
        }
    }
}
