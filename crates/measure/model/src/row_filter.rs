//! Choosing a part of a plan by words, as `--only` and sub-plans do.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::class::StackClass;
use crate::environment::EnvironmentKind;
use crate::named_enum::text_serde;
use crate::probe::ProbeKind;
use crate::stack::{Launcher, Mode, Protocol, Stack, StackPair};
use crate::words::{UnknownWord, nearest};

/// The word for all environments with virtual machines.
const GUESTS: &str = "guests";

/// One word of a [`RowFilter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterWord {
    /// Rows of an environment.
    Environment(EnvironmentKind),
    /// Rows of all environments with virtual machines.
    Guests,
    /// Rows of a probe.
    Probe(ProbeKind),
    /// Rows over this pair of stacks.
    Stacks(StackPair),
    /// Rows with this protocol at one end.
    Protocol(Protocol),
    /// Rows that wait in this mode at one end.
    Mode(Mode),
    /// Rows with this launcher at one end.
    Launcher(Launcher),
    /// Rows over stacks of a class.
    Class(StackClass),
}

impl FilterWord {
    /// Whether the word chooses among environments.
    fn is_of_environments(self) -> bool {
        matches!(self, FilterWord::Environment(_) | FilterWord::Guests)
    }

    /// Whether the word chooses among stacks.
    fn is_of_stacks(self) -> bool {
        !self.is_of_environments() && !matches!(self, FilterWord::Probe(_))
    }

    fn takes_environment(self, environment: EnvironmentKind) -> bool {
        match self {
            FilterWord::Environment(wanted) => wanted == environment,
            FilterWord::Guests => environment.has_guests(),
            _ => false,
        }
    }

    fn takes_stacks(self, stacks: &StackPair) -> bool {
        let ends = [stacks.client, stacks.server];
        match self {
            FilterWord::Environment(_) | FilterWord::Guests | FilterWord::Probe(_) => false,
            FilterWord::Stacks(wanted) => wanted == *stacks,
            FilterWord::Protocol(protocol) => ends.iter().any(|end| end.protocol == protocol),
            FilterWord::Mode(mode) => ends.iter().any(|end| end.mode == mode),
            FilterWord::Launcher(launcher) => ends.iter().any(|end| end.launcher == Some(launcher)),
            FilterWord::Class(class) => stacks.class() == class,
        }
    }
}

impl fmt::Display for FilterWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterWord::Environment(word) => word.fmt(f),
            FilterWord::Guests => f.pad(GUESTS),
            FilterWord::Probe(word) => word.fmt(f),
            FilterWord::Stacks(word) => word.fmt(f),
            FilterWord::Protocol(word) => word.fmt(f),
            FilterWord::Mode(word) => word.fmt(f),
            FilterWord::Launcher(word) => word.fmt(f),
            FilterWord::Class(word) => word.fmt(f),
        }
    }
}

impl FromStr for FilterWord {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<FilterWord, UnknownWord> {
        let text = text.trim();
        let as_stack = || {
            let pair = text.parse().map(FilterWord::Stacks).ok();
            pair.or_else(|| text.parse().map(FilterWord::Protocol).ok())
                .or_else(|| text.parse().map(FilterWord::Mode).ok())
                .or_else(|| text.parse().map(FilterWord::Launcher).ok())
                .or_else(|| text.parse().map(FilterWord::Class).ok())
        };
        let known = text.parse().map(FilterWord::Environment).ok();
        known
            .or_else(|| (text == GUESTS).then_some(FilterWord::Guests))
            .or_else(|| text.parse().map(FilterWord::Probe).ok())
            .or_else(as_stack)
            .ok_or_else(|| unknown_word(text))
    }
}

fn unknown_word(text: &str) -> UnknownWord {
    let mut words: Vec<&str> = EnvironmentKind::ALL.iter().map(|word| word.name()).collect();
    words.push(GUESTS);
    words.extend(ProbeKind::ALL.iter().map(|word| word.name()));
    words.extend(Protocol::ALL.iter().map(|word| word.name()));
    words.extend(Mode::ALL.iter().map(|word| word.name()));
    words.extend(Launcher::ALL.iter().map(|word| word.name()));
    words.extend(StackClass::ALL.iter().map(|word| word.name()));
    let unknown = UnknownWord::new("environment, stack or probe", text, &words);
    if !text.contains('-') {
        return unknown;
    }
    // `tcp-spn` is nearer to `tcp-spin` than to `tcp`.
    let stacks: Vec<String> = Protocol::ALL
        .iter()
        .flat_map(|&protocol| Mode::ALL.iter().map(move |&mode| Stack::new(protocol, mode)))
        .flat_map(|stack| {
            let launched = Launcher::ALL.iter().map(move |&launcher| Some(launcher));
            let all = std::iter::once(None).chain(launched);
            all.map(move |launcher| Stack { launcher, ..stack }.to_string())
        })
        .collect();
    let near_stack = nearest(text, &stacks);
    UnknownWord { nearest: near_stack.or(unknown.nearest), ..unknown }
}

text_serde!(FilterWord);

/// Chooses rows by words: environments, probes, and words about stacks. A row must match one word
/// of each of these kinds that is given. A filter without words takes every row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct RowFilter {
    /// The words, as they were written.
    pub words: Vec<FilterWord>,
}

impl RowFilter {
    /// Reads the words.
    ///
    /// # Errors
    /// The first word that is not known, with the nearest one.
    pub fn parse<S: AsRef<str>>(words: &[S]) -> Result<RowFilter, UnknownWord> {
        let words: Result<_, _> = words.iter().map(|word| word.as_ref().parse()).collect();
        Ok(RowFilter { words: words? })
    }

    /// Whether it takes every row.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether it takes the row.
    pub fn takes(
        &self,
        environment: EnvironmentKind,
        stacks: &StackPair,
        probe: ProbeKind,
    ) -> bool {
        let is_probe = |word: &FilterWord| matches!(word, FilterWord::Probe(_));
        self.takes_one(|word| word.is_of_environments(), |word| word.takes_environment(environment))
            && self.takes_one(is_probe, |word| word == FilterWord::Probe(probe))
            && self.takes_one(|word| word.is_of_stacks(), |word| word.takes_stacks(stacks))
    }

    /// Whether one of the words of a kind matches, or there is none of this kind.
    fn takes_one(
        &self,
        is_of_kind: impl Fn(&FilterWord) -> bool,
        matches: impl Fn(FilterWord) -> bool,
    ) -> bool {
        let mut of_kind = self.words.iter().filter(|word| is_of_kind(word)).peekable();
        of_kind.peek().is_none() || of_kind.any(|word| matches(*word))
    }
}

/// The words with commas between them, as `--only` takes them.
impl fmt::Display for RowFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.words.iter().map(ToString::to_string).collect();
        f.pad(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(words: &[&str], environment: &str, stacks: &str) -> bool {
        let filter = RowFilter::parse(words).unwrap();
        let (environment, stacks) = (environment.parse().unwrap(), stacks.parse().unwrap());
        filter.takes(environment, &stacks, ProbeKind::Pingpong)
    }

    #[test]
    fn words_of_one_kind_add_up_and_kinds_intersect() {
        assert!(takes(&[], "netns", "tcp-spin"));
        assert!(takes(&["netns", "bridge", "udp"], "bridge", "udp-spin"));
        assert!(!takes(&["netns", "bridge", "udp"], "bridge", "tcp-spin"));
        assert!(!takes(&["netns", "udp"], "bridge", "udp-spin"));
        assert!(takes(&["pingpong"], "bridge", "udp-spin"));
        assert!(!takes(&["stream"], "bridge", "udp-spin"));
        assert!(takes(&["tcp-spin"], "netns", "tcp-spin"));
        assert!(!takes(&["tcp-spin"], "netns", "tcp-spin:tcp-blocking"));
        assert!(takes(&["blocking"], "netns", "tcp-spin:tcp-blocking"));
        assert!(takes(&["accel", "udp"], "netns", "accel+tcp-spin"));
        assert!(takes(&["kernel"], "netns", "tcp-spin"));
        assert!(!takes(&["kernel"], "netns", "accel+tcp-spin"));
        assert!(takes(&["guests"], "vm-wire", "tcp-spin"));
        assert!(takes(&["guests", "netns", "tcp"], "netns", "tcp-spin"));
        assert!(!takes(&["guests"], "bridge", "tcp-spin"));
    }

    #[test]
    fn words_read_back_and_unknown_ones_get_the_nearest() {
        let words =
            ["netns", "guests", "pingpong", "tcp-spin:tcp-blocking", "xdp", "epoll", "onload"];
        let filter = RowFilter::parse(&words).unwrap();
        assert_eq!(filter.to_string(), words.join(","));
        let json = serde_json::to_string(&filter).unwrap();
        assert_eq!(serde_json::from_str::<RowFilter>(&json).unwrap(), filter);
        let error = |word: &str| RowFilter::parse(&[word]).unwrap_err().to_string();
        assert_eq!(
            error("nets"),
            "unknown environment, stack or probe `nets`, did you mean `netns`?"
        );
        assert!(error("tcp-spn").ends_with("did you mean `tcp-spin`?"), "{}", error("tcp-spn"));
        assert!(error("accel+tcp-spn").ends_with("did you mean `accel+tcp-spin`?"));
        assert!(error("busypoll").ends_with("did you mean `busy-poll`?"));
        assert!(error("infiniband").contains("; known are loopback, "));
    }
}
