//! A message more is a file and a row of the table. Here the table has that row alone: its enum,
//! codes, digest, documentation and the check of its decoder come from it.

use nm_wire::{FrameMut, Row, Shape, messages};

messages! {
    for<'a>
    whisper::Whisper<'a> = 200, Client > Gateway > Client;
}

#[test]
fn a_message_more_is_a_file_and_a_row() {
    let mut bytes = vec![];
    nm_wire::write_shaped(
        &Whisper { to: 7, text: nm_wire::Rest(b"hush") },
        Shape::default(),
        &mut bytes,
    );
    // It is dispatched by its kind, and its fields can be read and changed on the way.
    let mut frame = FrameMut::of(&mut bytes).unwrap();
    whisper::Edit::of(&mut frame).unwrap().to(8);
    let frame = nm_wire::read_with(&bytes, Kind::is_known).unwrap().unwrap();
    let Message::Whisper(read) = Message::read(frame).unwrap();
    assert_eq!((read.to, read.text.0), (8, &b"hush"[..]));
    assert!(nm_wire::read(&bytes).is_err(), "peers without the row refuse it");
    // The checks of all messages and the documentation have it.
    let [row]: [Row; 1] = ROWS.try_into().unwrap();
    assert_eq!((row.again)(&row.example_of(5)), Ok(row.example_of(5)));
    let all = [nm_wire::ROWS, ROWS].concat();
    assert_ne!(nm_wire::digest_of(&all), nm_wire::digest());
    let lines: Vec<String> = nm_wire::document(&all).lines().map(str::to_string).collect();
    for line in [
        "| 200 | [Whisper](#whisper) | client → gateway → client |",
        "### Whisper",
        "| 16 | 4 | u32 | `to` | The session that gets it. |",
        "| 20 | varies | bytes up to the end | `text` | What it gets. |",
    ] {
        assert!(lines.iter().any(|it| it == line), "{line}");
    }
}
