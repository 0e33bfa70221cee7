//! Whether a program would be accelerated, and what decides it.

use schemars::JsonSchema;
use serde::Serialize;

/// What is known beforehand of a program under the socket accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Explanation {
    /// The program as the user named it.
    pub program: String,
    /// What would happen.
    pub verdict: Prospect,
    /// Everything that was examined.
    pub checks: Vec<Precondition>,
    /// What stays on the kernel of every program, or needs more than this program.
    pub limits: Vec<String>,
}

/// What would happen to a program's TCP connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Prospect {
    /// They can move to shared memory.
    #[serde(rename = "would be accelerated")]
    Accelerated,
    /// They cannot.
    #[serde(rename = "would stay on the kernel")]
    Kernel,
}

/// How one precondition bears on the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Bearing {
    /// It is met.
    Ok,
    /// It is worth knowing, and decides nothing.
    Note,
    /// It keeps the program on the kernel.
    Kernel,
}

/// One precondition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Precondition {
    /// What was examined.
    pub name: String,
    /// How it bears on the verdict.
    pub bearing: Bearing,
    /// What was found.
    pub found: String,
    /// What to do, if it is not met.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Prospect {
    /// The words that users read.
    pub fn text(self) -> &'static str {
        match self {
            Prospect::Accelerated => "would be accelerated",
            Prospect::Kernel => "would stay on the kernel",
        }
    }
}

impl Bearing {
    /// The word that users read.
    pub fn text(self) -> &'static str {
        match self {
            Bearing::Ok => "ok",
            Bearing::Note => "note",
            Bearing::Kernel => "kernel",
        }
    }
}

impl Explanation {
    /// The explanation with the verdict that follows from the checks.
    pub fn new(program: String, checks: Vec<Precondition>, limits: Vec<String>) -> Explanation {
        let stays = checks.iter().any(|check| check.bearing == Bearing::Kernel);
        let verdict = if stays { Prospect::Kernel } else { Prospect::Accelerated };
        Explanation { program, verdict, checks, limits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kernel_check_decides() {
        let check = |bearing| Precondition {
            name: "library".into(),
            bearing,
            found: "found".into(),
            remedy: None,
        };
        let of = |bearings: &[Bearing]| {
            let checks = bearings.iter().map(|bearing| check(*bearing)).collect();
            Explanation::new("redis".into(), checks, vec![]).verdict
        };
        assert_eq!(of(&[Bearing::Ok, Bearing::Note]), Prospect::Accelerated);
        assert_eq!(of(&[Bearing::Ok, Bearing::Kernel, Bearing::Note]), Prospect::Kernel);
    }
}
