//! The accelerator's environment variables and named profiles, declared once. The library reads the
//! variables by this declaration, `nearmetal accel` checks and sets them, and help and guide show
//! it.

use std::ffi::CStr;

use crate::ledger::RECORDS;

/// One variable.
#[derive(Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: &'static CStr,
    /// The option of `nearmetal accel` that sets it; empty if there is none.
    pub option: &'static str,
    /// Unit of its value; empty if it has none.
    pub unit: &'static str,
    /// What holds if it is not set.
    pub default: &'static str,
    /// The values that it may have.
    pub values: Values,
    /// What it sets, as a clause.
    pub meaning: &'static str,
}

/// The values that a variable may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// `0` or `1`.
    Switch,
    /// A number from the first to the second.
    Number(u32, u32),
    /// An absolute path of at most so many bytes.
    Path(usize),
    /// A text that `nearmetal accel` writes.
    Text,
}

/// Longest path of a shared folder, bytes: a socket's path has at most 107, of which `/` and 32
/// digits are the file name.
pub const SHARE_BYTES_MAX: usize = 74;

/// Longest path of a Unix socket, bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Longest spin before a sleep unless the settings say otherwise, µs.
pub const SPIN_US_DEFAULT: u32 = 200;

/// Default for the data calls of a connection before its ends look for each other. By then the
/// kernel has cost each end about as much as the rendezvous will, so a connection that ends soon
/// after costs at most twice what it would without the library.
pub const AFTER_CALLS_DEFAULT: u32 = 32;

/// Default for the most connections of a process in shared memory: 2 GiB.
pub const JOINED_DEFAULT: u32 = 4096;

/// Switches the accelerator off.
pub static OFF: Variable = Variable {
    name: c"NEARMETAL_ACCEL_OFF",
    option: "",
    unit: "",
    default: "0",
    values: Values::Switch,
    meaning: "1 leaves every socket on the kernel",
};

/// Longest spin.
pub static SPIN_US: Variable = Variable {
    name: c"NEARMETAL_ACCEL_SPIN_US",
    option: "--spin-us",
    unit: "µs",
    default: "200, shorter after spins without success",
    values: Values::Number(0, 10_000_000),
    meaning: "longest spin before a sleep; 0 sleeps at once",
};

/// Calls before the rendezvous.
pub static AFTER: Variable = Variable {
    name: c"NEARMETAL_ACCEL_AFTER",
    option: "",
    unit: "calls",
    default: "32, more where connections are short",
    values: Values::Number(0, 1_000_000),
    meaning: "data calls of a connection before its ends look for each other",
};

/// Folder of the rendezvous.
pub static SHARE: Variable = Variable {
    name: c"NEARMETAL_ACCEL_SHARE",
    option: "--share",
    unit: "",
    default: "none",
    values: Values::Path(SHARE_BYTES_MAX),
    meaning: "folder in which programs of different network namespaces meet, accessible to their \
              user or group only",
};

/// Group whose members share memory.
pub static GROUP: Variable = Variable {
    name: c"NEARMETAL_ACCEL_GROUP",
    option: "--group",
    unit: "group id",
    default: "none",
    values: Values::Number(0, u32::MAX - 1),
    meaning: "group whose members' programs may share memory; without it one user's only",
};

/// Most joined connections.
pub static MAX: Variable = Variable {
    name: c"NEARMETAL_ACCEL_MAX",
    option: "--connections-max",
    unit: "connections",
    default: "4096",
    values: Values::Number(0, RECORDS as u32),
    meaning: "most connections of a process in shared memory, each of up to 516 KiB",
};

/// Receiver of the ledger.
pub static REPORT: Variable = Variable {
    name: c"NEARMETAL_ACCEL_REPORT",
    option: "--stats",
    unit: "",
    default: "none",
    values: Values::Path(SOCKET_PATH_BYTES_MAX),
    meaning: "socket to which the library sends its counts; set by `nearmetal accel --stats` only",
};

/// Rules of the policy.
pub static POLICY: Variable = Variable {
    name: c"NEARMETAL_ACCEL_POLICY",
    option: "--policy",
    unit: "",
    default: "everything is accelerated",
    values: Values::Text,
    meaning: "the policy in one line; set by `nearmetal accel --policy FILE` only",
};

/// Every variable, in the order in which they are shown.
pub static ALL: [&Variable; 8] = [&SPIN_US, &AFTER, &MAX, &SHARE, &GROUP, &POLICY, &REPORT, &OFF];

/// A named set of values.
#[derive(Debug)]
pub struct Profile {
    /// Its name on the command line.
    pub name: &'static str,
    /// For which programs it is.
    pub meaning: &'static str,
    /// What it sets.
    pub values: &'static [(&'static Variable, u32)],
}

/// Every profile.
pub static PROFILES: [Profile; 3] = [
    Profile {
        name: "latency",
        meaning: "both ends have a CPU of their own, and each answer counts",
        values: &[(&SPIN_US, 5_000), (&AFTER, 4)],
    },
    Profile {
        name: "throughput",
        meaning: "many messages follow each other, and CPU time is needed for work",
        values: &[(&SPIN_US, 50)],
    },
    Profile {
        name: "shared-cpus",
        meaning: "more threads want to run than there are CPUs, as in a container with a quota",
        values: &[(&SPIN_US, 0)],
    },
];

impl Variable {
    /// Its name as text.
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }

    /// The number in `text`; none if it is none, or outside the range.
    pub fn number(&self, text: &str) -> Option<u32> {
        let Values::Number(min, max) = self.values else { return None };
        text.parse().ok().filter(|number| (min..=max).contains(number))
    }

    /// Whether it may have this value. An empty value counts as not set.
    pub fn allows(&self, text: &str) -> bool {
        text.is_empty()
            || match self.values {
                Values::Switch => matches!(text, "0" | "1"),
                Values::Number(..) => self.number(text).is_some(),
                Values::Path(bytes_max) => text.starts_with('/') && text.len() <= bytes_max,
                Values::Text => true,
            }
    }

    /// The values that it may have, as a clause.
    pub fn range(&self) -> String {
        match self.values {
            Values::Switch => "0 or 1".to_string(),
            Values::Number(min, max) => format!("{min} to {max}"),
            Values::Path(bytes_max) => format!("an absolute path of at most {bytes_max} bytes"),
            Values::Text => "a text".to_string(),
        }
    }
}

impl Profile {
    /// The profile of this name.
    pub fn named(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// What it sets a variable to.
    pub fn value(&self, variable: &Variable) -> Option<u32> {
        self.values.iter().find(|(set, _)| *set == variable).map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_and_defaults_are_within_the_ranges() {
        for profile in &PROFILES {
            for (variable, value) in profile.values {
                assert!(variable.allows(&value.to_string()), "{}", profile.name);
            }
            assert!(std::ptr::eq(Profile::named(profile.name).unwrap(), profile));
        }
        for (variable, default) in
            [(&SPIN_US, SPIN_US_DEFAULT), (&AFTER, AFTER_CALLS_DEFAULT), (&MAX, JOINED_DEFAULT)]
        {
            let shown = variable.default.split(',').next().unwrap();
            assert_eq!(variable.number(shown), Some(default), "{}", variable.name());
        }
        assert!(Profile::named("none").is_none());
    }

    #[test]
    fn values_are_checked_by_kind() {
        for (variable, good, bad) in [
            (&SPIN_US, "0", "-1"),
            (&SPIN_US, "10000000", "10000001"),
            (&MAX, "65536", "65537"),
            (&OFF, "1", "yes"),
            (&SHARE, "/run/meet", "run/meet"),
            (&REPORT, "", "x"),
        ] {
            assert!(variable.allows(good) && !variable.allows(bad), "{}", variable.name());
        }
        assert!(!SHARE.allows(&format!("/{}", "x".repeat(SHARE_BYTES_MAX))));
    }
}
