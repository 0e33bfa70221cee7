//! Which host a failed trial's reason names as its cause.

/// The end of a trial, 0 or 1, that `reason` names by its destination of ssh: what follows the word
/// `host`. Nobody is blamed if it names both or none: the path between them may be the cause.
pub fn blamed(reason: &str, destinations: [&str; 2]) -> Option<usize> {
    let words: Vec<&str> = reason.split_whitespace().collect();
    let is_named = |destination: &str| {
        words.windows(2).any(|pair| pair[0] == "host" && trimmed(pair[1]) == destination)
    };
    match destinations.map(is_named) {
        [true, false] => Some(0),
        [false, true] => Some(1),
        _ => None,
    }
}

/// A word without the signs of its sentence.
fn trimmed(word: &str) -> &str {
    word.trim_end_matches([':', ',', ';'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_that_a_reason_names_is_blamed() {
        let ends = ["h1", "u@h11"];
        for (reason, expected) in [
            ("host h1 cannot be reached: ssh says: connect to host 10.0.0.1 port 22", Some(0)),
            ("failed 3 times in a row: the agent on host u@h11 ended: a signal", Some(1)),
            ("host u@h11: it did not answer", Some(1)),
            ("host h1 at 10.0.0.1 cannot reach host u@h11 at 10.0.0.2: no route", None),
            ("the peer has gone", None),
            ("host h111 is another one", None),
        ] {
            assert_eq!(blamed(reason, ends), expected, "{reason}");
        }
    }
}
