//! Temporary.
#[test]
fn tmp() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/wire.md");
    std::fs::write(root, nm_wire::document(nm_wire::ROWS)).unwrap();
    let mut out = vec![];
    nm_wire::ROWS.iter().for_each(|row| out.extend((0..9).flat_map(|seed| row.example_of(seed))));
    println!("MESSAGES {}", nm_codec::crc32c(&out));
}
