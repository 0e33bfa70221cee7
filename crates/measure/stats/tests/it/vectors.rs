//! Our figures against those of scipy and numpy, computed once by tests/data/make_vectors.py.

use nm_stats::describe::{mean, median, stddev};
use nm_stats::fisher::fisher;
use nm_stats::mann_kendall::{EXACT_MAX, mann_kendall, slope};
use nm_stats::mann_whitney::{Stratum, asymptotic, exact};
use nm_stats::outliers::mad;
use nm_stats::quantile::{interval_ranks, rank};
use nm_stats::{Sample, summarise};
use serde_json::Value;

fn vectors(part: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../data/vectors.json")).unwrap();
    let vectors = all[part].as_array().unwrap().clone();
    assert!(vectors.len() > 5, "{part} has vectors");
    vectors
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[track_caller]
fn near(ours: f64, theirs: &Value) {
    let theirs = theirs.as_f64().unwrap();
    assert!((ours - theirs).abs() <= 1e-9 * theirs.abs().max(1e-3), "{ours} against {theirs}");
}

#[test]
fn summary_of_samples() {
    for vector in vectors("samples") {
        let values = numbers(&vector["values"]);
        let sample = |value: &f64| Sample { start_ns: 0, latency_ns: *value as u64 };
        let samples: Vec<Sample> = values.iter().map(sample).collect();
        let round = summarise(&samples, 0, &[]);
        near(round.mean_ns.unwrap(), &vector["mean"]);
        near(mean(&values).unwrap(), &vector["mean"]);
        near(median(&values).unwrap(), &vector["median"]);
        near(mad(&values).unwrap(), &vector["mad"]);
        assert_eq!(round.stddev_ns.is_none(), vector["stddev"].is_null());
        if let Some(ours) = round.stddev_ns {
            near(ours, &vector["stddev"]);
            near(stddev(&values).unwrap(), &vector["stddev"]);
        }
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        for quantile in vector["quantiles"].as_array().unwrap() {
            let percentile = quantile[0].as_f64().unwrap();
            near(sorted[rank(sorted.len(), percentile) - 1], &quantile[1]);
        }
    }
}

#[test]
fn mann_whitney_exact_and_by_approximation() {
    for vector in vectors("mann_whitney") {
        let (a, b) = (numbers(&vector["a"]), numbers(&vector["b"]));
        let strata = [Stratum { a: &a, b: &b }];
        near(asymptotic(&strata).u, &vector["u"]);
        near(asymptotic(&strata).p_value, &vector["asymptotic"]);
        // The exact method of scipy does not support ties, so there is no exact value for them.
        if !vector["exact"].is_null() {
            near(exact(&strata).p_value, &vector["exact"]);
        }
    }
}

#[test]
fn fisher_exact() {
    for vector in vectors("fisher") {
        let cell = |i: usize, j: usize| vector["table"][i][j].as_u64().unwrap();
        near(fisher([[cell(0, 0), cell(0, 1)], [cell(1, 0), cell(1, 1)]]), &vector["p"]);
    }
}

#[test]
fn mann_kendall_and_theil_sen() {
    for vector in vectors("kendall") {
        let values = numbers(&vector["values"]);
        let test = mann_kendall(&values);
        near(test.score, &vector["score"]);
        near(test.variance, &vector["variance"]);
        near(slope(&values).unwrap(), &vector["slope"]);
        let counted = values.len() <= EXACT_MAX && !vector["exact"].is_null();
        near(test.p_value, &vector[if counted { "exact" } else { "asymptotic" }]);
    }
}

#[test]
fn ranks_of_binomial_intervals() {
    for vector in vectors("interval_ranks") {
        let (n, p) = (vector["n"].as_u64().unwrap(), vector["percentile"].as_f64().unwrap());
        let theirs = vector["ranks"].as_array();
        let theirs = theirs.map(|r| (r[0].as_u64().unwrap(), r[1].as_u64().unwrap()));
        let ours = interval_ranks(n as usize, p).map(|(l, h)| (l as u64, h as u64));
        assert_eq!(ours, theirs, "n = {n}, p{p}");
    }
}
