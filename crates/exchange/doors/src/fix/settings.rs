//! The file of sessions: who may log on, and what is traded.
//!
//! ```toml
//! venue = "NEARMETAL"          # CompID of the door
//! store_bytes = 268435456      # of each session; optional
//!
//! [[symbol]]                   # only if the network has no instrument master
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
//! cancel_on_disconnect = 5     # s until orders of a client that is away are cancelled; optional
//! firm = "ACME Capital"        # firm of the client; optional
//! drop_copy = true             # it gets the reports of its firm's sessions, and cannot trade
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nm_exchange::master::Master;
use serde::Deserialize;

use super::market::FirmUse;
use super::session::{Profile, Version};
use crate::limits::STORE_BYTES;
use crate::settings::{self, SessionSettings, Settings, SettingsError, SymbolText, is_name};

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
struct SessionText {
    client: String,
    version: String,
    session: u32,
    username: Option<String>,
    password: Option<PathBuf>,
    cancel_on_disconnect: Option<u64>,
    firm: Option<String>,
    #[serde(default)]
    drop_copy: bool,
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
    check(&file).map_err(wrong)?;
    let mut firms = BTreeMap::new();
    let sessions = file.session.iter().map(|one| {
        let after_ns = settings::cancel_after_ns(&one.client, one.cancel_on_disconnect);
        session(one, &file.venue, folder, after_ns.map_err(wrong)?, &mut firms)
    });
    Ok(Settings {
        symbols: Arc::new(symbols),
        sessions: sessions.collect::<Result<_, _>>()?,
        store_bytes: file.store_bytes.unwrap_or(STORE_BYTES),
    })
}

fn check(file: &FileText) -> Result<(), String> {
    let FileText { venue, store_bytes, session: sessions, .. } = file;
    if !is_name(venue) {
        return Err(format!("`{venue}` is no CompID: 1 to 64 characters without blanks are one"));
    }
    for SessionText { client, version, firm, drop_copy, .. } in sessions {
        if *drop_copy && firm.is_none() {
            return Err(format!("{client} is to get copies of no firm: give it `firm`"));
        }
        if !is_name(client) {
            let why = "1 to 64 characters without blanks are one";
            return Err(format!("`{client}` is no CompID: {why}"));
        }
        if version_of(version).is_none() {
            let why = "FIX.4.4 and FIXT.1.1 are possible";
            return Err(format!("{client} has version `{version}`: {why}"));
        }
    }
    let name = |one: &SessionText| {
        (one.client.clone(), (one.client.clone(), one.version.clone()), one.session)
    };
    settings::check_sessions(&sessions.iter().map(name).collect::<Vec<_>>(), *store_bytes)
}

fn version_of(text: &str) -> Option<Version> {
    [Version::Fix44, Version::Fixt11].into_iter().find(|it| it.begin_string() == text)
}

fn session(
    text: &SessionText,
    venue: &str,
    folder: &Path,
    cancel_after_ns: Option<u64>,
    firms: &mut BTreeMap<String, FirmUse>,
) -> Result<SessionSettings<Profile>, SettingsError> {
    let read = |file: &PathBuf| settings::password(&folder.join(file));
    let password = text.password.as_ref().map(read).transpose()?;
    Ok(SessionSettings {
        profile: Profile {
            version: version_of(&text.version).unwrap_or(Version::Fix44),
            own: venue.to_string(),
            peer: text.client.clone(),
            username: text.username.clone(),
            password: password.map(|word| settings::hash(word.as_bytes())),
            firm: text.firm.clone(),
            firm_use: match &text.firm {
                Some(firm) => firms.entry(firm.clone()).or_default().clone(),
                None => FirmUse::default(),
            },
            is_drop_copy: text.drop_copy,
        },
        session: text.session,
        cancel_after_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{AWAY_S_MAX, SESSIONS_MAX, SYMBOLS_MAX};
    use sha2::{Digest as _, Sha256};
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

    fn read(text: &str) -> Result<Settings<Profile>, String> {
        let folder = tempfile::tempdir().unwrap();
        let word = folder.path().join("word");
        fs::write(&word, "secret\n").unwrap();
        fs::set_permissions(&word, Permissions::from_mode(0o600)).unwrap();
        let file = folder.path().join("sessions.toml");
        fs::write(&file, text).unwrap();
        super::read(&file, None).map_err(|error| error.to_string())
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
            (more("drop_copy = true"), "A is to get copies of no firm"),
            (more("[other]"), "unknown field `other`"),
        ] {
            let refused = read(&text).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn what_is_traded_is_in_the_master_of_the_network_or_else_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let rules = "[[instrument]]\nnumber = 7\nsymbol = \"BETA\"\ntick = \"0.5\"\nlot = \"10\"\n";
        let master = Master::read(&path("instruments.toml", rules)).unwrap();
        let sessions = "venue = \"V\"\n[[session]]\nclient = \"A\"\nversion = \"FIX.4.4\"\n\
                        session = 9\n";
        let settings = super::read(&path("a.toml", sessions), Some(&master)).unwrap();
        let symbol = &settings.symbols.0["BETA"];
        assert_eq!((symbol.instrument, symbol.tick.to_string()), (7, "0.5".to_string()));
        assert_eq!(symbol.lot.to_string(), "10");
        let both = format!(
            "{sessions}[[symbol]]\nname = \"X\"\ninstrument = 1\ntick = \"1\"\n\
                            lot = \"1\"\n"
        );
        let refused = super::read(&path("b.toml", &both), Some(&master)).unwrap_err().to_string();
        assert!(refused.contains("instrument master, which says what is traded"), "{refused}");
    }

    #[test]
    fn a_client_may_be_away_for_a_number_of_seconds() {
        let with = |seconds: u64| read(&format!("{GOOD}cancel_on_disconnect = {seconds}\n"));
        let after_ns = with(AWAY_S_MAX).unwrap().sessions[0].cancel_after_ns;
        assert_eq!(after_ns, Some(AWAY_S_MAX * 1_000_000_000));
        assert!(with(AWAY_S_MAX + 1).unwrap_err().contains("at most 86400 s are possible"));
        assert_eq!(read(GOOD).unwrap().sessions[0].cancel_after_ns, None);
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
}
