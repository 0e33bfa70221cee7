//! A router or processor that was added is not removed while no other one is up.

use std::sync::Arc;
use std::time::Duration;

use nm_exchange::network::{Durability, Network, Node, NodeId, Role};
use nm_exchange::testing::TestRing;
use nm_model::FailureKind;
use nm_operate::admin;
use nm_operate::{add, drain};
use nm_sys::clock::Deadline;

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a node is up, or down, as control knows.
fn wait_until(network: &Network, node: NodeId, is_up: bool) {
    let deadline = Deadline::after(LIMIT);
    let is_it = || {
        let nodes = admin::status(network, LIMIT).ok()?.nodes;
        let node = nodes.into_iter().find(|it| it.id == node)?;
        (node.is_up == is_up).then_some(())
    };
    while is_it().is_none() {
        assert!(!deadline.passed(), "{node} does not come or go");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A second node of a class is added; while the first one is down it is not removed, for a reason.
fn the_only_one_is_not_removed(role: Role, why: &str) {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let address = format!("unix:{}", ring.folder.path().join("more").display()).parse().unwrap();
    let node = Node { address, replication: None };
    let added = role.node(add::add(&ring.network, role, &node).unwrap());
    assert_eq!(added.index, 1);
    let file = ring.network.clone();
    ring.start_one(role.node(1), &file, &Arc::default());
    assert!(add::wait_until_up(&file, added));
    let network = admin::status(&file, LIMIT).unwrap().network;
    ring.stop_one(role.node(0));
    wait_until(&network, role.node(0), false);
    let refused = add::remove(&network, added).unwrap_err();
    assert_eq!(refused.kind, FailureKind::BadRequest);
    assert!(refused.message.contains(why), "{refused:?}");
    ring.start_one(role.node(0), &file, &Arc::default());
    wait_until(&network, role.node(0), true);
    assert_eq!(add::remove(&network, added).unwrap(), None);
    ring.wait_for_warning("it was removed from the network, and ends");
    ring.stop_all();
}

#[test]
fn the_only_router_that_is_up_is_not_removed() {
    the_only_one_is_not_removed(Role::Router, "router 1 is the only one that is up");
}

#[test]
fn a_processor_without_which_a_cell_has_none_is_not_removed() {
    let why = "no processor that is up but 1 could send the replies of cell 0";
    the_only_one_is_not_removed(Role::Processor, why);
}

/// It says how many sessions have gone, also if there were none.
#[test]
fn the_only_gateway_that_takes_clients_is_not_removed() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let address = format!("unix:{}", ring.folder.path().join("more").display()).parse().unwrap();
    let node = Node { address, replication: None };
    let gateway = Role::Gateway.node(add::add(&ring.network, Role::Gateway, &node).unwrap());
    let file = ring.network.clone();
    ring.start_one(Role::Gateway.node(1), &file, &Arc::default());
    assert!(add::wait_until_up(&file, gateway));
    let network = admin::status(&file, LIMIT).unwrap().network;
    drain::drain(&network, Role::Gateway.node(0)).unwrap();
    let refused = add::remove(&network, gateway).unwrap_err();
    assert_eq!(refused.kind, FailureKind::BadRequest);
    assert!(refused.message.contains("no other gateway could take the clients"), "{refused:?}");
    drain::resume(&network, Role::Gateway.node(0)).unwrap();
    let removed = add::remove(&network, gateway).unwrap().unwrap();
    assert_eq!(removed.sessions, Some(0));
    ring.wait_for_warning("it was removed from the network, and ends");
    ring.stop_all();
}
