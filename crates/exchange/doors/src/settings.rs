//! The file of sessions: who may log on, and what is traded.
//!
//! ```toml
//! venue = "NEARMETAL"          # CompID of the door
//! store_bytes = 268435456      # of each session; optional
//!
//! [[symbol]]
//! name = "ACME"                # Symbol, field 55
//! instrument = 1000            # its number on the exchange
//! tick = "0.01"                # prices are multiples of it
//! lot = "1"                    # quantities are multiples of it
//!
//! [[session]]
//! client = "ALICE"             # CompID of the client
//! version = "FIX.4.4"          # or "FIXT.1.1"
//! session = 9001               # session of the exchange, which nobody else uses
//! username = "alice"           # Username, field 553; optional
//! password = "alice.password"  # file of the Password, field 554; optional
//! ```

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nm_sys::text_file;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::fix::decimal::Decimal;
use crate::fix::order::{Symbol, Symbols};
use crate::fix::session::{Profile, Version};
use crate::limits::{SESSIONS_MAX, SETTINGS_BYTES_MAX, STORE_BYTES, SYMBOLS_MAX};

/// Access of others to a file.
const OTHERS: u32 = 0o077;

/// A session that may log on.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// Who talks to whom.
    pub profile: Profile,
    /// The session of the exchange.
    pub session: u32,
}

/// What the file says.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What is traded.
    pub symbols: Arc<Symbols>,
    /// Who may log on.
    pub sessions: Vec<SessionSettings>,
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    venue: String,
    store_bytes: Option<u64>,
    #[serde(default)]
    symbol: Vec<SymbolText>,
    #[serde(default)]
    session: Vec<SessionText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SymbolText {
    name: String,
    instrument: u32,
    tick: String,
    lot: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionText {
    client: String,
    version: String,
    session: u32,
    username: Option<String>,
    password: Option<PathBuf>,
}

/// Smallest store: a few hundred orders.
const STORE_BYTES_MIN: u64 = 64 << 10;

impl Settings {
    /// Reads a file. Files that it names are relative to its folder.
    ///
    /// # Errors
    /// If it cannot be read, or its content is wrong.
    pub fn read(path: &Path) -> Result<Settings, SettingsError> {
        let text = text_file::read(path, SETTINGS_BYTES_MAX)
            .map_err(|source| SettingsError::Read { path: path.into(), source })?;
        let wrong = |why: String| SettingsError::Content { path: path.into(), why };
        let file: FileText =
            toml::from_str(&text).map_err(|error| wrong(error.message().to_string()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let symbols = symbols(&file.symbol).map_err(wrong)?;
        check_sessions(&file).map_err(wrong)?;
        let sessions = file.session.iter().map(|one| session(one, &file.venue, folder));
        Ok(Settings {
            symbols: Arc::new(symbols),
            sessions: sessions.collect::<Result<_, _>>()?,
            store_bytes: file.store_bytes.unwrap_or(STORE_BYTES),
        })
    }
}

/// Whether a name can stand in a field.
fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn symbols(all: &[SymbolText]) -> Result<Symbols, String> {
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

fn check_sessions(file: &FileText) -> Result<(), String> {
    let FileText { venue, store_bytes, session: sessions, .. } = file;
    if sessions.is_empty() || sessions.len() > SESSIONS_MAX {
        return Err(format!(
            "it has {} sessions: 1 to {SESSIONS_MAX} are possible",
            sessions.len()
        ));
    }
    if !is_name(venue) {
        return Err(format!("`{venue}` is no CompID: 1 to 64 characters without blanks are one"));
    }
    if store_bytes.is_some_and(|bytes| bytes < STORE_BYTES_MIN) {
        return Err(format!("store_bytes must be at least {STORE_BYTES_MIN}"));
    }
    let (mut clients, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for SessionText { client, version, session, .. } in sessions {
        if !is_name(client) {
            let why = "1 to 64 characters without blanks are one";
            return Err(format!("`{client}` is no CompID: {why}"));
        }
        if version_of(version).is_none() {
            let why = "FIX.4.4 and FIXT.1.1 are possible";
            return Err(format!("{client} has version `{version}`: {why}"));
        }
        if *session == 0 {
            return Err(format!("{client} has session 0, which is the operator's"));
        }
        if !clients.insert((client, version)) {
            return Err(format!("client {client} stands twice"));
        }
        if !numbers.insert(session) {
            return Err(format!("two clients have session {session} of the exchange"));
        }
    }
    Ok(())
}

fn version_of(text: &str) -> Option<Version> {
    [Version::Fix44, Version::Fixt11].into_iter().find(|it| it.begin_string() == text)
}

fn session(
    text: &SessionText,
    venue: &str,
    folder: &Path,
) -> Result<SessionSettings, SettingsError> {
    let password = text.password.as_ref().map(|file| password(&folder.join(file))).transpose()?;
    Ok(SessionSettings {
        profile: Profile {
            version: version_of(&text.version).unwrap_or(Version::Fix44),
            own: venue.to_string(),
            peer: text.client.clone(),
            username: text.username.clone(),
            password,
        },
        session: text.session,
    })
}

/// The hash of the password in a file.
fn password(path: &Path) -> Result<[u8; 32], SettingsError> {
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
        false => Ok(Sha256::digest(word.as_bytes()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    const GOOD: &str = r#"
        venue = "V"
        [[symbol]]
        name = "ACME"
        instrument = 1
        tick = "0.01"
        lot = "1"
        [[session]]
        client = "A"
        version = "FIX.4.4"
        session = 9
        username = "a"
        password = "word"
    "#;

    fn read(text: &str) -> Result<Settings, String> {
        let folder = tempfile::tempdir().unwrap();
        let word = folder.path().join("word");
        fs::write(&word, "secret\n").unwrap();
        fs::set_permissions(&word, Permissions::from_mode(0o600)).unwrap();
        let file = folder.path().join("sessions.toml");
        fs::write(&file, text).unwrap();
        Settings::read(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_names_sessions_symbols_and_a_file_of_the_password() {
        let settings = read(GOOD).unwrap();
        let session = &settings.sessions[0];
        assert_eq!((session.session, session.profile.peer.as_str()), (9, "A"));
        let hash: [u8; 32] = Sha256::digest(b"secret").into();
        assert_eq!(session.profile.password, Some(hash));
        assert_eq!(settings.symbols.of(1).unwrap().name, "ACME");
        assert_eq!(settings.store_bytes, STORE_BYTES);
    }

    #[test]
    fn a_wrong_file_is_refused_in_a_sentence() {
        let more = |text: &str| format!("{GOOD}\n{text}");
        let symbol = |text: &str| more(&format!("[[symbol]]\n{text}\ntick = \"1\"\nlot = \"1\""));
        let session = |text: &str| more(&format!("[[session]]\nversion = \"FIX.4.4\"\n{text}"));
        for (text, why) in [
            (GOOD.replace("0.01", "0"), "tick of ACME is `0`, and must be above 0"),
            (GOOD.replace("\"0.01\"", "0.01"), "invalid type: floating point"),
            (GOOD.replace("FIX.4.4", "FIX.4.2"), "A has version `FIX.4.2`"),
            (GOOD.replace("session = 9", "session = 0"), "session 0, which is the operator's"),
            (GOOD.replace("\"V\"", "\"V V\""), "`V V` is no CompID"),
            (GOOD.replace("\"A\"", "\"\""), "`` is no CompID"),
            (GOOD.replace("ACME", "AC ME"), "`AC ME` is no symbol"),
            (GOOD.replace("\"word\"", "\"other\""), "other cannot be read"),
            (format!("store_bytes = 5\n{GOOD}"), "store_bytes must be at least 65536"),
            (symbol("name = \"B\"\ninstrument = 1"), "two symbols have instrument 1"),
            (symbol("name = \"ACME\"\ninstrument = 2"), "symbol ACME stands twice"),
            (session("client = \"A\"\nsession = 10"), "client A stands twice"),
            (session("client = \"B\"\nsession = 9"), "two clients have session 9"),
            ("venue = \"V\"".to_string(), "it has 0 symbols: 1 to 4096 are possible"),
            (more("[other]"), "unknown field `other`"),
        ] {
            let refused = read(&text).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_door_has_a_number_of_sessions_and_symbols() {
        let symbols = |count: usize| -> String {
            let one = |at| {
                format!(
                    "[[symbol]]\nname = \"S{at}\"\ninstrument = {at}\n\
                                    tick = \"1\"\nlot = \"1\"\n"
                )
            };
            (0..count).map(one).collect()
        };
        let sessions = |count: usize| -> String {
            let one = |at| {
                format!(
                    "[[session]]\nclient = \"C{at}\"\nsession = {}\n\
                                    version = \"FIX.4.4\"\n",
                    at + 1
                )
            };
            (0..count).map(one).collect()
        };
        let file = |of: usize, traded: usize| {
            read(&format!("venue = \"V\"\n{}{}", symbols(traded), sessions(of)))
        };
        assert!(file(SESSIONS_MAX, 1).is_ok());
        assert!(file(SESSIONS_MAX + 1, 1).unwrap_err().contains("1025 sessions"));
        assert!(file(1, SYMBOLS_MAX).is_ok());
        assert!(file(1, SYMBOLS_MAX + 1).unwrap_err().contains("4097 symbols"));
    }

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
}
