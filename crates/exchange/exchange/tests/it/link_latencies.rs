//! Nodes report the latencies of their links to observers.

use nm_exchange::client::ClientError;
use nm_exchange::control::{AdminRequest, LinkLatency, Observer};
use nm_exchange::network::{Durability, NodeId, Role};
use nm_exchange::testing::{LIMIT, TestRing};
use nm_operate::admin;
use nm_wire::Who;

use Role::{Gateway, Mediator, Processor, Router};

#[test]
fn links_within_a_host_are_reported_with_no_latency() {
    for durability in [Durability::None, Durability::MemoryQuorum] {
        let mut ring = TestRing::new("1-1-1-1", durability);
        ring.start();
        let asked: [NodeId; 3] = [Gateway.node(0), Router.node(0), Mediator.node(0)];
        let reports = admin::work_of(&ring.network, &asked, LIMIT).unwrap();
        let found: Vec<_> = reports.iter().map(|(node, work)| (*node, &work.links[..])).collect();
        let link = |role| LinkLatency { peer: Role::node(role, 0), latency_ns: 0 };
        let expected = [
            (Gateway.node(0), [link(Router), link(Processor)]),
            (Router.node(0), [link(Gateway), link(Mediator)]),
            (Mediator.node(0), [link(Router), link(Processor)]),
        ];
        let expected: Vec<_> = expected.iter().map(|(node, links)| (*node, &links[..])).collect();
        assert_eq!(found, expected);
        ring.stop_all();
    }
}

#[test]
fn gateways_and_routers_answer_nothing_but_what_their_links_are() {
    let mut ring = TestRing::new("1-1-1-1", Durability::None);
    ring.start();
    for node in [
        &ring.network.classes[Role::Gateway].nodes[0],
        &ring.network.classes[Role::Router].nodes[0],
    ] {
        for request in [
            AdminRequest::Move { instrument: 1, cell: 0 },
            AdminRequest::Drain { node: Role::Mediator.node(0), is_drained: true },
        ] {
            let operator = Observer::connect(&node.address, Who::Operator, None, LIMIT);
            let refused = operator.unwrap().request(&request, LIMIT).unwrap_err();
            let ClientError::Refused(why) = refused else { panic!("{refused:?}") };
            assert!(why.starts_with("an operator sent a AdminRequest to a "), "{why}");
        }
    }
    // A node that does not exist is left out, and so is one that does not answer.
    let none = admin::work_of(&ring.network, &[Router.node(7), Processor.node(0)], LIMIT).unwrap();
    assert!(none.is_empty(), "{none:?}");
    ring.stop_all();
}
