//! `nearmetal certify` and `nearmetal verify-certificate`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use nm_auth::FileError;
use nm_judge::{Checked, EquivalenceOptions, Signed};
use nm_model::certificate::{
    BYTES_MAX, Certificate, CertificateCheck, CertifiedHost, CertifiedProgram, SCHEMA_VERSION,
};
use nm_model::verdict::Outcome;
use nm_report::certificate;
use nm_sign::{KeyError, PublicKey, SecretKey, SignatureError, TEXT_BYTES_MAX};
use nm_sys::process::own_program;
use nm_sys::{complete_file, random, text_file};
use sha2::{Digest, Sha256};

use super::{baseline, result_source};
use crate::cli::certificate::{CertifyArgs, VerifyCertificateArgs};
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

/// What a second file of the same name has behind it.
const SIGNATURE: &str = ".minisig";
const PUBLIC: &str = ".pub";

/// Makes a certificate, or a pair of keys.
pub fn certify(args: &CertifyArgs) -> Result<Exit> {
    match (&args.new_key, &args.result, &args.key) {
        (Some(file), ..) => new_key(file),
        (None, Some(result), Some(key)) => sign(args, result, key),
        _ => Err(Stop::usage("name a result and the signer's key by --key")),
    }
}

fn beside(file: &Path, extension: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(extension);
    name.into()
}

fn new_key(file: &Path) -> Result<Exit> {
    let no_random = |error: io::Error| {
        Stop::with(Exit::Environment, format!("the kernel gives no random bytes: {error}"))
    };
    let secret = random::bytes().map_err(no_random)?;
    let key = SecretKey::new(secret, random::bytes().map_err(no_random)?);
    let public = beside(file, PUBLIC);
    if public.symlink_metadata().is_ok() {
        return Err(output::file_error(&public, &io::ErrorKind::AlreadyExists.into()));
    }
    let failed = |path: PathBuf| move |error: io::Error| output::file_error(&path, &error);
    complete_file::create(file, key.text().as_bytes(), complete_file::MODE_PRIVATE)
        .map_err(failed(file.to_path_buf()))?;
    let text = key.public().text();
    complete_file::create(&public, text.as_bytes(), complete_file::MODE_PUBLIC).map_err(
        |error| {
            // A secret key alone could not be made again under its name.
            let _ = std::fs::remove_file(file);
            output::file_error(&public, &error)
        },
    )?;
    let (file, public, id) = (file.display(), public.display(), key.public());
    output::text(&format!(
        "{file} has the secret key {id}: keep it; no password protects it\n{public} has the public \
         one: give it to those who verify\n"
    ))?;
    Ok(Exit::Pass)
}

fn sign(args: &CertifyArgs, result: &str, key: &Path) -> Result<Exit> {
    let run = result_source::load(result)?;
    let key = secret_key(key)?;
    let version = nm_ssh::VERSION;
    let (figures, hosts) = nm_judge::certified(&run, version)
        .map_err(|error| Stop::usage(format!("{result} cannot be certified: {error}")))?;
    let expires = end(&figures.started, args.valid_days).ok_or_else(|| {
        Stop::usage(format!("{result} cannot be certified: its start is no time"))
    })?;
    if expires <= Timestamp::now() {
        return Err(Stop::usage(format!(
            "{result} cannot be certified: {} days after its start are over; measure again",
            args.valid_days
        )));
    }
    let certificate = Certificate {
        schema: SCHEMA_VERSION,
        key: key.public().text().lines().nth(1).unwrap_or_default().to_string(),
        expires: expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        margin_percent: args.margin,
        program: CertifiedProgram { version: version.to_string(), sha256: own_hash()? },
        hosts,
        run: figures,
    };
    let text = certificate::json(&certificate).map_err(|error| Stop::usage(error.to_string()))?;
    let name = args.out.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let now_s = Timestamp::now().as_second();
    let comment = format!("timestamp:{now_s}\tfile:{name}\thashed");
    let signature = key.sign(text.as_bytes(), &comment);
    let beside = beside(&args.out, SIGNATURE);
    // A certificate is never without its signature.
    let files = [(beside.clone(), signature.as_bytes()), (args.out.clone(), text.as_bytes())];
    complete_file::create_all(&files).map_err(|(path, error)| output::file_error(&path, &error))?;
    output::text(&format!("{}\n{}\n", args.out.display(), beside.display()))?;
    Ok(Exit::Pass)
}

fn end(started: &Option<String>, days: u32) -> Option<Timestamp> {
    let started: Timestamp = started.as_ref()?.parse().ok()?;
    started.checked_add(SignedDuration::from_hours(24 * i64::from(days))).ok()
}

/// SHA-256 of this program's file.
fn own_hash() -> Result<String> {
    let failed = |error: io::Error| {
        Stop::with(Exit::Environment, format!("this program's own file cannot be read: {error}"))
    };
    let mut file = File::open(own_program().map_err(failed)?).map_err(failed)?;
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash).map_err(failed)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn secret_key(file: &Path) -> Result<SecretKey> {
    let text = nm_auth::read_private(file).map_err(|error| match error {
        FileError::NotPrivate { path, mode } => {
            let path = path.display();
            Stop::usage(format!(
                "others may read or change the key {path} (mode {mode:o}): run `chmod 600 {path}`, \
                 and make a new one if somebody may have read it"
            ))
        }
        other => Stop::usage(other.to_string()),
    })?;
    SecretKey::parse(&text)
        .map_err(|error| Stop::usage(format!("{} cannot sign: {error}", file.display())))
}

/// A file, or the key itself.
fn public_key(word: &str) -> Result<PublicKey> {
    if let Ok(key) = PublicKey::parse(word) {
        return Ok(key);
    }
    let text = text_file::read(Path::new(word), TEXT_BYTES_MAX)
        .map_err(|error| Stop::usage(format!("the public key {word} cannot be read: {error}")))?;
    let refused = |error: KeyError| Stop::usage(format!("{word} verifies nothing: {error}"));
    PublicKey::parse(&text).map_err(refused)
}

/// Checks a certificate.
pub fn verify(args: &VerifyCertificateArgs) -> Result<Exit> {
    let named = args.public_key.as_deref().map(public_key).transpose()?;
    let file = args.certificate.display();
    let unreadable = |what: &dyn std::fmt::Display, error: io::Error| {
        Stop::usage(format!("{what} cannot be read: {error}"))
    };
    let text = text_file::read(&args.certificate, BYTES_MAX).map_err(|e| unreadable(&file, e))?;
    let beside = beside(&args.certificate, SIGNATURE);
    let signature = text_file::read(&beside, TEXT_BYTES_MAX)
        .map_err(|error| unreadable(&format!("the signature {}", beside.display()), error))?;
    // Before anything of a text is believed, its signature holds.
    let parsed = certificate::parse(&text)
        .map_err(|error| Stop::usage(format!("{file} cannot be verified: {error}")));
    let key = match named {
        Some(key) => key,
        None => {
            let key = PublicKey::parse(&parsed.as_ref().map_err(copied)?.0.key);
            key.map_err(|_| Stop::usage(format!("{file} names no key; name it by --public-key")))?
        }
    };
    let found = match key.verify(text.as_bytes(), &signature) {
        Ok(_) => {
            let (certificate, expires) = parsed?;
            let is_expired = expires <= Timestamp::now();
            let signed = Signed { key: &key.to_string(), is_named: named.is_some() };
            checked(args, &certificate, signed, is_expired)?
        }
        Err(SignatureError::NotASignature) => {
            let error = SignatureError::NotASignature;
            return Err(Stop::usage(format!("{} cannot be used: {error}", beside.display())));
        }
        Err(error) => refused(&args.certificate, &error),
    };
    match args.format.format {
        Format::Json => output::json(&found)?,
        Format::Text => output::text(&certificate::text(&found, &output::style()))?,
    }
    Ok(found.outcome.into())
}

fn copied(error: &anyhow::Error) -> anyhow::Error {
    Stop::usage(error.to_string())
}

/// A certificate whose signature does not hold says nothing.
fn refused(file: &Path, error: &SignatureError) -> CertificateCheck {
    CertificateCheck {
        outcome: Outcome::Fail,
        reasons: vec![format!("the signature of {} does not hold: {error}", file.display())],
        expires: None,
        drift: vec![],
        equivalence: None,
    }
}

fn checked(
    args: &VerifyCertificateArgs,
    certificate: &Certificate,
    signed: Signed<'_>,
    is_expired: bool,
) -> Result<CertificateCheck> {
    let of = args.result.as_deref().map(result_source::load).transpose()?;
    let run = args.against.as_deref().map(result_source::load).transpose()?;
    let (place, now): (&str, Vec<CertifiedHost>) = match (&args.against, &run) {
        (Some(name), Some(run)) => (name, nm_judge::hosts(run)),
        _ => ("this host", nm_judge::hosts_of(&nm_host::facts())),
    };
    let options = EquivalenceOptions {
        margin_percent: args.margin.unwrap_or(certificate.margin_percent),
        run_deviation_percent: args.run_deviation,
    };
    let test = |run| nm_judge::equivalence(&certificate.run, &baseline::of_run(run), &options);
    let equivalence = run.as_ref().map(test);
    let (now, of) = ((place, &now[..]), of.as_ref());
    Ok(nm_judge::check(certificate, Checked { signed, is_expired, now, of, equivalence }))
}
