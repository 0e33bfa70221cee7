//! ssh to an sshd of our own: a login, a pipeline and a copied file.

use std::path::Path;
use std::process::Command;

use super::{Place, Seen, Started, Way, alike, content, finish, finish_with, need};
use crate::support::free_port;

/// Keys for a host and a user, and the configuration of both ends.
fn prepare(folder: &Path, port: u16) {
    let keygen = need("ssh-keygen", "openssh-client");
    for name in ["host", "user"] {
        let path = folder.join(name);
        let mut command = Command::new(&keygen);
        finish(command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path));
    }
    std::fs::copy(folder.join("user.pub"), folder.join("authorized")).unwrap();
    let at = folder.display();
    let server = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nPidFile {at}/pid\n\
         AuthorizedKeysFile {at}/authorized\nStrictModes no\nPasswordAuthentication no\n\
         PermitRootLogin prohibit-password\nUsePAM no\nSubsystem sftp internal-sftp\n"
    );
    std::fs::write(folder.join("sshd_config"), server).unwrap();
    let client = format!(
        "Host *\n  Port {port}\n  IdentityFile {at}/user\n  IdentitiesOnly yes\n  BatchMode yes\n  \
         StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    );
    std::fs::write(folder.join("ssh_config"), client).unwrap();
}

fn ssh(way: Way) -> Seen {
    let (sshd, ssh, scp) = (
        need("sshd", "openssh-server"),
        need("ssh", "openssh-client"),
        need("scp", "openssh-client"),
    );
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let port = free_port();
    prepare(at, port);
    // The empty folder that sshd locks its unprivileged half into.
    let _ = std::fs::create_dir_all("/run/sshd");
    let mut server = way.server(&sshd);
    server.args(["-D", "-e", "-f"]).arg(at.join("sshd_config"));
    let server = Started::server(&mut server, port);
    let config = at.join("ssh_config");
    let mut seen = Seen::new();
    seen.add(finish(way.client(&ssh).arg("-F").arg(&config).args(["127.0.0.1", "echo", "hello"])));
    let text: String = (0..20_000).map(|line| format!("line {line}\n")).collect();
    let mut sum = way.client(&ssh);
    seen.add(finish_with(sum.arg("-F").arg(&config).args(["127.0.0.1", "md5sum"]), &text));
    let bytes = content(5_000_003);
    std::fs::write(at.join("sent"), &bytes).unwrap();
    let remote = |name: &str| format!("127.0.0.1:{}", at.join(name).display());
    let mut there = way.client(&scp);
    seen.add(finish(there.arg("-qF").arg(&config).arg(at.join("sent")).arg(remote("copied"))));
    let mut back = way.client(&scp);
    seen.add(finish(back.arg("-qF").arg(&config).arg(remote("copied")).arg(at.join("back"))));
    for name in ["copied", "back"] {
        let found = std::fs::read(at.join(name)).unwrap();
        assert!(found == bytes, "{way:?}: {name} has {} bytes and differs", found.len());
    }
    server.end_by("TERM");
    seen
}

/// sshd forks for each connection before a byte is sent, and both halves hold the socket.
#[test]
fn ssh_and_scp_to_a_local_sshd() {
    alike(Place::Kernel(""), ssh);
}
