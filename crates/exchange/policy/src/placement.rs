//! Which site an instrument is at: the one that sends most of its requests ("follow the sun").
//!
//! An instrument moves to the site that sends most. That site must send a large enough share of
//! all, and enough more than the present site sends. The mean latency between the origins of its
//! requests and its cell must then be predicted to fall. The prediction takes the latencies between
//! sites as they were measured; where one is missing nothing moves.

use std::collections::BTreeSet;

use crate::decision::{Action, Decision, DecisionReason};
use crate::reports::{OriginRate, SiteId};
use crate::settings::PlacementSettings;
use crate::view::NetworkView;

/// By how much more than a share of all requests the new site must send, per second.
const LEAD_PER_S: f64 = 1.0;

/// A site that an instrument should be at.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wanted {
    site: SiteId,
    site_per_s: f64,
    total_per_s: f64,
    before_us: f64,
    after_us: f64,
}

impl Wanted {
    /// Latency that is saved in a second, in µs.
    fn gain_us_per_s(&self) -> f64 {
        (self.before_us - self.after_us) * self.total_per_s
    }
}

/// The placement on a network: the sites that may get instruments.
pub(crate) struct Placement<'a> {
    settings: &'a PlacementSettings,
    sites: BTreeSet<SiteId>,
}

impl<'a> Placement<'a> {
    /// The sites that have cells in service and are not excluded; none if the placement is off.
    pub(crate) fn new(view: &NetworkView<'_>, settings: &'a PlacementSettings) -> Self {
        let cells = view.cells.iter().filter(|cell| settings.enabled && cell.is_in_service());
        let sites = cells.map(|cell| cell.site);
        let sites = sites.filter(|site| !settings.excluded_sites.contains(site)).collect();
        Placement { settings, sites }
    }

    /// Moves instruments to the coldest cells of the sites that they should be at. Those that save
    /// most latency move first. No cell gets more requests than `upper_per_s`.
    pub(crate) fn step(&self, view: &mut NetworkView<'_>, upper_per_s: f64) -> Vec<Decision> {
        let mut wanted = vec![];
        for (index, instrument) in view.instruments.iter().enumerate() {
            let cell = &view.cells[instrument.cell];
            if instrument.is_free() && cell.is_in_service() {
                let at = cell.site;
                wanted.extend(self.wanted_site(view, index, at).map(|site| (index, at, site)));
            }
        }
        // The sort is stable, so equal ones keep the order of their numbers.
        wanted.sort_by(|a, b| b.2.gain_us_per_s().total_cmp(&a.2.gain_us_per_s()));
        let mut decisions = vec![];
        for (index, from_site, wanted) in wanted {
            if view.moves_left() == 0 {
                break;
            }
            let target = view.coldest(index, upper_per_s, |cell| cell.site == wanted.site);
            let Some(to) = target else { continue };
            view.order_move(index, to);
            let instrument = view.instruments[index].id;
            let reason = DecisionReason::CloserToFlow {
                from_site,
                to_site: wanted.site,
                to_site_per_s: wanted.site_per_s,
                total_per_s: wanted.total_per_s,
                before_us: wanted.before_us,
                after_us: wanted.after_us,
            };
            let action = Action::Move { instrument, to: view.cells[to].id };
            decisions.push(Decision { action, reason });
        }
        decisions
    }

    /// Whether an instrument at the site `to` would be moved back to the site `from`.
    pub(crate) fn would_return(
        &self,
        view: &NetworkView<'_>,
        instrument: usize,
        from: SiteId,
        to: SiteId,
    ) -> bool {
        from != to && self.wanted_site(view, instrument, to).is_some_and(|w| w.site == from)
    }

    /// The site that an instrument should be moved to if it were at the site `at`.
    fn wanted_site(&self, view: &NetworkView<'_>, instrument: usize, at: SiteId) -> Option<Wanted> {
        let settings = self.settings;
        let origins = view.instruments[instrument].origins;
        let total_per_s: f64 = origins.iter().map(|origin| origin.requests_per_s).sum();
        let candidates = origins.iter().filter(|origin| self.sites.contains(&origin.site));
        let most = candidates.max_by(|a, b| {
            let by_rate = a.requests_per_s.total_cmp(&b.requests_per_s);
            by_rate.then(b.site.cmp(&a.site))
        })?;
        let (site, site_per_s) = (most.site, most.requests_per_s);
        let present = origins.iter().find(|origin| origin.site == at);
        let lead_per_s = site_per_s - present.map_or(0.0, |origin| origin.requests_per_s);
        let is_wanted = site != at
            && site_per_s >= settings.share_min * total_per_s
            && site_per_s >= settings.rate_min_per_s
            && lead_per_s >= settings.lead_share_min * total_per_s + LEAD_PER_S
            && lead_per_s >= settings.lead_min_per_s;
        if !is_wanted {
            return None;
        }
        let before_us = mean_latency_us(view, origins, total_per_s, at)?;
        let after_us = mean_latency_us(view, origins, total_per_s, site)?;
        let falls = after_us < before_us && before_us - after_us >= settings.gain_min_us;
        falls.then_some(Wanted { site, site_per_s, total_per_s, before_us, after_us })
    }
}

/// Mean latency of requests between their origins and a site, in µs, if all latencies are known.
fn mean_latency_us(
    view: &NetworkView<'_>,
    origins: &[OriginRate],
    total_per_s: f64,
    site: SiteId,
) -> Option<f64> {
    let mut sum = 0.0;
    for origin in origins.iter().filter(|origin| origin.requests_per_s > 0.0) {
        sum += origin.requests_per_s * view.latency_us(origin.site, site)?;
    }
    Some(sum / total_per_s)
}
