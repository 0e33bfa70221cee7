//! What documents say of the feed.

use nm_feed::limits::*;

#[test]
fn the_document_of_limits_has_each_number() {
    let page = include_str!("../../../../../docs/limits.md");
    for (name, number) in [
        ("stocks", STOCKS_MAX as u64),
        ("kept bytes", KEPT_BYTES),
        ("requests a second", u64::from(REQUESTS_PER_SECOND)),
        ("all requests a second", u64::from(ALL_REQUESTS_PER_SECOND)),
        ("snapshots", SNAPSHOTS_MAX as u64),
        ("time to log in", LOGIN_LIMIT_NS),
        ("snapshot silence", SNAPSHOT_SILENCE_NS),
        ("snapshot age", SNAPSHOT_AGE_NS),
        ("early updates", EARLY_UPDATES_MAX as u64),
        ("missing update", MISSING_NS),
        ("early messages of a consumer", EARLY_MESSAGES_MAX as u64),
        ("requested messages", u64::from(REQUESTED_MESSAGES)),
    ] {
        let row = format!("| {name} | {number} |");
        assert!(page.contains(&row), "docs/limits.md lacks `{row}`");
    }
}
