//! State of the kernel's clock, by `adjtimex(2)` without any change.

/// State of the kernel's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelClockState {
    /// Something keeps the clock synchronised.
    pub is_synchronized: bool,
    /// Offset that is being corrected, ns.
    pub offset_ns: i64,
    /// Estimated error, µs.
    pub estimated_error_us: u64,
    /// Largest error, µs.
    pub max_error_us: u64,
}

/// `adjtimex(modes = 0)`: reads, and changes nothing. Absent if the call is not allowed.
pub fn read() -> Option<KernelClockState> {
    // SAFETY: all zeros is a valid timex, which asks for nothing to be changed.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` is a complete structure for the kernel to fill.
    if unsafe { libc::adjtimex(&mut timex) } < 0 {
        return None;
    }
    let is_nano = timex.status & libc::STA_NANO != 0;
    Some(KernelClockState {
        is_synchronized: timex.status & libc::STA_UNSYNC == 0,
        offset_ns: timex.offset * if is_nano { 1 } else { 1_000 },
        estimated_error_us: u64::try_from(timex.esterror).unwrap_or(0),
        max_error_us: u64::try_from(timex.maxerror).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn state_is_read_without_privileges() {
        let state = super::read().expect("adjtimex without changes needs no privilege");
        // The kernel lets the largest error of a clock that nothing synchronises grow to 16 s.
        assert!(state.max_error_us <= 16_000_000, "{state:?}");
    }
}
