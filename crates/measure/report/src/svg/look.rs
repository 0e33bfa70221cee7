//! How the marks of one entry look: a colour, and a dash and shape that tell entries of one colour
//! apart. A stack has the same colour in every chart, and related stacks have related colours. Blue
//! is for the kernel's sockets, orange and red for AF_XDP, green for shared memory and all else
//! that needs both ends on one host.

use nm_model::stack::{Launcher, Mode, Protocol, Stack, StackPair};

/// Dashes, and shapes of points, that exist; the style sheet has a class for each dash.
pub const N_PATTERNS: usize = 6;

/// Colour, dash and shape of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Number of the colour in the style sheet.
    pub colour: usize,
    /// Number of the dash and of the shape.
    pub pattern: usize,
    /// Whether it is drawn in the background, without a colour of its own.
    pub is_faint: bool,
}

/// A family of related stacks; each has two colours, the first for stacks that spin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hue {
    Tcp,
    Udp,
    Multicast,
    Xdp,
    XdpTcp,
    Shm,
    Unix,
    Accel,
    Bypass,
    Other,
}

/// Colours of entries that are no stacks, such as results that are compared: far apart from each
/// other.
const OTHERS: [Hue; 7] =
    [Hue::Tcp, Hue::Xdp, Hue::Shm, Hue::Bypass, Hue::Other, Hue::Unix, Hue::Udp];

impl Hue {
    fn of(stack: Stack) -> Hue {
        match (stack.launcher, stack.protocol) {
            (Some(Launcher::Accel), _) => Hue::Accel,
            (Some(Launcher::Onload | Launcher::Vma | Launcher::Smc), _) => Hue::Bypass,
            (None, Protocol::Tcp) => Hue::Tcp,
            (None, Protocol::Udp) => Hue::Udp,
            (None, Protocol::Multicast) => Hue::Multicast,
            (None, Protocol::Xdp) => Hue::Xdp,
            (None, Protocol::XdpTcp) => Hue::XdpTcp,
            (None, Protocol::Shm) => Hue::Shm,
            (None, Protocol::Unix) => Hue::Unix,
            (None, _) => Hue::Other,
        }
    }

    /// The family of a name that is no stack: the layout of an exchange, whose links are TCP unless
    /// a word says otherwise, or another tool's transport.
    fn of_words(name: &str) -> Hue {
        let has = |word: &str| name.split(' ').any(|part| part.eq_ignore_ascii_case(word));
        let is_layout = name.starts_with(|first: char| first.is_ascii_digit());
        match () {
            () if has("unix") => Hue::Unix,
            () if has("shm") => Hue::Shm,
            () if has("accel") => Hue::Accel,
            () if is_layout || has("tcp") => Hue::Tcp,
            () if has("udp") => Hue::Udp,
            () => Hue::Other,
        }
    }

    fn look(self, is_asleep: bool, pattern: usize) -> Look {
        let colour = 2 * self as usize + usize::from(is_asleep);
        Look { colour, pattern: pattern % N_PATTERNS, is_faint: false }
    }
}

impl Look {
    /// An entry that is no stack, by its number in the chart.
    pub fn of(index: usize) -> Look {
        OTHERS[index % OTHERS.len()].look(false, index + index / OTHERS.len())
    }

    /// The look of a stack, or of the layout of an exchange, wherever it is drawn.
    pub fn of_stack(name: &str) -> Look {
        match name.parse::<StackPair>() {
            Ok(pair) => {
                let is_asleep = !pair.client.mode.spins();
                let pattern = mode_number(pair.client.mode)
                    + if pair.client == pair.server {
                        0
                    } else {
                        1 + mode_number(pair.server.mode)
                    };
                Hue::of(pair.client).look(is_asleep, pattern)
            }
            Err(_) => Hue::of_words(name).look(false, name.bytes().map(usize::from).sum()),
        }
    }

    /// The colour of text: for marks that belong to no entry alone.
    pub fn neutral() -> Look {
        Hue::Other.look(false, 0)
    }

    /// An entry of another run, behind the others.
    pub fn faint(index: usize) -> Look {
        Look { colour: 0, pattern: index % N_PATTERNS, is_faint: true }
    }

    /// The same colour with the next dash and shape.
    pub fn with_next_pattern(self) -> Look {
        Look { pattern: (self.pattern + 1) % N_PATTERNS, ..self }
    }

    /// The class of its colour in the style sheet.
    pub fn colour_class(self) -> String {
        if self.is_faint { "kf".to_string() } else { format!("k{}", self.colour) }
    }

    /// The classes of its colour and dash.
    pub(super) fn class(self) -> String {
        format!("{} d{}", self.colour_class(), self.pattern)
    }
}

/// Number of a mode among those that spin, or among those that sleep.
fn mode_number(mode: Mode) -> usize {
    Mode::ALL.iter().filter(|m| m.spins() == mode.spins()).position(|m| *m == mode).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_stack_has_a_look_of_its_own() {
        let mut seen: BTreeMap<(usize, usize), String> = BTreeMap::new();
        for &protocol in Protocol::ALL {
            for &mode in Mode::ALL {
                let name = Stack::new(protocol, mode).to_string();
                let look = Look::of_stack(&name);
                let other = seen.insert((look.colour, look.pattern), name.clone());
                assert_eq!(other, None, "{name}");
            }
        }
    }

    #[test]
    fn related_stacks_share_a_colour_and_unrelated_ones_do_not() {
        let colour = |name| Look::of_stack(name).colour;
        assert_eq!(colour("tcp-blocking"), colour("tcp-epoll"));
        assert_eq!(colour("2-2-2-2 unix disk-quorum"), colour("4-4-4-4 unix"));
        assert_eq!(colour("2-2-2-2"), colour("tcp-spin"));
        for (a, b) in
            [("tcp-spin", "xdp-tcp-spin"), ("shm-spin", "tcp-spin"), ("udp-spin", "xdp-spin")]
        {
            assert_ne!(colour(a), colour(b), "{a} {b}");
        }
        assert_ne!(colour("accel+tcp-spin"), colour("tcp-spin"));
        assert_eq!(Look::of_stack("made up"), Look::of_stack("made up"));
    }
}
