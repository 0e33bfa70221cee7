//! What the reports say of flows alone: bars of throughput, and flows of both directions as pairs.

pub(crate) mod chart;
pub(crate) mod pairs;
pub(crate) mod table;
