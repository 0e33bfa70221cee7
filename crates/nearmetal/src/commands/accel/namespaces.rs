//! Finds out whether the other end of a connection is in another network namespace of this host. If
//! so, a shared folder lets both ends share memory.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use nm_sys::hostfiles::HostFiles;

use super::row::Row;

/// Most network namespaces that are read.
const NAMESPACES_MAX: usize = 1024;

/// Says of connections whose other end has an address of elsewhere if that is one of this host.
pub fn explain(files: &HostFiles, rows: &mut [Row]) {
    let elsewhere = || rows.iter().filter(|row| row.peer_is_elsewhere);
    if elsewhere().next().is_none() {
        return;
    }
    let known = addresses(files);
    for row in rows.iter_mut().filter(|row| row.peer_is_elsewhere) {
        let peer = row.peer.parse::<SocketAddr>().map(|peer| peer.ip().to_canonical());
        if peer.is_ok_and(|peer| known.contains(&peer)) {
            row.set_reason(
                "its other end is in another network namespace of this host: give both programs \
                 --share DIR"
                    .to_string(),
            );
        }
    }
}

/// The addresses in all network namespaces of processes that this user may read.
fn addresses(files: &HostFiles) -> BTreeSet<IpAddr> {
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    for name in files.names("/proc") {
        if name.parse::<u32>().is_err() || seen.len() >= NAMESPACES_MAX {
            continue;
        }
        let link = files.path(&format!("/proc/{name}/ns/net"));
        let Ok(namespace) = std::fs::read_link(link) else { continue };
        if seen.insert(namespace) {
            let text = |file: &str| files.text(&format!("/proc/{name}/net/{file}"));
            found.extend(text("fib_trie").iter().flat_map(|text| local_ipv4(text)));
            found.extend(text("if_inet6").iter().flat_map(|text| local_ipv6(text)));
        }
    }
    found.retain(|address| !address.is_loopback());
    found
}

/// The own addresses in a routing table as `fib_trie` shows it: an address, then what it is.
fn local_ipv4(table: &str) -> Vec<IpAddr> {
    let mut last = None;
    let mut found = vec![];
    for line in table.lines() {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last.map(IpAddr::V4));
        }
    }
    found
}

/// The addresses in `if_inet6`.
fn local_ipv6(table: &str) -> Vec<IpAddr> {
    let address = |line: &str| u128::from_str_radix(line.split_whitespace().next()?, 16).ok();
    table.lines().filter_map(address).map(|bits| Ipv6Addr::from_bits(bits).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn addresses_of_all_namespaces_are_read() {
        let root = tempfile::tempdir().unwrap();
        for (pid, namespace, address) in
            [(7, 1, "10.0.0.1"), (8, 1, "10.0.0.9"), (9, 2, "10.0.0.2")]
        {
            let folder = root.path().join(format!("proc/{pid}"));
            fs::create_dir_all(folder.join("ns")).unwrap();
            fs::create_dir_all(folder.join("net")).unwrap();
            let link = format!("net:[{namespace}]");
            std::os::unix::fs::symlink(link, folder.join("ns/net")).unwrap();
            let table = format!(
                "Main:\n  |-- 10.0.0.0\n     /24 link UNICAST\n  |-- {address}\n     \
                 /32 host LOCAL\n  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- 10.0.0.255\n     \
                 /32 link BROADCAST\n"
            );
            fs::write(folder.join("net/fib_trie"), table).unwrap();
            let six = "fd000000000000000000000000000001 02 40 00 80 eth0\nx\n";
            fs::write(folder.join("net/if_inet6"), six).unwrap();
        }
        let found = addresses(&HostFiles::new(root.path()));
        let expected = ["10.0.0.1", "10.0.0.2", "fd00::1"].map(|text| text.parse().unwrap());
        assert_eq!(found, BTreeSet::from(expected));
    }
}
