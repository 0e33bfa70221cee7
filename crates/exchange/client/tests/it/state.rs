//! The file of a session's state.

use std::fs;
use std::io::Write;

use nm_client::order::{Command, Side};
use nm_client::{Change, OpenOrder, Session, StateError, StateFile};

fn changes() -> Vec<Change> {
    let order = OpenOrder { side: Side::Sell, price: -5, left: 3, is_open: true };
    vec![
        Change::Submitted(7, 100, Command::Cancel { id: 9, user: 3 }),
        Change::Answered(7, 100),
        Change::Submitted(7, 101, Command::MassCancel { user: 3 }),
        Change::Submitted(7, 102, Command::Tick),
        Change::Refused(7, 102),
        Change::Handled(7, 12),
        Change::Order(7, 9, order),
        Change::Order(7, 10, order),
        Change::Gone(7, 10),
    ]
}

#[test]
fn a_state_is_read_as_it_was_written_up_to_the_last_complete_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let (mut file, _) = StateFile::open(&path, 3).unwrap();
    file.append(&changes()).unwrap();
    drop(file);
    let torn = fs::File::options().append(true).open(&path).unwrap().write_all(b"handled 7 9");
    torn.unwrap();
    let mut expected = Session::new(3);
    changes().into_iter().for_each(|change| expected.restore(change));
    for _ in 0..2 {
        let (_, session) = StateFile::open(&path, 3).unwrap();
        assert_eq!(session.snapshot(), expected.snapshot());
        assert_eq!((session.pending(7), session.orders().count()), (1, 1));
    }
}

#[test]
fn a_state_that_is_used_or_is_of_another_session_or_damaged_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let (file, _) = StateFile::open(&path, 3).unwrap();
    assert!(matches!(StateFile::open(&path, 3), Err(StateError::Locked(_))));
    drop(file);
    assert!(matches!(StateFile::open(&path, 4), Err(StateError::Other { session: 4, .. })));
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("handled 7\nhandled 7 1\n");
    fs::write(&path, text).unwrap();
    let error = StateFile::open(&path, 3).unwrap_err();
    assert!(matches!(error, StateError::Line { line: 3, .. }), "{error}");
}
