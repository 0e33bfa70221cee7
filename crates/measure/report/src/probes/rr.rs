//! What the reports say of request-response.

use nm_model::result::Statistic;

/// Round trips, the one that names a stack first.
pub const ROUND_TRIPS: &[Statistic] = &[Statistic::RoundTripFromIntended, Statistic::RoundTrip];

/// Where a round trip begins.
pub fn origin(statistic: Statistic) -> &'static str {
    match statistic {
        Statistic::RoundTripFromIntended => " from intended send",
        Statistic::RoundTrip => " service time",
        _ => "",
    }
}
