//! How many strangers may be at the door: connections that have not shown the token yet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Most connections without a token at once.
pub const STRANGERS_MAX: usize = 64;

/// Most of them from one address, or from the first 64 bits of an IPv6 address.
pub const STRANGERS_PER_ADDRESS_MAX: usize = 8;

/// Time for the TLS handshake and the first line together.
pub const STRANGER_LIMIT: Duration = Duration::from_secs(10);

/// Counts strangers.
#[derive(Debug, Default)]
pub struct Gate {
    strangers: BTreeMap<IpAddr, usize>,
    n_all: usize,
}

impl Gate {
    /// Whether a connection from `address` may begin; it counts until [`Gate::done`].
    pub fn admit(&mut self, address: IpAddr) -> bool {
        let of_owner = self.strangers.get(&owner(address)).copied().unwrap_or(0);
        let may = self.n_all < STRANGERS_MAX && of_owner < STRANGERS_PER_ADDRESS_MAX;
        if may {
            self.n_all += 1;
            *self.strangers.entry(owner(address)).or_default() += 1;
        }
        may
    }

    /// A connection that was admitted has shown the token, or has ended.
    pub fn done(&mut self, address: IpAddr) {
        self.n_all = self.n_all.saturating_sub(1);
        if let Some(count) = self.strangers.get_mut(&owner(address)) {
            *count -= 1;
            if *count == 0 {
                self.strangers.remove(&owner(address));
            }
        }
    }
}

/// Who an address belongs to: a host has all of the last 64 bits of IPv6.
pub fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let bits = u128::from(address) >> 64 << 64;
            IpAddr::V6(bits.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_address_leaves_room_at_the_door_for_others() {
        let mut gate = Gate::default();
        let (one, other): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let n_in = (0..100).filter(|_| gate.admit(one)).count();
        assert_eq!(n_in, STRANGERS_PER_ADDRESS_MAX);
        assert!(gate.admit(other));
        let v6 = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(owner(v6("2001:db8::1")), owner(v6("2001:db8::2")));
        assert_ne!(owner(v6("2001:db8::1")), owner(v6("2001:db8:0:1::1")));
        assert_eq!(owner(v6("::ffff:192.0.2.1")), one);
        gate.done(one);
        assert!(gate.admit(one) && !gate.admit(one));
    }

    proptest! {
        #[test]
        fn the_door_never_holds_more_than_its_limits(
            steps in prop::collection::vec((any::<bool>(), 0_u8..20), 0..600),
        ) {
            let mut gate = Gate::default();
            let mut inside = [0_usize; 20];
            for (comes, host) in steps {
                let address: IpAddr = [10, 0, 0, host].into();
                let count = &mut inside[usize::from(host)];
                if comes {
                    *count += usize::from(gate.admit(address));
                } else if *count > 0 {
                    gate.done(address);
                    *count -= 1;
                }
                prop_assert!(*count <= STRANGERS_PER_ADDRESS_MAX);
                prop_assert!(inside.iter().sum::<usize>() <= STRANGERS_MAX);
            }
        }
    }
}
