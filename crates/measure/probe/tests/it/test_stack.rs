//! Another stack takes one row of the table of protocols and one file of a transport. The one of
//! the feature `test-stack` has both, and runs a ping-pong.

use nm_model::capability::obstacle;
use nm_model::environment::EnvironmentKind;
use nm_model::result::Statistic;
use nm_model::{FailureKind, ProbeKind, Side};
use nm_probe::Endpoint;

use crate::pair::{latency, pingpong, run, task};

#[test]
fn a_stack_of_one_row_and_one_file_runs_a_ping_pong() {
    let stacks = "sample-spin".parse().unwrap();
    assert_eq!(obstacle(EnvironmentKind::Loopback, &stacks, ProbeKind::Pingpong), None);
    let ended = run("sample-spin", &pingpong(64, 200), "127.0.0.1").unwrap();
    let round = latency(&ended.client, Statistic::HalfRoundTrip);
    assert_eq!((round.count, round.lost), (Some(200), 0));
    assert!(round.min_ns.unwrap() > 0.0);
}

#[test]
fn its_row_refuses_what_it_cannot_do() {
    let sleeping = "sample-blocking".parse().unwrap();
    let reason = obstacle(EnvironmentKind::Loopback, &sleeping, ProbeKind::Pingpong).unwrap();
    assert!(reason.to_string().ends_with("use sample-spin"), "{reason}");
    let between_hosts = "sample-spin".parse().unwrap();
    assert!(obstacle(EnvironmentKind::Ssh, &between_hosts, ProbeKind::Pingpong).is_some());
    let task = task("sample-blocking", Side::Server, &pingpong(64, 1));
    let failure = Endpoint::listen(Side::Server, &task, "127.0.0.1").unwrap_err();
    assert_eq!(failure.kind, FailureKind::NotAvailable);
}
