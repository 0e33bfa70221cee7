//! The ssh command, and words quoted for a shell.

use std::process::Command;
use std::time::Duration;

use nm_model::hosts::Destination;

/// How long ssh may take to connect.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Name of the client's program.
pub const SSH: &str = "ssh";

/// How long a command of a host is waited for when the host is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Until the kernel gives the connection up, after many minutes: somebody else watches it.
    Long,
    /// At most 20 s: ssh asks every 5 s, and ends when three questions were not answered.
    Short,
}

/// The command that has the host `destination` execute `script`, without ever asking the user
/// anything.
pub fn command(destination: &Destination, script: &str, patience: Patience) -> Command {
    let interval_s = match patience {
        Patience::Long => 0,
        Patience::Short => 5,
    };
    let mut command = Command::new(SSH);
    command.args(["-o", "BatchMode=yes", "-o", "ControlPath=none", "-o", "TCPKeepAlive=no"]);
    // A terminal would change bytes, and forwarded ports are for sessions of the user.
    command.args(["-o", "RequestTTY=no", "-o", "ClearAllForwardings=yes"]);
    // The host must not use the user's keys or screen, whatever the user's configuration allows.
    command.args(["-o", "ForwardAgent=no", "-o", "ForwardX11=no", "-o", "ForwardX11Trusted=no"]);
    command.arg("-o").arg(format!("ConnectTimeout={}", CONNECT_LIMIT.as_secs()));
    command.arg("-o").arg(format!("ServerAliveInterval={interval_s}"));
    command.args(["-o", "ServerAliveCountMax=3", "--", destination.as_str(), script]);
    command
}

/// A word quoted for the shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_asks_nothing_and_takes_no_option_from_a_destination() {
        let destination: Destination = "user@host".parse().unwrap();
        let words = |patience| {
            let command = command(&destination, "exec true", patience);
            let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<String>>()
        };
        let short = words(Patience::Short);
        assert_eq!(short[short.len() - 3..], ["--", "user@host", "exec true"]);
        let wanted =
            ["BatchMode=yes", "RequestTTY=no", "ConnectTimeout=10", "ServerAliveInterval=5"];
        let refused = ["ForwardAgent=no", "ForwardX11=no", "ForwardX11Trusted=no"];
        for option in wanted.iter().chain(&["ServerAliveCountMax=3"]).chain(&refused) {
            assert!(short.iter().any(|word| word == *option), "{option}: {short:?}");
        }
        assert!(words(Patience::Long).contains(&"ServerAliveInterval=0".to_string()));
    }

    #[test]
    fn quoted_words_are_read_by_a_shell_as_they_were() {
        for word in ["it's", "a b", "$HOME `x` \"y\" \\", "", "-n", "*"] {
            let script = format!("printf %s {}", quoted(word));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
