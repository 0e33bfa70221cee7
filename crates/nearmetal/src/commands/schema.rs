//! `nearmetal schema`: the schemas of what nearmetal reads and prints as JSON.

use anyhow::Result;
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
use nm_run::day::result::DayResult;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::exchange::{
    add, directions, firms, instruments, moves, network, policy, retire, search, status, torture,
    verify,
};
use super::tune::{ab, plan, status as tune_status};
use super::{
    accel, baseline, compute_pairs, doctor, dry_run, firmware, fleet, lab, list_plans, reference,
};
use crate::document::{Document, PLAN, RESULT, Versioned};
use crate::exit::{Exit, Stop};
use crate::output;

/// A schema.
struct Kind {
    name: &'static str,
    make: fn() -> Value,
    /// Commands that print such documents.
    commands: &'static [&'static str],
}

/// Makes schemas of what is written: a field that may be left out is not required.
fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().for_serialize().into_generator()
}

/// The schema of a scripted day of the exchange, which holds its version itself.
fn day() -> Value {
    let mut schema = generator().into_root_schema_for::<DayResult>();
    schema.insert("title".to_string(), "nearmetal exchange-day".into());
    schema.to_value()
}

/// The schema of a network's file, as JSON; the file in TOML has the same shape.
fn network_file() -> Value {
    let mut schema = schemars::schema_for!(nm_exchange::network::Network);
    schema.insert("title".to_string(), "nearmetal network".into());
    schema.to_value()
}

/// The schema of the documents of type `T`.
fn of<T: Document>() -> Value {
    let mut schema = generator().into_root_schema_for::<Versioned<'_, T>>();
    schema.insert("title".to_string(), format!("nearmetal {}", T::NAME).into());
    schema.insert("$id".to_string(), format!("urn:nearmetal:{}:{}", T::NAME, T::VERSION).into());
    let mut value = schema.to_value();
    value["properties"]["schema"]["const"] = T::VERSION.into();
    value
}

macro_rules! kinds {
    ($($document:ty: $($command:literal),+;)*) => {
        const KINDS: &[Kind] = &[
            Kind {
                name: RESULT,
                make: nm_report::schema::result,
                commands: &[
                    "qualify", "pingpong", "stream", "rr", "compute", "jitter", "report", "import",
                    "reference show", "lab run", "exchange run",
                ],
            },
            Kind { name: "exchange-day", make: day, commands: &["exchange ramp"] },
            // A file in TOML, which commands read.
            Kind { name: "network", make: network_file, commands: &[] },
            // The files; nothing prints them alone.
            Kind { name: "baseline", make: nm_report::schema::baseline, commands: &[] },
            Kind { name: "certificate", make: nm_report::schema::certificate, commands: &[] },
            Kind { name: PLAN, make: nm_report::schema::plan, commands: &["plans"] },
            $(
                Kind {
                    name: <$document as Document>::NAME,
                    make: of::<$document>,
                    commands: &[$($command),+],
                },
            )*
        ];
    };
}

kinds! {
    dry_run::Listing<'_>: "qualify";
    Audit: "audit";
    firmware::FirmwareDocument: "firmware show";
    Comparison: "compare";
    Trend: "trend";
    Gate: "baseline gate";
    CertificateCheck: "verify-certificate";
    WatchReport: "watch status";
    FleetResult: "fleet run";
    HuntResult: "fleet hunt";
    fleet::FleetListing<'_>: "fleet run";
    fleet::AgentsDocument: "fleet agents";
    baseline::BaselinesDocument: "baseline list";
    reference::References: "reference list";
    compute_pairs::Pairs: "compute pairs";
    doctor::Checks: "doctor";
    list_plans::ListedPlans: "plans";
    plan::PlanDocument: "tune plan";
    ab::DecisionDocument: "tune ab";
    tune_status::RunsDocument<'_>: "tune status";
    LabPlan: "lab plan";
    lab::ImageDocument: "lab image";
    accel::Report: "accel";
    accel::Status: "accel status";
    accel::History: "accel status";
    accel::Profiles: "accel profiles";
    Explanation: "accel explain";
    status::StatusDocument: "exchange status";
    moves::MovesDocument: "exchange move", "exchange grow", "exchange shrink";
    moves::DrainedDocument: "exchange drain";
    directions::ResumedDocument: "exchange resume";
    moves::ReplacedDocument: "exchange replace";
    directions::DirectedDocument: "exchange halt", "exchange auction", "exchange end-of-day",
        "exchange kill-firm", "exchange restore-firm", "exchange mass-cancel", "exchange schedule";
    retire::RetiredDocument: "exchange retire";
    moves::AssignedDocument: "exchange assign";
    instruments::InstrumentsDocument: "exchange instruments list", "exchange instruments add",
        "exchange instruments remove";
    firms::FirmsDocument: "exchange firms list", "exchange firms set", "exchange firms remove";
    add::AddedDocument: "exchange add";
    add::RemovedDocument: "exchange remove";
    policy::PolicyLine<'_>: "exchange policy";
    search::SearchReport: "exchange search", "exchange replay";
    torture::TortureDocument<'_>: "exchange torture";
    verify::VerifiedDocument<'_>: "exchange verify";
    network::CheckedNetwork: "exchange network check";
}

/// Prints the schema `name`, or the names of all.
pub fn run(name: Option<&str>) -> Result<Exit> {
    let Some(name) = name else {
        for kind in KINDS {
            output::data(&format!("{:<20} {}\n", kind.name, kind.commands.join(", ")))?;
        }
        return Ok(Exit::Pass);
    };
    let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
    let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
        Stop::usage(nm_model::words::UnknownWord::new("schema", name, &names).to_string())
    })?;
    output::data(&nm_report::schema::text(&(kind.make)()))?;
    Ok(Exit::Pass)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn collect(command: &clap::Command, path: &str, all: &mut BTreeSet<String>) {
        let prints_json = command.get_arguments().any(|arg| {
            let has_json = arg.get_possible_values().iter().any(|v| v.get_name() == "json");
            arg.get_long() == Some("format") && has_json
        });
        if prints_json {
            all.insert(path.to_string());
        }
        for one in command.get_subcommands() {
            collect(one, format!("{path} {}", one.get_name()).trim(), all);
        }
    }

    #[test]
    fn every_command_that_prints_json_has_a_schema() {
        let mut commands = BTreeSet::new();
        collect(&Cli::command(), "", &mut commands);
        let known = KINDS.iter().flat_map(|kind| kind.commands).map(|one| one.to_string());
        assert_eq!(known.collect::<BTreeSet<_>>(), commands);
    }

    #[test]
    fn committed_schemas_are_those_of_the_types() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schema");
        let mut names = BTreeSet::new();
        for kind in KINDS {
            let text = nm_report::schema::text(&(kind.make)());
            let file = folder.join(format!("{}.json", kind.name));
            if std::env::var_os("UPDATE").is_some() {
                std::fs::write(&file, &text).unwrap();
            }
            let kept = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(kept == text, "schema/{}.json: UPDATE=1 cargo test writes it", kind.name);
            assert!(names.insert(format!("{}.json", kind.name)), "{} twice", kind.name);
        }
        let files = std::fs::read_dir(&folder).unwrap();
        let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        assert_eq!(files.collect::<BTreeSet<_>>(), names);
    }
}
