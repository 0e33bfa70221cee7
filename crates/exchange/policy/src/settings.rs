//! The settings of all policies, with their defaults and ranges.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits::{CELLS_MAX, RATE_PER_S_MAX};
use crate::reports::SiteId;

/// Longest time of a setting, one day in ms.
const MS_MAX: u64 = 86_400_000;

/// Sites that may be excluded.
const EXCLUDED_SITES_MAX: usize = 64;

/// Settings of all policies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How many cells are active.
    pub resizer: ResizerSettings,
    /// Which site an instrument is at.
    pub placement: PlacementSettings,
    /// Which cell an instrument is in.
    pub balancer: BalancerSettings,
    /// Moves of instruments, whichever policy orders them.
    pub moves: MoveSettings,
}

/// Settings of the resizer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResizerSettings {
    /// Whether it runs.
    pub enabled: bool,
    /// Fewer requests per second and active cell than this: cells are retired.
    pub lower_per_s: f64,
    /// More requests per second and active cell than this: cells are activated.
    pub upper_per_s: f64,
    /// Fewest active cells.
    pub active_min: usize,
    /// Most active cells.
    pub active_max: usize,
    /// How long more cells must be needed before they are activated.
    pub up_delay_ms: u64,
    /// How long fewer cells must be needed before some are emptied.
    pub down_delay_ms: u64,
    /// Shortest time between two changes.
    pub cooldown_ms: u64,
    /// Shortest time between two changes of direction, from growing to shrinking or back.
    pub reversal_interval_ms: u64,
    /// A predicted ES10 above this: cells are activated.
    pub es10_limit_us: f64,
    /// Cells are retired only if ES10 is then predicted to be at most this share of its limit.
    pub es10_return_fraction: f64,
    /// How far ahead a rising load is extrapolated.
    pub es10_horizon_ms: u64,
    /// After this time an activation that was ordered, but is not reported, has failed, and a
    /// retirement is ordered again.
    pub order_timeout_ms: u64,
}

impl Default for ResizerSettings {
    fn default() -> ResizerSettings {
        ResizerSettings {
            enabled: true,
            lower_per_s: 2_500.0,
            upper_per_s: 6_000.0,
            active_min: 1,
            active_max: 64,
            up_delay_ms: 1_000,
            down_delay_ms: 10_000,
            cooldown_ms: 3_000,
            reversal_interval_ms: 60_000,
            es10_limit_us: 5_000.0,
            es10_return_fraction: 0.7,
            es10_horizon_ms: 2_000,
            order_timeout_ms: 5_000,
        }
    }
}

/// Settings of the placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlacementSettings {
    /// Whether it runs.
    pub enabled: bool,
    /// Smallest share of an instrument's requests that the site must send.
    pub share_min: f64,
    /// Fewest requests per second that the site must send.
    pub rate_min_per_s: f64,
    /// By which share of all requests for the instrument, and one request per second, the site must
    /// send more than the present site.
    pub lead_share_min: f64,
    /// By how many requests per second it must send more than the present site.
    pub lead_min_per_s: f64,
    /// By how much the mean latency of the instrument's requests must be predicted to fall, in µs.
    pub gain_min_us: f64,
    /// Sites to which nothing is moved.
    pub excluded_sites: Vec<SiteId>,
}

impl Default for PlacementSettings {
    fn default() -> PlacementSettings {
        PlacementSettings {
            enabled: true,
            share_min: 0.3,
            rate_min_per_s: 2.0,
            lead_share_min: 0.2,
            lead_min_per_s: 4.0,
            gain_min_us: 20.0,
            excluded_sites: vec![],
        }
    }
}

/// Settings of the balancer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BalancerSettings {
    /// Whether it runs.
    pub enabled: bool,
    /// The high watermark: load of a cell divided by the mean load, above which the cell is hot.
    pub high_ratio: f64,
    /// A cell is hot only if its load exceeds the mean by this as well.
    pub excess_min_per_s: f64,
    /// How long a cell must be hot before instruments are moved; in an emergency it need not be.
    pub delay_ms: u64,
    /// Most moves from one hot cell in one step.
    pub moves_per_cell_max: usize,
    /// Share of the CPU time in an instrument's load, the rest being its requests.
    pub cpu_weight: f64,
}

impl Default for BalancerSettings {
    fn default() -> BalancerSettings {
        BalancerSettings {
            enabled: true,
            high_ratio: 1.1,
            excess_min_per_s: 1.0,
            delay_ms: 2_000,
            moves_per_cell_max: 20,
            cpu_weight: 0.5,
        }
    }
}

/// Settings of moves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MoveSettings {
    /// Time after an instrument was moved in which it is not moved again, unless its cell is
    /// emptied.
    pub cooldown_ms: u64,
    /// Most instruments on their way at the same time.
    pub in_transit_max: usize,
    /// After this time a move that was ordered, but is not reported, has failed.
    pub order_timeout_ms: u64,
}

impl Default for MoveSettings {
    fn default() -> MoveSettings {
        MoveSettings { cooldown_ms: 10_000, in_transit_max: 64, order_timeout_ms: 2_000 }
    }
}

/// Why settings cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SettingsError {
    /// A value outside its range.
    #[error("{field} is {value}, but must be from {min} to {max}; change it in the policies' file")]
    OutOfRange {
        /// Name of the setting, with its table.
        field: &'static str,
        /// Its value.
        value: f64,
        /// Least value.
        min: f64,
        /// Greatest value.
        max: f64,
    },
    /// A lower bound that is not below its upper bound.
    #[error("{lower} is {lower_value}, but must be below {upper}, which is {upper_value}")]
    NotBelow {
        /// Name of the lower bound.
        lower: &'static str,
        /// Its value.
        lower_value: f64,
        /// Name of the upper bound.
        upper: &'static str,
        /// Its value.
        upper_value: f64,
    },
}

impl Settings {
    /// Checks each value.
    ///
    /// # Errors
    /// The first value that is outside its range.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.resizer.check()?;
        self.placement.check()?;
        self.balancer.check()?;
        self.moves.check()
    }
}

impl ResizerSettings {
    fn check(&self) -> Result<(), SettingsError> {
        in_range("resizer.lower_per_s", self.lower_per_s, 0.0, RATE_PER_S_MAX)?;
        in_range("resizer.upper_per_s", self.upper_per_s, 0.001, RATE_PER_S_MAX)?;
        if self.lower_per_s >= self.upper_per_s {
            return Err(SettingsError::NotBelow {
                lower: "resizer.lower_per_s",
                lower_value: self.lower_per_s,
                upper: "resizer.upper_per_s",
                upper_value: self.upper_per_s,
            });
        }
        count_in_range("resizer.active_max", self.active_max, CELLS_MAX)?;
        count_in_range("resizer.active_min", self.active_min, self.active_max)?;
        ms_in_range("resizer.up_delay_ms", self.up_delay_ms)?;
        ms_in_range("resizer.down_delay_ms", self.down_delay_ms)?;
        ms_in_range("resizer.cooldown_ms", self.cooldown_ms)?;
        ms_in_range("resizer.reversal_interval_ms", self.reversal_interval_ms)?;
        in_range("resizer.es10_limit_us", self.es10_limit_us, 1.0, RATE_PER_S_MAX)?;
        in_range("resizer.es10_return_fraction", self.es10_return_fraction, 0.01, 1.0)?;
        ms_in_range("resizer.es10_horizon_ms", self.es10_horizon_ms)?;
        ms_in_range("resizer.order_timeout_ms", self.order_timeout_ms)
    }
}

impl PlacementSettings {
    fn check(&self) -> Result<(), SettingsError> {
        in_range("placement.share_min", self.share_min, 0.0, 1.0)?;
        in_range("placement.rate_min_per_s", self.rate_min_per_s, 0.0, RATE_PER_S_MAX)?;
        in_range("placement.lead_share_min", self.lead_share_min, 0.0, 1.0)?;
        in_range("placement.lead_min_per_s", self.lead_min_per_s, 0.0, RATE_PER_S_MAX)?;
        in_range("placement.gain_min_us", self.gain_min_us, 0.0, RATE_PER_S_MAX)?;
        let excluded = self.excluded_sites.len() as f64;
        in_range("placement.excluded_sites", excluded, 0.0, EXCLUDED_SITES_MAX as f64)
    }
}

impl BalancerSettings {
    fn check(&self) -> Result<(), SettingsError> {
        in_range("balancer.high_ratio", self.high_ratio, 1.01, 10.0)?;
        in_range("balancer.excess_min_per_s", self.excess_min_per_s, 0.0, RATE_PER_S_MAX)?;
        ms_in_range("balancer.delay_ms", self.delay_ms)?;
        count_in_range("balancer.moves_per_cell_max", self.moves_per_cell_max, 1_000)?;
        in_range("balancer.cpu_weight", self.cpu_weight, 0.0, 1.0)
    }
}

impl MoveSettings {
    fn check(&self) -> Result<(), SettingsError> {
        ms_in_range("moves.cooldown_ms", self.cooldown_ms)?;
        count_in_range("moves.in_transit_max", self.in_transit_max, 10_000)?;
        ms_in_range("moves.order_timeout_ms", self.order_timeout_ms)
    }
}

/// A setting in ms as a duration.
pub(crate) fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

fn in_range(field: &'static str, value: f64, min: f64, max: f64) -> Result<(), SettingsError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(SettingsError::OutOfRange { field, value, min, max })
    }
}

/// A count, at least 1.
fn count_in_range(field: &'static str, value: usize, max: usize) -> Result<(), SettingsError> {
    in_range(field, value as f64, 1.0, max as f64)
}

fn ms_in_range(field: &'static str, value: u64) -> Result<(), SettingsError> {
    in_range(field, value as f64, 0.0, MS_MAX as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        let settings: Settings = toml::from_str(text).unwrap();
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_within_their_ranges_and_an_empty_file_has_them() {
        let settings: Settings = toml::from_str("").unwrap();
        assert_eq!(settings, Settings::default());
        settings.check().unwrap();
    }

    #[test]
    fn settings_read_back_as_they_were_written() {
        let settings = Settings {
            placement: PlacementSettings { excluded_sites: vec![3], ..Default::default() },
            ..Default::default()
        };
        let text = toml::to_string(&settings).unwrap();
        assert_eq!(toml::from_str::<Settings>(&text).unwrap(), settings);
    }

    /// The guide has each setting with its default as it is.
    #[test]
    fn the_guide_has_every_setting_with_its_default() {
        let guide = include_str!("../../../../docs/guides/exchange-policies.md");
        let tables = toml::Table::try_from(Settings::default()).unwrap();
        for (table, settings) in tables {
            for (name, default) in settings.as_table().unwrap() {
                let default = match default {
                    toml::Value::Float(value) => value.to_string(),
                    toml::Value::Array(values) if values.is_empty() => "none".to_string(),
                    value => value.to_string(),
                };
                let head = format!("| `[policies.{table}]` | default |");
                let rows = guide.split(&head).nth(1).unwrap_or_default();
                let rows = rows.split("\n\n").next().unwrap_or_default();
                let row = format!("| `{name}` | {default} |");
                assert!(rows.contains(&row), "the table of [policies.{table}] lacks `{row}`");
            }
        }
    }

    #[test]
    fn unknown_settings_are_refused_by_name() {
        let error = toml::from_str::<Settings>("[resizer]\nuper_per_s = 5.0").unwrap_err();
        assert!(error.to_string().contains("uper_per_s"), "{error}");
    }

    #[test]
    fn values_outside_their_range_are_refused_with_the_range() {
        assert_eq!(
            fault("[balancer]\nhigh_ratio = 0.9"),
            "balancer.high_ratio is 0.9, but must be from 1.01 to 10; change it in the policies' \
             file"
        );
        assert_eq!(
            fault("[resizer]\nlower_per_s = 15.0\nupper_per_s = 15.0"),
            "resizer.lower_per_s is 15, but must be below resizer.upper_per_s, which is 15"
        );
        for text in [
            "[resizer]\nupper_per_s = nan",
            "[resizer]\nlower_per_s = -1.0",
            "[resizer]\nactive_min = 0",
            "[resizer]\nactive_min = 9\nactive_max = 8",
            "[resizer]\nactive_max = 257",
            "[resizer]\nes10_limit_us = 0.0",
            "[resizer]\nes10_return_fraction = 1.1",
            "[resizer]\ndown_delay_ms = 86400001",
            "[placement]\nshare_min = 1.5",
            "[placement]\ngain_min_us = -1.0",
            "[balancer]\nmoves_per_cell_max = 0",
            "[balancer]\ncpu_weight = inf",
            "[moves]\nin_transit_max = 10001",
            "[moves]\ncooldown_ms = 86400001",
        ] {
            assert!(fault(text).contains("must be from"), "{text}");
        }
        let sites: Vec<String> = (0..65).map(|site| site.to_string()).collect();
        let text = format!("[placement]\nexcluded_sites = [{}]", sites.join(","));
        assert!(fault(&text).contains("placement.excluded_sites is 65"));
    }
}
