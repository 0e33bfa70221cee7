//! Numbers in, numbers with intervals out: summary, intervals, comparison, drift, outliers.
