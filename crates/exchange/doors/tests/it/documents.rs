//! What documents say of the door.

use nm_doors::limits::*;

#[test]
fn the_document_of_limits_has_each_number() {
    let page = include_str!("../../../../../docs/limits.md");
    for (name, number) in [
        ("message", MESSAGE_BYTES_MAX as u64),
        ("fields", MESSAGE_FIELDS_MAX as u64),
        ("clients", SESSIONS_MAX as u64),
        ("symbols", SYMBOLS_MAX as u64),
        ("strangers", UNKNOWN_CONNECTIONS_MAX as u64),
        ("time to log on", LOGON_LIMIT_NS),
        ("messages a second", u64::from(MESSAGES_PER_SECOND)),
        ("early messages", EARLY_MESSAGES_MAX as u64),
        ("unread output", OUTPUT_BYTES_MAX as u64),
        ("store", STORE_BYTES),
        ("ended orders", ENDED_ORDERS_MAX as u64),
        ("ClOrdID", CLIENT_ID_BYTES_MAX as u64),
        ("heartbeats", HEARTBEAT_S_MAX),
        ("depth", DEPTH_MAX as u64),
        ("market requests", MARKET_REQUESTS_MAX as u64),
        ("market symbols", MARKET_SYMBOLS_MAX as u64),
        ("firm symbols", FIRM_SYMBOLS_MAX as u64),
        ("market room", MARKET_ROOM_BYTES as u64),
        ("slow client", MARKET_SLOW_NS),
        ("market wait", MARKET_WAIT_NS),
        ("file of sessions", SETTINGS_BYTES_MAX),
        ("lines", LINES_BYTES_MAX as u64),
        ("packet", PACKET_BYTES_MAX as u64),
        ("silence", CLIENT_SILENCE_NS),
        ("live orders", LIVE_ORDERS_MAX as u64),
        ("waiting changes", WAITING_CHANGES_MAX as u64),
    ] {
        let row = format!("| {name} | {number} |");
        assert!(page.contains(&row), "docs/limits.md lacks `{row}`");
    }
}
