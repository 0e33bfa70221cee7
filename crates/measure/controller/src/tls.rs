//! TLS 1.3 between agents and controller: a key that is pinned, or a certificate of an authority.
//!
//! A pinned key is sent as it is (RFC 7250), so it needs no certificate and never expires. The
//! primitives are Graviola's: it needs no C toolchain.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, PeerMisbehaved, RootCertStore,
    ServerConfig, SignatureScheme,
};
use sha2::{Digest, Sha256};
use thiserror::Error as ThisError;

/// Largest file with a key or certificates, bytes.
pub const PEM_BYTES_MAX: u64 = 1 << 20;

/// What a private key of Ed25519 is in PKCS #8, before its 32 bytes.
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Why TLS cannot be used.
#[derive(Debug, ThisError)]
pub enum TlsError {
    /// The processor is too old.
    #[error(
        "this processor cannot encrypt: agents that connect out need AES, AVX2, ADX, BMI and \
         PCLMULQDQ, or AES, SHA-2 and PMULL on ARM; reach this host by ssh"
    )]
    Processor,
    /// No private key.
    #[error("it holds no private key that can be used: {0}; remove it, and a new one is made")]
    Key(String),
    /// No certificates.
    #[error("it holds no certificate in PEM that can be used: {0}")]
    Certificate(String),
    /// Of the library.
    #[error(transparent)]
    Tls(#[from] Error),
}

/// The SHA-256 of a controller's public key, as `SubjectPublicKeyInfo` in DER.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pin([u8; 32]);

impl Pin {
    fn of(key: &[u8]) -> Pin {
        Pin(Sha256::digest(key).into())
    }
}

/// In hexadecimal digits.
impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({self})")
    }
}

/// Why a text is no pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ThisError)]
#[error("a pin has 64 hexadecimal digits, as the controller prints it")]
pub struct PinError;

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Pin, PinError> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(PinError);
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| PinError)?;
        }
        Ok(Pin(bytes))
    }
}

/// How an agent knows its controller.
#[derive(Debug, Clone)]
pub enum Trust {
    /// By its key.
    Pin(Pin),
    /// By a certificate of one of these authorities, in PEM, for the name that it connects to.
    Authorities(String),
}

/// The text of the file of a new key, of 32 bytes that nobody else knows.
pub fn new_key(secret: [u8; 32]) -> String {
    let der = STANDARD.encode([&PKCS8_ED25519[..], &secret].concat());
    format!("-----BEGIN PRIVATE KEY-----\n{der}\n-----END PRIVATE KEY-----\n")
}

fn provider() -> Result<Arc<CryptoProvider>, TlsError> {
    match graviola::util::is_cpu_supported() {
        true => Ok(Arc::new(rustls_graviola::default_provider())),
        false => Err(TlsError::Processor),
    }
}

/// What a controller answers with, and its pin if it has no certificate.
///
/// # Errors
/// If the key or the certificate cannot be used.
pub fn server(
    key: &str,
    certificate: Option<&str>,
) -> Result<(ServerConfig, Option<Pin>), TlsError> {
    let provider = provider()?;
    let unusable = |error: &dyn fmt::Display| TlsError::Key(error.to_string());
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| unusable(&error))?;
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth();
    let (mut config, pin) = match certificate {
        Some(text) => {
            let chain = certificates(text)?;
            let config = config
                .with_single_cert(chain, key)
                .map_err(|error| TlsError::Certificate(error.to_string()))?;
            (config, None)
        }
        None => {
            let key = provider.key_provider.load_private_key(key).map_err(|it| unusable(&it))?;
            let public = key.public_key().ok_or_else(|| unusable(&"it has no public half"))?;
            let pin = Pin::of(&public);
            let sent = CertificateDer::from(public.to_vec());
            let known = Arc::new(CertifiedKey::new(vec![sent], key));
            let resolver = AlwaysResolvesServerRawPublicKeys::new(known);
            (config.with_cert_resolver(Arc::new(resolver)), Some(pin))
        }
    };
    // Each connection is a new session of TLS.
    config.send_tls13_tickets = 0;
    Ok((config, pin))
}

/// What an agent expects.
///
/// # Errors
/// If the authorities cannot be used.
pub fn client(trust: &Trust) -> Result<ClientConfig, TlsError> {
    let provider = provider()?;
    let algorithms = provider.signature_verification_algorithms;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    Ok(match trust {
        Trust::Pin(pin) => {
            let verifier = PinVerifier { pin: *pin, algorithms };
            let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
            config.with_no_client_auth()
        }
        Trust::Authorities(text) => {
            let mut roots = RootCertStore::empty();
            for one in certificates(text)? {
                roots.add(one).map_err(|error| TlsError::Certificate(error.to_string()))?;
            }
            config.with_root_certificates(roots).with_no_client_auth()
        }
    })
}

fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match all {
        Ok(all) if all.is_empty() => Err(TlsError::Certificate("there is none".into())),
        Ok(all) => Ok(all),
        Err(error) => Err(TlsError::Certificate(error.to_string())),
    }
}

/// Whether an error says that the controller is not the one that is trusted.
pub fn is_distrust(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(_)
            | Error::PeerIncompatible(_)
            | Error::AlertReceived(rustls::AlertDescription::HandshakeFailure)
            | Error::AlertReceived(rustls::AlertDescription::UnsupportedCertificate)
    )
}

/// Accepts one key.
#[derive(Debug)]
struct PinVerifier {
    pin: Pin,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match Pin::of(end_entity) == self.pin {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_has_a_pin_and_another_one_has_another() {
        let pin = |secret| server(&new_key(secret), None).unwrap().1.unwrap();
        assert_eq!(pin([7; 32]), pin([7; 32]));
        assert_ne!(pin([7; 32]), pin([8; 32]));
        assert_eq!(pin([7; 32]).to_string().parse(), Ok(pin([7; 32])));
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32), &format!("+{}", "0".repeat(63))] {
            assert!(bad.parse::<Pin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn files_that_hold_nothing_of_use_are_refused_with_a_sentence() {
        let refused = server("nothing", None).unwrap_err().to_string();
        assert!(refused.starts_with("it holds no private key"), "{refused}");
        let refused = client(&Trust::Authorities("nothing".into())).unwrap_err().to_string();
        assert!(refused.contains("there is none"), "{refused}");
    }
}
