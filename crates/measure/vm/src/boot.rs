//! Settings that a guest gets at its start: words of the kernel's command line, `nm.side=client`
//! and so on, which the kernel itself ignores.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use nm_model::Side;
use nm_sys::hardware_address;

/// Name of the virtual serial port on which the guest's agent serves its controller.
pub const CONTROL_PORT: &str = "nm.ctl";

/// Has the kernel not test its timer: on a busy host an emulated processor fails the test, and the
/// kernel does not start.
pub const NO_TIMER_CHECK: &str = "no_timer_check";

/// An address with the length of its network's prefix, as in `10.77.0.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub prefix_bits: u8,
}

/// Why words are not the settings of a guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    /// A word has no such value.
    #[error("`{word}` on the kernel's command line: {wanted}")]
    Word {
        /// The word.
        word: String,
        /// What the value must be.
        wanted: &'static str,
    },
    /// The side is not given.
    #[error("the kernel's command line has no `nm.side=`")]
    NoSide,
}

/// Least and most MTU of a link: RFC 791, and the largest that Linux accepts of a virtual NIC.
const MTU: std::ops::RangeInclusive<u32> = 68..=65_535;

/// Most addresses of a guest's link.
const ADDRESSES_MAX: usize = 8;

/// The settings of one guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootSettings {
    /// Which end it is.
    pub side: Side,
    /// Addresses of its link to the other guest; without one, no link is set up.
    pub addresses: Vec<Cidr>,
    /// Hardware address of that link; absent if the guest has one only.
    pub mac: Option<[u8; 6]>,
    /// MTU of that link; absent for the one that it has.
    pub mtu: Option<u32>,
}

impl BootSettings {
    /// The settings of an end without a link.
    pub fn new(side: Side) -> BootSettings {
        BootSettings { side, addresses: vec![], mac: None, mtu: None }
    }

    /// As words of the kernel's command line, with [`NO_TIMER_CHECK`]. [`BootSettings::from_str`]
    /// reads them.
    pub fn words(&self) -> Vec<String> {
        let list = self.addresses.iter().map(Cidr::to_string).collect::<Vec<_>>().join(",");
        let addresses = (!list.is_empty()).then(|| format!("nm.addresses={list}"));
        let mac = self.mac.map(|mac| format!("nm.mac={}", hardware_address::text(mac)));
        let mtu = self.mtu.map(|mtu| format!("nm.mtu={mtu}"));
        let side = format!("nm.side={}", self.side);
        let check = NO_TIMER_CHECK.to_string();
        [Some(check), Some(side), addresses, mac, mtu].into_iter().flatten().collect()
    }
}

impl FromStr for BootSettings {
    type Err = BootError;

    /// Reads a whole command line; words that do not begin with `nm.` are the kernel's own.
    fn from_str(line: &str) -> Result<BootSettings, BootError> {
        let mut side = None;
        let mut settings = BootSettings::new(Side::Client);
        for word in line.split_ascii_whitespace() {
            let Some((name, value)) = word.strip_prefix("nm.").and_then(|it| it.split_once('='))
            else {
                continue;
            };
            let wrong = |wanted| BootError::Word { word: word.to_string(), wanted };
            match name {
                "side" => {
                    side = Some(value.parse().map_err(|_| wrong("a side is client or server"))?);
                }
                "addresses" => {
                    settings.addresses = addresses(value)
                        .ok_or(wrong("up to 8 addresses, such as 10.77.0.1/24,fd77::1/64"))?;
                }
                "mac" => {
                    let mac = hardware_address::parse(value)
                        .ok_or(wrong("a MAC is six bytes, as 52:54:00:6e:6d:01"))?;
                    settings.mac = Some(mac);
                }
                "mtu" => {
                    let mtu = value.parse().ok().filter(|mtu| MTU.contains(mtu));
                    settings.mtu = Some(mtu.ok_or(wrong("an MTU is 68 to 65535 bytes"))?);
                }
                _ => return Err(wrong("there is no such setting of a guest")),
            }
        }
        Ok(BootSettings { side: side.ok_or(BootError::NoSide)?, ..settings })
    }
}

fn addresses(text: &str) -> Option<Vec<Cidr>> {
    let addresses: Option<Vec<Cidr>> = text.split(',').map(|one| one.parse().ok()).collect();
    addresses.filter(|addresses| addresses.len() <= ADDRESSES_MAX)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let wrong = || CidrError(text.to_string());
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = prefix.parse().ok().filter(|bits| (1..=bits_max).contains(bits));
        Ok(Cidr { address, prefix_bits: prefix_bits.ok_or_else(wrong)? })
    }
}

/// A text is not an address with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an address with a prefix, such as 10.77.0.1/24")]
pub struct CidrError(String);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_have_the_documented_form_and_the_kernels_own_are_ignored() {
        let settings = BootSettings {
            side: Side::Server,
            addresses: vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()],
            mac: Some([0x52, 0x54, 0, 0x6e, 0x6d, 2]),
            mtu: Some(9000),
        };
        let words = settings.words().join(" ");
        assert_eq!(
            words,
            "no_timer_check nm.side=server nm.addresses=10.77.0.2/24,fd77::2/64 \
             nm.mac=52:54:00:6e:6d:02 nm.mtu=9000"
        );
        let line = format!("BOOT_IMAGE=x console=ttyS0 quiet panic=-1 {words} nm\n");
        assert_eq!(line.parse(), Ok(settings));
    }

    #[test]
    fn wrong_words_are_named_with_what_they_must_be() {
        for (line, message) in [
            ("quiet", "has no `nm.side=`"),
            ("nm.side=middle", "`nm.side=middle` on the kernel's command line: a side is"),
            ("nm.side=client nm.addresses=10.0.0.1", "up to 8 addresses"),
            ("nm.side=client nm.addresses=10.0.0.1/33", "up to 8 addresses"),
            ("nm.side=client nm.addresses=fd77::1/0", "up to 8 addresses"),
            ("nm.side=client nm.mac=52:54:00:6e:6d", "six bytes"),
            ("nm.side=client nm.mac=+2:54:00:6e:6d:01", "six bytes"),
            ("nm.side=client nm.mtu=67", "68 to 65535"),
            ("nm.side=client nm.mtu=65536", "68 to 65535"),
            ("nm.side=client nm.disk=1", "no such setting"),
        ] {
            let error = line.parse::<BootSettings>().unwrap_err().to_string();
            assert!(error.contains(message), "{line}: {error}");
        }
        let many = ["10.0.0.1/8"; ADDRESSES_MAX + 1].join(",");
        assert!(format!("nm.side=client nm.addresses={many}").parse::<BootSettings>().is_err());
    }

    fn any_cidr() -> impl Strategy<Value = Cidr> {
        let v4 = (any::<[u8; 4]>(), 1u8..=32).prop_map(|(address, bits)| (address.into(), bits));
        let v6 = (any::<[u8; 16]>(), 1u8..=128).prop_map(|(address, bits)| (address.into(), bits));
        prop_oneof![v4, v6].prop_map(|(address, prefix_bits)| Cidr { address, prefix_bits })
    }

    proptest! {
        #[test]
        fn settings_are_read_back(
            is_client in any::<bool>(),
            addresses in prop::collection::vec(any_cidr(), 0..=ADDRESSES_MAX),
            mac in any::<Option<[u8; 6]>>(),
            mtu in prop::option::of(MTU),
        ) {
            let side = if is_client { Side::Client } else { Side::Server };
            let settings = BootSettings { side, addresses, mac, mtu };
            let words = settings.words();
            prop_assert!(words.iter().all(|word| !word.contains(char::is_whitespace)));
            prop_assert_eq!(words.join(" ").parse(), Ok(settings));
        }

        #[test]
        fn arbitrary_lines_never_panic(line in "(nm\\.(side|mac|mtu|addresses)=)?\\PC{0,40}") {
            let _ = line.parse::<BootSettings>();
        }
    }
}
