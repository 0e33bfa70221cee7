//! Words of manifests, by the rules that Kubernetes has for each.

use std::fmt;
use std::str::FromStr;

use crate::engine::words::shown;

/// Longest name of objects, bytes: endings such as `-server` and a number follow it in labels of
/// 63 bytes.
pub(in crate::engine) const OBJECT_BYTES_MAX: usize = 48;

/// Longest label of DNS, name of a label, or value of one, bytes.
const LABEL_BYTES_MAX: usize = 63;

/// Longest name of a domain, bytes.
const DOMAIN_BYTES_MAX: usize = 253;

/// Longest image without tag and digest, bytes.
const IMAGE_BYTES_MAX: usize = 255;

/// Longest tag, bytes.
const TAG_BYTES_MAX: usize = 128;

/// A word that no manifest can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// A name of objects, which is one of a service too.
    #[error(
        "the name `{0}` must have 1 to {max} small letters, digits or `-`; it begins with a letter \
         and ends with a letter or digit", max = OBJECT_BYTES_MAX
    )]
    Object(String),
    /// A node.
    #[error(
        "the node `{0}` must have at most {max} small letters, digits, `-` or `.`, as \
         `kubectl get nodes` shows it", max = DOMAIN_BYTES_MAX
    )]
    Node(String),
    /// An image.
    #[error(
        "the image `{0}` must be [REGISTRY/]NAME[:TAG][@sha256:DIGEST], with small letters in NAME"
    )]
    Image(String),
    /// A label.
    #[error(
        "the label `{0}` must be [DOMAIN/]KEY=VALUE; KEY and VALUE have at most {max} letters, \
         digits, `-`, `_` or `.`, the first and the last a letter or digit", max = LABEL_BYTES_MAX
    )]
    Label(String),
    /// A toleration.
    #[error(
        "the toleration `{0}` must be [DOMAIN/]KEY[=VALUE][:EFFECT]; EFFECT is NoSchedule, \
         PreferNoSchedule or NoExecute"
    )]
    Toleration(String),
    /// A resource of a device plugin.
    #[error("the device `{0}` must be DOMAIN/NAME, as `kubectl describe node` shows it")]
    Device(String),
    /// A network of Multus.
    #[error("the network `{0}` must be [NAMESPACE/]NAME[@LINK] of a NetworkAttachmentDefinition")]
    Network(String),
    /// A capability.
    #[error("the capability `{0}` is none that a probe uses; use one of {known}",
            known = CAPABILITIES.join(", "))]
    Capability(String),
}

/// Capabilities that probes and environments use.
const CAPABILITIES: [&str; 7] =
    ["BPF", "IPC_LOCK", "NET_ADMIN", "NET_RAW", "PERFMON", "SYS_ADMIN", "SYS_NICE"];

/// Declares words that are a checked text.
macro_rules! words {
    ($($(#[$doc:meta])* $word:ident: $is_ok:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            pub struct $word(String);

            impl FromStr for $word {
                type Err = WordError;

                fn from_str(word: &str) -> Result<$word, WordError> {
                    match $is_ok(word) {
                        true => Ok($word(word.to_string())),
                        false => Err(WordError::$word(shown(word))),
                    }
                }
            }

            impl fmt::Display for $word {
                fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                    formatter.write_str(&self.0)
                }
            }
        )*
    };
}

words! {
    /// Name of the objects, which begins the names of all of them.
    Object: |word: &str| {
        word.len() <= OBJECT_BYTES_MAX && is_dns_label(word)
            && word.starts_with(|c: char| c.is_ascii_lowercase())
    };
    /// A node of the cluster.
    Node: is_domain;
    /// An image of a registry.
    Image: is_image;
    /// A resource of a device plugin: one of it is asked for.
    Device: |word: &str| word.split_once('/').is_some_and(|(domain, name)| {
        is_domain(domain) && is_label_name(name) && domain != "kubernetes.io"
    });
    /// A network of Multus.
    Network: is_network;
    /// A capability of the container.
    Capability: |word: &str| CAPABILITIES.contains(&word);
}

/// A label that nodes must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub(super) key: String,
    pub(super) value: String,
}

impl FromStr for Label {
    type Err = WordError;

    fn from_str(word: &str) -> Result<Label, WordError> {
        let parts = word.split_once('=');
        match parts.filter(|(key, value)| is_key(key) && is_label_value(value)) {
            Some((key, value)) => Ok(Label { key: key.to_string(), value: value.to_string() }),
            None => Err(WordError::Label(shown(word))),
        }
    }
}

/// A taint of nodes that the pods bear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    pub(super) key: String,
    /// Any value if absent.
    pub(super) value: Option<String>,
    /// Any effect if absent.
    pub(super) effect: Option<String>,
}

impl FromStr for Toleration {
    type Err = WordError;

    fn from_str(word: &str) -> Result<Toleration, WordError> {
        let (taint, effect) = match word.split_once(':') {
            Some((taint, effect)) => (taint, Some(effect)),
            None => (word, None),
        };
        let (key, value) = match taint.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (taint, None),
        };
        let knows = |effect| ["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect);
        if !is_key(key) || !value.is_none_or(is_label_value) || !effect.is_none_or(knows) {
            return Err(WordError::Toleration(shown(word)));
        }
        let (value, effect) = (value.map(str::to_string), effect.map(str::to_string));
        Ok(Toleration { key: key.to_string(), value, effect })
    }
}

fn is_alphanumeric_at_ends(word: &str) -> bool {
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    is_end(word.chars().next()) && is_end(word.chars().next_back())
}

/// A label of DNS (RFC 1123).
fn is_dns_label(word: &str) -> bool {
    word.len() <= LABEL_BYTES_MAX
        && is_alphanumeric_at_ends(word)
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn is_domain(word: &str) -> bool {
    // Kubernetes limits the whole, and no part of it.
    let is_part = |part: &str| {
        is_alphanumeric_at_ends(part)
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    word.len() <= DOMAIN_BYTES_MAX && word.split('.').all(is_part)
}

fn is_label_name(word: &str) -> bool {
    word.len() <= LABEL_BYTES_MAX
        && is_alphanumeric_at_ends(word)
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn is_label_value(word: &str) -> bool {
    word.is_empty() || is_label_name(word)
}

/// The key of a label or a taint.
fn is_key(word: &str) -> bool {
    match word.split_once('/') {
        Some((domain, name)) => is_domain(domain) && is_label_name(name),
        None => is_label_name(word),
    }
}

fn is_network(word: &str) -> bool {
    let (network, link) = match word.split_once('@') {
        Some((network, link)) => (network, Some(link)),
        None => (word, None),
    };
    // As the kernel names links.
    let is_link = |link: &str| {
        (1..16).contains(&link.len())
            && link.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && link.contains(|c: char| c != '.')
    };
    let is_name = match network.split_once('/') {
        Some((namespace, name)) => is_dns_label(namespace) && is_domain(name),
        None => is_domain(network),
    };
    is_name && link.is_none_or(is_link)
}

/// As the reference grammar of container images has it, with SHA-256 as the only digest.
fn is_image(word: &str) -> bool {
    let (rest, digest) = match word.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (word, None),
    };
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let is_digest = |digest: &str| {
        let hex = digest.strip_prefix("sha256:");
        hex.is_some_and(|hex| hex.len() == 64 && hex.chars().all(is_hex))
    };
    // A colon before the last slash is that of a port.
    let tag_at = rest.rfind(':').filter(|at| !rest[*at..].contains('/'));
    let (name, tag) = match tag_at {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let is_tag = |tag: &str| {
        (1..=TAG_BYTES_MAX).contains(&tag.len())
            && !tag.starts_with(['.', '-'])
            && tag.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let (registry, path) = match name.split_once('/') {
        Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => {
            (Some(first), path)
        }
        _ => (None, name),
    };
    name.len() <= IMAGE_BYTES_MAX
        && registry.is_none_or(is_registry)
        && path.split('/').all(is_image_part)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

/// The host of a registry, perhaps with its port.
fn is_registry(word: &str) -> bool {
    let (host, port) = match word.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (word, None),
    };
    is_domain(&host.to_ascii_lowercase()) && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Small letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_image_part(part: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let joints = part.split(is_word).filter(|joint| !joint.is_empty());
    part.starts_with(is_word)
        && part.ends_with(is_word)
        && joints
            .into_iter()
            .all(|joint| matches!(joint, "." | "_" | "__") || joint.chars().all(|c| c == '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: FromStr<Err = WordError>>(good: &[&str], bad: &[&str]) {
        for word in good {
            assert!(word.parse::<T>().is_ok(), "{word}");
        }
        let hostile = ["", "a b", "a\nb", "a\"b", "ä", "$(x)", &"a".repeat(300)];
        for word in bad.iter().chain(&hostile) {
            let fault = word.parse::<T>().err().unwrap_or_else(|| panic!("{word} is no word"));
            assert!(fault.to_string().len() < 400, "{fault}");
        }
    }

    #[test]
    fn words_that_kubernetes_would_refuse_are_refused() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let with_digest = format!("registry.example:5000/a/b__c-d:v1.2@{digest}");
        check::<Object>(&["a", "node-7"], &["7a", "A", "a.b", "a-", &"a".repeat(49)]);
        check::<Node>(&["node7", "ip-10-0-0-1.ec2.internal", "7"], &["Node", "a..b", "a_b", "a/b"]);
        check::<Image>(
            &["nearmetal", "localhost/nearmetal:0.1.0", &with_digest, "R.example/x", "a/b/c"],
            &["Nearmetal", "a:b:c", "a@sha256:00", "a//b", "a/", "a:-x", "a.-b", "a@b", "a:"],
        );
        check::<Label>(
            &["rack=7", "example.com/rack=R_7.b", "rack="],
            &["rack", "a/b/c=1", "/a=1", "A_b/c=1", "a=b=c", "a=-b", "a=b/c"],
        );
        check::<Toleration>(
            &["latency", "latency=only", "a.b/c=d:NoSchedule", "a:NoExecute"],
            &["a:noschedule", "a=b=c", ":NoSchedule", "a/b/c"],
        );
        check::<Device>(&["intel.com/sriov_net"], &["sriov", "a/b/c", "A.b/c", "kubernetes.io/a"]);
        check::<Network>(
            &["fast", "lab/fast@net1", "fast@net1"],
            &["a/b/c", "Fast", "fast@", "fast@0123456789abcdef", "a,b", "fast@.."],
        );
        check::<Capability>(&["IPC_LOCK"], &["ALL", "CAP_SYS_NICE", "ipc_lock", "SYS_MODULE"]);
    }
}
