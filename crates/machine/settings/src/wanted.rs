//! What a setting should become, and the value to write where another one is.

use nm_sys::cpu_list;
use nm_sys::hostfiles::parse_list;

use crate::goal::{Goal, NumberGoal};
use crate::value::{Value, choose, chosen, with_line_end};

/// What a setting should become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// This word.
    Word(String),
    /// The first of these, unless it is another one of them already.
    OneOf(Vec<String>),
    /// A number of at least this.
    AtLeast(u64),
    /// A limit of this or a lower one: `0` is no limit, and `n/a` the lowest.
    Limit(u64),
    /// A lowest frequency of at least the first number; else the second one is written. kHz.
    Frequency(u64, u64),
    /// A mask of CPUs.
    Mask(Vec<u32>),
    /// A list of CPUs without these, or with the others if none is left.
    ListWithout(Vec<u32>, Vec<u32>),
    /// A limit of unwritten file data, bytes.
    DirtyBytes(u64),
    /// Numbers of a driver's setting.
    Numbers(Vec<(usize, NumberGoal)>),
}

impl Goal {
    /// Whether a file's text is as it should be; absent if it cannot be such a value.
    pub fn accepts(self, text: &str) -> Option<bool> {
        let value = Value::Text(text.to_string());
        match (Wanted::from(self).resolve(&value), self) {
            (Some(new), _) => Some(new == value),
            // A file that offers no such word has another one.
            (None, Goal::Is(_) | Goal::OneOf(_)) => Some(false),
            (None, Goal::AtLeast(_) | Goal::Limit(_)) => None,
        }
    }
}

impl From<Goal> for Wanted {
    fn from(goal: Goal) -> Wanted {
        match goal {
            Goal::Is(word) => Wanted::Word(word.to_string()),
            Goal::OneOf(words) => Wanted::OneOf(words.iter().map(ToString::to_string).collect()),
            Goal::AtLeast(number) => Wanted::AtLeast(number),
            Goal::Limit(number) => Wanted::Limit(number),
        }
    }
}

impl Wanted {
    /// The lowest frequency of a CPU: at least its base frequency, which all CPUs can have at once.
    /// Else its highest one is written. kHz.
    pub fn frequency(base_khz: Option<u64>, max_khz: u64) -> Wanted {
        Wanted::Frequency(base_khz.unwrap_or(max_khz).min(max_khz), max_khz)
    }

    /// Whether a file's text is as it should be; absent if it cannot be such a value.
    pub fn accepts(&self, text: &str) -> Option<bool> {
        let value = Value::Text(text.to_string());
        self.resolve(&value).map(|new| new == value)
    }

    /// The value to write where `old` is; the same if there is nothing to do. Absent if the setting
    /// has no such value.
    pub fn resolve(&self, old: &Value) -> Option<Value> {
        match (self, old) {
            (Wanted::Numbers(goals), Value::Numbers(old)) => {
                let mut numbers = old.clone();
                for (index, goal) in goals {
                    let number = numbers.get_mut(*index)?;
                    *number = goal.resolve(*number);
                }
                Some(Value::Numbers(numbers))
            }
            (Wanted::Numbers(_), _) | (_, Value::Numbers(_)) => None,
            (wanted, Value::Text(text)) => wanted.resolve_text(text).map(Value::Text),
        }
    }

    fn resolve_text(&self, old: &str) -> Option<String> {
        let current = chosen(old).unwrap_or_else(|| old.trim());
        let word = match self {
            Wanted::Word(word) => word.clone(),
            Wanted::OneOf(words) if words.iter().any(|word| word == current) => return same(old),
            Wanted::OneOf(words) => {
                let is_offered =
                    |word: &&String| chosen(old).is_none() || choose(old, word).is_some();
                words.iter().find(is_offered)?.clone()
            }
            Wanted::AtLeast(least) => current.parse::<u64>().ok()?.max(*least).to_string(),
            Wanted::Limit(_) if current == "n/a" => return same(old),
            Wanted::Limit(most) => match current.parse::<u64>().ok()? {
                limit if limit > 0 && limit <= *most => return same(old),
                _ => most.to_string(),
            },
            Wanted::Frequency(least, write) => match current.parse::<u64>().ok()? {
                khz if khz >= *least => return same(old),
                _ => write.to_string(),
            },
            Wanted::Mask(cpus) => cpu_list::mask_like(old, cpus)?,
            Wanted::ListWithout(without, others) => {
                let old = parse_list(old)?;
                let left: Vec<u32> = old.into_iter().filter(|cpu| !without.contains(cpu)).collect();
                cpu_list::list(if left.is_empty() { others } else { &left })
            }
            Wanted::DirtyBytes(bytes) => return dirty_bytes(old, *bytes),
            Wanted::Numbers(_) => return None,
        };
        if word == current {
            return same(old);
        }
        match chosen(old) {
            Some(_) => choose(old, &word),
            None => Some(with_line_end(&word, old)),
        }
    }
}

fn same(old: &str) -> Option<String> {
    Some(old.to_string())
}

/// Two lines, bytes and ratio: the one that is set makes the other zero.
fn dirty_bytes(old: &str, bytes: u64) -> Option<String> {
    let mut lines = old.split_inclusive('\n');
    let (old_bytes, old_ratio) = (lines.next()?, lines.next()?);
    let current: u64 = old_bytes.trim().parse().ok()?;
    if (1..=bytes).contains(&current) {
        return same(old);
    }
    let bytes = with_line_end(&bytes.to_string(), old_bytes);
    Some(bytes + &with_line_end("0", old_ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(wanted: &Wanted, old: &str) -> Option<String> {
        match wanted.resolve(&Value::Text(old.to_string())) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    #[test]
    fn a_wanted_text_keeps_the_form_of_the_file() {
        let word = |word: &str| Wanted::Word(word.to_string());
        assert_eq!(text(&word("0"), "1\n").as_deref(), Some("0\n"));
        assert_eq!(text(&word("0"), "1").as_deref(), Some("0"));
        assert_eq!(text(&word("n/a"), "0\n").as_deref(), Some("n/a\n"));
        assert_eq!(text(&word("never"), "[always] never\n").as_deref(), Some("always [never]\n"));
        assert_eq!(text(&word("defer"), "[always] never\n"), None, "no such choice");
        let one = Wanted::OneOf(vec!["madvise".into(), "never".into()]);
        assert_eq!(text(&one, "always [never]\n").as_deref(), Some("always [never]\n"));
        assert_eq!(text(&Wanted::AtLeast(50), "70\n").as_deref(), Some("70\n"));
        assert_eq!(text(&Wanted::AtLeast(50), "n/a\n"), None);
        for (old, new) in [("0\n", "2\n"), ("9\n", "2\n"), ("1\n", "1\n"), ("n/a\n", "n/a\n")] {
            assert_eq!(text(&Wanted::Limit(2), old).as_deref(), Some(new));
        }
        assert_eq!(text(&Wanted::Frequency(20, 50), "20\n").as_deref(), Some("20\n"));
        assert_eq!(text(&Wanted::Frequency(20, 50), "19\n").as_deref(), Some("50\n"));
        assert_eq!(text(&Wanted::Mask(vec![1]), "00000003\n").as_deref(), Some("00000002\n"));
        let without = Wanted::ListWithout(vec![2, 3], vec![0]);
        assert_eq!(text(&without, "0-3\n").as_deref(), Some("0-1\n"));
        assert_eq!(text(&without, "2\n").as_deref(), Some("0\n"));
    }

    #[test]
    fn a_dirty_limit_in_bytes_sets_the_ratio_to_zero() {
        let wanted = Wanted::DirtyBytes(4096);
        assert_eq!(text(&wanted, "0\n10\n").as_deref(), Some("4096\n0\n"));
        assert_eq!(text(&wanted, "8192\n0\n").as_deref(), Some("4096\n0\n"));
        assert_eq!(text(&wanted, "1024\n0\n").as_deref(), Some("1024\n0\n"), "lower already");
    }

    #[test]
    fn numbers_that_are_not_named_stay() {
        let goals = vec![(0, NumberGoal::AtMost(0)), (2, NumberGoal::AtLeast(8))];
        let old = Value::Numbers(vec![5, 6, 7]);
        assert_eq!(
            Wanted::Numbers(goals.clone()).resolve(&old),
            Some(Value::Numbers(vec![0, 6, 8]))
        );
        assert_eq!(Wanted::Numbers(goals).resolve(&Value::Numbers(vec![5])), None);
    }
}
