//! Which addresses a controller on the network may name to an agent: only the two of its own
//! control connection. Without this check a server could be used to flood third parties, or to
//! create socket files as its user.

use std::net::{IpAddr, SocketAddr};

use nm_model::agent::Task;
use nm_model::{Failure, FailureKind, Protocol};

/// The two addresses of a control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerFilter {
    own: IpAddr,
    peer: IpAddr,
}

impl PeerFilter {
    /// The filter of a control connection between `own` and `peer`.
    pub fn new(own: IpAddr, peer: IpAddr) -> PeerFilter {
        PeerFilter { own: own.to_canonical(), peer: peer.to_canonical() }
    }

    /// The controller's address.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Checks the address on which the agent shall listen.
    ///
    /// # Errors
    /// If it is not the address by which the controller reached this agent.
    pub fn check_listen(&self, task: &Task, address: &str) -> Result<(), Failure> {
        if task.stack.protocol == Protocol::Unix {
            return Err(refused("Unix sockets do not reach another machine"));
        }
        match address.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            Ok(ip) if ip == self.own => Ok(()),
            _ => Err(refused(format!("`{address}` is not the address {} of this end", self.own))),
        }
    }

    /// Checks the addresses to which the agent shall connect.
    ///
    /// # Errors
    /// If one of them is not the controller's own address.
    pub fn check_connect(&self, addresses: &[String]) -> Result<(), Failure> {
        let is_peer = |text: &String| {
            text.parse::<SocketAddr>().is_ok_and(|at| at.ip().to_canonical() == self.peer)
        };
        match addresses.iter().find(|address| !is_peer(address)) {
            Some(other) => {
                Err(refused(format!("`{other}` is not at the controller's address {}", self.peer)))
            }
            None => Ok(()),
        }
    }
}

fn refused(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::BadRequest, message)
        .hint("a server exchanges data with the address of its controller only")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::agent::{Token, Work};
    use nm_model::probe::PingpongSpec;
    use nm_model::{Mode, Stack};

    fn task(protocol: Protocol) -> Task {
        let work = Work::Pingpong(PingpongSpec::default().of_size(1));
        let stack = Stack::new(protocol, Mode::Spin);
        let token = Token::default();
        Task { stack, cpus: vec![], work, seed: 1, raw_samples: false, token }
    }

    #[test]
    fn only_addresses_of_the_control_connection_are_allowed() {
        let filter =
            PeerFilter::new("::ffff:192.0.2.1".parse().unwrap(), "192.0.2.9".parse().unwrap());
        let tcp = task(Protocol::Tcp);
        assert!(filter.check_listen(&tcp, "192.0.2.1").is_ok());
        for elsewhere in ["0.0.0.0", "127.0.0.1", "unix:/tmp/x", ""] {
            assert!(filter.check_listen(&tcp, elsewhere).is_err(), "{elsewhere}");
        }
        assert!(filter.check_listen(&task(Protocol::Unix), "192.0.2.1").is_err());
        assert!(filter.check_connect(&["192.0.2.9:5000".to_string()]).is_ok());
        assert!(filter.check_connect(&[]).is_ok());
        for elsewhere in ["192.0.2.8:80", "unix:/run/x", "mcast:224.1.1.1:1/2", "x"] {
            let failure = filter.check_connect(&[elsewhere.to_string()]).unwrap_err();
            assert!(failure.to_string().contains(elsewhere), "{failure}");
        }
    }
}
