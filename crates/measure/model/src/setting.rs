//! Settings that explain a figure: kinds, and values with units.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::probe::Side;

macro_rules! setting_kinds {
    ($($(#[$meta:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        /// Kind of a setting.
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum SettingKind {
            $($(#[$meta])* $variant,)+
            /// A setting of another tool or of a published run, under its name there.
            Other(String),
        }

        impl SettingKind {
            /// The name in results and reports.
            pub fn name(&self) -> &str {
                match self {
                    $(SettingKind::$variant => $text,)+
                    SettingKind::Other(name) => name,
                }
            }
        }

        impl From<&str> for SettingKind {
            fn from(name: &str) -> SettingKind {
                match name {
                    $($text => SettingKind::$variant,)+
                    other => SettingKind::Other(other.to_string()),
                }
            }
        }
    };
}

setting_kinds! {
    /// Bytes of one write.
    WriteSize = "write size",
    /// Bytes of one write in the plan, where the transport does not support them.
    RequestedWriteSize = "write size asked for",
    /// The tool whose defaults were taken.
    Preset = "preset",
    /// Allowed coefficient of variation over rounds.
    MaxCv = "max_cv_percent",
    /// Lower limit of every latency over shared memory: half of a round trip of one cache line
    /// between the CPUs of the two ends, measured right after the round.
    CacheLineLimit = "cache-line limit",
    /// `SO_SNDBUF` in effect.
    SendBuffer = "send buffer",
    /// `SO_RCVBUF` in effect.
    ReceiveBuffer = "receive buffer",
    /// Name of the congestion control.
    CongestionControl = "congestion control",
    /// Largest TCP segment.
    Mss = "MSS",
    /// Largest packet of the route.
    Mtu = "MTU",
    /// Bytes of each ring in shared memory.
    Ring = "ring",
    /// AF_XDP mode between link and program.
    XdpPath = "AF_XDP path",
    /// Driver of the link.
    Driver = "driver",
    /// Frames of an AF_XDP socket.
    PacketMemory = "packet memory",
    /// Queue of the link.
    Queue = "queue",
    /// Whether checksums of received packets are verified.
    ReceivedChecksums = "received checksums",
    /// Preferred busy polling.
    BusyPoll = "busy poll",
    /// The TCP implementation, if it is not the kernel's.
    TcpImplementation = "TCP",
    /// Longest delay of an acknowledgement.
    AckDelay = "acknowledgement delay",
    /// Version and settings of the accelerator.
    Accelerator = "accelerator",
    /// What did the work of the compute probe, and how much of it.
    Implementation = "implementation",
    /// Number of the exchange's nodes.
    Nodes = "nodes",
    /// Number of the exchange's nodes of each class.
    Layout = "layout",
    /// Protocol of the exchange's links.
    Transport = "transport",
    /// When a request to the exchange counts as done.
    Durability = "durability",
    /// Mix of orders in the load.
    OrderMix = "mix",
    /// Sizes of the exchange's messages.
    MessageSizes = "message",
    /// Load before the measurement.
    WarmUp = "warm-up",
    /// How the exchange's nodes and sessions authenticate.
    Authentication = "authentication",
    /// Hosts of the exchange's nodes.
    Hosts = "hosts",
    /// Distribution of the load's intervals.
    Arrivals = "arrivals",
    /// Recorded requests that were replayed.
    ReplayedFlow = "flow",
    /// A requested pause of the load generator.
    Stall = "stall",
    /// Where the shared memory of two guests lies, and how the processor caches it.
    GuestMemory = "guest memory",
    /// Smallest throughput that the study of a published run expected.
    ExpectedMin = "expected_min_gbps",
    /// Largest throughput that the study of a published run expected.
    ExpectedMax = "expected_max_gbps",
    /// Throughput from client to server.
    ClientToServer = "client_to_server_mbps",
    /// Throughput from server to client.
    ServerToClient = "server_to_client_mbps",
}

impl fmt::Display for SettingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for SettingKind {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for SettingKind {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<SettingKind, D::Error> {
        Ok(String::deserialize(from)?.as_str().into())
    }
}

impl JsonSchema for SettingKind {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SettingKind".into()
    }
    fn json_schema(from: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(from)
    }
    fn inline_schema() -> bool {
        true
    }
}

/// A value with its unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "unit", content = "value")]
pub enum SettingValue {
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes(u64),
    /// A span of times in ns; one time if both ends are equal.
    #[serde(rename = "ns")]
    Nanoseconds(NanosecondRange),
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds(f64),
    /// Percent.
    #[serde(rename = "percent")]
    Percent(f64),
    /// Gb/s (1e9 bits).
    #[serde(rename = "gbps")]
    GigabitsPerSecond(f64),
    /// Mb/s (1e6 bits).
    #[serde(rename = "mbps")]
    MegabitsPerSecond(f64),
    /// A count or an index, which has no unit.
    #[serde(rename = "number")]
    Number(u64),
    /// A name, or a description.
    #[serde(rename = "text")]
    Text(String),
}

impl SettingValue {
    /// A value that is a name or a description.
    pub fn text(text: impl Into<String>) -> SettingValue {
        SettingValue::Text(text.into())
    }

    /// Bytes, if that is its unit.
    pub fn as_bytes(&self) -> Option<u64> {
        match self {
            SettingValue::Bytes(bytes) => Some(*bytes),
            _ => None,
        }
    }
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingValue::Bytes(bytes) => write!(f, "{bytes} B"),
            SettingValue::Nanoseconds(NanosecondRange { low, high }) if low == high => {
                write!(f, "{low} ns")
            }
            SettingValue::Nanoseconds(NanosecondRange { low, high }) => {
                write!(f, "{low} to {high} ns")
            }
            SettingValue::Milliseconds(ms) => write!(f, "{ms} ms"),
            SettingValue::Percent(percent) => write!(f, "{percent} %"),
            SettingValue::GigabitsPerSecond(gbps) => write!(f, "{gbps} Gb/s"),
            SettingValue::MegabitsPerSecond(mbps) => write!(f, "{mbps} Mb/s"),
            SettingValue::Number(number) => write!(f, "{number}"),
            SettingValue::Text(text) => f.write_str(text),
        }
    }
}

/// From the smallest to the largest of some times, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NanosecondRange {
    /// Smallest.
    pub low: u64,
    /// Largest.
    pub high: u64,
}

impl NanosecondRange {
    /// The range that holds one time, rounded to 1 ns.
    pub fn of(ns: f64) -> NanosecondRange {
        let ns = ns.round().max(0.0) as u64;
        NanosecondRange { low: ns, high: ns }
    }

    /// The range that holds both.
    #[must_use]
    pub fn widened(self, other: NanosecondRange) -> NanosecondRange {
        NanosecondRange { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Kind.
    pub kind: SettingKind,
    /// The end whose setting it is; absent if both ends agree or only one has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
    /// Its value.
    #[serde(flatten)]
    pub value: SettingValue,
}

impl Setting {
    /// The name with its end: `MTU`, `client MTU`.
    pub fn name(&self) -> String {
        name(self.side, &self.kind)
    }
}

/// `MTU 1500 B`.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.value)
    }
}

fn name(side: Option<Side>, kind: &SettingKind) -> String {
    match side {
        Some(side) => format!("{side} {kind}"),
        None => kind.to_string(),
    }
}

/// Settings in order of their names, at most one of each kind and end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Vec<Setting>", into = "Vec<Setting>")]
#[schemars(with = "Vec<Setting>")]
pub struct Settings {
    list: Vec<Setting>,
}

impl Settings {
    /// No settings.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them, in order of their names.
    pub fn iter(&self) -> std::slice::Iter<'_, Setting> {
        self.list.iter()
    }

    /// The value of a setting that both ends share or only one has.
    pub fn get(&self, kind: &SettingKind) -> Option<&SettingValue> {
        self.at(None, kind)
    }

    /// The value of a setting of one end.
    pub fn at(&self, side: Option<Side>, kind: &SettingKind) -> Option<&SettingValue> {
        let found = self.list.iter().find(|known| known.side == side && known.kind == *kind);
        found.map(|known| &known.value)
    }

    /// Whether there is a setting of this kind that both ends share or only one has.
    pub fn contains(&self, kind: &SettingKind) -> bool {
        self.get(kind).is_some()
    }

    /// Sets a setting that both ends share or only one has.
    pub fn set(&mut self, kind: SettingKind, value: SettingValue) {
        self.put(Setting { kind, side: None, value });
    }

    /// As [`Settings::set`], unless it is known already.
    pub fn set_if_absent(&mut self, kind: SettingKind, value: SettingValue) {
        if !self.contains(&kind) {
            self.set(kind, value);
        }
    }

    /// Inserts a setting; replaces one of the same kind and end.
    pub fn put(&mut self, setting: Setting) {
        let name = setting.name();
        match self.list.binary_search_by(|known| known.name().cmp(&name)) {
            Ok(at) => self.list[at] = setting,
            Err(at) => self.list.insert(at, setting),
        }
    }

    /// The settings of both ends: without an end where both agree or only one has it, else one for
    /// each end.
    pub fn merged(client: &Settings, server: &Settings) -> Settings {
        let mut all = Settings::new();
        for (side, own, other) in [(Side::Client, client, server), (Side::Server, server, client)] {
            for Setting { kind, value, .. } in own {
                let agreed = other.get(kind).is_none_or(|known| known == value);
                let side = (!agreed).then_some(side);
                all.put(Setting { kind: kind.clone(), side, value: value.clone() });
            }
        }
        all
    }
}

impl From<Vec<Setting>> for Settings {
    fn from(list: Vec<Setting>) -> Settings {
        let mut all = Settings::new();
        list.into_iter().for_each(|setting| all.put(setting));
        all
    }
}

impl From<Settings> for Vec<Setting> {
    fn from(settings: Settings) -> Vec<Setting> {
        settings.list
    }
}

impl FromIterator<(SettingKind, SettingValue)> for Settings {
    fn from_iter<I: IntoIterator<Item = (SettingKind, SettingValue)>>(from: I) -> Settings {
        let mut all = Settings::new();
        all.extend(from);
        all
    }
}

impl Extend<(SettingKind, SettingValue)> for Settings {
    fn extend<I: IntoIterator<Item = (SettingKind, SettingValue)>>(&mut self, from: I) {
        from.into_iter().for_each(|(kind, value)| self.set(kind, value));
    }
}

impl Extend<Setting> for Settings {
    fn extend<I: IntoIterator<Item = Setting>>(&mut self, from: I) {
        from.into_iter().for_each(|setting| self.put(setting));
    }
}

impl IntoIterator for Settings {
    type Item = Setting;
    type IntoIter = std::vec::IntoIter<Setting>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl<'a> IntoIterator for &'a Settings {
    type Item = &'a Setting;
    type IntoIter = std::slice::Iter<'a, Setting>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SettingKind::{CongestionControl, Mss, Mtu, ReceiveBuffer, SendBuffer};

    #[test]
    fn merged_lists_a_setting_once_if_both_ends_agree() {
        let client: Settings = [
            (Mtu, SettingValue::Bytes(1500)),
            (CongestionControl, SettingValue::text("bbr")),
            (SendBuffer, SettingValue::Bytes(1)),
        ]
        .into_iter()
        .collect();
        let server: Settings = [
            (Mtu, SettingValue::Bytes(1500)),
            (CongestionControl, SettingValue::text("cubic")),
            (ReceiveBuffer, SettingValue::Bytes(2)),
        ]
        .into_iter()
        .collect();
        let all: Vec<String> =
            Settings::merged(&client, &server).iter().map(Setting::to_string).collect();
        assert_eq!(
            all,
            [
                "MTU 1500 B",
                "client congestion control bbr",
                "receive buffer 2 B",
                "send buffer 1 B",
                "server congestion control cubic"
            ]
        );
    }

    #[test]
    fn a_setting_has_kind_unit_and_value_in_json() {
        let mut settings = Settings::new();
        settings.set(Mss, SettingValue::Bytes(1448));
        let range = NanosecondRange::of(45.2).widened(NanosecondRange::of(219.6));
        settings.set(SettingKind::CacheLineLimit, SettingValue::Nanoseconds(range));
        settings.set("burst".into(), SettingValue::text("0"));
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(
            json,
            r#"[{"kind":"MSS","unit":"bytes","value":1448},"#.to_string()
                + r#"{"kind":"burst","unit":"text","value":"0"},"#
                + r#"{"kind":"cache-line limit","unit":"ns","value":{"low":45,"high":220}}]"#
        );
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
    }

    #[test]
    fn ranges_are_shown_as_one_value_or_as_a_span() {
        let one = NanosecondRange::of(45.0);
        assert_eq!(SettingValue::Nanoseconds(one).to_string(), "45 ns");
        let span = one.widened(NanosecondRange::of(220.0));
        assert_eq!(SettingValue::Nanoseconds(span).to_string(), "45 to 220 ns");
        assert_eq!(span.widened(NanosecondRange::of(100.0)), span);
    }
}
