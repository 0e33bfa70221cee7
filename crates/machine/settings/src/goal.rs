//! What a value should be.

/// What a text should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// This word.
    Is(&'static str),
    /// The first of these, unless it is another one of them already.
    OneOf(&'static [&'static str]),
    /// A number of at least this.
    AtLeast(u64),
    /// A limit of this or a lower one: `0` is no limit, and `n/a` the lowest.
    Limit(u64),
}

impl Goal {
    /// The word to write where the value is not as it should be.
    pub fn word(self) -> String {
        match self {
            Goal::Is(word) => word.to_string(),
            Goal::OneOf(words) => words.first().copied().unwrap_or_default().to_string(),
            Goal::AtLeast(number) | Goal::Limit(number) => number.to_string(),
        }
    }
}

/// What a number of a driver's setting should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberGoal {
    /// Exactly this.
    Is(u32),
    /// At most this.
    AtMost(u32),
    /// At least this.
    AtLeast(u32),
}

impl NumberGoal {
    /// The number that meets the goal and is nearest to `old`.
    pub fn resolve(self, old: u32) -> u32 {
        match self {
            NumberGoal::Is(number) => number,
            NumberGoal::AtMost(number) => old.min(number),
            NumberGoal::AtLeast(number) => old.max(number),
        }
    }

    /// Whether the number is as it should be.
    pub fn accepts(self, number: u32) -> bool {
        self.resolve(number) == number
    }

    /// The number of the goal itself.
    pub fn number(self) -> u32 {
        match self {
            NumberGoal::Is(number) | NumberGoal::AtMost(number) | NumberGoal::AtLeast(number) => {
                number
            }
        }
    }
}
