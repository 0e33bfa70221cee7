//! What one check of a machine says.

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// Short name.
    pub name: &'static str,
    /// Whether it is available.
    pub ok: bool,
    /// What was found, as a clause.
    pub found: String,
    /// What it is needed for.
    pub meaning: &'static str,
    /// How to get it; absent if it is available.
    pub remedy: Option<String>,
    /// Whether an environment of the plan `quick` that every Linux host can make needs it.
    pub needed: bool,
}

/// A check; the remedy is kept only if it is needed.
pub(super) fn check(
    name: &'static str,
    ok: bool,
    found: impl Into<String>,
    meaning: &'static str,
    remedy: impl Into<String>,
) -> Check {
    let remedy = (!ok).then(|| remedy.into());
    Check { name, ok, found: found.into(), meaning, remedy, needed: false }
}
