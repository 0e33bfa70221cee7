//! Hardware addresses (MAC) of network devices and their usual text, `52:54:00:6e:6d:01`.

/// Bytes of a hardware address.
pub type HardwareAddress = [u8; 6];

/// The usual text.
pub fn text(address: HardwareAddress) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// The address of a text; none if it has another form.
pub fn parse(text: &str) -> Option<HardwareAddress> {
    let is_byte = |part: &&str| part.len() == 2 && part.bytes().all(|c| c.is_ascii_hexdigit());
    let parts = text.split(':').filter(is_byte).map(|part| u8::from_str_radix(part, 16).ok());
    let bytes: Option<Vec<u8>> = parts.collect();
    bytes?.try_into().ok().filter(|_| text.len() == 17)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back_and_other_forms_are_refused() {
        let address = [0x52, 0x54, 0, 0x6e, 0x6d, 0xff];
        assert_eq!(text(address), "52:54:00:6e:6d:ff");
        assert_eq!(parse(&text(address)), Some(address));
        for wrong in ["", "52:54:00:6e:6d", "52:54:00:6e:6d:1", "+2:54:00:6e:6d:01", "5254006e6d01"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
