//! `docs/wire.md` is what the table says.

use std::path::Path;

#[test]
fn the_document_follows_from_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/wire.md");
    let document = nm_wire::document(nm_wire::ROWS);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &document).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let same = document.lines().zip(committed.lines()).take_while(|(a, b)| a == b).count();
    assert!(
        document == committed,
        "line {}: UPDATE=1 cargo test -p nm-wire the_document writes docs/wire.md anew",
        same + 1
    );
}

#[test]
fn each_field_and_type_is_explained() {
    let document = nm_wire::document(nm_wire::ROWS);
    assert!(!document.contains("|  |") && !document.contains('{'), "an empty column");
    for row in nm_wire::ROWS {
        assert!(document.contains(&format!("\n### {}\n", row.name)), "{}", row.name);
    }
}
