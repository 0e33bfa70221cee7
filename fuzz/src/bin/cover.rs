//! libFuzzer's program for all targets: one, because each would take a long time to link. The
//! variable `NM_FUZZ_TARGET` names the target.
#![no_main]

use std::sync::LazyLock;

use nearmetal_fuzz::{TARGETS, Target};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("NM_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| panic!("NM_FUZZ_TARGET is `{name}`, which is no target"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
