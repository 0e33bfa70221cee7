//! Whether a change is kept: an experiment of blocks, in each of which rounds without and with the
//! change alternate (without, with, with, without).
//!
//! Rounds are compared with those of the same block only, so a machine that becomes slower over the
//! time of the experiment does not decide. The interval of the ratio is that of Hodges and Lehmann
//! within blocks, which excludes 1 exactly when the stratified Mann-Whitney test finds a
//! difference. The change is kept if the whole interval of the chosen figure lies on its better
//! side. Every other figure must be measured, and none of their intervals may lie on its worse
//! side. A change without effect is therefore kept in at most 2.5 of 100 experiments, whatever the
//! distribution of the rounds.

use nm_model::Metric;
use nm_model::verdict::{Interval, Relation};

use crate::describe::mean;
use crate::hodges_lehmann;
use crate::mann_whitney::{Stratum, stratified};

/// Rounds a side that an experiment has unless another number is chosen. With rounds that differ by
/// 4 % (standard deviation), they find a change of 5 % in more than 95 of 100 experiments.
pub const ROUNDS_DEFAULT: usize = 30;

/// Fewest rounds a side: with fewer, no result has a probability below the level.
pub const ROUNDS_MIN: usize = 6;

/// Most rounds a side.
pub const ROUNDS_MAX: usize = 500;

/// A difference is claimed when its p-value is at most this.
const LEVEL: f64 = 0.05;

/// One value a round, those without and those with the change.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Block {
    /// Without the change.
    pub without: Vec<f64>,
    /// With it.
    pub with: Vec<f64>,
}

/// A figure with the change divided by the one without it.
#[derive(Debug, Clone, PartialEq)]
pub struct Effect {
    /// The figure.
    pub metric: Metric,
    /// The ratio; absent if values are zero or there are none.
    pub ratio: Option<f64>,
    /// 95 % interval of the ratio.
    pub interval: Option<Interval>,
    /// What it shows; absent if there are too few values.
    pub relation: Option<Relation>,
}

/// Whether a change is kept, and what that is based on.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Whether it is kept.
    pub keeps: bool,
    /// The chosen figure.
    pub chosen: Effect,
    /// The figures that must not be worse.
    pub guards: Vec<Effect>,
}

/// Decides by the blocks of the chosen figure and those of the guards.
pub fn decide(chosen: (Metric, &[Block]), guards: &[(Metric, Vec<Block>)]) -> Decision {
    let chosen = effect(chosen.0, chosen.1);
    let guards: Vec<Effect> =
        guards.iter().map(|(metric, blocks)| effect(*metric, blocks)).collect();
    let is_safe = |guard: &Effect| guard.relation.is_some_and(|found| found != Relation::Worse);
    let is_guarded = guards.iter().all(is_safe);
    Decision { keeps: chosen.relation == Some(Relation::Better) && is_guarded, chosen, guards }
}

/// The effect of the change on one figure.
pub fn effect(metric: Metric, blocks: &[Block]) -> Effect {
    let is_number = |value: &f64| value.is_finite();
    let side = |values: &[f64]| values.iter().copied().filter(is_number).collect::<Vec<f64>>();
    let blocks: Vec<Block> = blocks
        .iter()
        .map(|block| Block { without: side(&block.without), with: side(&block.with) })
        .collect();
    let rounds = |of: fn(&Block) -> usize| blocks.iter().map(of).sum::<usize>();
    let effect = |ratio, interval, relation| Effect { metric, ratio, interval, relation };
    if rounds(|block| block.without.len()).min(rounds(|block| block.with.len())) < ROUNDS_MIN {
        return effect(None, None, None);
    }
    let has_zeros = |block: &Block| block.without.iter().chain(&block.with).any(|v| *v <= 0.0);
    if blocks.iter().any(has_zeros) {
        return effect(None, None, Some(by_order(metric, &blocks)));
    }
    let log = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
    let logs: Vec<_> = blocks.iter().map(|block| (log(&block.without), log(&block.with))).collect();
    let strata: Vec<_> = logs.iter().map(|(a, b)| Stratum { a, b }).collect();
    let Some(shift) = hodges_lehmann::shift(&strata) else {
        return effect(None, None, None);
    };
    let interval = shift.interval.map(|interval| Interval {
        low: interval.low.exp(),
        high: interval.high.exp(),
        ..interval
    });
    let relation = match interval {
        None => None,
        Some(interval) if interval.high < 1.0 => Some(relation(metric, false)),
        Some(interval) if interval.low > 1.0 => Some(relation(metric, true)),
        Some(_) => Some(Relation::Unclear),
    };
    effect(Some(shift.shift.exp()), interval, relation)
}

/// Values of zero, such as a loss, have an order, but no ratio.
fn by_order(metric: Metric, blocks: &[Block]) -> Relation {
    let strata: Vec<_> =
        blocks.iter().map(|block| Stratum { a: &block.without, b: &block.with }).collect();
    let all = |of: fn(&Block) -> &[f64]| blocks.iter().flat_map(of).copied().collect::<Vec<f64>>();
    let without = mean(&all(|block| &block.without));
    let with = mean(&all(|block| &block.with));
    match (stratified(&strata).p_value <= LEVEL, without, with) {
        (true, Some(without), Some(with)) if with != without => relation(metric, with > without),
        _ => Relation::Unclear,
    }
}

fn relation(metric: Metric, is_larger: bool) -> Relation {
    match is_larger == metric.more_is_better() {
        true => Relation::Better,
        false => Relation::Worse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use proptest::prelude::*;

    const P99: Metric = Metric::Percentile(99.0);

    /// A standard normal number, by Box and Muller.
    fn normal(random: &mut Random) -> f64 {
        let (u, v) = (1.0 - random.unit(), random.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// An experiment on a machine that becomes 10 % slower meanwhile, and whose rounds differ by
    /// 4 %. `gain` is the ratio that the change makes.
    fn simulated(gain: f64, guard_gain: f64, seed: u64) -> Decision {
        let mut random = Random::new(seed);
        let count = ROUNDS_DEFAULT / 2;
        let mut blocks = |gain: f64, deviation: f64| -> Vec<Block> {
            let mut value = |block: usize, at: usize, gain: f64| {
                let drift = 1.0 + 0.1 * (block * 4 + at) as f64 / (count * 4) as f64;
                20_000.0 * gain * drift * (deviation * normal(&mut random)).exp()
            };
            (0..count)
                .map(|block| {
                    let mut value = |at, gain| value(block, at, gain);
                    Block {
                        without: vec![value(0, 1.0), value(3, 1.0)],
                        with: vec![value(1, gain), value(2, gain)],
                    }
                })
                .collect()
        };
        let chosen = blocks(gain, 0.04);
        let guards = vec![
            (Metric::Median, blocks(guard_gain, 0.02)),
            (Metric::Percentile(99.9), blocks(guard_gain, 0.08)),
        ];
        decide((P99, &chosen), &guards)
    }

    fn kept(gain: f64, guard_gain: f64) -> usize {
        (0..200).filter(|seed| simulated(gain, guard_gain, *seed).keeps).count()
    }

    #[test]
    fn a_change_without_effect_is_kept_in_less_than_5_percent_of_200_experiments() {
        let kept = kept(1.0, 1.0);
        assert!(kept < 10, "{kept} of 200");
    }

    #[test]
    fn a_gain_of_5_percent_is_kept_in_more_than_95_percent_of_200_experiments() {
        let kept = kept(0.95, 0.95);
        assert!(kept > 190, "{kept} of 200");
    }

    #[test]
    fn a_change_that_worsens_a_guard_is_not_kept() {
        let kept = kept(0.95, 1.05);
        assert!(kept < 10, "{kept} of 200");
    }

    #[test]
    fn a_change_is_not_kept_while_a_guard_is_unmeasured() {
        let few = steady(100.0, 100.0)[..2].to_vec();
        let decision = decide((P99, &steady(100.0, 90.0)), &[(Metric::Percentile(99.9), few)]);
        assert_eq!(decision.chosen.relation, Some(Relation::Better));
        assert!(!decision.keeps && decision.guards[0].relation.is_none());
    }

    fn steady(without: f64, with: f64) -> Vec<Block> {
        let pair = |value: f64| vec![value, value * 1.001];
        vec![Block { without: pair(without), with: pair(with) }; 5]
    }

    #[test]
    fn the_better_side_depends_on_the_metric() {
        let decision = |metric, with| decide((metric, &steady(100.0, with)), &[]).keeps;
        assert!(decision(P99, 90.0) && !decision(P99, 110.0));
        assert!(decision(Metric::Rate, 110.0) && !decision(Metric::Rate, 90.0));
    }

    #[test]
    fn too_few_rounds_are_not_measured_and_losses_have_no_ratio() {
        let few = effect(P99, &steady(100.0, 50.0)[..2]);
        assert_eq!((few.relation, few.ratio), (None, None));
        let none = steady(0.0, 0.0);
        assert_eq!(effect(Metric::Loss, &none).relation, Some(Relation::Unclear));
        assert_eq!(effect(Metric::Loss, &steady(0.0, 0.1)).relation, Some(Relation::Worse));
        let decision = decide((P99, &steady(100.0, 90.0)), &[(Metric::Loss, steady(0.0, 0.1))]);
        assert!(!decision.keeps);
    }

    proptest! {
        #[test]
        fn any_values_are_decided_without_a_panic(
            without in prop::collection::vec(any::<f64>(), 0..12),
            with in prop::collection::vec(any::<f64>(), 0..12),
        ) {
            let blocks = [Block { without, with }];
            let decision = decide((P99, &blocks), &[(Metric::Loss, blocks.to_vec())]);
            prop_assert!(!decision.keeps || decision.chosen.relation == Some(Relation::Better));
        }
    }
}
