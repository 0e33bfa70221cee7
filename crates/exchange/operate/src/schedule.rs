//! A daily schedule of trading phases, and when each of them is due. Pure: the time is passed in.
//!
//! ```toml
//! zone = "+01:00"
//! days = ["mon", "tue", "wed", "thu", "fri"]
//!
//! [[group]]
//! name = "shares"
//! symbols = ["ACME"]          # all instruments without it
//! pre_open = "08:00"          # orders are collected
//! open = "09:00"              # the opening auction, then continuous trading
//! closing_auction = "17:25"   # orders are collected again
//! close = "17:30"             # the closing auction, the end of the day, and a halt
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nm_sys::text_file;
use nm_wire::Direction;
use serde::Deserialize;
use thiserror::Error;

/// Bytes of a file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Seconds of a day.
const DAY_S: i64 = 86_400;

/// Groups of a schedule: so many numbers fit control's state.
pub use nm_exchange::limits::SCHEDULE_GROUPS_MAX;

/// Letters of a group's name.
pub use nm_exchange::limits::SCHEDULE_NAME_BYTES_MAX;

/// Days of the week, from 1970-01-01 on.
const DAYS: [&str; 7] = ["thu", "fri", "sat", "sun", "mon", "tue", "wed"];

/// A phase of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Orders are collected.
    PreOpen,
    /// The opening auction's trades, then continuous trading.
    Open,
    /// Orders are collected again.
    ClosingAuction,
    /// The closing auction's trades, the end of the day, a halt.
    Close,
}

impl Phase {
    /// Whether orders for a closing auction of the day are accepted from it on.
    fn expects_closing(self) -> bool {
        matches!(self, Phase::PreOpen | Phase::Open)
    }

    /// What begins it.
    fn direction(self) -> Direction {
        match self {
            Phase::PreOpen => Direction::PreOpen,
            Phase::Open => Direction::Uncross,
            Phase::ClosingAuction => Direction::ClosingAuction,
            Phase::Close => Direction::Close,
        }
    }

    /// Its name, as the file has it.
    pub fn name(self) -> &'static str {
        match self {
            Phase::PreOpen => "pre_open",
            Phase::Open => "open",
            Phase::ClosingAuction => "closing_auction",
            Phase::Close => "close",
        }
    }
}

/// A phase that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Since when, s since 1970.
    pub at_s: u64,
    /// Which.
    pub phase: Phase,
}

/// Why a schedule cannot be used.
#[derive(Debug, Error)]
pub enum ScheduleError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no schedule.
    #[error("{}: {}", path.display(), source.message())]
    Toml {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: Box<toml::de::Error>,
    },
    /// Its content is wrong.
    #[error("{}: {why}", path.display())]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    zone: String,
    days: Option<Vec<String>>,
    #[serde(default)]
    group: Vec<GroupText>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupText {
    name: String,
    #[serde(default)]
    symbols: Vec<String>,
    pre_open: Option<String>,
    open: Option<String>,
    closing_auction: Option<String>,
    close: Option<String>,
}

/// Instruments whose phases begin at the same times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Symbols of its instruments; none for all.
    pub symbols: Vec<String>,
    /// Its phases, with the seconds of the day at which they begin.
    phases: Vec<(i64, Phase)>,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// By how many seconds its clocks are ahead of UTC.
    zone_s: i64,
    /// Days of the week with trading, as [`DAYS`] counts them.
    days: [bool; 7],
    /// The groups.
    pub groups: Vec<Group>,
}

impl Group {
    /// What is directed when a phase begins, in order: the last one is the phase itself.
    pub fn directions(&self, phase: Phase) -> Vec<Direction> {
        let has_closing = self.phases.iter().any(|(_, it)| *it == Phase::ClosingAuction);
        let expected = has_closing && phase.expects_closing();
        let before = expected.then_some(Direction::ExpectClosing);
        before.into_iter().chain([phase.direction()]).collect()
    }
}

impl Schedule {
    /// The schedule of a file.
    ///
    /// # Errors
    /// If it cannot be read, or is none.
    pub fn read(path: &Path) -> Result<Schedule, ScheduleError> {
        let text = text_file::read(path, FILE_BYTES_MAX)
            .map_err(|source| ScheduleError::Read { path: path.into(), source })?;
        let file: FileText = toml::from_str(&text)
            .map_err(|source| ScheduleError::Toml { path: path.into(), source: source.into() })?;
        Schedule::of(file).map_err(|why| ScheduleError::Content { path: path.into(), why })
    }

    fn of(file: FileText) -> Result<Schedule, String> {
        let zone_s = zone(&file.zone)
            .ok_or_else(|| format!("zone is `{}`: write +HH:MM, such as +01:00", file.zone))?;
        let mut days = [file.days.is_none(); 7];
        for day in file.days.unwrap_or_default() {
            let at = DAYS.iter().position(|known| *known == day);
            let at = at.ok_or_else(|| format!("`{day}` is no day: write mon, tue, … or sun"))?;
            days[at] = true;
        }
        let groups: Vec<Group> = file.group.into_iter().map(group).collect::<Result<_, _>>()?;
        if !(1..=SCHEDULE_GROUPS_MAX).contains(&groups.len()) {
            let count = groups.len();
            return Err(format!("it has {count} groups: 1 to {SCHEDULE_GROUPS_MAX} are possible"));
        }
        let names: BTreeSet<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        if names.len() < groups.len() {
            return Err("two groups have the same name".to_string());
        }
        if groups.len() > 1 && groups.iter().any(|group| group.symbols.is_empty()) {
            return Err("a group of all instruments is the only one: name symbols".to_string());
        }
        let mut known = BTreeSet::new();
        let mut symbols = groups.iter().flat_map(|group| &group.symbols);
        if let Some(twice) = symbols.find(|symbol| !known.insert(*symbol)) {
            return Err(format!("symbol {twice} stands twice"));
        }
        Ok(Schedule { zone_s, days, groups })
    }

    /// The phases of a group that are due at a time, s since 1970, the earliest first, when those
    /// up to `done_s` have begun. Of longer ago than a day none is due; if none has begun, only the
    /// latest one is.
    pub fn due(&self, group: &Group, done_s: Option<u64>, now_s: u64) -> Vec<Due> {
        let local_day = (now_s as i64 + self.zone_s).div_euclid(DAY_S);
        let days = (local_day - 7..=local_day).filter(|day| self.is_day(*day));
        let all = days.flat_map(|day| group.phases.iter().map(move |(at, phase)| (day, at, phase)));
        let due = all.map(|(day, at, phase)| {
            let at_s = u64::try_from(day * DAY_S + at - self.zone_s).unwrap_or(0);
            Due { at_s, phase: *phase }
        });
        let due: Vec<Due> = due.filter(|due| due.at_s <= now_s).collect();
        let Some(last) = due.last().copied() else { return vec![] };
        match done_s {
            None => vec![last],
            Some(done_s) => {
                let since_s = done_s.max(last.at_s.saturating_sub(DAY_S as u64));
                due.into_iter().filter(|due| due.at_s > since_s).collect()
            }
        }
    }

    fn is_day(&self, day: i64) -> bool {
        self.days.get(day.rem_euclid(7) as usize).is_some_and(|is_day| *is_day)
    }
}

/// The seconds of a zone such as `+01:00`.
fn zone(text: &str) -> Option<i64> {
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    Some(sign * time(rest)?).filter(|zone_s| zone_s.abs() <= 14 * 3_600)
}

/// The seconds of a time of day: `HH:MM` or `HH:MM:SS`.
fn time(text: &str) -> Option<i64> {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |text: &str, most: i64| {
        let is_two = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<i64>().ok().filter(|number| is_two && *number < most)
    };
    match parts[..] {
        [hours, minutes] => Some(number(hours, 24)? * 3_600 + number(minutes, 60)? * 60),
        [hours, minutes, seconds] => {
            let minutes = number(hours, 24)? * 60 + number(minutes, 60)?;
            Some(minutes * 60 + number(seconds, 60)?)
        }
        _ => None,
    }
}

fn group(text: GroupText) -> Result<Group, String> {
    let GroupText { name, symbols, pre_open, open, closing_auction, close } = text;
    if !(1..=SCHEDULE_NAME_BYTES_MAX).contains(&name.len()) {
        return Err(format!(
            "a group's name has 1 to {SCHEDULE_NAME_BYTES_MAX} bytes, and `{name}` has {}",
            name.len()
        ));
    }
    let all = [
        (pre_open, Phase::PreOpen),
        (open, Phase::Open),
        (closing_auction, Phase::ClosingAuction),
        (close, Phase::Close),
    ];
    let mut phases: Vec<(i64, Phase)> = vec![];
    for (at, phase) in all {
        let Some(at) = at else { continue };
        let at_s = time(&at).ok_or_else(|| {
            format!("{} of group {name} is `{at}`: write HH:MM or HH:MM:SS", phase.name())
        })?;
        if phases.last().is_some_and(|(before_s, _)| *before_s >= at_s) {
            return Err(format!("{} of group {name} is not after the one before", phase.name()));
        }
        phases.push((at_s, phase));
    }
    match phases.is_empty() {
        true => Err(format!("group {name} has no times")),
        false => Ok(Group { name, symbols, phases }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_closing_auction_is_expected_from_the_opening_on() {
        let of = |times: &str| {
            let text = format!("zone = \"+00:00\"\n[[group]]\nname = \"a\"\n{times}");
            let group = read(&text).unwrap().groups.remove(0);
            [Phase::PreOpen, Phase::Open, Phase::ClosingAuction, Phase::Close]
                .map(|phase| group.directions(phase))
        };
        let [pre_open, open, closing, close] = of(TIMES);
        assert_eq!(pre_open, [Direction::ExpectClosing, Direction::PreOpen]);
        assert_eq!(open, [Direction::ExpectClosing, Direction::Uncross]);
        assert_eq!((closing, close), (vec![Direction::ClosingAuction], vec![Direction::Close]));
        let without = of("open = \"09:00\"\nclose = \"17:00\"\n");
        assert_eq!(without[1], [Direction::Uncross]);
    }

    /// 1970-01-05, a Monday, 00:00 UTC.
    const MONDAY_S: u64 = 4 * 86_400;

    const TIMES: &str = "pre_open = \"08:00\"\nopen = \"09:00\"\nclosing_auction = \"17:25\"\n\
                         close = \"17:30:30\"\n";

    fn read(text: &str) -> Result<Schedule, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("schedule.toml");
        std::fs::write(&file, text).unwrap();
        Schedule::read(&file).map_err(|error| error.to_string())
    }

    fn schedule(zone: &str, days: &str) -> Schedule {
        read(&format!("zone = \"{zone}\"\n{days}\n[[group]]\nname = \"all\"\n{TIMES}")).unwrap()
    }

    fn due(schedule: &Schedule, done_s: Option<u64>, now_s: u64) -> Vec<(u64, Phase)> {
        let due = schedule.due(&schedule.groups[0], done_s, now_s);
        due.into_iter().map(|due| (due.at_s, due.phase)).collect()
    }

    #[test]
    fn a_phase_is_due_at_its_time_of_the_zone_and_once() {
        let hour = 3_600;
        let one = schedule("+01:00", "");
        let open_s = MONDAY_S + 8 * hour;
        assert_eq!(due(&one, Some(open_s - hour), open_s - 1), []);
        assert_eq!(due(&one, Some(open_s - hour), open_s), [(open_s, Phase::Open)]);
        assert_eq!(due(&one, Some(open_s), open_s + hour), []);
        // The zone to the other side of midnight.
        let west = schedule("-11:30", "");
        let open_s = MONDAY_S + 20 * hour + 1_800;
        assert_eq!(due(&west, Some(open_s - 1), open_s), [(open_s, Phase::Open)]);
        // Without any record the latest one is due, not what was before it.
        assert_eq!(due(&one, None, MONDAY_S), [(MONDAY_S - 7 * hour - 1_770, Phase::Close)]);
    }

    #[test]
    fn what_was_missed_is_due_in_order_and_no_day_twice() {
        let one = schedule("+00:00", "");
        let [pre_open, open, auction, close] =
            [8 * 3_600, 9 * 3_600, 62_700, 63_030].map(|at| MONDAY_S + at);
        let missed = due(&one, Some(open), close + 5);
        assert_eq!(missed, [(auction, Phase::ClosingAuction), (close, Phase::Close)]);
        // Over a night.
        let next = due(&one, Some(auction), pre_open + 86_400 + 1);
        assert_eq!(next, [(close, Phase::Close), (pre_open + 86_400, Phase::PreOpen)]);
        // Over a week only the last day counts.
        let late = due(&one, Some(pre_open), open + 7 * 86_400);
        assert_eq!(late.len(), 4);
        assert_eq!(late.last(), Some(&(open + 7 * 86_400, Phase::Open)));
    }

    #[test]
    fn days_without_trading_have_no_phases() {
        let one = schedule("+00:00", "days = [\"fri\", \"mon\"]");
        let friday = MONDAY_S - 3 * 86_400;
        let close = friday + 63_030;
        assert_eq!(due(&one, Some(close), MONDAY_S), [], "a weekend");
        assert_eq!(due(&one, Some(close), MONDAY_S + 8 * 3_600).len(), 1);
        assert_eq!(due(&one, None, MONDAY_S), [(close, Phase::Close)]);
    }

    #[test]
    fn a_wrong_file_is_refused_in_a_sentence() {
        let good = format!("zone = \"+01:00\"\n[[group]]\nname = \"a\"\n{TIMES}");
        assert!(read(&good).is_ok());
        let second = good.replace("zone = \"+01:00\"\n", "");
        for (text, why) in [
            (good.replace("+01:00", "CET"), "zone is `CET`: write +HH:MM, such as +01:00"),
            (good.replace("+01:00", "+15:00"), "zone is `+15:00`"),
            (good.replace("08:00", "8:00"), "pre_open of group a is `8:00`: write HH:MM"),
            (good.replace("08:00", "24:00"), "pre_open of group a is `24:00`"),
            (good.replace("08:00", "09:00"), "open of group a is not after the one before"),
            (good.replace("open =", "opens ="), "unknown field"),
            (good.replace("\"a\"", "\"\""), "a group's name has 1 to"),
            (format!("days = [\"monday\"]\n{good}"), "`monday` is no day"),
            (good.replace(TIMES, ""), "group a has no times"),
            ("zone = \"+00:00\"\n".to_string(), "it has 0 groups"),
            (format!("{good}{second}"), "two groups have the same name"),
            (format!("{good}{}", second.replace("\"a\"", "\"b\"")), "is the only one"),
            (
                format!(
                    "{good}symbols = [\"X\"]\n{}symbols = [\"X\"]\n",
                    second.replace("\"a\"", "\"b\"")
                ),
                "symbol X stands twice",
            ),
        ] {
            let refused = read(&text).unwrap_err();
            assert!(refused.contains("schedule.toml: ") && refused.contains(why), "{refused}");
        }
        assert!(Schedule::read(Path::new("/none")).unwrap_err().to_string().contains("/none"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        /// However often somebody looks, and is away for less than a day, each phase is done once,
        /// in order.
        #[test]
        fn each_phase_of_a_week_is_done_once_whenever_somebody_looks(
            steps in prop::collection::vec(1..80_000_u64, 1..9),
            zone in prop::sample::select(&["+00:00", "+05:45", "-08:00"][..]),
        ) {
            let one = schedule(zone, "");
            let begin_s = MONDAY_S + 86_400;
            let (mut now_s, mut done, mut done_s) = (begin_s, vec![], begin_s);
            for step in steps {
                now_s += step;
                for due in one.due(&one.groups[0], Some(done_s), now_s) {
                    done.push((due.at_s, due.phase));
                    done_s = due.at_s;
                }
            }
            // All phases begin at a half minute.
            let all: Vec<_> = (begin_s + 30..=now_s)
                .step_by(30)
                .filter_map(|at_s| {
                    let due = one.due(&one.groups[0], None, at_s);
                    due.last().filter(|due| due.at_s == at_s).map(|due| (due.at_s, due.phase))
                })
                .collect();
            prop_assert_eq!(done, all);
        }
    }
}
