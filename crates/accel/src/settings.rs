//! The user's settings, which `nearmetal accel` passes in the environment; read once.
//! The variables are declared in [`nm_ring::variables`]; the rules of the policy are read by
//! [`crate::policy`].

use std::ffi::{CStr, CString};
use std::fmt::Write;
use std::sync::OnceLock;

use nm_ring::ledger::{SETTING_GROUP, SETTING_RINGS_FOR_FILES};
use nm_ring::variables::{self, AFTER_CALLS_DEFAULT, JOINED_DEFAULT, Variable};

use crate::policy::{Policy, ProgramPolicy, RingUse};

/// The settings of this process.
#[derive(Debug)]
pub struct Settings {
    /// Whether anything is accelerated at all.
    pub enabled: bool,
    /// Longest spin before a sleep, µs; absent: the default of `wait`.
    pub spin_us: Option<u32>,
    /// Successful data calls of a connection before its ends look for each other.
    pub after_calls: u32,
    /// Folder for the rendezvous of ends in different network namespaces.
    pub share: Option<&'static CStr>,
    /// Group whose members may share memory with this user's processes.
    pub group: Option<u32>,
    /// Most connections of this process in shared memory, each of which takes up to 516 KiB.
    pub joined_max: usize,
    /// Socket that receives the ledger.
    pub report: Option<&'static CStr>,
    /// Rules by port that apply to this program.
    pub policy: Policy,
    /// What this program uses io_uring for.
    pub rings: RingUse,
}

impl Settings {
    /// The settings. The first call reads them and allocates, which the constructor does; later
    /// calls cost one load.
    pub fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Settings::read(variable, &own_names()))
    }

    /// Reads the settings of a program that is known under `names`. A value outside its range
    /// counts as not set: this library cannot report errors, and the binary checks its options.
    fn read(variable: impl Fn(&CStr) -> Option<String>, names: &[String]) -> Settings {
        let number = |one: &Variable| variable(one.name).and_then(|text| one.number(&text));
        let path = |one: &Variable| {
            let text = variable(one.name).filter(|text| !text.is_empty())?;
            CString::new(text).ok().map(|path| &*Box::leak(path.into_boxed_c_str()))
        };
        let text = variable(variables::POLICY.name).unwrap_or_default();
        let policy = ProgramPolicy::parse(&text, names);
        let off = variable(variables::OFF.name);
        Settings {
            enabled: off.is_none_or(|text| text.is_empty() || text == "0"),
            spin_us: policy.spin_us.or_else(|| number(&variables::SPIN_US)),
            after_calls: number(&variables::AFTER).unwrap_or(AFTER_CALLS_DEFAULT),
            share: path(&variables::SHARE),
            group: number(&variables::GROUP),
            joined_max: number(&variables::MAX).unwrap_or(JOINED_DEFAULT) as usize,
            report: path(&variables::REPORT),
            policy: policy.connections,
            rings: policy.rings,
        }
    }

    /// Whether the search for other ends begins when the library thinks fit.
    pub fn has_default_after_calls(&self) -> bool {
        self.after_calls == AFTER_CALLS_DEFAULT
    }

    /// The settings that are not the defaults, as text for the ledger's header.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut add = |clause: std::fmt::Arguments<'_>| {
            let comma = if text.is_empty() { "" } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(text, "{comma}{clause}");
        };
        if !self.enabled {
            add(format_args!("off"));
        }
        if let Some(microseconds) = self.spin_us {
            add(format_args!("spin {microseconds} us"));
        }
        if self.after_calls != AFTER_CALLS_DEFAULT {
            add(format_args!("after {} calls", self.after_calls));
        }
        if let Some(folder) = self.share {
            add(format_args!("share {}", folder.to_string_lossy()));
        }
        if let Some(group) = self.group {
            add(format_args!("{SETTING_GROUP}{group}"));
        }
        if self.policy != Policy::EVERYTHING {
            add(format_args!("policy"));
        }
        match self.rings {
            RingUse::Sockets => {}
            RingUse::Files => add(format_args!("{SETTING_RINGS_FOR_FILES}")),
            RingUse::Refused => add(format_args!("io_uring refused")),
        }
        text
    }
}

/// An environment variable, copied: programs that set a title for `ps` overwrite the original.
fn variable(name: &CStr) -> Option<String> {
    // SAFETY: `getenv` gets a terminated string; its result is terminated too, and is copied before
    // any other code of the program runs.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value)
    };
    Some(value.to_string_lossy().into_owned())
}

/// The program's names: of its file, and as the kernel shows it (`ps`, `top`), which for a script
/// is the script's name and for a link the link's.
fn own_names() -> Vec<String> {
    let file = rustix::fs::readlink(c"/proc/self/exe", Vec::new()).ok();
    let file = file.and_then(|path| {
        let path = path.to_string_lossy().into_owned();
        path.rsplit('/').next().map(str::to_string)
    });
    let shown = rustix::thread::name().ok().map(|name| name.to_string_lossy().into_owned());
    [file, shown].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Settings {
        let variable = |name: &CStr| {
            let name = name.to_str().unwrap();
            let found = set.iter().find(|(known, _)| name == format!("NEARMETAL_ACCEL_{known}"));
            found.map(|(_, value)| value.to_string())
        };
        Settings::read(variable, &["redis-server".to_string()])
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        let settings = read(&[]);
        assert!(settings.enabled && settings.policy.allows(1, 2));
        assert_eq!((settings.spin_us, settings.after_calls), (None, AFTER_CALLS_DEFAULT));
        assert_eq!((settings.share, settings.group, settings.report), (None, None, None));
        assert_eq!(settings.to_text(), "");
    }

    #[test]
    fn each_variable_is_read_and_printed() {
        let settings = read(&[
            ("OFF", "1"),
            ("SPIN_US", "20"),
            ("AFTER", "0"),
            ("SHARE", "/run/meet"),
            ("GROUP", "1000"),
            ("REPORT", "/proc/1/fd/3"),
            ("POLICY", "-22;%files@redis-server"),
        ]);
        assert!(!settings.enabled && !settings.policy.allows(22, 1));
        assert_eq!(settings.report, Some(c"/proc/1/fd/3"));
        assert_eq!(
            settings.to_text(),
            "off, spin 20 us, after 0 calls, share /run/meet, group 1000, policy, \
             io_uring for files only"
        );
    }

    #[test]
    fn invalid_values_count_as_not_set_and_program_rules_take_precedence() {
        let settings = read(&[("SPIN_US", "much"), ("AFTER", "-1"), ("SHARE", ""), ("OFF", "0")]);
        assert_eq!((settings.spin_us, settings.after_calls), (None, AFTER_CALLS_DEFAULT));
        assert!(settings.share.is_none() && settings.enabled);
        let settings = read(&[("SPIN_US", "50"), ("POLICY", "~0@redis*")]);
        assert_eq!(settings.spin_us, Some(0));
    }

    #[test]
    fn this_program_has_a_name() {
        let names = own_names();
        assert!(names.iter().any(|name| name.starts_with("nm_accel")), "{names:?}");
    }
}
