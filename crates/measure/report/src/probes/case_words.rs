//! Words for the cases of probes.

use nm_model::probe::Case;

use crate::units;

/// The case as a cell: sizes short, the rest as it is.
pub fn text(case: &Case) -> String {
    match case {
        Case::Message { size_bytes } => units::bytes(u64::from(*size_bytes)),
        Case::Paced { size_bytes, think_time_us } => {
            let pause = units::latency_tick(*think_time_us as f64 * 1e3);
            format!("{}, think time {pause}", units::bytes(u64::from(*size_bytes)))
        }
        Case::Flows { pattern, write_bytes } => {
            format!("{pattern}, {} writes", units::bytes(u64::from(*write_bytes)))
        }
        other => other.to_string(),
    }
}

/// The case in as few words as a label has: of a request at a rate, the rate.
pub fn brief(case: &Case) -> String {
    match case.rate_per_s() {
        Some(rate) => format!("{}/s", units::plain(rate)),
        None => text(case),
    }
}

/// How fast requests follow each other, for the label of a line; nothing for other cases.
pub fn pace(case: &Case) -> String {
    match (case, case.rate_per_s()) {
        (_, Some(rate)) => format!(" at {}/s", units::plain(rate)),
        (Case::Request { .. }, None) => " closed loop".to_string(),
        _ => String::new(),
    }
}

/// The size of a ping-pong message, for a sentence; nothing for other cases.
pub fn of_message(case: &Case) -> String {
    match case {
        Case::Message { .. } => format!(" at {}", text(case)),
        _ => String::new(),
    }
}
