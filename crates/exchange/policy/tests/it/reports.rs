//! Reports that contradict themselves or the limits are refused.

use std::time::Duration;

use nm_policy::{
    Action, CELL_INSTRUMENTS_MAX, CELLS_MAX, CellReport, CellRole, INSTRUMENTS_MAX,
    InstrumentReport, LATENCIES_MAX, ORIGINS_MAX, OriginRate, Policies, ReportError, Reports,
    ResizerSettings, Settings, SiteLatency,
};

use crate::network::Network;

fn reports() -> Reports {
    let mut network = Network::new(2, 1);
    network.add(0, 10.0);
    network.add(1, 10.0);
    network.reports()
}

fn error(change: impl FnOnce(&mut Reports)) -> String {
    let mut reports = reports();
    change(&mut reports);
    let mut policies = Policies::new(Settings::default()).unwrap();
    let before = policies.clone();
    let error: ReportError = policies.step(&reports, Duration::from_secs(1)).unwrap_err();
    assert_eq!(policies, before, "the policies noticed a report that they refused");
    error.to_string()
}

#[test]
fn reports_that_contradict_themselves_are_refused() {
    assert_eq!(
        error(|reports| reports.instruments[0].cell = 9),
        "instrument 0 names cell 9, which is not reported; report all cells"
    );
    assert_eq!(
        error(|reports| reports.instruments[1].moving_to = Some(8)),
        "instrument 1 names cell 8, which is not reported; report all cells"
    );
    assert_eq!(
        error(|reports| reports.instruments[1].cell = 2),
        "instrument 1 belongs to cell 2, which is reported as a spare; only active cells own \
         instruments"
    );
    assert_eq!(
        error(|reports| reports.cells[1].cell = 0),
        "cell 0 is reported twice; report it once"
    );
    assert_eq!(
        error(|reports| reports.instruments[1].instrument = 0),
        "instrument 0 is reported twice; report it once"
    );
    let origin = OriginRate { site: 3, requests_per_s: 1.0 };
    assert_eq!(
        error(|reports| reports.instruments[0].origins = vec![origin, origin]),
        "instrument 0 from site 3 is reported twice; report it once"
    );
    let latency = SiteLatency { from: 1, to: 2, latency_us: 1.0 };
    assert_eq!(
        error(|reports| reports.latencies = vec![latency, latency]),
        "the way from site 1 to site 2 is reported twice; report it once"
    );
}

#[test]
fn what_is_no_rate_is_refused_with_its_place() {
    assert_eq!(
        error(|reports| reports.cells[1].requests_per_s = -1.0),
        "requests_per_s of cell 1 is -1, but must be from 0 to 1000000000; check what reports it"
    );
    assert_eq!(
        error(|reports| reports.cells[0].cpu_fraction = Some(1.5)),
        "cpu_fraction of cell 0 is 1.5, but must be from 0 to 1; check what reports it"
    );
    assert!(error(|reports| reports.cells[0].es10_us = Some(f64::NAN)).contains("NaN"));
    let too_many = |reports: &mut Reports| reports.instruments[0].requests_per_s = 1e10;
    assert!(error(too_many).starts_with("requests_per_s of instrument 0 is 10000000000"));
    let endless = |reports: &mut Reports| reports.instruments[1].cpu_us_per_s = Some(f64::INFINITY);
    assert!(error(endless).starts_with("cpu_us_per_s of instrument 1 is inf"));
    let origin = |reports: &mut Reports| {
        reports.instruments[0].origins = vec![OriginRate { site: 3, requests_per_s: -0.5 }];
    };
    assert!(error(origin).starts_with("requests_per_s of instrument 0 from site 3 is -0.5"));
    let latency = |reports: &mut Reports| {
        reports.latencies = vec![SiteLatency { from: 1, to: 2, latency_us: -2.0 }];
    };
    assert!(error(latency).starts_with("latency_us of the way from site 1 to site 2 is -2"));
}

#[test]
fn numbers_beyond_the_limits_are_refused() {
    let cell = |index: usize| CellReport { cell: index as u16, ..reports().cells[0].clone() };
    assert_eq!(
        error(|reports| reports.cells = (0..=CELLS_MAX).map(cell).collect()),
        "a report has 257 cells, at most 256 are accepted; split the network"
    );
    let instrument = |index: usize| InstrumentReport {
        instrument: index as u32,
        ..reports().instruments[0].clone()
    };
    let too_many = |reports: &mut Reports| {
        reports.instruments = (0..=INSTRUMENTS_MAX).map(instrument).collect();
    };
    assert!(error(too_many).starts_with("a report has 262145 instruments"));
    let origin = |site: usize| OriginRate { site: site as u16, requests_per_s: 1.0 };
    let too_many = |reports: &mut Reports| {
        reports.instruments[0].origins = (0..=ORIGINS_MAX).map(origin).collect();
    };
    assert!(error(too_many).starts_with("a report has 65 origins of an instrument"));
    let latency = |to: usize| SiteLatency { from: 0, to: to as u16, latency_us: 1.0 };
    let too_many = |reports: &mut Reports| {
        reports.latencies = (0..=LATENCIES_MAX).map(latency).collect();
    };
    assert!(error(too_many).starts_with("a report has 4097 latencies"));
}

/// The most that is accepted is decided, too.
#[test]
fn reports_at_the_limits_are_accepted() {
    let mut reports = reports();
    let cell = |index: usize| CellReport {
        cell: index as u16,
        role: CellRole::Active,
        ..reports.cells[0].clone()
    };
    let cells: Vec<CellReport> = (0..CELLS_MAX).map(cell).collect();
    let instrument = |index: usize| InstrumentReport {
        instrument: index as u32,
        cell: (index % 64) as u16,
        ..reports.instruments[0].clone()
    };
    reports.instruments = (0..INSTRUMENTS_MAX).map(instrument).collect();
    reports.cells = cells;
    let mut policies = Policies::new(Settings::default()).unwrap();
    let decisions = policies.step(&reports, Duration::from_secs(1)).unwrap();
    assert_eq!(decisions.len(), policies.settings().moves.in_transit_max);
}

#[test]
fn a_full_cell_receives_nothing() {
    let settings = || {
        let resizer = ResizerSettings { enabled: false, ..ResizerSettings::default() };
        Policies::new(Settings { resizer, ..Settings::default() }).unwrap()
    };
    let mut network = Network::new(3, 0);
    for _ in 0..CELL_INSTRUMENTS_MAX {
        network.add(0, 0.0);
    }
    for _ in 0..10 {
        network.add(1, 100.0);
    }
    let dt = Duration::from_secs(1);
    let decisions = settings().step(&network.reports(), dt).unwrap();
    assert!(!decisions.is_empty());
    let full =
        |decision: &nm_policy::Decision| matches!(decision.action, Action::Move { to: 0, .. });
    assert!(!decisions.iter().any(full), "{decisions:?}");
    // With one place it receives one.
    network.instruments.remove(&7);
    let decisions = settings().step(&network.reports(), dt).unwrap();
    assert_eq!(decisions.iter().filter(|decision| full(decision)).count(), 1);
}

#[test]
fn reports_and_decisions_can_be_written_down() {
    let reports = reports();
    let text = toml::to_string(&reports).unwrap();
    assert_eq!(toml::from_str::<Reports>(&text).unwrap(), reports);
    let error = toml::from_str::<Reports>(&text.replace("site", "sites")).unwrap_err();
    assert!(error.to_string().contains("sites"), "{error}");
}
