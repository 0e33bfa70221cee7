//! What the files of sessions of all protocols have in common: who may log on, and what is traded.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nm_exchange::master::{Listing, Master};
use nm_sys::text_file;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::decimal::Decimal;
use crate::limits::{AWAY_S_MAX, SESSIONS_MAX, SETTINGS_BYTES_MAX, SYMBOLS_MAX};
use crate::symbols::{Symbol, Symbols};

/// Access of others to a file.
const OTHERS: u32 = 0o077;

/// A session that may log on.
#[derive(Debug, Clone)]
pub struct SessionSettings<P> {
    /// Who talks to whom.
    pub profile: P,
    /// The session of the exchange.
    pub session: u32,
    /// How long its client may be away until its live orders are cancelled, ns; if none, they stay.
    pub cancel_after_ns: Option<u64>,
}

/// What a file says.
#[derive(Debug, Clone)]
pub struct Settings<P> {
    /// What is traded.
    pub symbols: Arc<Symbols>,
    /// Who may log on.
    pub sessions: Vec<SessionSettings<P>>,
    /// Bytes of a session's store.
    pub store_bytes: u64,
}

/// Why the file cannot be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its content is wrong.
    #[error("{}: {why}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong, in a sentence.
        why: String,
    },
}

/// An instrument, as the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SymbolText {
    name: String,
    instrument: u32,
    tick: String,
    lot: String,
}

impl SymbolText {
    fn of(listing: &Listing) -> SymbolText {
        SymbolText {
            name: listing.symbol.clone(),
            instrument: listing.instrument,
            tick: listing.tick.clone(),
            lot: listing.lot.clone(),
        }
    }
}

/// Smallest store: a few hundred orders.
const STORE_BYTES_MIN: u64 = 64 << 10;

/// The content of a file.
#[expect(clippy::disallowed_methods, reason = "before there are clients")]
pub(crate) fn file<T: DeserializeOwned>(path: &Path) -> Result<T, SettingsError> {
    let text = text_file::read(path, SETTINGS_BYTES_MAX)
        .map_err(|source| SettingsError::Read { path: path.into(), source })?;
    toml::from_str(&text).map_err(|error| SettingsError::Content {
        path: path.into(),
        why: error.message().to_string(),
    })
}

/// The instruments of a file, whatever else it says.
///
/// # Errors
/// If it cannot be read, or its instruments are wrong.
pub fn read_symbols(path: &Path) -> Result<Symbols, SettingsError> {
    #[derive(Deserialize)]
    struct SymbolsText {
        #[serde(default)]
        symbol: Vec<SymbolText>,
    }
    let text: SymbolsText = file(path)?;
    symbols(&text.symbol, None).map_err(|why| SettingsError::Content { path: path.into(), why })
}

/// What an instrument master lists.
///
/// # Errors
/// If it lists nothing, in a sentence.
pub fn symbols_of_master(master: &Master) -> Result<Symbols, String> {
    symbols(&[], Some(master))
}

/// How long a client may be away, ns, of the text of a file in s.
pub(crate) fn cancel_after_ns(client: &str, seconds: Option<u64>) -> Result<Option<u64>, String> {
    match seconds {
        Some(seconds) if seconds > AWAY_S_MAX => Err(format!(
            "cancel_on_disconnect of {client} is {seconds}: at most {AWAY_S_MAX} s are possible"
        )),
        _ => Ok(seconds.map(|seconds| seconds * 1_000_000_000)),
    }
}

/// What is wrong with sessions of the exchange, the names of their clients, or the size of stores.
pub(crate) fn check_sessions<N: Ord>(
    sessions: &[(String, N, u32)],
    store_bytes: Option<u64>,
) -> Result<(), String> {
    if sessions.is_empty() || sessions.len() > SESSIONS_MAX {
        return Err(format!(
            "it has {} sessions: 1 to {SESSIONS_MAX} are possible",
            sessions.len()
        ));
    }
    if store_bytes.is_some_and(|bytes| bytes < STORE_BYTES_MIN) {
        return Err(format!("store_bytes must be at least {STORE_BYTES_MIN}"));
    }
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (client, name, session) in sessions {
        if *session == 0 {
            return Err(format!("{client} has session 0, which is the operator's"));
        }
        if !names.insert(name) {
            return Err(format!("client {client} stands twice"));
        }
        if !numbers.insert(session) {
            return Err(format!("two clients have session {session} of the exchange"));
        }
    }
    Ok(())
}

/// How a password is kept.
pub(crate) fn hash(password: &[u8]) -> [u8; 32] {
    Sha256::digest(password).into()
}

/// Whether a name can stand in a field.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// All instruments: those of the network's instrument master, or where it has none those of the
/// file.
pub(crate) fn symbols(all: &[SymbolText], master: Option<&Master>) -> Result<Symbols, String> {
    match master {
        Some(_) if !all.is_empty() => {
            let why = "the network has an instrument master, which says what is traded";
            Err(format!("{why}: remove its [[symbol]] tables"))
        }
        Some(master) => symbols_of(&master.listings().map(SymbolText::of).collect::<Vec<_>>()),
        None => symbols_of(all),
    }
}

fn symbols_of(all: &[SymbolText]) -> Result<Symbols, String> {
    let mut symbols = Symbols::default();
    if all.is_empty() || all.len() > SYMBOLS_MAX {
        return Err(format!("it has {} symbols: 1 to {SYMBOLS_MAX} are possible", all.len()));
    }
    for SymbolText { name, instrument, tick, lot } in all {
        let unit = |what: &str, text: &str| {
            Decimal::parse(text)
                .filter(|unit| unit.is_positive())
                .ok_or_else(|| format!("{what} of {name} is `{text}`, and must be above 0"))
        };
        if !is_name(name) {
            return Err(format!(
                "`{name}` is no symbol: 1 to 64 characters without blanks are one"
            ));
        }
        if symbols.of(*instrument).is_some() {
            return Err(format!("two symbols have instrument {instrument}"));
        }
        let (tick, lot) = (unit("tick", tick)?, unit("lot", lot)?);
        let symbol = Symbol { name: name.clone(), instrument: *instrument, tick, lot };
        if symbols.0.insert(name.clone(), symbol).is_some() {
            return Err(format!("symbol {name} stands twice"));
        }
    }
    Ok(symbols)
}

/// The password in a file.
#[expect(clippy::disallowed_methods, reason = "before there are clients")]
pub(crate) fn password(path: &Path) -> Result<String, SettingsError> {
    let unreadable = |source| SettingsError::Read { path: path.into(), source };
    let wrong = |why: String| SettingsError::Content { path: path.into(), why };
    let mode = std::fs::metadata(path).map_err(unreadable)?.mode();
    if mode & OTHERS != 0 {
        return Err(wrong(format!("other users can read it: run `chmod 600 {}`", path.display())));
    }
    let text = text_file::read(path, SETTINGS_BYTES_MAX).map_err(unreadable)?;
    let word = text.trim_end_matches(['\r', '\n']);
    match word.is_empty() || !word.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        true => Err(wrong("it has no password: one line of ASCII characters".to_string())),
        false => Ok(word.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_password_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let word = folder.path().join("word");
        fs::write(&word, "secret").unwrap();
        fs::set_permissions(&word, Permissions::from_mode(0o644)).unwrap();
        let refused = password(&word).unwrap_err().to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
        fs::set_permissions(&word, Permissions::from_mode(0o600)).unwrap();
        fs::write(&word, "\n").unwrap();
        assert!(password(&word).unwrap_err().to_string().contains("has no password"));
    }

    #[test]
    fn a_file_of_sessions_has_a_number_of_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sessions.toml");
        for (bytes, is_read) in [(SETTINGS_BYTES_MAX, true), (SETTINGS_BYTES_MAX + 1, false)] {
            let comment = "#".repeat(bytes as usize - 1) + "\n";
            fs::write(&path, comment).unwrap();
            assert_eq!(file::<toml::Table>(&path).is_ok(), is_read, "{bytes}");
        }
    }
}
