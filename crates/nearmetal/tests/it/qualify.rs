//! `nearmetal qualify`: from a plan to a verdict and a report.

use std::fs;

use crate::support::{command, facts, finish, json, plan_of, root, run, setting, small_plan};

fn names_of_namespaces() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return vec![] };
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn every_environment_gives_a_verdict_and_a_complete_result() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback", "netns", "bridge"]"#, 5, 20);
    let out = folder.path().join("out");
    let before = names_of_namespaces();
    let run = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("\nPASS: "), "{}", run.stdout);
    assert_eq!(names_of_namespaces(), before);

    let result = json(&out.join("result.json"));
    let schema = json(&root().join("schema/result.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&result).map(|e| e.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(result["state"], "complete");
    assert_eq!(result["series"].as_array().unwrap().len(), 3 * 2 * 2);
    for series in result["series"].as_array().unwrap() {
        assert_eq!(series["rounds"].as_array().unwrap().len(), 5, "{}", series["key"]);
        for round in series["rounds"].as_array().unwrap() {
            assert!(round["data"]["count"].as_u64().unwrap() >= 20);
            assert!(round["data"]["histogram"].is_string());
            assert_eq!(round["placements"].as_array().unwrap().len(), 2, "both ends");
        }
    }
    for endpoint in ["netns client", "netns server", "bridge client", "loopback server"] {
        let (environment, side) = endpoint.split_once(' ').unwrap();
        let facts = facts(&result, environment, side);
        assert!(facts["cpu"]["online"].as_u64().unwrap() >= 1, "{endpoint}");
        assert!(facts["clock"]["pair_cost_ns"].as_f64().unwrap() > 0.0, "{endpoint}");
        assert!(!facts["links"].as_array().unwrap().is_empty(), "{endpoint}");
    }
    for name in
        ["report.html", "report.md", "summary.md", "junit.xml", "metrics.prom", "series.csv"]
    {
        assert!(out.join(name).is_file(), "{name}");
    }
}

#[test]
fn shared_memory_is_shown_with_the_limit_of_the_hardware() {
    let folder = tempfile::tempdir().unwrap();
    let stacks = r#"["shm-spin", "shm-blocking"]"#;
    let plan = plan_of(folder.path(), r#"["loopback", "netns", "bridge"]"#, stacks, 5, 20);
    let out = folder.path().join("out");
    let run = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    assert_eq!(result["series"].as_array().unwrap().len(), 3 * 2 * 2);
    let mut limits = 0;
    for series in result["series"].as_array().unwrap() {
        assert_eq!(series["rounds"].as_array().unwrap().len(), 5, "{}", series["key"]);
        assert_eq!(series["comparability"]["bypass"], "shm");
        if let Some(limit) = setting(series, "cache-line limit") {
            assert_eq!(limit["unit"], "ns", "{limit}");
            assert!(limit["value"]["low"].as_u64() <= limit["value"]["high"].as_u64(), "{limit}");
            limits += 1;
        }
    }
    let cpus = nm_sys::cpu::allowed().len();
    assert_eq!(limits, if cpus > 1 { 12 } else { 0 });
    assert_eq!(run.stdout.contains("cache-line limit"), cpus > 1, "{}", run.stdout);
}

#[test]
fn the_report_is_rebuilt_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 5, 5);
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let first = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out_text]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    let before = fs::read(out.join("report.html")).unwrap();
    fs::write(out.join("report.html"), "lost").unwrap();
    let again = run(&["report", out_text]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert!(fs::read(out.join("report.html")).unwrap() == before, "the reports differ");
}

#[test]
fn raw_samples_are_kept_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 1, 5);
    let out = folder.path().join("out");
    let words =
        ["qualify", "--raw", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    assert_eq!(run(&words).code, 3, "one round supports no verdict");
    let path = out.join("samples/loopback-tcp-blocking-pingpong-64_B-half-round-trip-0.dat");
    let samples: Vec<u32> =
        fs::read_to_string(&path).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    let result = json(&out.join("result.json"));
    let series = result["series"].as_array().unwrap();
    let wanted = |s: &&serde_json::Value| {
        s["key"]["stack"] == "tcp-blocking" && s["key"]["case"]["size_bytes"] == 64
    };
    let data = &series.iter().find(wanted).unwrap()["rounds"][0]["data"];
    assert_eq!(samples.len() as u64, data["count"].as_u64().unwrap());
    assert_eq!(f64::from(*samples.iter().min().unwrap()), data["min_ns"].as_f64().unwrap());
}

#[test]
fn dry_run_lists_rows_and_measures_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("vm.toml");
    let text = "name='vm'\n[[trials]]\nenvironments=['loopback','vm']\nstacks=['tcp-spin']\n\
                probe='pingpong'\n";
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let words =
        ["qualify", "--plan", plan.to_str().unwrap(), "--dry-run", "--out", out.to_str().unwrap()];
    let run = run(&words);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("loopback/tcp-spin pingpong"), "{}", run.stdout);
    assert!(run.stdout.contains("vm-vswitch/tcp-spin pingpong  not available: "), "{}", run.stdout);
    assert!(!out.exists());
}

#[test]
fn rows_that_cannot_run_stay_in_the_report_with_their_reason() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("vm.toml");
    let text = "name='vm'\n[[trials]]\nenvironments=['loopback','vm']\nstacks=['tcp-blocking']\n\
                probe='pingpong'\nsizes=[1]\nmax_ms=5\nmin_iterations=20\nwarmup_ms=1\n\
                timeout_ms=10000\n\
                [[targets]]\nrequire='median < 1s'\n";
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let run = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(run.code, 3, "a missing row is no pass: {}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    assert_eq!(result["not_available"][0]["environment"], "vm-vswitch");
    assert!(!result["not_available"][0]["reason"].as_str().unwrap().is_empty());
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("not available"));
}

#[test]
fn only_selects_rows_and_reports_unknown_names() {
    let picked = run(&["qualify", "--dry-run", "--only", "netns,tcp-spin,pingpong"]);
    assert_eq!(picked.code, 0, "{}", picked.stderr);
    assert!(picked.stdout.contains("netns/tcp-spin pingpong"));
    let is_row = |line: &&str| {
        !["  target", "  comparison", "  factor"].iter().any(|other| line.starts_with(other))
    };
    let rows: Vec<&str> = picked.stdout.lines().filter(is_row).skip(1).collect();
    assert_eq!(rows, ["  netns/tcp-spin pingpong  64 B, 1024 B"], "{}", picked.stdout);
    let unknown = run(&["qualify", "--dry-run", "--only", "nets"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("`nets`, did you mean `netns`?"), "{}", unknown.stderr);
}

/// As root it measures; else the row stays with its reason.
#[test]
fn tcp_over_af_xdp_is_a_row_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("xdp.toml");
    let text = "name='xdp'\nrounds=1\n[[trials]]\nenvironments=['netns']\n\
                stacks=['xdp-tcp-spin','tcp-spin']\nprobe='pingpong'\nsizes=[64]\nmax_ms=50\n\
                min_iterations=20\nwarmup_ms=1\ntimeout_ms=10000\n";
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let (plan, out_text) = (plan.to_str().unwrap(), out.to_str().unwrap());
    let words = ["qualify", "--only", "netns,xdp-tcp-spin", "--plan", plan, "--out", out_text];
    let run = run(&words);
    let result = json(&out.join("result.json"));
    match result["not_available"].as_array().and_then(|rows| rows.first()) {
        Some(row) => assert!(row["reason"].as_str().unwrap().contains("; "), "{row}"),
        None => {
            let [series] = &result["series"].as_array().unwrap()[..] else { panic!("{result}") };
            assert_eq!(series["key"]["stack"], "xdp-tcp-spin", "{}", run.stderr);
            assert_eq!(series["comparability"]["bypass"], "xdp");
            assert!(series["rounds"][0]["data"]["count"].as_u64().unwrap() >= 20);
        }
    }
}

/// Rows of loopback and of virtual machines, which this version does not have.
const ROWS: &str = "name='rows'\nrounds=5\n\
    [[trials]]\nenvironments=['loopback']\nstacks=['tcp-blocking','shm-blocking']\n\
    probe='pingpong'\nsizes=[1]\nmax_ms=5\nmin_iterations=20\nwarmup_ms=1\n\
    timeout_ms=10000\n\
    [[trials]]\nenvironments=['vm']\nstacks=['tcp-blocking']\noptional=true\n\
    probe='pingpong'\nsizes=[1]\nmax_ms=5\nmin_iterations=20\nwarmup_ms=1\ntimeout_ms=10000\n";

/// A target that everything meets.
fn met(rest: &str) -> String {
    format!("[[targets]]\nrequire='median < 1s'\n{rest}\n")
}

/// A plan of [`ROWS`] and `rest` in a folder of its own, and the folder of its result.
fn plan_with(rest: &str) -> (tempfile::TempDir, String, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("rows.toml");
    fs::write(&plan, format!("{ROWS}{rest}")).unwrap();
    let out = folder.path().join("out");
    (folder, plan.to_str().unwrap().to_string(), out)
}

#[test]
fn a_target_or_reference_that_matches_nothing_is_an_error_of_the_plan() {
    let met = met("");
    let comparison = "[[comparisons]]\na='reference:deftech-hft-bm-sfc925'\nb='loopback/*'\n";
    for (rest, line, word, near) in [
        (
            format!("{met}[[targets]]\nrequire='median < 1ns'\non='loopbak/*'\n"),
            27,
            "loopbak/*",
            "loopback/*",
        ),
        (format!("{met}{comparison}"), 26, "deftech-hft-bm-sfc925", "deftech-hft-bm-sfc9250"),
        (
            format!("{met}[[comparisons]]\na='loopback/tcp-blockin'\nb='loopback/*'\n"),
            26,
            "loopback/tcp-blockin",
            "loopback/tcp-blocking",
        ),
    ] {
        let (_folder, plan, out) = plan_with(&rest);
        for more in [&["--dry-run"][..], &[]] {
            let mut words = vec!["qualify", "--plan", &plan, "--out", out.to_str().unwrap()];
            words.extend(more);
            let run = run(&words);
            assert_eq!(run.code, 2, "{}{}", run.stdout, run.stderr);
            assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
            for part in [format!("line {line}: "), format!("`{word}`"), format!("`{near}`?")] {
                assert!(run.stderr.contains(&part), "{part}: {}", run.stderr);
            }
            assert!(!out.exists());
        }
    }
    let (folder, plan, _) = plan_with("");
    let text = format!("references=['no-such-run']\n{ROWS}");
    fs::write(folder.path().join("rows.toml"), text).unwrap();
    let run = run(&["qualify", "--plan", &plan, "--dry-run"]);
    assert_eq!(run.code, 2, "{}", run.stdout);
    assert!(run.stderr.contains("line 1: unknown published run `no-such-run`"), "{}", run.stderr);
}

#[test]
fn a_part_of_a_plan_lists_what_was_not_judged_and_does_not_pass() {
    let targets = format!("{}{}", met("on='*/shm-*'"), met("on='loopback/*'"));
    let parts = "[[subplans]]\nname='kernel'\nonly=['kernel','loopback']\n";
    let (_folder, plan, out) = plan_with(&format!("{targets}{parts}"));
    let only = ["--only", "tcp-blocking,loopback"];
    let words = ["qualify", "--plan", &plan, "--out", out.to_str().unwrap(), only[0], only[1]];
    let part = run(&words);
    assert_eq!(part.code, 3, "{}{}", part.stdout, part.stderr);
    let text = part.stdout.split_whitespace().collect::<Vec<&str>>().join(" ");
    let not_judged = "target `median < 1s on */shm-*` is not judged: --only leaves out all of its \
                      rows";
    let partly = "target `median < 1s on loopback/*` is judged on 1 of its 2 rows: --only leaves \
                  out the others";
    for sentence in [
        "The part `--only tcp-blocking,loopback` of plan rows: The judged target is met.",
        "1 of the 2 targets of the plan was not judged.",
        not_judged,
        partly,
    ] {
        assert!(text.contains(sentence), "{sentence}: {text}");
    }
    let result = json(&out.join("result.json"));
    assert_eq!(result["outcome"], "inconclusive");
    assert_eq!(result["plan"]["targets"].as_array().unwrap().len(), 2, "the whole plan");
    assert_eq!(result["part"]["only"], serde_json::json!(["tcp-blocking", "loopback"]));
    let kinds: Vec<&str> = result["not_judged"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["reason"]["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["rows-left-out", "some-rows-left-out"]);
    let junit = fs::read_to_string(out.join("junit.xml")).unwrap();
    assert!(junit.contains("<skipped message=\"target `median &lt; 1s on */shm-*` is not judged"));
    for report in ["report.html", "report.md"] {
        let report = fs::read_to_string(out.join(report)).unwrap();
        assert!(report.contains("is not judged: --only leaves out all of its rows"), "{report}");
    }

    let listed = run(&["qualify", "--plan", &plan, "--dry-run", only[0], only[1]]);
    assert!(listed.stdout.contains(not_judged), "{}", listed.stdout);
    let alone = run(&[
        "qualify",
        "--plan",
        &plan,
        "--out",
        out.with_extension("alone").to_str().unwrap(),
        only[0],
        only[1],
        "--only-targets",
    ]);
    assert_eq!(alone.code, 0, "{}{}", alone.stdout, alone.stderr);
    assert!(alone.stdout.contains("PASS FOR A PART"), "{}", alone.stdout);
    let named = out.with_extension("named");
    let word = format!("{plan}:kernel");
    let run = run(&["qualify", "--plan", &word, "--out", named.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let result = json(&named.join("result.json"));
    assert_eq!(result["plan"]["name"], "rows:kernel");
    assert_eq!(result["verdicts"].as_array().unwrap().len(), 1);
}

#[test]
fn a_target_met_by_shared_memory_is_met_on_this_host_only() {
    let targets = format!("{}{}", met("class='same-host'\nscope='any'"), met("class='kernel'"));
    let (_folder, plan, out) = plan_with(&targets);
    let run = run(&["qualify", "--plan", &plan, "--out", out.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    let verdicts = result["verdicts"].as_array().unwrap();
    assert_eq!(verdicts[0]["target"], "median < 1s, any same-host stack");
    assert_eq!(verdicts[0]["is_same_host_only"], true);
    assert!(verdicts[0]["reason"].as_str().unwrap().ends_with("; on this host only"));
    assert_eq!(verdicts[0]["evidence"].as_array().unwrap().len(), 1);
    assert_eq!(verdicts[1]["is_same_host_only"], false);
    assert!(run.stdout.contains("1 of them on this host only"), "{}", run.stdout);
}

#[test]
fn optional_rows_that_cannot_run_are_left_out_and_named() {
    let (_folder, plan, out) = plan_with(&format!("{}{}", met(""), met("on='vm-vswitch/*'")));
    let run = run(&["qualify", "--plan", &plan, "--out", out.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    let verdicts = result["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), 1);
    let reason = verdicts[0]["reason"].as_str().unwrap();
    assert!(reason.contains("; left out: vm-vswitch/tcp-blocking ("), "{reason}");
    assert_eq!(result["not_judged"][0]["text"], "median < 1s on vm-vswitch/*");
    assert_eq!(result["not_judged"][0]["reason"]["kind"], "not-available");
    let text = run.stdout.split_whitespace().collect::<Vec<&str>>().join(" ");
    for sentence in [
        "PASS: The judged target is met; nearest to its limit: median ",
        "1 of the 2 targets of the plan was not judged, as all of its rows are optional and cannot \
         run here. 1 optional row was left out",
        "target `median < 1s on vm-vswitch/*` is not judged: optional and not \
         available: vm-vswitch/tcp-blocking",
    ] {
        assert!(text.contains(sentence), "{sentence}: {text}");
    }
}

/// Plan quick without namespaces and AF_XDP, as an ordinary user may have to run it.
#[test]
fn the_quick_plan_has_targets_left_where_namespaces_are_forbidden() {
    let script = "echo 0 > /proc/sys/user/max_net_namespaces && exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script, "sh"]);
    command.args([crate::support::BINARY, "qualify", "--dry-run"]);
    command.stdin(std::process::Stdio::null());
    let run = crate::support::finish(&mut command);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let not_judged = run.stdout.lines().filter(|line| line.contains("is not judged: optional"));
    let n_not_judged = not_judged.filter(|line| line.contains("target `")).count();
    assert_eq!(n_not_judged, 7, "{}", run.stdout);
    assert!(run.stdout.contains("loopback/tcp-spin pingpong"), "{}", run.stdout);
}

#[test]
fn every_plan_resolves_on_this_machine() {
    let listed: serde_json::Value =
        serde_json::from_str(&run(&["plans", "--format", "json"]).stdout).unwrap();
    let mut names = vec![];
    for plan in listed["plans"].as_array().unwrap() {
        let name = plan["name"].as_str().unwrap();
        names.push(name.to_string());
        let parts = plan["subplans"].as_array().unwrap();
        names.extend(parts.iter().map(|part| format!("{name}:{}", part.as_str().unwrap())));
    }
    assert!(names.len() >= 11, "{names:?}");
    for name in &names {
        let run = run(&["qualify", "--plan", name, "--dry-run"]);
        assert_eq!(run.code, 0, "{name}: {}", run.stderr);
    }
}

#[test]
fn a_plan_is_read_from_stdin() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 1, 20);
    let with_plan = |text: &str, words: &[&str]| {
        fs::write(folder.path().join("stdin"), text).unwrap();
        let file = fs::File::open(folder.path().join("stdin")).unwrap();
        finish(command(&[&["qualify"], words].concat()).stdin(file))
    };
    let text = fs::read_to_string(plan).unwrap();
    let listed = with_plan(&text, &["--plan", "-", "--dry-run"]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    assert!(listed.stdout.starts_with("small: 1 rounds, "), "{}", listed.stdout);
    for (text, word, why) in [
        ("", "--plan=-", "cannot read the plan on stdin: it is empty; write the plan's text to it"),
        ("name = 1", "--plan=-", "plan on stdin, line 1: "),
        (&text, "--plan=-:part", "plan on stdin, "),
    ] {
        let refused = with_plan(text, &[word, "--dry-run"]);
        assert_eq!((refused.code, refused.errors().len()), (2, 1), "{}", refused.stderr);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
}

#[test]
fn a_dry_run_sees_an_occupied_folder_and_makes_none() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let words = ["qualify", "--dry-run", "--out", out.to_str().unwrap()];
    let free = run(&words);
    assert_eq!(free.code, 0, "{}", free.stderr);
    assert!(!out.exists());
    fs::create_dir(&out).unwrap();
    fs::write(out.join("result.json"), "{}").unwrap();
    let occupied = run(&words);
    assert_eq!((occupied.code, occupied.errors().len()), (5, 1), "{}", occupied.stderr);
    assert_eq!(occupied.stdout, free.stdout);
    let real = run(&["qualify", "--out", out.to_str().unwrap()]);
    assert_eq!((real.code, real.stderr), (5, occupied.stderr));
    assert!(real.stdout.is_empty(), "{}", real.stdout);
}
