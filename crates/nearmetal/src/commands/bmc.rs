//! A management controller that the options name.

use std::path::Path;

use anyhow::Result;
use nm_firmware::redfish::{self, Host};
use nm_firmware::{Curl, FirmwareError, Login, Place, Trust};

use crate::cli::firmware::BmcAccessArgs;
use crate::exit::{Exit, Stop};

/// The SMBIOS identifier of this machine, which only root can read.
const UUID: &str = "/sys/class/dmi/id/product_uuid";

/// A controller, and the host that is meant.
pub struct Bmc {
    controller: Curl,
    system: Option<String>,
}

impl Bmc {
    /// The controller `host`. Nothing is asked yet.
    pub fn new(host: &str, access: &BmcAccessArgs) -> Result<Bmc> {
        let place: Place = host.parse().map_err(|error| Stop::usage(format!("--bmc: {error}")))?;
        let login = access.bmc_login.as_deref().map(login).transpose()?;
        let trust = match (&access.bmc_ca, &access.bmc_pin) {
            (Some(file), _) => Trust::Authority(authority(file)?),
            (None, Some(sum)) => Trust::Key(key(sum)?),
            (None, None) => Trust::Machine,
        };
        Ok(Bmc { controller: Curl::new(place, login, trust), system: access.bmc_system.clone() })
    }

    /// What the controller says of its host.
    pub fn read(&mut self) -> Result<Host> {
        let mut host = redfish::read(&mut self.controller, self.system.as_deref())
            .map_err(|error| stop(&error))?;
        let here = std::fs::read_to_string(UUID).ok();
        host.firmware.is_this_machine =
            host.uuid.as_deref().zip(here.as_deref()).map(|(told, here)| is_same(told, here));
        Ok(host)
    }

    /// Has settings changed at the next restart.
    pub fn stage(&mut self, host: &Host, changes: &[redfish::Change]) -> Result<(), FirmwareError> {
        host.stage(&mut self.controller, changes)
    }
}

/// A failure with its exit code: what the user gave was wrong, or the controller does not do it.
pub fn stop(error: &FirmwareError) -> anyhow::Error {
    let exit = match error {
        FirmwareError::Login { .. }
        | FirmwareError::Certificate { .. }
        | FirmwareError::SeveralSystems(_)
        | FirmwareError::NoSystem { .. }
        | FirmwareError::NoAttribute { .. }
        | FirmwareError::Kind { .. } => Exit::Usage,
        FirmwareError::Changed => Exit::Conflict,
        _ => Exit::Environment,
    };
    Stop::with(exit, error.to_string())
}

/// Reads a login that nobody else can read.
fn login(path: &Path) -> Result<Login> {
    let refused = |what: String| Stop::usage(format!("--bmc-login: {what}"));
    let text = nm_auth::read_private(path).map_err(|error| refused(error.to_string()))?;
    text.parse().map_err(|error| refused(format!("{}: {error}", path.display())))
}

fn authority(path: &Path) -> Result<String> {
    let refused = || Stop::usage(format!("--bmc-ca {}: there is no such file", path.display()));
    let whole = path.canonicalize().map_err(|_| refused())?;
    whole.to_str().filter(|_| whole.is_file()).map(str::to_string).ok_or_else(refused)
}

/// A SHA-256 sum in base64 has 43 signs and one `=`.
fn key(text: &str) -> Result<String> {
    let sum = text.strip_prefix("sha256//").unwrap_or(text);
    let is_sign = |c: char| c.is_ascii_alphanumeric() || "+/".contains(c);
    match sum.strip_suffix('=') {
        Some(signs) if signs.len() == 43 && signs.chars().all(is_sign) => Ok(sum.to_string()),
        _ => Err(Stop::usage(format!("--bmc-pin: `{text}` is no SHA-256 sum in base64"))),
    }
}

/// Whether two identifiers are the same: makers write the first three parts in either order of
/// bytes.
fn is_same(told: &str, here: &str) -> bool {
    let digits = |text: &str| -> String {
        text.chars().filter(char::is_ascii_hexdigit).map(|c| c.to_ascii_lowercase()).collect()
    };
    let (told, here) = (digits(told), digits(here));
    let swapped = |text: &str| -> Option<String> {
        let bytes: Vec<&str> =
            (0..16).map(|n| text.get(2 * n..2 * n + 2)).collect::<Option<_>>()?;
        let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        Some(order.map(|n: usize| bytes[n]).concat())
    };
    told.len() == 32 && (told == here || swapped(&told).as_deref() == Some(&here))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_known_in_either_order_of_its_bytes() {
        let here = "00112233-4455-6677-8899-aabbccddeeff\n";
        assert!(is_same("00112233-4455-6677-8899-AABBCCDDEEFF", here));
        assert!(is_same("33221100-5544-7766-8899-AABBCCDDEEFF", here));
        assert!(!is_same("00112233-4455-6677-8899-AABBCCDDEE00", here));
        assert!(!is_same("", "") && !is_same("00", "00"));
    }

    #[test]
    fn a_key_is_a_sum_in_base64() {
        let sum = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        assert_eq!(key(sum).unwrap(), sum);
        assert_eq!(key(&format!("sha256//{sum}")).unwrap(), sum);
        for other in ["", "abc=", &sum[1..], &sum.replace('+', "\"")] {
            assert!(key(other).is_err(), "{other}");
        }
    }
}
