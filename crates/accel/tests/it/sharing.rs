//! Two programs that share memory across a network namespace or a user boundary: by a shared
//! folder, or as members of one group.

use std::process::{Child, Command};

use nm_sys::namespace::{Isolation, isolate};

use crate::calls::*;
use crate::harness::{Body, Side, another, state};
use crate::spaces::{add_links, enter_own_network, interface_exists, set_address};
use crate::support::*;

accelerated_only![
    shared_folder_connects_network_namespaces,
    namespaces_without_a_shared_folder_do_not_share_memory,
    folder_known_to_one_end_only,
    loopback_with_a_shared_folder,
    users_of_one_group_share_memory,
    users_without_a_common_group_do_not_share_memory,
];

/// The two programs.
pub(crate) const PEERS: &[Body] =
    &[(concat!(module_path!(), "::serve"), serve), (concat!(module_path!(), "::ask"), ask)];

/// Whether the two must end up in shared memory.
const SHARES_MEMORY: &str = "NEARMETAL_TEST_SHARES_MEMORY";
/// Address that the server listens on, and the interface that gets it.
const PLACE: &str = "NEARMETAL_TEST_PLACE";
/// User and group that a program changes to.
const USER: &str = "NEARMETAL_TEST_USER";
const FOLDER: &str = "NEARMETAL_ACCEL_SHARE";
const GROUP: &str = "NEARMETAL_ACCEL_GROUP";
/// Port of the server; each body has a network of its own.
const PORT: u16 = 4100;
/// Messages after which two ends that must not share memory are considered apart.
const ROUNDS: u64 = 300;

/// Starts one of the two programs, with what it must expect.
fn program(name: &str, place: &str, shares_memory: bool) -> Command {
    let mut command = another(&format!("{}::{name}", module_path!()), Side::Accelerated);
    command.env(PLACE, place).env(SHARES_MEMORY, u8::from(shares_memory).to_string());
    command
}

/// Server and client must succeed.
#[track_caller]
fn check(mut server: Child, mut client: Command) {
    let client = client.spawn().unwrap().wait().unwrap();
    assert!(client.success(), "the client failed");
    assert!(server.wait().unwrap().success(), "the server failed");
}

/// Starts both in two network namespaces that a pair of virtual links connects.
#[track_caller]
fn check_two_namespaces(folders: [Option<&std::path::Path>; 2], shares_memory: bool) {
    enter_own_network();
    let [mut server, mut client] =
        [program("serve", "far", shares_memory), program("ask", "far", shares_memory)];
    for (command, folder) in [&mut server, &mut client].into_iter().zip(folders) {
        command.env_remove(FOLDER);
        command.envs(folder.map(|folder| (FOLDER, folder)));
    }
    isolate(&mut server, Isolation::Network);
    let server = server.spawn().unwrap();
    add_links("near", "far", server.id());
    set_address("near", [10, 77, 0, 1]);
    check(server, client);
}

fn private_folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn shared_folder_connects_network_namespaces() {
    let folder = private_folder();
    check_two_namespaces([Some(folder.path()); 2], true);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "names were left in the folder");
}

fn namespaces_without_a_shared_folder_do_not_share_memory() {
    check_two_namespaces([None; 2], false);
}

fn folder_known_to_one_end_only() {
    let folder = private_folder();
    check_two_namespaces([Some(folder.path()), None], false);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "names were left in the folder");
}

/// Abstract names are private to a namespace, so the same addresses name another connection.
fn loopback_with_a_shared_folder() {
    enter_own_network();
    let folder = private_folder();
    let [mut server, mut client] = [program("serve", "", true), program("ask", "", true)];
    server.env(FOLDER, folder.path());
    client.env_remove(FOLDER);
    check(server.spawn().unwrap(), client);
}

/// Starts both as two users.
#[track_caller]
fn check_two_users(groups: [u32; 2], shares_memory: bool) {
    enter_own_network();
    let [mut server, mut client] =
        [program("serve", "", shares_memory), program("ask", "", shares_memory)];
    for ((command, group), user) in [&mut server, &mut client].into_iter().zip(groups).zip([11, 12])
    {
        command.env(GROUP, "77").env(USER, format!("{user} {group}"));
    }
    check(server.spawn().unwrap(), client);
}

fn users_of_one_group_share_memory() {
    check_two_users([77, 77], true);
}

fn users_without_a_common_group_do_not_share_memory() {
    check_two_users([77, 78], false);
}

/// Changes to the user that the environment names.
fn change_user() {
    let Ok(wanted) = std::env::var(USER) else { return };
    let (user, group) = wanted.split_once(' ').unwrap();
    let (user, group) = (user.parse().unwrap(), group.parse().unwrap());
    // SAFETY: no pointers but an empty list.
    let changed = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setgid(group) == 0
            && libc::setuid(user) == 0
    };
    assert!(changed, "this test must run as root: its programs become other users: {:?}", errno());
}

/// Exchanges messages over `fd` until both ends are in shared memory, or for long enough if they
/// must not be.
fn talk(fd: Fd, leads: bool) {
    if std::env::var(SHARES_MEMORY).unwrap() == "1" {
        join_with_peer(fd, leads);
    }
    for round in 0..ROUNDS {
        if leads {
            send_all(fd, &pattern(round, 700));
        }
        assert_bytes(&recv_exact(fd, 700), &pattern(round, 700));
        if !leads {
            send_all(fd, &pattern(round, 700));
        }
    }
    if std::env::var(SHARES_MEMORY).unwrap() == "0" {
        assert_ne!(state(fd), Some(JOINED), "joined across what keeps them apart");
    }
}

/// The server: sets its address once the link exists.
fn serve() {
    change_user();
    let place = std::env::var(PLACE).unwrap();
    if !place.is_empty() {
        eventually("the link is there", || interface_exists(&place));
        set_address(&place, [10, 77, 0, 2]);
    }
    let listening = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    bind(listening, &Address::v4([0, 0, 0, 0], PORT)).unwrap();
    listen(listening, 1).unwrap();
    let fd = accept(listening).unwrap();
    talk(fd, false);
}

/// The client: connects once the server listens.
fn ask() {
    change_user();
    let there =
        if std::env::var(PLACE).unwrap().is_empty() { [127, 0, 0, 1] } else { [10, 77, 0, 2] };
    let mut made = None;
    eventually("the server listens", || {
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        match connect(fd, &Address::v4(there, PORT)) {
            Ok(()) => made = Some(fd),
            Err(_) => close(fd).unwrap(),
        }
        made.is_some()
    });
    talk(made.unwrap(), true);
}
