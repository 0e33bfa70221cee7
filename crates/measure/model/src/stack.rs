//! Transport between two agents: protocol, wait mode, and the launcher of the program.
//!
//! Text form of one endpoint: `[LAUNCHER+]PROTOCOL-MODE`, such as `tcp-spin` or
//! `onload+tcp-blocking`. A pair whose ends differ is written `CLIENT:SERVER`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::class::{Bypass, StackClass};
use crate::guest_execution::GuestExecution;
pub use crate::launcher::Launcher;
pub use crate::mode::Mode;
use crate::named_enum::text_serde;
pub use crate::protocol::Protocol;
use crate::words::UnknownWord;

/// Transport of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stack {
    /// What carries the bytes.
    pub protocol: Protocol,
    /// How the endpoint waits.
    pub mode: Mode,
    /// What starts the agent, if anything.
    pub launcher: Option<Launcher>,
}

impl Stack {
    /// The stack of the probes that move no bytes.
    pub const CPU: Stack = Stack { protocol: Protocol::Cpu, mode: Mode::Spin, launcher: None };

    /// A stack of kernel or built-in transport without a launcher.
    pub fn new(protocol: Protocol, mode: Mode) -> Stack {
        Stack { protocol, mode, launcher: None }
    }

    /// The class of this end.
    pub fn class(&self) -> StackClass {
        let of_protocol = self.protocol.row().class;
        match (of_protocol, self.launcher) {
            (StackClass::Kernel | StackClass::Bypass, Some(launcher)) => launcher.row().class,
            _ => of_protocol,
        }
    }

    /// What this end uses instead of the kernel's network sockets.
    pub fn bypass(&self) -> Bypass {
        self.launcher.map_or(self.protocol.row().bypass, |launcher| launcher.row().bypass)
    }

    /// The kernel bypass of this end, as [`Comparability::bypass`] names it.
    pub fn bypass_name(&self) -> &'static str {
        match (self.launcher, self.protocol.row().bypass) {
            (Some(launcher), _) => launcher.name(),
            (None, Bypass::SharedMemory) => Protocol::Shm.name(),
            (None, Bypass::AfXdp) => Protocol::Xdp.name(),
            (None, Bypass::None | Bypass::Launcher) => "none",
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.launcher {
            Some(launcher) => format!("{launcher}+{}-{}", self.protocol, self.mode),
            None => format!("{}-{}", self.protocol, self.mode),
        };
        f.pad(&text)
    }
}

impl FromStr for Stack {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Stack, UnknownWord> {
        let (launcher, rest) = match text.split_once('+') {
            Some((launcher, rest)) => (Some(launcher.parse()?), rest),
            None => (None, text),
        };
        // A name may begin with another one: `xdp-tcp-spin` is not the mode `tcp-spin` of `xdp`.
        let known = Protocol::ALL
            .iter()
            .filter_map(|protocol| rest.strip_prefix(protocol.name())?.strip_prefix('-'))
            .min_by_key(|mode| mode.len());
        let split = match known {
            Some(mode) => rest.split_at_checked(rest.len() - mode.len() - 1),
            None => rest.split_once('-').map(|(protocol, _)| (protocol, "")),
        };
        let is_protocol = rest.parse::<Protocol>().is_ok();
        let Some((protocol, _)) = split.filter(|_| !is_protocol) else {
            let all: Vec<String> = Protocol::ALL
                .iter()
                .flat_map(|p| Mode::ALL.iter().map(move |m| format!("{p}-{m}")))
                .collect();
            let mut unknown = UnknownWord::new("stack", text, &all);
            if let Ok(protocol) = rest.parse::<Protocol>() {
                unknown.nearest = Some(format!("{protocol}-spin"));
            }
            return Err(unknown);
        };
        let protocol = protocol.parse()?;
        Ok(Stack { protocol, mode: known.unwrap_or_default().parse()?, launcher })
    }
}

text_serde!(Stack);

/// The stacks of both endpoints. Both have the same [`Protocol::wire_protocol`]; the kernel may
/// implement it at one end and this program at the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackPair {
    /// The end that sends first and measures.
    pub client: Stack,
    /// The end that answers.
    pub server: Stack,
}

impl StackPair {
    /// The same stack at both ends.
    pub fn same(stack: Stack) -> StackPair {
        StackPair { client: stack, server: stack }
    }

    /// The protocols of both ends, the client's first.
    pub fn protocols(&self) -> [Protocol; 2] {
        [self.client.protocol, self.server.protocol]
    }

    /// The protocol on the wire.
    pub fn wire_protocol(&self) -> Protocol {
        self.client.protocol.wire_protocol()
    }

    /// The class of the pair: same-host if one end is, else bypass if one end is.
    pub fn class(&self) -> StackClass {
        self.client.class().max(self.server.class())
    }

    /// What the stacks alone tell about comparability: protocol, mode and bypass.
    pub fn comparability(&self) -> Comparability {
        let ends = |text: fn(&Stack) -> &'static str| {
            let (client, server) = (text(&self.client), text(&self.server));
            Some(if client == server { client.to_string() } else { format!("{client}:{server}") })
        };
        Comparability {
            protocol: ends(|stack| stack.protocol.name()),
            mode: ends(|stack| stack.mode.name()),
            bypass: ends(Stack::bypass_name),
            ..Comparability::default()
        }
    }
}

impl fmt::Display for StackPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.client == self.server {
            self.client.fmt(f)
        } else {
            f.pad(&format!("{}:{}", self.client, self.server))
        }
    }
}

impl FromStr for StackPair {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<StackPair, UnknownWord> {
        let Some((client, server)) = text.split_once(':') else {
            return Ok(StackPair::same(text.parse()?));
        };
        let (client, server): (Stack, Stack) = (client.parse()?, server.parse()?);
        if client.protocol.wire_protocol() != server.protocol.wire_protocol() {
            let fixed = Stack { protocol: client.protocol, ..server };
            return Err(UnknownWord {
                kind: "stack pair (both ends must have one protocol)",
                word: text.to_string(),
                nearest: Some(format!("{client}:{fixed}")),
                expected: vec![],
            });
        }
        Ok(StackPair { client, server })
    }
}

text_serde!(StackPair);

/// Properties in which two results must agree to be like for like. An empty field is unknown, and
/// unknown never agrees with a known value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Comparability {
    /// Half or full round trip, from the send or the intended send; or throughput.
    pub statistic: Option<String>,
    /// Protocol, such as `tcp`.
    pub protocol: Option<String>,
    /// Wait mode of both ends: `spin`, `blocking`, or `CLIENT:SERVER`.
    pub mode: Option<String>,
    /// Kernel bypass in use: `none`, `onload`, `accel`, `xdp`, `shm`.
    pub bypass: Option<String>,
    /// Link speed, such as `10 Gb/s`, or `virtual`.
    pub link: Option<String>,
    /// NIC firmware.
    pub firmware: Option<String>,
    /// Layer between the ends: `bare metal`, `veth`, `KVM guest, …`.
    pub layer: Option<String>,
    /// Bytes of one write of a stream.
    pub write_bytes: Option<String>,
    /// Congestion control of a stream.
    pub congestion: Option<String>,
    /// What did the work of a compute probe, with its version and amount.
    pub implementation: Option<String>,
    /// What executed the guests that the ends ran in; absent without guests of nearmetal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub execution: Option<GuestExecution>,
}

/// One field in which two [`Comparability`] keys differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Name of the field, in words.
    pub field: String,
    /// Value of the first, `unknown` if not recorded.
    pub a: String,
    /// Value of the second, `unknown` if not recorded.
    pub b: String,
}

impl Comparability {
    /// Field names in words with their values, in a stable order.
    pub fn fields(&self) -> [(&'static str, Option<&str>); 11] {
        [
            ("statistic", self.statistic.as_deref()),
            ("protocol", self.protocol.as_deref()),
            ("way of waiting", self.mode.as_deref()),
            ("kernel bypass", self.bypass.as_deref()),
            ("link speed", self.link.as_deref()),
            ("firmware", self.firmware.as_deref()),
            ("layer", self.layer.as_deref()),
            ("write size", self.write_bytes.as_deref()),
            ("congestion control", self.congestion.as_deref()),
            ("workload implementation", self.implementation.as_deref()),
            ("guest execution", self.execution.map(GuestExecution::name)),
        ]
    }

    /// The fields in which `self` and `other` differ. `layer` is left out: comparing
    /// environments means comparing layers; so is the execution of guests, because a host has none
    /// and emulated guests are not compared at all. A field that neither side knows is left out
    /// too.
    pub fn differences(&self, other: &Comparability) -> Vec<Difference> {
        self.fields()
            .into_iter()
            .zip(other.fields())
            .filter(|((name, a), (_, b))| !["layer", "guest execution"].contains(name) && a != b)
            .map(|((name, a), (_, b))| Difference {
                field: name.to_string(),
                a: a.unwrap_or("unknown").to_string(),
                b: b.unwrap_or("unknown").to_string(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_round_trip_through_text() {
        for &protocol in Protocol::ALL {
            for &mode in Mode::ALL {
                for launcher in [None, Some(Launcher::Onload), Some(Launcher::Accel)] {
                    let stack = Stack { protocol, mode, launcher };
                    assert_eq!(stack.to_string().parse(), Ok(stack));
                }
            }
        }
    }

    #[test]
    fn a_pair_may_differ_in_mode_but_not_in_protocol() {
        let pair: StackPair = "onload+tcp-spin:tcp-blocking".parse().unwrap();
        assert_eq!(pair.client.launcher, Some(Launcher::Onload));
        assert_eq!(pair.server.mode, Mode::Blocking);
        assert_eq!(pair.to_string(), "onload+tcp-spin:tcp-blocking");
        let error = "tcp-spin:udp-spin".parse::<StackPair>().unwrap_err();
        assert_eq!(error.nearest.as_deref(), Some("tcp-spin:tcp-spin"));
    }

    #[test]
    fn the_kernel_may_be_the_peer_of_an_af_xdp_endpoint() {
        let pair: StackPair = "xdp-tcp-spin:tcp-blocking".parse().unwrap();
        assert_eq!(pair.protocols(), [Protocol::XdpTcp, Protocol::Tcp]);
        assert_eq!(pair.wire_protocol(), Protocol::Tcp);
        assert_eq!(pair.to_string(), "xdp-tcp-spin:tcp-blocking");
        assert!("udp-spin:xdp-spin".parse::<StackPair>().is_ok());
        assert!("xdp-spin:xdp-tcp-spin".parse::<StackPair>().is_err());
    }

    #[test]
    fn each_pair_has_the_class_of_the_end_that_is_further_from_the_kernel() {
        for (text, class) in [
            ("tcp-spin", StackClass::Kernel),
            ("udp-blocking", StackClass::Kernel),
            ("mcast-spin", StackClass::Kernel),
            ("tcp-spin:tcp-blocking", StackClass::Kernel),
            ("xdp-spin", StackClass::Bypass),
            ("tcp-spin:xdp-tcp-spin", StackClass::Bypass),
            ("onload+tcp-spin:tcp-spin", StackClass::Bypass),
            ("vma+udp-spin", StackClass::Bypass),
            ("smc+tcp-epoll", StackClass::Bypass),
            ("accel+tcp-blocking", StackClass::SameHost),
            ("unix-epoll", StackClass::SameHost),
            ("shm-spin", StackClass::SameHost),
            ("cpu-spin", StackClass::NoNetwork),
        ] {
            assert_eq!(text.parse::<StackPair>().unwrap().class(), class, "{text}");
        }
    }

    #[test]
    fn unknown_words_get_a_suggestion() {
        assert_eq!(
            "tpc-spin".parse::<Stack>().unwrap_err().to_string(),
            "unknown protocol `tpc`, did you mean `tcp`?"
        );
        assert_eq!(
            "tcp".parse::<Stack>().unwrap_err().to_string(),
            "unknown stack `tcp`, did you mean `tcp-spin`?"
        );
        assert_eq!(
            "xdp-tcp".parse::<Stack>().unwrap_err().to_string(),
            "unknown stack `xdp-tcp`, did you mean `xdp-tcp-spin`?"
        );
        assert_eq!(
            "xdp-tcp-spni".parse::<Stack>().unwrap_err().to_string(),
            "unknown mode `spni`, did you mean `spin`?"
        );
    }

    #[test]
    fn unknown_never_agrees_with_known() {
        let known = Comparability { firmware: Some("full".into()), ..Default::default() };
        let unknown = Comparability::default();
        assert_eq!(known.differences(&unknown).len(), 1);
        assert_eq!(unknown.differences(&unknown), vec![]);
    }
}
