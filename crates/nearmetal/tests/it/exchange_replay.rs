//! Days of other venues as load of the built program.

use crate::support::run_in;

#[test]
fn a_synthetic_day_is_replayed_at_a_multiple_of_its_speed() {
    let folder = tempfile::tempdir().unwrap();
    let made = run_in(
        folder.path(),
        &["exchange", "make-day", "day.itch.gz", "--seconds", "7", "--rate", "600"],
    );
    assert_eq!(made.code, 0, "{}{}", made.stdout, made.stderr);
    assert!(made.stdout.contains("a synthetic day, of no venue"), "{}", made.stdout);
    // A part from the middle of the day, whose books have orders already.
    let args = ["exchange", "replay", "day.itch.gz", "--from", "09:30:03", "--seconds", "3"];
    let more = ["--speed", "1x..2x", "--rounds", "1", "--limit", "5000", "--within", "100"];
    let more = [&args[..], &more, &["--nodes", "1-1-1-1", "--out", "run"]].concat();
    let replayed = run_in(folder.path(), &more);
    assert_eq!(replayed.code, 0, "{}{}", replayed.stdout, replayed.stderr);
    assert!(replayed.stdout.contains("this part of the day has"), "{}", replayed.stdout);
    assert!(replayed.stdout.contains("carries every speed up to 2.00x"), "{}", replayed.stdout);
}

#[test]
fn a_file_that_is_no_day_is_refused_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.csv"), "time\n").unwrap();
    std::fs::write(folder.path().join("b"), [0, 1, b'S']).unwrap();
    let replay = |args: &[&str]| run_in(folder.path(), &[&["exchange", "replay"], args].concat());
    for (args, why) in [
        (&["none"][..], "none cannot be read"),
        (&["a.csv"], "a.csv, line 1: the first line must be"),
        (&["b"], "b, message 1: a message of type S has 1 bytes instead of 12"),
        (&["b", "--speed", "x"], "speeds are such as 1x..64x"),
        (&["b", "--from", "noon"], "a time is such as 09:30:00"),
    ] {
        let refused = replay(args);
        assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
}
