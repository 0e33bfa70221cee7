//! Ranges in names: `node[01-16]`, `rack[1-2]n[1,3-5]`.

/// Most names that one word may stand for.
const NAMES_MAX: usize = 1024;

/// The names that a word stands for, in their order; the word itself if it has no range.
///
/// # Errors
/// What is wrong with a range, as a clause.
pub(crate) fn expand(word: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('[') {
        let (inside, after) =
            after.split_once(']').ok_or_else(|| "has a `[` without `]`".to_string())?;
        let parts = parts(inside)?;
        if names.len() * parts.len() > NAMES_MAX {
            return Err(format!("stands for more than {NAMES_MAX} hosts"));
        }
        let with = |name: &String| -> Vec<String> {
            parts.iter().map(|part| format!("{name}{before}{part}")).collect()
        };
        names = names.iter().flat_map(with).collect();
        rest = after;
    }
    if rest.contains(']') {
        return Err("has a `]` without `[`".to_string());
    }
    Ok(names.into_iter().map(|name| name + rest).collect())
}

/// The numbers of `1,3-5`, as wide as the first number of their range.
fn parts(inside: &str) -> Result<Vec<String>, String> {
    let mut parts = vec![];
    for part in inside.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let refused = || format!("has `[{inside}]`, where numbers such as `[01-16]` are expected");
        let is_number = |text: &str| {
            (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !is_number(first) || !is_number(last) {
            return Err(refused());
        }
        let (from, to): (u32, u32) =
            (first.parse().map_err(|_| refused())?, last.parse().map_err(|_| refused())?);
        if from > to {
            return Err(format!(
                "has `[{inside}]`, which counts down; write the lower number first"
            ));
        }
        if (to - from) as usize >= NAMES_MAX || parts.len() >= NAMES_MAX {
            return Err(format!("stands for more than {NAMES_MAX} hosts"));
        }
        let width = first.len();
        parts.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_keeps_the_width_of_its_first_number() {
        assert_eq!(expand("node[08-10]").unwrap(), ["node08", "node09", "node10"]);
        assert_eq!(
            expand("r[1-2]n[1,3-4].x").unwrap().join(" "),
            "r1n1.x r1n3.x r1n4.x r2n1.x r2n3.x r2n4.x"
        );
        assert_eq!(expand("plain").unwrap(), ["plain"]);
    }

    #[test]
    fn what_is_no_range_is_refused_with_the_reason() {
        for (word, why) in [
            ("n[1-", "a `[` without `]`"),
            ("n1]", "a `]` without `[`"),
            ("n[a-b]", "numbers such as `[01-16]`"),
            ("n[]", "numbers such as"),
            ("n[5-1]", "counts down"),
            ("n[0-9999]", "more than 1024 hosts"),
            ("n[0-99][0-99]", "more than 1024 hosts"),
            ("n[0-99999999999]", "numbers such as"),
        ] {
            let error = expand(word).unwrap_err();
            assert!(error.contains(why), "{word}: {error}");
        }
    }
}
