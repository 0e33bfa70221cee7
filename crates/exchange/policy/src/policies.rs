//! The three policies together.

use std::time::Duration;

use crate::balancer::Balancer;
use crate::decision::{Action, Decision};
use crate::orders::Orders;
use crate::placement::Placement;
use crate::reports::{ReportError, Reports};
use crate::resizer::Resizer;
use crate::settings::{Settings, SettingsError};
use crate::view::NetworkView;

/// All policies, with what they remember. Whoever takes them over without this memory begins with
/// the present network: delays and cool-downs begin anew, and a cell that was being emptied stays
/// active until the resizer chooses it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Policies {
    settings: Settings,
    orders: Orders,
    resizer: Resizer,
    balancer: Balancer,
}

impl Policies {
    /// Policies that remember nothing.
    ///
    /// # Errors
    /// If a setting is outside its range.
    pub fn new(settings: Settings) -> Result<Policies, SettingsError> {
        settings.check()?;
        let (resizer, balancer) = (Resizer::default(), Balancer::default());
        Ok(Policies { settings, orders: Orders::default(), resizer, balancer })
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Decides by the reports of the last `dt`: the resizer first, then the placement, then the
    /// balancer, each on the network as the decisions before leave it. At most one decision is made
    /// for an instrument, and none for one that is on its way.
    ///
    /// The decisions should be carried out in their order. One that fails needs no notice: the
    /// next reports show it.
    ///
    /// # Errors
    /// If the reports contradict themselves or exceed a limit; then no time has passed for the
    /// policies.
    pub fn step(&mut self, reports: &Reports, dt: Duration) -> Result<Vec<Decision>, ReportError> {
        reports.check()?;
        let Settings { resizer, placement, balancer, moves } = &self.settings;
        self.orders.advance(&reports.instruments, moves, dt);
        let mut view = NetworkView::new(reports, &self.orders, &self.settings);
        let mut decisions = vec![];
        if resizer.enabled {
            decisions.extend(self.resizer.step(&mut view, resizer, dt));
        }
        let placement = Placement::new(&view, placement);
        decisions.extend(placement.step(&mut view, resizer.upper_per_s));
        if balancer.enabled {
            decisions.extend(self.balancer.step(&mut view, balancer, &placement, dt));
        }
        for decision in &decisions {
            if let Action::Move { instrument, to } = decision.action {
                self.orders.insert(instrument, to);
            }
        }
        Ok(decisions)
    }
}
