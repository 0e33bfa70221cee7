//! Addresses of PCI devices.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Address of a PCI device, `0000:3b:00.1`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct PciAddress {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Slot, at most 31.
    pub slot: u8,
    /// Function, at most 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, slot, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{slot:02x}.{function}")
    }
}

/// A text that is no PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI address such as 0000:3b:00.1")]
pub struct NotAnAddress;

impl FromStr for PciAddress {
    type Err = NotAnAddress;

    /// Reads `0000:3b:00.1`, or `3b:00.1` of domain 0.
    fn from_str(text: &str) -> Result<PciAddress, NotAnAddress> {
        let (rest, function) = text.rsplit_once('.').ok_or(NotAnAddress)?;
        let (rest, slot) = rest.rsplit_once(':').ok_or(NotAnAddress)?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let hex = |text: &str, digits: usize, max: u32| {
            let is_hex = !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
            let value = u32::from_str_radix(text, 16).ok();
            value.filter(|value| is_hex && text.len() <= digits && *value <= max)
        };
        let byte = |text, max| hex(text, 2, max).and_then(|value| u8::try_from(value).ok());
        Ok(PciAddress {
            domain: hex(domain, 8, u32::MAX).ok_or(NotAnAddress)?,
            bus: byte(bus, 0xff).ok_or(NotAnAddress)?,
            slot: byte(slot, 31).ok_or(NotAnAddress)?,
            function: byte(function, 7).ok_or(NotAnAddress)?,
        })
    }
}

impl TryFrom<String> for PciAddress {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<PciAddress, NotAnAddress> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_read_with_and_without_domain() {
        let address: PciAddress = "3b:00.1".parse().unwrap();
        assert_eq!(address.to_string(), "0000:3b:00.1");
        for text in ["", "eth0", "0000:3b:20.0", "0000:3b:00.8", "3b:00", "+1:00.0", "0:1:2:3.4"] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_read_as_it_is_written(
            domain in 0u32..0x1_0000, bus: u8, slot in 0u8..32, function in 0u8..8,
        ) {
            let address = PciAddress { domain, bus, slot, function };
            prop_assert_eq!(address.to_string().parse::<PciAddress>(), Ok(address));
        }

        #[test]
        fn any_text_is_read_without_a_panic(text in "[0-9a-f:.+]{0,16}") {
            let _ = text.parse::<PciAddress>();
        }
    }
}
