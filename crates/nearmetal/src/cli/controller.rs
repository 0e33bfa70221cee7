//! Options of `controller` and of `agent`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgGroup, Args};
use nm_controller::tls::Pin;

use super::number::number;
use super::server_address::ServerAddress;
use super::shared;

#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// Address and port at which agents connect, such as `0.0.0.0:4850`.
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddr,
    #[arg(long, value_name = "FILE", help = shared::TOKEN_FILE)]
    pub token_file: PathBuf,
    /// File with the controller's private key in PEM; a new key is written if there is none.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// Certificate of the key and of those between it and an authority, in PEM; agents trust it by
    /// --ca instead of --pin.
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// Socket at which runs of this user find the controller; it is made.
    #[arg(long, value_name = "PATH", default_value = "nearmetal-controller.sock")]
    pub socket: PathBuf,
}

/// A label of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label(pub String, pub String);

impl FromStr for Label {
    type Err = String;

    fn from_str(text: &str) -> Result<Label, String> {
        match text.split_once('=') {
            Some((name, value)) => Ok(Label(name.to_string(), value.to_string())),
            None => Err("write NAME=VALUE".to_string()),
        }
    }
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("trust").args(["pin", "ca"])))]
pub struct AgentArgs {
    #[arg(long, value_name = "HOST[:PORT]", help = shared::CONNECT,
          requires_all = ["token_file", "trust"])]
    pub connect: Option<ServerAddress>,
    #[arg(long, value_name = "FILE", help = shared::TOKEN_FILE, requires = "connect")]
    pub token_file: Option<PathBuf>,
    #[arg(long, value_name = "SHA256", help = shared::PIN, requires = "connect")]
    pub pin: Option<Pin>,
    /// Certificates of authorities in PEM, one of which has signed the controller's.
    #[arg(long, value_name = "FILE", requires = "connect")]
    pub ca: Option<PathBuf>,
    /// Name of this agent, which no other one of the controller has; that of the host without this.
    #[arg(long, value_name = "NAME", requires = "connect")]
    pub name: Option<String>,
    /// A label of this agent, such as `rack=7`, which results show.
    #[arg(long, value_name = "NAME=VALUE", requires = "connect")]
    pub label: Vec<Label>,
    /// Address of this host on the path that is measured; without this, the one from which it
    /// reaches the controller.
    #[arg(long, value_name = "IP", requires = "connect")]
    pub address: Option<IpAddr>,
    /// Serve on this device of a guest: a virtual serial port, or a serial line.
    #[arg(long, value_name = "DEVICE", conflicts_with = "connect")]
    pub serve_on: Option<PathBuf>,
    /// Seconds without anything on stdin after which it ends, also in the middle of a task.
    #[arg(
        long,
        hide = true,
        value_name = "SECONDS",
        value_parser = number(1_u64..=86_400),
        conflicts_with = "connect"
    )]
    pub silence_limit: Option<u64>,
}
