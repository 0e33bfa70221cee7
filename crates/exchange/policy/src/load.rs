//! The load of an instrument: requests per second and CPU time as one number.
//!
//! CPU time is divided by the mean CPU time of a request of the network. So a load is in requests
//! per second whatever its share of CPU time. An instrument whose requests cost twice the mean
//! counts twice in that share. The sum over all instruments is that of their requests. What costs
//! are not known for counts by its requests alone.

use crate::reports::InstrumentReport;

/// The mean CPU time of a request, where it is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RequestCost {
    mean_us: Option<f64>,
    cpu_weight: f64,
}

impl RequestCost {
    /// The mean over all instruments of which both requests and CPU time are known.
    pub(crate) fn of(instruments: &[InstrumentReport], cpu_weight: f64) -> RequestCost {
        let (mut cpu_us_per_s, mut requests_per_s) = (0.0, 0.0);
        for report in instruments {
            if let Some(cpu) = report.cpu_us_per_s {
                cpu_us_per_s += cpu;
                requests_per_s += report.requests_per_s;
            }
        }
        let is_known = cpu_us_per_s > 0.0 && requests_per_s > 0.0;
        RequestCost { mean_us: is_known.then(|| cpu_us_per_s / requests_per_s), cpu_weight }
    }

    /// The load of an instrument, in requests of mean cost per second.
    pub(crate) fn load_per_s(&self, report: &InstrumentReport) -> f64 {
        match (self.mean_us, report.cpu_us_per_s) {
            (Some(mean_us), Some(cpu_us_per_s)) => {
                let by_cpu_per_s = cpu_us_per_s / mean_us;
                (1.0 - self.cpu_weight) * report.requests_per_s + self.cpu_weight * by_cpu_per_s
            }
            _ => report.requests_per_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(requests_per_s: f64, cpu_us_per_s: Option<f64>) -> InstrumentReport {
        InstrumentReport {
            instrument: 0,
            cell: 0,
            moving_to: None,
            requests_per_s,
            cpu_us_per_s,
            origins: vec![],
        }
    }

    #[test]
    fn a_load_weighs_requests_and_cpu_and_keeps_the_total() {
        let reports = [report(100.0, Some(3_000.0)), report(300.0, Some(1_000.0))];
        let cost = RequestCost::of(&reports, 0.5);
        // The mean is 10 us: the first costs as much as 300 mean requests, the second as 100.
        assert_eq!(cost.load_per_s(&reports[0]), 200.0);
        assert_eq!(cost.load_per_s(&reports[1]), 200.0);
        assert_eq!(RequestCost::of(&reports, 0.0).load_per_s(&reports[0]), 100.0);
        assert_eq!(RequestCost::of(&reports, 1.0).load_per_s(&reports[0]), 300.0);
    }

    #[test]
    fn without_cpu_time_a_load_is_the_requests() {
        let reports = [report(100.0, None), report(50.0, Some(0.0)), report(0.0, None)];
        let cost = RequestCost::of(&reports, 0.5);
        let loads: Vec<f64> = reports.iter().map(|report| cost.load_per_s(report)).collect();
        assert_eq!(loads, [100.0, 50.0, 0.0]);
        let mixed = [report(100.0, Some(1_000.0)), report(50.0, None)];
        assert_eq!(RequestCost::of(&mixed, 0.5).load_per_s(&mixed[1]), 50.0);
    }
}
