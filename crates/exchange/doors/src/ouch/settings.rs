//! The file of sessions of OUCH: who may log in, and what is traded.
//!
//! ```toml
//! store_bytes = 268435456      # of each session; optional
//!
//! [[symbol]]                   # only if the network has no instrument master
//! name = "ACME"                # at most 8 characters
//! instrument = 1000            # its number on the exchange
//! tick = "0.01"                # prices are multiples of it, and it of 0.0001
//! lot = "1"                    # quantities are multiples of it, a whole number of shares
//!
//! [[session]]
//! username = "alice"           # at most 6 letters and digits, without case
//! session = 9101               # session of the exchange, which nobody else uses
//! password = "alice.password"  # file of the password, at most 10 characters; optional
//! firm = "ALIC"                # at most 4 letters; optional
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nm_exchange::master::Master;
use serde::Deserialize;

use super::message::Firm;
use crate::decimal::Decimal;
use crate::limits::STORE_BYTES;
use crate::settings::{self, SessionSettings, Settings, SettingsError, SymbolText};
use crate::soup::session::Login;
use crate::symbols::{Symbol, Symbols};

/// Who may log in.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Name and password.
    pub login: Login,
    /// The firm whose orders they are; blanks if none is named.
    pub firm: Firm,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    store_bytes: Option<u64>,
    #[serde(default)]
    symbol: Vec<SymbolText>,
    #[serde(default)]
    session: Vec<SessionText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionText {
    username: String,
    session: u32,
    password: Option<PathBuf>,
    firm: Option<String>,
    cancel_on_disconnect: Option<u64>,
}

/// Reads a file. Files that it names are relative to its folder. What is traded is in the network's
/// instrument master, if it has one.
///
/// # Errors
/// If it cannot be read, or its content is wrong.
pub fn read(path: &Path, master: Option<&Master>) -> Result<Settings<Profile>, SettingsError> {
    let file: FileText = settings::file(path)?;
    let wrong = |why: String| SettingsError::Content { path: path.into(), why };
    let folder = path.parent().unwrap_or(Path::new(""));
    let symbols = settings::symbols(&file.symbol, master).map_err(wrong)?;
    check_symbols(&symbols).map_err(wrong)?;
    check(&file).map_err(wrong)?;
    let sessions = file.session.iter().map(|one| {
        let after_ns = settings::cancel_after_ns(&one.username, one.cancel_on_disconnect);
        session(one, path, folder, after_ns.map_err(wrong)?)
    });
    Ok(Settings {
        symbols: Arc::new(symbols),
        sessions: sessions.collect::<Result<_, _>>()?,
        store_bytes: file.store_bytes.unwrap_or(STORE_BYTES),
    })
}

/// Whether a text of letters and digits has at most so many of them.
fn is_text(text: &str, length: usize) -> bool {
    (1..=length).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn check_symbols(symbols: &Symbols) -> Result<(), String> {
    symbols.0.values().try_for_each(check_symbol)
}

/// Whether OUCH can express a symbol.
pub(super) fn check_symbol(symbol: &Symbol) -> Result<(), String> {
    let name = &symbol.name;
    if name.len() > 8 {
        return Err(format!("symbol {name} has more than 8 characters"));
    }
    if symbol.tick.in_units(Decimal::PRICE_UNIT).is_none() {
        return Err(format!("tick of {name} is no multiple of 0.0001"));
    }
    match symbol.lot.in_units(Decimal::ONE) {
        Some(_) => Ok(()),
        None => Err(format!("lot of {name} is no whole number of shares")),
    }
}

fn check(file: &FileText) -> Result<(), String> {
    for SessionText { username, firm, .. } in &file.session {
        if !is_text(username, 6) {
            return Err(format!("`{username}` is no username: 1 to 6 letters and digits are one"));
        }
        if let Some(firm) = firm.as_ref().filter(|firm| !is_text(firm, 4)) {
            return Err(format!("`{firm}` is no firm: 1 to 4 letters and digits are one"));
        }
    }
    let name =
        |one: &SessionText| (one.username.clone(), one.username.to_ascii_lowercase(), one.session);
    let names: Vec<_> = file.session.iter().map(name).collect();
    settings::check_sessions(&names, file.store_bytes)
}

fn session(
    text: &SessionText,
    path: &Path,
    folder: &Path,
    cancel_after_ns: Option<u64>,
) -> Result<SessionSettings<Profile>, SettingsError> {
    let read = |file: &PathBuf| settings::password(&folder.join(file));
    let password = text.password.as_ref().map(read).transpose()?;
    if password.as_ref().is_some_and(|word| word.len() > 10) {
        let why = format!("the password of {} has more than 10 characters", text.username);
        return Err(SettingsError::Content { path: path.into(), why });
    }
    let hash = |word: String| settings::hash(word.to_ascii_lowercase().as_bytes());
    Ok(SessionSettings {
        profile: Profile {
            login: Login {
                username: text.username.to_ascii_lowercase(),
                password: password.map(hash),
            },
            firm: super::desk::padded(text.firm.as_deref().unwrap_or_default()),
        },
        session: text.session,
        cancel_after_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[symbol]]\nname = \"ACME\"\ninstrument = 1\ntick = \"0.01\"\nlot = \"1\"\n\
                        [[session]]\nusername = \"Alice\"\nsession = 9\nfirm = \"AL\"\n";

    fn read(text: &str) -> Result<Settings<Profile>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sessions.toml");
        std::fs::write(&file, text).unwrap();
        super::read(&file, None).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_that_ouch_cannot_speak_of_is_refused_in_a_sentence() {
        let settings = read(GOOD).unwrap();
        let profile = &settings.sessions[0].profile;
        assert_eq!((profile.login.username.as_str(), &profile.firm), ("alice", b"AL  "));
        let again = "[[session]]\nusername = \"ALICE\"\nsession = 10\n";
        for (text, why) in [
            (GOOD.replace("ACME", "LONGNAMES"), "symbol LONGNAMES has more than 8"),
            (GOOD.replace("0.01", "0.00001"), "tick of ACME is no multiple of 0.0001"),
            (GOOD.replace("lot = \"1\"", "lot = \"0.5\""), "lot of ACME is no whole number"),
            (GOOD.replace("Alice", "al ice"), "`al ice` is no username"),
            (GOOD.replace("\"AL\"", "\"ALICE\""), "`ALICE` is no firm"),
            (format!("{GOOD}{again}"), "client ALICE stands twice"),
            (format!("venue = \"V\"\n{GOOD}"), "unknown field `venue`"),
        ] {
            let refused = read(&text).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
