//! Documents for other programs: objects with a version, each kind with a schema in `schema/`.

use nm_fleet::hunt::HuntResult;
use nm_fleet::result::FleetResult;
use nm_model::certificate::CertificateCheck;
use nm_model::explanation::Explanation;
use nm_model::finding::Audit;
use nm_model::gate::Gate;
use nm_model::lab_plan::LabPlan;
use nm_model::trend::Trend;
use nm_model::verdict::Comparison;
use nm_model::watch::WatchReport;
use schemars::JsonSchema;
use serde::Serialize;

/// A kind of documents.
pub trait Document: Serialize + JsonSchema {
    /// Its name, by which `nearmetal schema` knows it.
    const NAME: &'static str;
    /// Version of its form, which grows when a field is removed or means something else.
    const VERSION: u32 = 1;
}

/// A document as it is printed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Versioned<'a, T> {
    /// Version of the form of this document.
    schema: u32,
    #[serde(flatten)]
    document: &'a T,
}

impl<'a, T: Document> Versioned<'a, T> {
    /// The document with its version.
    pub fn new(document: &'a T) -> Versioned<'a, T> {
        Versioned { schema: T::VERSION, document }
    }
}

impl Document for Audit {
    const NAME: &'static str = "audit";
}

impl Document for Comparison {
    const NAME: &'static str = "comparison";
}

impl Document for Trend {
    const NAME: &'static str = "trend";
}

impl Document for Gate {
    const NAME: &'static str = "gate";
}

impl Document for Explanation {
    const NAME: &'static str = "accel-explanation";
}

impl Document for LabPlan {
    const NAME: &'static str = "lab-plan";
}

impl Document for CertificateCheck {
    const NAME: &'static str = "certificate-check";
}

impl Document for FleetResult {
    const NAME: &'static str = "fleet";
}

impl Document for HuntResult {
    const NAME: &'static str = "fleet-hunt";
}

impl Document for WatchReport {
    const NAME: &'static str = "watch";
}
