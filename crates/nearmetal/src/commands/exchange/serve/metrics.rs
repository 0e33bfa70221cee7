//! The figures of the nodes of this host as OpenMetrics text: what `/metrics` of `exchange serve`
//! answers.

use nm_operate::health::Trading;
use nm_operate::live::{NodeSight, Sight};
use nm_report::openmetrics::{Family, Labels, families_text};

/// The text; of nodes, only those for which `is_here` is true.
pub fn text(sight: &Sight, is_here: impl Fn(&NodeSight) -> bool) -> String {
    let nodes: Vec<&NodeSight> = sight.nodes.iter().filter(|node| is_here(node)).collect();
    let family = |name, unit, help, value: &dyn Fn(&NodeSight) -> Option<f64>| Family {
        name,
        unit,
        help,
        samples: nodes.iter().filter_map(|node| Some((labels(node), value(node)?))).collect(),
    };
    let flag = |is_so: bool| Some(f64::from(u8::from(is_so)));
    families_text(&[
        trading(sight),
        leaders(sight),
        family(
            "nearmetal_exchange_node_up",
            "",
            "1 if the node answers and does its work, else 0.",
            &|node| flag(node.status.works()),
        ),
        family(
            "nearmetal_exchange_node_drained",
            "",
            "1 if the node is to carry nothing, else 0.",
            &|node| flag(node.status.is_drained),
        ),
        family(
            "nearmetal_exchange_node_starts",
            "",
            "How often the node has started, as the control group counts it.",
            &|node| node.status.starts.map(f64::from),
        ),
        family(
            "nearmetal_exchange_cpu_seconds_total",
            "seconds",
            "CPU time of the node's process since it started.",
            &|node| node.cpu_s,
        ),
        family(
            "nearmetal_exchange_request_rate",
            "",
            "Requests per second since the look before: executed by a mediator, or by a gateway.",
            &|node| node.requests_per_s,
        ),
        family(
            "nearmetal_exchange_sessions",
            "",
            "Sessions of the clients of a gateway.",
            &|node| node.sessions.map(f64::from),
        ),
        family(
            "nearmetal_exchange_instruments_moved_total",
            "",
            "Instruments that have left the cells of a mediator since it started.",
            &|node| node.moved.map(|moved| moved as f64),
        ),
        links(&nodes),
    ])
}

fn labels(node: &NodeSight) -> Labels {
    vec![("node", node.status.id.to_string()), ("class", node.status.id.class.name().to_string())]
}

fn trading(sight: &Sight) -> Family {
    let sample = |state: Trading| {
        let word = state.words().replace(' ', "-");
        (vec![("state", word)], f64::from(u8::from(state == sight.trading)))
    };
    Family {
        name: "nearmetal_exchange_trading",
        unit: "",
        help: "1 for the state of the whole network, as `exchange status` has it, else 0.",
        samples: Trading::ALL.into_iter().map(sample).collect(),
    }
}

fn leaders(sight: &Sight) -> Family {
    let cells = sight.status.cells.iter();
    Family {
        name: "nearmetal_exchange_cell_led",
        unit: "",
        help: "1 if a mediator leads the cell, else 0; of the whole network.",
        samples: cells
            .map(|cell| {
                let is_led = f64::from(u8::from(cell.leader.is_some()));
                (vec![("cell", cell.cell.to_string())], is_led)
            })
            .collect(),
    }
}

fn links(nodes: &[&NodeSight]) -> Family {
    let of_node = |node: &&NodeSight| {
        let labels = labels(node);
        let sample = move |link: &nm_operate::live::LinkSight| {
            let mut labels = labels.clone();
            labels.push(("peer", link.peer.clone()));
            (labels, link.latency_ns as f64 / 1e9)
        };
        node.links.iter().map(sample).collect::<Vec<_>>()
    };
    Family {
        name: "nearmetal_exchange_link_latency_seconds",
        unit: "seconds",
        help: "Latency of one way to another node, as far as the node measures it; 0 on one host.",
        samples: nodes.iter().flat_map(of_node).collect(),
    }
}
