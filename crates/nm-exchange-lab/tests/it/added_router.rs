//! A router that was added is not removed while no other one is up.

use std::sync::Arc;
use std::time::Duration;

use nm_exchange::control::admin;
use nm_exchange::network::{Durability, Network, Node, Role};
use nm_exchange::testing::TestRing;
use nm_exchange_lab::add;
use nm_model::FailureKind;
use nm_sys::clock::Deadline;

const LIMIT: Duration = Duration::from_secs(60);

/// Waits until a router is up, or down, as control knows.
fn wait_until(network: &Network, router: usize, is_up: bool) {
    let deadline = Deadline::after(LIMIT);
    let is_it = || {
        let nodes = admin::status(network, LIMIT).ok()?.nodes;
        let node = nodes.into_iter().find(|it| (it.role, it.index) == (Role::Router, router))?;
        (node.is_up == is_up).then_some(())
    };
    while is_it().is_none() {
        assert!(!deadline.passed(), "router {router} does not come or go");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_only_router_that_is_up_is_not_removed() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    let address = format!("unix:{}", ring.folder.path().join("more").display()).parse().unwrap();
    let node = Node { address, replication: None };
    let router = (Role::Router, add::add(&ring.network, Role::Router, &node).unwrap());
    assert_eq!(router.1, 1);
    let file = ring.network.clone();
    ring.start_one(Role::Router, 1, &file, &Arc::default());
    assert!(add::wait_until_up(&file, router));
    let network = admin::status(&file, LIMIT).unwrap().network;
    ring.stop_one(Role::Router, 0);
    wait_until(&network, 0, false);
    let refused = add::remove(&network, router).unwrap_err();
    assert_eq!(refused.kind, FailureKind::BadRequest);
    assert!(refused.message.contains("router 1 is the only one that is up"), "{refused:?}");
    ring.start_one(Role::Router, 0, &file, &Arc::default());
    wait_until(&network, 0, true);
    add::remove(&network, router).unwrap();
    ring.wait_for_warning("it was removed from the network, and ends");
    ring.stop_all();
}
