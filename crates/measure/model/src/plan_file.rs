//! Reading plan files: TOML to a checked [`Plan`], with the line of everything that is wrong.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use crate::plan::{Plan, PlanError};
pub use crate::plan_check::PublishedRun;
use crate::plan_check::{Fault, Place, check};
use crate::toml_error::{self, line_of};

impl Plan {
    /// Reads and checks a plan. The names of published runs are not checked.
    ///
    /// # Errors
    /// The line, the word that is wrong and the nearest right one.
    pub fn parse(text: &str) -> Result<Plan, PlanError> {
        parse(text, None)
    }

    /// Reads and checks a plan that may name only these published runs.
    ///
    /// # Errors
    /// The line, the word that is wrong and the nearest right one.
    pub fn parse_with_runs(text: &str, published: &[PublishedRun]) -> Result<Plan, PlanError> {
        parse(text, Some(published))
    }
}

fn parse(text: &str, published: Option<&[PublishedRun]>) -> Result<Plan, PlanError> {
    let plan: Plan = toml::from_str(text).map_err(|error| {
        let (line, message) = toml_error::describe(text, &error, "not a plan");
        PlanError { line: Some(line), message }
    })?;
    check(&plan, published).map_err(|Fault { place, error }| PlanError {
        line: line_of_place(text, place),
        message: error.to_string(),
    })?;
    Ok(plan)
}

/// A table of the file: the place of the value of each key.
type Table = BTreeMap<String, Spanned<IgnoredAny>>;

/// The places of the values in a plan file.
#[derive(Deserialize)]
struct Places {
    #[serde(default)]
    references: Vec<Spanned<IgnoredAny>>,
    #[serde(default)]
    trials: Vec<Spanned<Table>>,
    #[serde(default)]
    targets: Vec<Spanned<Table>>,
    #[serde(default)]
    comparisons: Vec<Spanned<Table>>,
    #[serde(default)]
    factors: Vec<Spanned<Table>>,
    #[serde(default)]
    subplans: Vec<Spanned<Table>>,
}

impl Places {
    /// The byte offset of a value, or of the element that lacks it.
    fn offset(&self, list: &str, index: usize, key: &str) -> Option<usize> {
        let tables = match list {
            "trials" => &self.trials,
            "targets" => &self.targets,
            "comparisons" => &self.comparisons,
            "factors" => &self.factors,
            "subplans" => &self.subplans,
            _ => return self.references.get(index).map(|value| value.span().start),
        };
        let table = tables.get(index)?;
        let value = table.get_ref().get(key).map(Spanned::span);
        Some(value.unwrap_or_else(|| table.span()).start)
    }
}

fn line_of_place(text: &str, place: Place) -> Option<usize> {
    let offset = match place {
        Place::Plan { key } => {
            let is_key = |line: &str| line.trim_start().starts_with(key);
            return text.lines().position(is_key).map(|at| at + 1);
        }
        Place::Element { list, index, key } => {
            let places: Places = toml::from_str(text).ok()?;
            places.offset(list, index, key)?
        }
    };
    Some(line_of(text, offset))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::class::StackClass;
    use crate::plan::Scope;
    use crate::probe::ProbeSpec;

    const GOOD: &str = r#"
name = "small"
rounds = 5

[[trials]]
environments = ["loopback", "netns"]
stacks = ["tcp-spin", "tcp-spin:tcp-blocking"]
probe = "pingpong"
sizes = [1, 64]
max_ms = 200

[[targets]]
require = "median_ns < 2000 at size<=1024"
on = "netns/*"
"#;

    #[test]
    fn a_probe_of_the_processor_has_one_stack_and_targets_that_name_it() {
        let plan = |rest: &str| {
            Plan::parse(&format!("name='x'\n[[trials]]\nenvironments=['loopback']\n{rest}"))
        };
        let parsed = plan("probe='compute'\nlayouts=['1x2']").unwrap();
        assert_eq!(parsed.rows()[0].path(), "loopback/cpu-spin");
        assert_eq!(parsed.trials[0].probe.cases()[0].to_string(), "pi 1x2");
        let target = |rest: &str| plan(&format!("probe='jitter'\n[[targets]]\n{rest}"));
        assert!(target("require='time-lost < 1%'").is_ok());
        assert!(target("require='p99 < 1ms'\nprobe='jitter'").is_ok());
        for (error, expected) in [
            (plan("probe='jitter'\nstacks=['tcp-spin']"), "so it has no stack tcp-spin"),
            (plan("probe='pingpong'\nstacks=['cpu-spin']"), "cpu-spin moves no bytes"),
            (plan("probe='pingpong'"), "missing field `stacks`"),
            (plan("probe='jitter'\nseconds=1e6"), "seconds is 1000000"),
            (target("require='p99 < 1ms'"), "add `probe = \"jitter\"`"),
            (target("require='rate > 1/s'\nprobe='jitter'"), "records rate"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_plan_is_read_with_the_probes_defaults() {
        let plan = Plan::parse(GOOD).unwrap();
        let ProbeSpec::Pingpong(spec) = &plan.trials[0].probe else { panic!("not pingpong") };
        assert_eq!(spec.sizes, [1, 64]);
        assert_eq!(spec.max_iterations, 1_000_000);
        assert_eq!(plan.targets[0].scope, Scope::Every);
        assert_eq!(plan.duration_s(), 5.0 * 4.0 * 2.0 * 0.3);
    }

    #[test]
    fn a_case_that_a_row_measures_twice_is_refused_because_it_would_count_as_two_rounds() {
        let refused = |text: &str| Plan::parse(text).unwrap_err().to_string();
        let error = refused(&GOOD.replace("[1, 64]", "[64, 1, 64]"));
        assert!(error.contains("sizes has 64 twice"), "{error}");
        for (stacks, again) in [
            (r#"["tcp-spin", "tcp-spin"]"#, ""),
            (
                r#"["tcp-spin"]"#,
                "[[trials]]\nenvironments=['netns']\nstacks=['tcp-spin']\n\
                probe='pingpong'\nsizes=[64]\nmax_ms=50\n",
            ),
        ] {
            let text = GOOD.replace(r#"["tcp-spin", "tcp-spin:tcp-blocking"]"#, stacks) + again;
            let error = refused(&text);
            assert!(error.contains("/tcp-spin measures"), "{error}");
            assert!(error.contains("twice: each row and case has one series"), "{error}");
        }
        let other_size = "[[trials]]\nenvironments=['netns']\nstacks=['tcp-spin']\n\
            probe='pingpong'\nsizes=[256]\n";
        assert!(Plan::parse(&format!("{GOOD}{other_size}")).is_ok());
        let exchange = "name='x'\n[[trials]]\nenvironments=['loopback']\nprobe='exchange'\n\
            stacks=['tcp-epoll', 'shm-epoll', 'accel+tcp-epoll', 'shm-spin']\n\
            nodes='1-1-1-1'\nrate_per_s=300\nseconds=0.3\nwarmup_ms=50\n";
        Plan::parse(exchange).expect("each transport has its own row");
    }

    #[test]
    fn a_margin_is_a_number_in_a_range() {
        for margin in ["nan", "inf", "-5", "1e9"] {
            let text = format!(
                "{GOOD}[[comparisons]]\na='netns/tcp-spin'\nb='netns/tcp-spin:tcp-blocking'\n\
                 margin_percent={margin}\n"
            );
            let error = Plan::parse(&text).unwrap_err().to_string();
            assert!(error.contains("margin_percent is"), "{margin}: {error}");
        }
    }

    #[test]
    fn a_factor_must_be_for_a_row_and_have_a_name_of_its_own() {
        let refused = |more: &str| {
            Plan::parse(&format!("{GOOD}\n[[factors]]\n{more}")).unwrap_err().to_string()
        };
        assert_eq!(
            refused("name='held'\nkind='idle-states-held'\non='netns/tcp-spn'"),
            "line 19: factor `held` (idle-states-held) covers no row of the plan, did you mean \
             `netns/tcp-spin`?"
        );
        assert_eq!(
            refused("name='polled'\nkind='busy-poll'\non='loopback/tcp-spin'"),
            "line 19: factor `polled` (busy-poll) covers no row of the plan: it has no meaning \
             for loopback/tcp-spin"
        );
        assert!(refused("name='a b'\nkind='unpinned'").contains("name of a factor `a b` may"));
        assert!(refused("name='x'\nkind='unpined'").contains("did you mean `unpinned`?"));
        assert!(refused("name='x'\nkind='tune-step'").contains("is a tune-step and needs `step`"));
        let step = refused("name='x'\nkind='unpinned'\nstep='mem.thp'");
        assert!(step.contains("line 19: factor `x` has a `step`"), "{step}");
        let twice = "name='x'\nkind='unpinned'\n[[factors]]\nname='x'\nkind='unpinned'";
        assert!(refused(twice).contains("two factors have the name `x`"));
        let many: String =
            (0..33).map(|i| format!("[[factors]]\nname='f{i}'\nkind='unpinned'\n")).collect();
        let error = Plan::parse(&format!("{GOOD}{many}")).unwrap_err().to_string();
        assert!(error.contains("factors has 33 values, must have at most 32"), "{error}");
    }

    #[test]
    fn a_number_that_its_type_cannot_have_is_refused_for_what_it_is() {
        let large = "is 99999999999, which is too large";
        let negative = "is -5, but must not be negative";
        for (from, to, expected) in [
            ("rounds = 5", "rounds = 99999999999", format!("line 3: `rounds` {large}")),
            ("max_ms = 200", "max_ms = -5", format!("line 10: `max_ms` {negative}")),
            (
                "max_ms = 200",
                "max_ms = 99999999999999999999",
                "line 10: `max_ms` is 99999999999999999999, which is too large".to_string(),
            ),
            ("[1, 64]", "[1, 99999999999]", format!("line 9: `sizes` {large}")),
            ("[1, 64]", "[\n1,\n99999999999]", format!("line 9: `sizes` {large}")),
        ] {
            let error = Plan::parse(&GOOD.replace(from, to)).unwrap_err().to_string();
            assert_eq!(error, expected, "{to}");
        }
    }

    #[test]
    fn a_preset_sets_the_write_size_unless_the_block_sets_it() {
        let write_bytes = |more: &str| {
            let text = format!(
                "name='x'\n[[trials]]\nenvironments=['netns']\nstacks=['tcp-blocking']\n\
                 probe='stream'\n{more}"
            );
            match &Plan::parse(&text).unwrap().trials[0].probe {
                ProbeSpec::Stream(spec) => spec.write_bytes,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(write_bytes("preset='netperf'"), 16 * 1024);
        assert_eq!(write_bytes("preset='netperf'\nwrite_bytes=1000"), 1000);
        assert_eq!(write_bytes(""), 128 * 1024);
    }

    #[test]
    fn a_plan_round_trips_through_json() {
        let plan = Plan::parse(GOOD).unwrap();
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    }

    #[test]
    fn a_typo_is_reported_with_line_word_and_suggestion() {
        let error =
            |from: &str, to: &str| Plan::parse(&GOOD.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            error("rounds =", "ronds ="),
            "line 3: unknown field `ronds`, did you mean `rounds`?"
        );
        assert_eq!(
            error("\"tcp-spin\",", "\"tcp-spn\","),
            "line 7: unknown mode `spn`, did you mean `spin`?"
        );
        assert!(error("sizes =", "sises =").starts_with(
            "line 9: unknown field `sises` for probe pingpong, did you mean `sizes`?"
        ));
        assert_eq!(
            error("\"pingpong\"", "\"pingpng\""),
            "line 8: unknown probe `pingpng`, did you mean `pingpong`?"
        );
        assert_eq!(
            error("median_ns", "medin_ns"),
            "line 13: target `medin_ns < 2000 at size<=1024`: \
             unknown metric `medin`, did you mean `median`?"
        );
        assert_eq!(error("rounds = 5", "rounds = 0"), "line 3: rounds is 0, must be 1 to 1000");
        assert!(error("rounds = 5", "rounds = ").starts_with("line 3: "));
        assert_eq!(
            error("max_ms = 200", "max_ms = \"200\""),
            "line 10: `max_ms` is \"200\", which is text because of its quotes; write 200 without \
             quotes"
        );
        assert_eq!(
            error("rounds = 5", "rounds = '5'"),
            "line 3: `rounds` is \"5\", which is text because of its quotes; write 5 without quotes"
        );
        assert_eq!(
            error("sizes = [1, 64]", "sizes = 64"),
            "line 9: `sizes` is 64, but must be a list in square brackets"
        );
    }

    /// Rows: pingpong of 64 and 1024 B over two stacks, a stream, an exchange over Unix sockets.
    const ROWS: &str = r#"
name = "rows"

[[trials]]
environments = ["loopback", "netns"]
stacks = ["tcp-spin", "accel+tcp-blocking"]
probe = "pingpong"
sizes = [64, 1024]

[[trials]]
environments = ["netns"]
stacks = ["tcp-blocking"]
probe = "stream"
patterns = ["1-uni-1", "2-bi-2"]

[[trials]]
environments = ["loopback"]
stacks = ["unix-epoll"]
probe = "exchange"
nodes = "1-1-1-1"
"#;

    /// What is wrong with [`ROWS`] and one more target, given as its lines; the first of them is
    /// line 23.
    fn target_error(lines: &str) -> String {
        match Plan::parse(&format!("{ROWS}\n[[targets]]\n{lines}\n")) {
            Ok(_) => "nothing".to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_target_on_no_row_is_an_error_with_line_and_nearest_selector() {
        let on = |on: &str| target_error(&format!("require = 'median < 1us'\non = '{on}'"));
        for (wrong, near) in [
            ("nets/*", "netns/*"),
            ("netns/tcp-spn", "netns/tcp-spin"),
            ("*/accell+*", "*/accel+*"),
            ("*/*-spn", "*/*-spin"),
            ("loopback/tcp-blocking", "netns/tcp-blocking"),
            ("lopback/1-1-1-1 unix", "loopback/1-1-1-1 unix"),
            ("loopback", "nothing"),
            ("tcp-spni", "tcp-spin"),
        ] {
            let expected = match near {
                "nothing" => "nothing".to_string(),
                _ => format!(
                    "line 24: target on `{wrong}` matches no row of the plan, did you mean \
                     `{near}`?"
                ),
            };
            assert_eq!(on(wrong), expected);
        }
        assert_eq!(
            on("moon/*"),
            "line 24: target on `moon/*` matches no row of the plan; known are loopback/tcp-spin, \
             loopback/accel+tcp-blocking, netns/tcp-spin, netns/accel+tcp-blocking, \
             netns/tcp-blocking, loopback/1-1-1-1 unix"
        );
        // The row has the stack of the links, its series the layout.
        assert!(on("loopback/unix-epoll").starts_with("line 24: target on `loopback/unix-epoll`"));
        assert_eq!(on("loopback/1-1-1-1*"), "nothing");
    }

    #[test]
    fn each_condition_of_a_target_must_leave_a_row() {
        assert_eq!(
            target_error("require = 'median < 1us'\nprobe = 'rr'"),
            "line 24: target for probe `rr` matches no row of the plan: its probes are pingpong, \
             stream, exchange"
        );
        assert_eq!(
            target_error("on = 'loopback/*'\nrequire = 'throughput > 1'\nprobe = 'stream'"),
            "line 25: target for probe `stream` matches no row of the plan: it runs stream on \
             netns/tcp-blocking"
        );
        assert_eq!(
            target_error("require = 'median < 1us'\non = 'netns/*'\nclass = ['bypass']"),
            "line 25: target on `netns/*` matches no row of class bypass; the rows there are \
             kernel, same-host"
        );
        assert_eq!(
            target_error("require = 'throughput > 1'\nprobe = 'pingpong'"),
            "line 23: target `throughput > 1`: no row that it matches records throughput; known \
             are mean, min, median, max, stddev, p50, p90, p99 and 6 more; throughput is the \
             figure of probe stream"
        );
        assert_eq!(
            target_error("require = 'p99 < 1us'\nprobe = 'stream'"),
            "line 23: target `p99 < 1us`: no row that it matches records p99; known are throughput"
        );
        assert_eq!(
            target_error("require = 'p99.5 < 1us'\nprobe = 'pingpong'"),
            "line 23: target `p99.5 < 1us`: no row that it matches records p99.5, did you mean \
             `p99`?; or ask for it in their [[trials]]: `percentiles = [99.5]`"
        );
        assert_eq!(
            target_error("require = 'median < 1us at size<64'\nprobe = 'pingpong'"),
            "line 23: target `median < 1us at size<64`: no row that it matches has a case with \
             size<64; their sizes are 64, 1024 B"
        );
        assert_eq!(
            target_error("require = 'p99 < 500'"),
            "line 23: target `p99 < 500` has no unit: write ns, us, ms or s behind the number"
        );
        assert_eq!(
            target_error("require = 'throughput > 1 at pattern=4-bi-4'"),
            "line 23: target `throughput > 1 at pattern=4-bi-4`: no row that it matches has a \
             case with pattern=4-bi-4; their patterns are 1-uni-1, 2-bi-2"
        );
        assert_eq!(target_error("require = 'throughput > 1 at pattern=2-bi-2'"), "nothing");
        assert_eq!(target_error("require = 'p99.999 < 1us'"), "nothing");
    }

    #[test]
    fn equal_targets_are_reported_at_their_own_lines() {
        let plan = |first: &str, second: &str| {
            let target = |on: &str| format!("[[targets]]\nrequire = 'median < 1us'\non = '{on}'\n");
            let error = Plan::parse(&format!("{ROWS}\n{}{}", target(first), target(second)));
            error.unwrap_err().line
        };
        assert_eq!(plan("nets/*", "nets/*"), Some(24));
        assert_eq!(plan("netns/*", "nets/*"), Some(27));
    }

    #[test]
    fn comparisons_and_references_must_exist() {
        let runs = [PublishedRun { name: "known".into(), stacks: vec!["tcp-onload".into()] }];
        let error = |lines: &str| match Plan::parse_with_runs(&format!("{lines}{ROWS}"), &runs) {
            Ok(_) => "nothing".to_string(),
            Err(error) => error.to_string(),
        };
        let sides = |a: &str, b: &str| error(&format!("comparisons = [{{a='{a}',\nb='{b}'}}]"));
        assert_eq!(
            sides("netns/tcp-spin", "nets/tcp-spin"),
            "line 2: comparison with `nets/tcp-spin` matches no row of the plan, did you mean \
             `netns/tcp-spin`?"
        );
        assert_eq!(
            sides("reference:knwn", "netns/*"),
            "line 1: unknown published run `knwn`, did you mean `known`?"
        );
        assert_eq!(
            sides("reference:known/tcp-onlaod", "netns/*"),
            "line 1: published run `known` has no stack `tcp-onlaod`, did you mean `tcp-onload`?"
        );
        assert_eq!(sides("reference:known/tcp-onload", "netns/*"), "nothing");
        assert_eq!(
            error("references = ['known',\n'no-such-run']"),
            "line 2: unknown published run `no-such-run`; known are known"
        );
        // Without a list of published runs their names are not checked.
        assert!(Plan::parse(&format!("references = ['no-such-run']{ROWS}")).is_ok());
    }

    #[test]
    fn classes_are_one_word_or_a_list() {
        let classes = |class: &str| {
            let target = format!("[[targets]]\nrequire = 'median < 1us'\nclass = {class}\n");
            Plan::parse(&format!("{ROWS}\n{target}")).map(|plan| plan.targets[0].classes.clone())
        };
        assert_eq!(classes("'kernel'").unwrap(), [StackClass::Kernel]);
        assert_eq!(
            classes("['kernel', 'same-host']").unwrap(),
            [StackClass::Kernel, StackClass::SameHost]
        );
        let error = classes("'kernal'").unwrap_err().to_string();
        assert_eq!(error, "line 24: unknown class `kernal`, did you mean `kernel`?");
    }

    #[test]
    fn a_sub_plan_has_its_rows_targets_and_name() {
        let text = format!(
            "{ROWS}\n[[subplans]]\nname = 'latency'\nonly = ['pingpong', 'tcp']\n\
             [[targets]]\nrequire = 'throughput > 1'\n\
             [[targets]]\nrequire = 'median < 1us'\n"
        );
        let plan = Plan::parse(&text).unwrap();
        let part = plan.subplan("latency").unwrap();
        assert_eq!(part.name, "rows:latency");
        assert_eq!(part.rows().len(), 4);
        assert_eq!(part.targets.len(), 1);
        assert_eq!(
            plan.subplan("latncy").unwrap_err().to_string(),
            "unknown sub-plan `latncy`, did you mean `latency`?"
        );
        let error =
            |from: &str, to: &str| Plan::parse(&text.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            error("'pingpong', 'tcp'", "'rr'"),
            "line 24: sub-plan `latency` takes no row \
             of the plan"
        );
        assert_eq!(
            error("'pingpong', 'tcp'", ""),
            "line 24: `only` of sub-plan `latency` has no word, so it would take every row \
             of the plan"
        );
        assert_eq!(
            error("'pingpong', 'tcp'", "'pingpng'"),
            "line 24: unknown environment, stack or probe `pingpng`, did you mean `pingpong`?"
        );
    }

    #[test]
    fn an_error_in_a_block_has_the_line_of_that_block() {
        let text = format!("{ROWS}\nsizes = []\n").replace("nodes = \"1-1-1-1\"", "rate_per_s = 0");
        assert!(Plan::parse(&text).unwrap_err().to_string().contains("sizes"), "unknown there");
        let text = ROWS.replace("nodes = \"1-1-1-1\"", "nodes = \"1-1-1-1\"\nseconds = -1");
        assert_eq!(Plan::parse(&text).unwrap_err().line, Some(21));
    }

    #[test]
    fn primary_rows_are_of_their_block() {
        let text = ROWS.replace("probe = \"stream\"", "probe = \"stream\"\nprimary = true");
        let plan = Plan::parse(&text).unwrap();
        let primary: Vec<bool> = plan.trials.iter().map(|block| block.primary).collect();
        assert_eq!(primary, [false, true, false]);
    }

    #[test]
    fn optional_rows_are_of_their_block() {
        let text = ROWS.replace("probe = \"stream\"", "probe = \"stream\"\noptional = true");
        let plan = Plan::parse(&text).unwrap();
        let optional: Vec<bool> = plan.trials.iter().map(|block| block.optional).collect();
        assert_eq!(optional, [false, true, false]);
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
        let error = Plan::parse(&text.replace("optional = true", "optional = 'yes'")).unwrap_err();
        assert!(error.line.is_some(), "{error}");
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,200}") {
            let _ = Plan::parse(&text);
        }

        #[test]
        fn damaged_plans_never_panic(
            at in 0..GOOD.len(), insert in "[\\[\\]=\"a-z0-9\n]{0,4}", cut in 0usize..6,
        ) {
            let mut text = GOOD.to_string();
            let end = (at + cut).min(text.len());
            text.replace_range(at..end, &insert);
            if let Err(error) = Plan::parse(&text) {
                prop_assert!(!error.message.is_empty());
            }
        }
    }
}
