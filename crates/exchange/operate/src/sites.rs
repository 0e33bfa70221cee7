//! The sites of a network, and the latencies between them: measured by the network's own links, or
//! from the settings.

use std::collections::{BTreeMap, BTreeSet};

use nm_exchange::control::LinkLatency;
use nm_exchange::network::{Network, NodeId, Role};
pub use nm_policy::SiteLatency;
use nm_policy::{RATE_PER_S_MAX, ReportError, Reports, SiteId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// By how much a latency changes before it is shown again: by a share of it, and by so many µs. It
/// varies a little with each measurement.
const CHANGE_RATIO: f64 = 1.1;
const CHANGE_US: f64 = 10.0;

/// Sites of a network: which nodes are where, and how far they are from each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sites {
    /// By gateway: its site; 0 where the list ends.
    pub gateways: Vec<SiteId>,
    /// By mediator: its site; 0 where the list ends.
    pub mediators: Vec<SiteId>,
    /// Latencies between sites that hold where none is measured.
    pub latencies: Vec<SiteLatency>,
    /// Whether a measured latency replaces that of the same pair of sites in `latencies`.
    pub measure: bool,
}

/// All nodes at one site.
impl Default for Sites {
    fn default() -> Sites {
        Sites { gateways: vec![], mediators: vec![], latencies: vec![], measure: true }
    }
}

/// Where a latency comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyOrigin {
    /// The network's links.
    Measured,
    /// [`Sites::latencies`].
    Settings,
}

/// A latency between two sites that the policies take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct LatencyInUse {
    /// The latency: of requests from the gateways of one site to the mediators of another one.
    #[serde(flatten)]
    pub latency: SiteLatency,
    /// Where it comes from.
    pub origin: LatencyOrigin,
}

impl LatencyInUse {
    /// Whether two lists have the same latencies from the same origins, but for small differences.
    pub fn are_alike(some: &[LatencyInUse], others: &[LatencyInUse]) -> bool {
        let is_like = |(a, b): (&LatencyInUse, &LatencyInUse)| {
            let (one_us, other_us) = (a.latency.latency_us, b.latency.latency_us);
            let (least_us, most_us) = (one_us.min(other_us), one_us.max(other_us));
            let of = |it: &LatencyInUse| (it.latency.from, it.latency.to, it.origin);
            of(a) == of(b) && most_us <= (CHANGE_RATIO * least_us).max(least_us + CHANGE_US)
        };
        some.len() == others.len() && some.iter().zip(others).all(is_like)
    }
}

impl Sites {
    /// Checks the latencies of the settings.
    ///
    /// # Errors
    /// The first thing in them that is wrong.
    pub fn check(&self) -> Result<(), ReportError> {
        Reports { latencies: self.latencies.clone(), ..Reports::default() }.check()
    }

    /// The site of a gateway.
    pub fn of_gateway(&self, index: u16) -> SiteId {
        self.gateways.get(usize::from(index)).copied().unwrap_or_default()
    }

    /// The site of a mediator.
    pub fn of_mediator(&self, index: u16) -> SiteId {
        self.mediators.get(usize::from(index)).copied().unwrap_or_default()
    }

    /// Whether latencies are to be measured: not if the network is at one site, where no policy
    /// asks for them.
    pub fn are_measured(&self, network: &Network) -> bool {
        let gateways = indices(network, Role::Gateway).map(|index| self.of_gateway(index));
        let mediators = indices(network, Role::Mediator).map(|index| self.of_mediator(index));
        self.measure && gateways.chain(mediators).collect::<BTreeSet<_>>().len() > 1
    }

    /// The latencies that the policies take, from each site with gateways to each one with
    /// mediators, as far as they are known. A measured one comes first, then that of the settings;
    /// each also holds for the other direction if that one is not known.
    pub fn latencies_in_use(&self, network: &Network, measured: &LinkReports) -> Vec<LatencyInUse> {
        let measured = measured.between_sites(self, network);
        let settings = self.latencies.iter().map(|one| ((one.from, one.to), one.latency_us));
        let settings: BTreeMap<_, _> = settings.collect();
        let gateways = indices(network, Role::Gateway).map(|index| self.of_gateway(index));
        let mediators = indices(network, Role::Mediator).map(|index| self.of_mediator(index));
        let to_sites: BTreeSet<SiteId> = mediators.collect();
        let mut in_use = vec![];
        for from in gateways.collect::<BTreeSet<_>>() {
            for to in &to_sites {
                let sources =
                    [(&measured, LatencyOrigin::Measured), (&settings, LatencyOrigin::Settings)];
                let known = sources.into_iter().find_map(|(known_us, origin)| {
                    let latency_us = known_us.get(&(from, *to)).or(known_us.get(&(*to, from)))?;
                    Some((*latency_us, origin))
                });
                in_use.extend(known.map(|(latency_us, origin)| {
                    let latency = SiteLatency { from, to: *to, latency_us };
                    LatencyInUse { latency, origin }
                }));
            }
        }
        in_use
    }
}

/// What nodes reported of their links, at one time.
#[derive(Debug, Clone, Default)]
pub struct LinkReports(BTreeMap<(NodeId, NodeId), u64>);

impl LinkReports {
    /// Takes the report of one more node.
    pub fn add(&mut self, node: NodeId, links: &[LinkLatency]) {
        self.0.extend(links.iter().map(|link| ((node, link.peer), link.latency_ns)));
    }

    /// The latency of a link on which requests go from one node to the other. The kernel of the
    /// sender knows it better, as each request measures it; that of the receiver may know the
    /// handshake only.
    fn link_ns(&self, from: NodeId, to: NodeId) -> Option<u64> {
        self.0.get(&(from, to)).or_else(|| self.0.get(&(to, from))).copied()
    }

    /// The latency of the path that requests take from a gateway to a mediator: through the
    /// gateway's first router, or through its other one if links of the first one are not up. 0 if
    /// no link of it leaves the host.
    fn path_ns(&self, network: &Network, gateway: u16, mediator: u16) -> Option<u64> {
        let through = |router: u16| {
            let router = Role::Router.node(router);
            let first_ns = self.link_ns(Role::Gateway.node(gateway), router)?;
            let second_ns = self.link_ns(router, Role::Mediator.node(mediator))?;
            Some(first_ns.saturating_add(second_ns))
        };
        network.routers_of(gateway).into_iter().find_map(through)
    }

    /// The shortest path from the gateways of each site to the mediators of each site, µs. Sites
    /// between which a path does not leave the host are not measured: they are sites by the
    /// settings only.
    fn between_sites(&self, sites: &Sites, network: &Network) -> BTreeMap<(SiteId, SiteId), f64> {
        let mut shortest_ns = BTreeMap::<(SiteId, SiteId), u64>::new();
        for gateway in indices(network, Role::Gateway) {
            for mediator in indices(network, Role::Mediator) {
                let Some(path_ns) = self.path_ns(network, gateway, mediator) else { continue };
                let pair = (sites.of_gateway(gateway), sites.of_mediator(mediator));
                let known_ns = shortest_ns.entry(pair).or_insert(path_ns);
                *known_ns = path_ns.min(*known_ns);
            }
        }
        let measured = shortest_ns.into_iter().filter(|(_, path_ns)| *path_ns > 0);
        measured.map(|(pair, ns)| (pair, (ns as f64 / 1e3).min(RATE_PER_S_MAX))).collect()
    }
}

fn indices(network: &Network, role: Role) -> impl Iterator<Item = u16> {
    0..network.nodes(role).len() as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_exchange::link::Address;
    use nm_exchange::network::Node;

    fn network(counts: &str) -> Network {
        Network::new(counts.parse().unwrap(), |node| {
            let address = Address::Unix(format!("/{}", node.file_name()).into());
            Node { address, replication: None }
        })
    }

    fn link(role: Role, index: u16, latency_us: u64) -> LinkLatency {
        LinkLatency { peer: role.node(index), latency_ns: latency_us * 1_000 }
    }

    fn sites(gateways: &[u16], mediators: &[u16], latencies: &[(u16, u16, f64)]) -> Sites {
        let latency = |&(from, to, latency_us)| SiteLatency { from, to, latency_us };
        let latencies = latencies.iter().map(latency).collect();
        let (gateways, mediators) = (gateways.to_vec(), mediators.to_vec());
        Sites { gateways, mediators, latencies, ..Sites::default() }
    }

    /// From, to, latency in µs, whether it is measured.
    fn in_use(sites: &Sites, network: &Network, links: &LinkReports) -> Vec<(u16, u16, f64, bool)> {
        let in_use = sites.latencies_in_use(network, links).into_iter();
        let is_measured = |it: &LatencyInUse| it.origin == LatencyOrigin::Measured;
        in_use
            .map(|it| (it.latency.from, it.latency.to, it.latency.latency_us, is_measured(&it)))
            .collect()
    }

    use Role::{Gateway, Mediator, Router};

    /// Sites 0 and 1 with a gateway, a router and a mediator each, 500 µs apart.
    fn two_sites() -> LinkReports {
        let mut links = LinkReports::default();
        links.add(Gateway.node(0), &[link(Router, 0, 10), link(Router, 1, 500)]);
        links.add(Gateway.node(1), &[link(Router, 0, 500), link(Router, 1, 20)]);
        links.add(Router.node(0), &[link(Mediator, 0, 30), link(Mediator, 1, 500)]);
        links.add(Router.node(1), &[link(Mediator, 0, 500), link(Mediator, 1, 40)]);
        links
    }

    #[test]
    fn a_latency_is_that_of_the_path_that_requests_take() {
        let (network, sites) = (network("2-2-2-1"), sites(&[0, 1], &[0, 1], &[]));
        assert!(sites.are_measured(&network));
        let (near, far) = ([(0, 0, 40.0, true), (0, 1, 510.0, true)], (1, 0, 520.0, true));
        let expected = [near[0], near[1], far, (1, 1, 60.0, true)];
        assert_eq!(in_use(&sites, &network, &two_sites()), expected);
        // Without its first router a gateway uses the other one, which is far away.
        let mut links = LinkReports::default();
        links.add(Gateway.node(0), &[link(Router, 1, 500)]);
        links.add(Gateway.node(1), &[link(Router, 1, 20)]);
        links.add(Router.node(1), &[link(Mediator, 0, 500), link(Mediator, 1, 40)]);
        let expected = [(0, 0, 1000.0), (0, 1, 540.0), (1, 0, 520.0), (1, 1, 60.0)];
        let expected = expected.map(|(from, to, us)| (from, to, us, true));
        assert_eq!(in_use(&sites, &network, &links), expected);
    }

    #[test]
    fn the_shortest_path_between_the_nodes_of_two_sites_counts() {
        let (network, sites) = (network("2-2-3-1"), sites(&[0, 0], &[0, 1, 1], &[]));
        let mut links = two_sites();
        links.add(Router.node(0), &[link(Mediator, 2, 300)]);
        let expected = [(0, 0, 40.0, true), (0, 1, 60.0, true)];
        assert_eq!(in_use(&sites, &network, &links), expected);
    }

    #[test]
    fn the_sender_of_requests_knows_a_link_better_than_its_receiver() {
        let (network, sites) = (network("1-1-1-1"), sites(&[1], &[0], &[]));
        let mut links = LinkReports::default();
        links.add(Router.node(0), &[link(Gateway, 0, 700), link(Mediator, 0, 50)]);
        links.add(Mediator.node(0), &[link(Router, 0, 900)]);
        assert_eq!(in_use(&sites, &network, &links), [(1, 0, 750.0, true)]);
        links.add(Gateway.node(0), &[link(Router, 0, 100)]);
        assert_eq!(in_use(&sites, &network, &links), [(1, 0, 150.0, true)]);
    }

    #[test]
    fn settings_hold_where_nothing_is_measured() {
        let network = network("2-2-2-1");
        let sites = sites(&[0, 1], &[0, 1], &[(0, 1, 900.0), (1, 1, 5.0), (7, 8, 3.0)]);
        // Both directions have the latency of the one that is set.
        let set = [(0, 1, 900.0, false), (1, 0, 900.0, false), (1, 1, 5.0, false)];
        assert_eq!(in_use(&sites, &network, &LinkReports::default()), set);
        // Links within one host are no measurement of the way between two sites.
        let mut links = LinkReports::default();
        for index in 0..2 {
            links.add(Gateway.node(index), &[link(Router, 0, 0), link(Router, 1, 0)]);
            links.add(Router.node(index), &[link(Mediator, 0, 0), link(Mediator, 1, 0)]);
        }
        assert_eq!(in_use(&sites, &network, &links), set);
        // Of two sites one is reached by TCP; its other direction is not measured, but as long.
        let mut links = LinkReports::default();
        links.add(Gateway.node(0), &[link(Router, 0, 0)]);
        links.add(Router.node(0), &[link(Mediator, 0, 0), link(Mediator, 1, 400)]);
        let expected = [(0, 1, 400.0, true), (1, 0, 400.0, true), (1, 1, 5.0, false)];
        assert_eq!(in_use(&sites, &network, &links), expected);
    }

    #[test]
    fn a_latency_that_no_report_may_have_is_cut() {
        let (network, sites) = (network("1-1-1-1"), sites(&[1], &[0], &[]));
        let mut links = LinkReports::default();
        let router = LinkLatency { peer: Router.node(0), latency_ns: u64::MAX };
        links.add(Gateway.node(0), &[router]);
        links.add(Router.node(0), &[link(Mediator, 0, 50)]);
        assert_eq!(in_use(&sites, &network, &links), [(1, 0, RATE_PER_S_MAX, true)]);
    }

    #[test]
    fn one_site_and_settings_that_say_so_need_no_measurement() {
        let network = network("2-2-2-1");
        assert!(!Sites::default().are_measured(&network));
        // Nodes that the network does not have are at no site.
        assert!(!sites(&[0, 0, 1], &[], &[]).are_measured(&network));
        assert!(sites(&[], &[0, 1], &[]).are_measured(&network));
        let fixed: Sites = toml::from_str("mediators = [0, 1]\nmeasure = false").unwrap();
        assert!(!fixed.are_measured(&network));
        let older: Sites = toml::from_str("mediators = [0, 1]").unwrap();
        assert!(older.are_measured(&network));
    }

    #[test]
    fn small_changes_are_none() {
        let one = |latency_us, origin| {
            [LatencyInUse { latency: SiteLatency { from: 0, to: 1, latency_us }, origin }]
        };
        use LatencyOrigin::{Measured, Settings};
        let known = one(100.0, Measured);
        assert!(LatencyInUse::are_alike(&known, &one(109.0, Measured)));
        assert!(!LatencyInUse::are_alike(&known, &one(111.0, Measured)));
        assert!(LatencyInUse::are_alike(&one(2.0, Measured), &one(11.0, Measured)));
        assert!(LatencyInUse::are_alike(&one(1_000.0, Measured), &one(1_099.0, Measured)));
        assert!(!LatencyInUse::are_alike(&known, &one(100.0, Settings)));
        assert!(!LatencyInUse::are_alike(&known, &[]));
        let text = serde_json::to_string(&known[0]).unwrap();
        assert_eq!(text, r#"{"from":0,"to":1,"latency_us":100.0,"origin":"measured"}"#);
    }
}
