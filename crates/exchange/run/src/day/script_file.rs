//! Reading scripts: TOML to a checked [`Script`], with the line of everything that is wrong.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use nm_exchange::network::NodeCounts;
use nm_model::limits::SpecError;
use nm_model::toml_error::{self, line_of};
use nm_sys::text_file;
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;
use toml::Spanned;

use super::script::{Place, Script, Wrong};

/// Longest script, bytes.
pub const SCRIPT_BYTES_MAX: u64 = 4 << 20;

/// Why a script cannot be used.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// The file cannot be read, or is too long.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// It is no script in TOML.
    #[error("line {line}: {message}")]
    Toml {
        /// Line, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A value is not possible.
    #[error("{}{source}", position(*line, phase.as_deref()))]
    Value {
        /// Line, counted from 1, if there is a file.
        line: Option<usize>,
        /// Name of the phase, if it is one of a phase.
        phase: Option<String>,
        /// What is wrong.
        source: SpecError,
    },
}

fn position(line: Option<usize>, phase: Option<&str>) -> String {
    let line = line.map_or(String::new(), |line| format!("line {line}: "));
    let phase = phase.map_or(String::new(), |name| format!("phase `{name}`: "));
    line + &phase
}

impl Script {
    /// Reads and checks a script.
    ///
    /// # Errors
    /// If it cannot be read or is not possible, with the line.
    pub fn read(path: &Path) -> Result<Script, ScriptError> {
        Script::parse(&text_file::read(path, SCRIPT_BYTES_MAX)?)
    }

    /// Checks the text of a script.
    ///
    /// # Errors
    /// If it is not possible, with the line.
    pub fn parse(text: &str) -> Result<Script, ScriptError> {
        let mut script: Script = toml::from_str(text).map_err(|error| {
            let (line, message) = toml_error::describe(text, &error, "not a script");
            ScriptError::Toml { line, message }
        })?;
        script.text = text.to_string();
        script.check_values()?;
        Ok(script)
    }

    /// Checks the values of a script that was not read from a file.
    ///
    /// # Errors
    /// The first value that is not possible.
    pub fn check_values(&self) -> Result<(), ScriptError> {
        self.check().map_err(|wrong| self.located(wrong))
    }

    /// Checks that a network of this size has the gateways and nodes of the script.
    ///
    /// # Errors
    /// The first that it has not.
    pub fn check_network(&self, counts: NodeCounts) -> Result<(), ScriptError> {
        self.check_nodes(counts).map_err(|wrong| self.located(wrong))
    }

    /// The script as the text of a file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers, texts and lists with names can be written as TOML")
    }

    fn located(&self, (place, source): Wrong) -> ScriptError {
        let phase = place.phase.and_then(|at| self.phases.get(at)).map(|it| it.name.clone());
        ScriptError::Value { line: line_of_field(&self.text, place, source.field()), phase, source }
    }
}

/// The places of the values of a phase.
type Table = BTreeMap<String, Spanned<IgnoredAny>>;

/// The places of the values in a script.
#[derive(Deserialize)]
struct Places {
    #[serde(default)]
    phases: Vec<Spanned<Table>>,
}

/// The places of the elements of lists in a script.
#[derive(Deserialize)]
struct ElementPlaces {
    #[serde(default)]
    phases: Vec<Lists>,
}

/// The places of the elements of the lists of a phase.
#[derive(Deserialize)]
struct Lists {
    #[serde(default)]
    hot: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    faults: Vec<Spanned<IgnoredAny>>,
}

/// The line of a field, or of the nearest thing that contains it.
fn line_of_field(text: &str, place: Place, field: &str) -> Option<usize> {
    let Some(phase) = place.phase else {
        let is_field = |line: &str| line.trim_start().starts_with(field);
        return text.lines().position(is_field).map(|at| at + 1);
    };
    if let Some(element) = place.element {
        let all: ElementPlaces = toml::from_str(text).ok()?;
        let lists = all.phases.get(phase)?;
        let list = if field == "hot" { &lists.hot } else { &lists.faults };
        return list.get(element).map(|value| line_of(text, value.span().start));
    }
    let all: Places = toml::from_str(text).ok()?;
    let table = all.phases.get(phase)?;
    let key = if matches!(field, "triggered" | "decay_ms") { "bursts" } else { field };
    let value = table.get_ref().get(key).map(Spanned::span);
    Some(line_of(text, value.unwrap_or_else(|| table.span()).start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::day::collect::SLOW_MAX;
    use crate::day::event::DETAIL_MAX;
    use crate::day::judge::EVENTS_MAX;
    use crate::day::script::{
        BurstSettings, DAY_INSTRUMENTS_MAX, DAY_SECONDS_MAX, DAY_SESSIONS_MAX, DECAY_MS_MAX,
        DOWN_S_MAX, FAULTS_MAX, HOT_SETS_MAX, NAME_MAX, NODE_FAULTS_MAX, PHASES_MAX,
    };
    use nm_exchange::network::Role;
    use nm_load::Arrivals;
    use proptest::prelude::*;

    const GOOD: &str = r#"
name = "a busy morning"
instruments = 8

[[phases]]
name = "open"
seconds = 20
rate_per_s = 5000
auction_seconds = 5

[[phases]]
name = "rush"
seconds = 30
rate_per_s = 5000
to_rate_per_s = 25000
arrivals = "bursts"
bursts = { triggered = 0.5, decay_ms = 2 }
hot = [{ instruments = [0, 1], share = 0.5 }]
gateway_shares = [0.8, 0.2]
outside_max_s = 2

[[phases.faults]]
node = "mediator:1"
at_s = 10
down_s = 0.5
"#;

    fn refused(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        Script::parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string()
    }

    #[test]
    fn a_script_is_read_with_its_defaults() {
        let script = Script::parse(GOOD).unwrap();
        assert_eq!((script.sessions, script.instruments, script.seconds()), (256, 8, 50));
        let [open, rush] = &script.phases[..] else { panic!("{script:?}") };
        assert_eq!((open.arrivals, open.zipf, open.end_per_s()), (Arrivals::Poisson, 1.0, 5000.0));
        assert_eq!(rush.bursts, Some(BurstSettings { triggered: 0.5, decay_ms: 2.0 }));
        let kill = script.kills()[0];
        assert_eq!((kill.node, kill.at_s), (Role::Mediator.node(1), 30.0));
        assert_eq!(kill.stays_dead.as_millis(), 500);
        let segments = script.segments();
        assert_eq!((segments[1].from_per_s, segments[1].to_per_s), (5_000.0, 25_000.0));
        assert_eq!((segments[0].auction_s, segments[1].bursts.decay_s), (Some(5), 0.002));
        let again = Script::parse(&script.to_toml()).unwrap();
        assert_eq!(again.phases, script.phases);
    }

    #[test]
    fn a_wrong_word_is_reported_with_its_line_and_the_right_one() {
        assert_eq!(
            refused("rate_per_s = 5000\nauction", "rate_pers = 5000\nauction"),
            "line 8: unknown field `rate_pers`, did you mean `rate_per_s`?"
        );
        assert_eq!(
            refused("seconds = 20", "seconds = \"20\""),
            "line 7: `seconds` is \"20\", which is text because of its quotes; write 20 without \
             quotes"
        );
        assert!(refused("\"bursts\"", "\"often\"").starts_with("line 16: unknown variant `often`"));
        assert!(refused("seconds = 20\n", "").starts_with("line 5: missing field `seconds`"));
    }

    #[test]
    fn a_value_out_of_range_is_reported_with_its_line_phase_and_field() {
        for (from, to, expected) in [
            ("seconds = 20", "seconds = 0", "line 7: phase `open`: seconds is 0, must be 1 to"),
            ("rate_per_s = 5000", "rate_per_s = 0.5", "line 8: phase `open`: rate_per_s is 0.5"),
            ("rate_per_s = 5000", "rate_per_s = nan", "line 8: phase `open`: rate_per_s is NaN"),
            ("25000", "2e7", "line 15: phase `rush`: to_rate_per_s is 20000000, must be 1 to"),
            ("= 5\n", "= 20\n", "line 9: phase `open`: auction_seconds is 20, must be 1 to 19"),
            ("ms = 2", "ms = 1e5", "line 17: phase `rush`: decay_ms is 100000, must be 0.001 to"),
            ("0.5, decay", "1.0, decay", "line 17: phase `rush`: triggered is 1, must be 0 to"),
            (
                "\"bursts\"",
                "\"even\"",
                "line 17: phase `rush`: bursts is given for arrivals `even`",
            ),
            ("[0, 1]", "[0, 8]", "line 18: phase `rush`: hot is instrument 8, must be 0 to 7"),
            ("[0, 1]", "[1, 1]", "line 18: phase `rush`: hot is instrument 1 twice"),
            ("share = 0.5", "share = 1.5", "line 18: phase `rush`: hot is 1.5, must be 0 to 1"),
            ("[0.8, 0.2]", "[0.8, 0.3]", "line 19: phase `rush`: gateway_shares is 1.1 in total"),
            ("_s = 2\n", "_s = 31\n", "line 20: phase `rush`: outside_max_s is 31"),
            ("mediator:1", "moderator:1", "phase `rush`: node is `moderator:1`, must be a class"),
            ("at_s = 10", "at_s = 30", "phase `rush`: at_s is 30, must be 0 to less than 30"),
            ("down_s = 0.5", "down_s = 1e9", "phase `rush`: down_s is 1000000000"),
            ("\"rush\"", "\"open\"", "line 12: phase `open`: name has open twice"),
            ("\"rush\"", "\"\"", "line 12: phase ``: name is ``, must be 1 to 64 letters"),
            ("instruments = 8", "instruments = 0", "line 3: instruments is 0, must be 1 to 4096"),
            ("name = \"a", "sessions = 5000\nname = \"a", "line 2: sessions is 5000, must be 1 to"),
        ] {
            let message = refused(from, to);
            assert!(message.contains(expected), "{message}\nmust contain: {expected}");
        }
        let fault = refused("at_s = 10", "at_s = -1");
        assert!(fault.starts_with("line 22: phase `rush`: at_s is -1"), "{fault}");
    }

    #[test]
    fn a_script_has_limits() {
        let phases = |count: usize, seconds: u32| -> String {
            let phase = |at| format!("[[phases]]\nname='{at}'\nseconds={seconds}\nrate_per_s=1\n");
            (0..count).map(phase).collect()
        };
        let error = |text: &str| Script::parse(text).unwrap_err().to_string();
        assert!(Script::parse(&phases(PHASES_MAX, 1)).is_ok());
        assert!(error(&phases(PHASES_MAX + 1, 1)).contains("phases has 1001 values"));
        assert!(Script::parse(&phases(2, DAY_SECONDS_MAX / 2)).is_ok());
        let long = error(&phases(2, DAY_SECONDS_MAX / 2 + 1));
        assert!(long.contains("line 7: phase `1`: seconds is 43201 after 43201"), "{long}");
        assert!(error("phases = []").contains("phases is empty"));
        let faults = |count: usize, node: &dyn Fn(usize) -> String| -> String {
            let fault = |at| format!("[[phases.faults]]\nnode='{}'\nat_s=0\n", node(at));
            phases(1, 10) + &(0..count).map(fault).collect::<String>()
        };
        let one = |_| "router:0".to_string();
        assert!(Script::parse(&faults(NODE_FAULTS_MAX, &one)).is_ok());
        let often = error(&faults(NODE_FAULTS_MAX + 1, &one));
        assert!(often.contains("router:0 for the 17th time"), "{often}");
        let many = error(&faults(FAULTS_MAX + 1, &|at| format!("router:{at}")));
        assert!(many.contains("faults has 1001 values"), "{many}");
        let sets = |count: usize| -> String {
            let set = |at| format!("[[phases.hot]]\ninstruments=[{at}]\nshare=0\n");
            format!("instruments=100\n{}{}", phases(1, 9), (0..count).map(set).collect::<String>())
        };
        assert!(Script::parse(&sets(HOT_SETS_MAX)).is_ok());
        assert!(error(&sets(HOT_SETS_MAX + 1)).contains("hot has 65 values, must have at most 64"));
        let named = |length| format!("name='{}'\n{}", "x".repeat(length), phases(1, 9));
        assert!(Script::parse(&named(NAME_MAX)).is_ok());
        assert!(error(&named(NAME_MAX + 1)).contains("must be 1 to 64 letters"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.toml");
        assert!(Script::read(&path).unwrap_err().to_string().contains("cannot be read"));
        std::fs::write(&path, vec![b'#'; SCRIPT_BYTES_MAX as usize + 1]).unwrap();
        assert!(Script::read(&path).unwrap_err().to_string().contains("it has more than"));
    }

    /// docs/limits.md has each number as it is.
    #[test]
    fn the_page_of_limits_has_these_numbers() {
        let page = include_str!("../../../../../docs/limits.md");
        for (what, number) in [
            ("day", u64::from(DAY_SECONDS_MAX)),
            ("phases", PHASES_MAX as u64),
            ("rate", nm_model::limits::RATE_PER_S_MAX as u64),
            ("instruments", u64::from(DAY_INSTRUMENTS_MAX)),
            ("sessions", u64::from(DAY_SESSIONS_MAX)),
            ("hot sets", HOT_SETS_MAX as u64),
            ("faults", FAULTS_MAX as u64),
            ("faults of a node", NODE_FAULTS_MAX as u64),
            ("down", DOWN_S_MAX as u64),
            ("decay", DECAY_MS_MAX as u64),
            ("script", SCRIPT_BYTES_MAX),
            ("names", NAME_MAX as u64),
            ("events", EVENTS_MAX as u64),
            ("description", DETAIL_MAX as u64),
            ("slow round trips", SLOW_MAX as u64),
        ] {
            assert!(page.contains(&format!("\n| {what} | {number} | ")), "{what}: {number}");
        }
    }

    #[test]
    fn a_script_must_fit_its_network() {
        let script = Script::parse(GOOD).unwrap();
        let error =
            |counts: &str| script.check_network(counts.parse().unwrap()).unwrap_err().to_string();
        assert!(script.check_network("2-1-2-1".parse().unwrap()).is_ok());
        assert_eq!(
            error("3-1-2-1"),
            "line 19: phase `rush`: gateway_shares is 2 shares, must be 3, one for each gateway of \
             3-1-2-1"
        );
        assert!(error("2-1-1-1").contains("line 22: phase `rush`: node is mediator:1, must be"));
        let few = Script { sessions: 1, ..script.clone() };
        let message = few.check_network("2-1-2-1".parse().unwrap()).unwrap_err().to_string();
        assert!(message.contains("at most 1 gateways"), "{message}");
        // A shorthand has no lines.
        let step = Script::step(0.0, 10.0, 5);
        let message = step.check_values().unwrap_err().to_string();
        assert!(message.starts_with("phase `before`: rate_per_s is 0, must be 1"), "{message}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_script_or_refused(text in "[\\[\\]a-z_ =\"0-9.\n{},]{0,200}") {
            let _ = Script::parse(&text);
            let _ = Script::parse(&format!("{GOOD}{text}"));
        }
    }
}
