//! The command line: help and man pages, JSON wherever data is printed, addresses, and answers to
//! what is wrong with an argument or a file.

use std::fs;

use serde_json::Value;

use crate::support::{Running, free_port, json, listens, root, run, server, so_far, wait_for};

#[test]
fn help_is_there_for_every_command() {
    for words in [&["qualify"][..], &["exchange", "run"], &["accel", "status"], &["reference"]] {
        let help = run(&[&["help"], words].concat());
        let option = run(&[words, &["--help"]].concat());
        assert_eq!((help.code, option.code), (0, 0), "{words:?}: {}", help.stderr);
        let usage = format!("Usage: nearmetal {}", words.join(" "));
        assert!(help.stdout.contains(&usage), "{words:?}: {}", help.stdout);
        assert_eq!(help.stdout, option.stdout, "{words:?}");
    }
    assert_eq!(run(&["help", "qualfy"]).code, 2);
}

#[test]
fn help_lists_each_command_once_below_a_heading() {
    let help = run(&["--help"]);
    assert_eq!(help.code, 0, "{}", help.stderr);
    let list = help.stdout.split_once("Options:").unwrap().0;
    let list = list.split_once("Usage: nearmetal <COMMAND>\n\n").unwrap().1;
    let groups: Vec<&str> = list.trim_end().split("\n\n").collect();
    assert!(groups.len() >= 5 && groups[0].starts_with("Start with:\n"), "{list}");
    let core = groups[0].lines().filter(|line| !line.starts_with("    "));
    assert_eq!(core.count(), 7, "{list}");
    for name in ["doctor", "qualify", "compare", "exchange", "man", "help"] {
        let lines = list.lines().filter(|line| line.starts_with(&format!("  {name} ")));
        assert_eq!(lines.count(), 1, "{name}: {list}");
    }
    assert!(!list.contains("lab-wire"), "{list}");
    assert_eq!(run(&["help"]).stdout, help.stdout);
}

#[test]
fn man_pages_are_there_for_every_command() {
    let page = run(&["man", "exchange-run"]);
    assert_eq!(page.code, 0, "{}", page.stderr);
    assert!(page.stdout.contains("record\\-flow"), "{}", page.stdout);
    assert_eq!(run(&["man", "exchange", "run"]).stdout, page.stdout);
    let wrong = run(&["man", "exchange-rnu"]);
    assert_eq!((wrong.code, wrong.errors().len()), (2, 1));
    assert!(wrong.stderr.contains("`rnu`, did you mean `run`?"), "{}", wrong.stderr);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("man1");
    assert_eq!(run(&["man", "--out", out.to_str().unwrap()]).code, 0);
    let mut names: Vec<String> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    for name in [
        "nearmetal.1",
        "nearmetal-qualify.1",
        "nearmetal-exchange.1",
        "nearmetal-exchange-run.1",
        "nearmetal-pingpong-server.1",
        "nearmetal-accel-status.1",
        "nearmetal-reference-show.1",
    ] {
        assert!(names.iter().any(|known| known == name), "{name} of {names:?}");
        assert!(fs::read_to_string(out.join(name)).unwrap().starts_with(".ie"), "{name}");
    }
    let is_internal =
        |name: &String| ["lab-hold", "lab-wire", "help"].iter().any(|it| name.contains(it));
    assert!(!names.iter().any(is_internal), "{names:?}");
}

#[test]
fn data_is_there_as_json() {
    let parsed = |words: &[&str]| -> Value {
        let run = run(&[words, &["--format", "json"]].concat());
        assert_eq!(run.code, 0, "{words:?}: {}", run.stderr);
        serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}"))
    };
    let rows = parsed(&["qualify", "--dry-run"]);
    assert_eq!(rows["plan"], "quick");
    assert!(rows["about_s"].as_f64().unwrap() > 10.0);
    let row = |row: &Value| row["environment"] == "loopback" && row["probe"] == "pingpong";
    assert!(rows["rows"].as_array().unwrap().iter().any(row), "{rows}");
    assert!(rows["not_available"].is_array());
    let plans = parsed(&["plans"]);
    let quick =
        plans["plans"].as_array().unwrap().iter().find(|plan| plan["name"] == "quick").unwrap();
    assert!(quick["measuring_s"].as_f64().unwrap() > 10.0, "{quick}");
    let plan = parsed(&["plans", "quick"]);
    let schema = json(&root().join("schema/plan.json"));
    assert!(jsonschema::validator_for(&schema).unwrap().is_valid(&plan), "{plan}");
}

#[test]
fn a_wrong_type_in_a_plan_is_answered_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("typed.toml");
    let text = "name='x'\n[[trials]]\nenvironments=['netns']\nstacks=['tcp-spin']\n\
                probe='pingpong'\nmax_ms = \"500\"\n";
    fs::write(&path, text).unwrap();
    let run = run(&["qualify", "--plan", path.to_str().unwrap()]);
    assert_eq!((run.code, run.errors().len()), (2, 1), "{}", run.stderr);
    assert!(run.stderr.contains("line 6: `max_ms` is \"500\""), "{}", run.stderr);
    assert!(run.stderr.contains("write 500 without quotes"), "{}", run.stderr);
}

#[test]
fn wrong_arguments_are_answered_with_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts.txt");
    fs::write(&hosts, "alice 192.0.2.1 all\nbob 192.0.2.300 all\n").unwrap();
    let hosts = hosts.to_str().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    for (words, why) in [
        (&["qualify", "--affinity", "7777", "--out", out][..], "the client may not use CPU 7777"),
        (&["pingpong", "tcp", "127.0.0.1", "--affinity", "7777"], "; it may use CPU"),
        (&["exchange", "run", "--nodes", "0-1-1-1"], "each from 1 to 64, such as 2-2-2-2"),
        (&["exchange", "run", "--hosts", hosts], "line 2, host bob: `192.0.2.300` is no IP"),
        (&["qualify", "--only", "tcp-spn"], "`tcp-spn`, did you mean `tcp-spin`?"),
        (
            &[
                "compare",
                "reference:deftech-hft-vm-pf",
                "reference:deftech-hft-vm-pf",
                "--fail-on",
                "p98",
            ],
            "p98 decides nothing: these results have the percentiles p",
        ),
        (&["rr", "[::1", "--closed"], "[IPV6]:PORT"),
        (&["rr", "127.0.0.1:4811", "--port", "4812"], "are not the same"),
        (&["rr", "127.0.0.1", "--protocol", "unix"], "do not reach another machine"),
    ] {
        let refused = run(words);
        assert_eq!(refused.code, 2, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(why), "{words:?}: {}", refused.stderr);
    }
    assert!(!std::path::Path::new(out).exists(), "refused before anything is created");
}

#[test]
fn sizes_that_are_none_are_answered_alike() {
    for (protocol, least, texts) in [
        ("tcp", 1, &["0", "1k", "", "-1", "16777217"][..]),
        ("shm", 1, &["0", "1k"]),
        ("udp", 0, &["1k", "16777217"]),
    ] {
        for text in texts {
            let refused = run(&["pingpong", protocol, "127.0.0.1", &format!("--sizes={text}")]);
            let why = format!(
                "nearmetal: --sizes: size `{text}` must be a number of bytes from {least} to \
                 16777216, such as 64,1024\n"
            );
            assert_eq!((refused.code, refused.stderr), (2, why), "{protocol}");
        }
    }
    for text in ["0", "1k"] {
        let refused = run(&["rr", "127.0.0.1", "--sizes", text]);
        let why = format!("size `{text}` must be a number of bytes from 1 to 16777216");
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    }
}

#[test]
fn servers_are_found_by_name_and_by_address_with_port() {
    let port = free_port();
    let _server = server("pingpong", port);
    for host in ["localhost", "127.0.0.1"] {
        let address = format!("{host}:{port}");
        let words =
            ["pingpong", "tcp", &address, "--sizes", "1", "--maxms", "5", "--miniter", "20"];
        let run = run(&[&words[..], &["--timeout", "10000", "--format", "json"]].concat());
        assert_eq!(run.code, 0, "{host}: {}", run.stderr);
        let result: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(result["series"][0]["key"]["environment"], host);
    }
    let unknown = run(&["rr", "no..host"]);
    assert_eq!((unknown.code, unknown.errors().len()), (4, 1), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("cannot find the host no..host"), "{}", unknown.stderr);
}

#[test]
fn ipv4_clients_are_shown_as_such() {
    let port = free_port();
    let text = port.to_string();
    let server = Running::start(&["rr", "server", "--once", "--port", &text]);
    wait_for("the server", || listens(port).then_some(()));
    let words = ["rr", "127.0.0.1", "--port", &text, "--closed", "--seconds", "0.1"];
    let client = run(&[&words[..], &["--deadline", "10000"]].concat());
    assert_eq!(client.code, 0, "{}", client.stderr);
    let server = server.finish();
    assert!(server.stderr.contains("\nclient 127.0.0.1:"), "{}", server.stderr);
    assert!(!server.stderr.contains("::ffff:"), "{}", server.stderr);
}

#[test]
fn rounds_before_the_end_of_the_server_are_kept() {
    let port = free_port();
    let mut server = server("pingpong", port);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let (text, out_text) = (port.to_string(), out.to_str().unwrap());
    let mut words = vec!["pingpong", "tcp", "127.0.0.1", "--port", &text, "--out", out_text];
    words.extend(["--sizes", "1", "--maxms", "300", "--miniter", "20", "--rounds", "100"]);
    words.extend(["--maxiter", "100000000", "--timeout", "10000"]);
    let client = Running::start(&words);
    wait_for("two rounds", || {
        let rounds = |result: Value| result["series"][0]["rounds"].as_array().map(Vec::len);
        (so_far(&out).and_then(rounds) >= Some(2)).then_some(())
    });
    server.0.kill().unwrap();
    let run = client.finish();
    assert_eq!((run.code, run.errors().len()), (4, 1), "{}{}", run.stdout, run.stderr);
    let error = run.errors()[0].to_string();
    let report = out.join("report.html");
    assert!(error.contains(report.to_str().unwrap()), "{error}");
    assert!(error.contains("start it again"), "{error}");
    assert!(run.stdout.contains("half round trip"), "the rounds are shown: {}", run.stdout);
    assert!(fs::read_to_string(&report).unwrap().contains("half round trip"));
    let result = json(&out.join("result.json"));
    assert_eq!(result["state"], "interrupted");
    assert_eq!(result["failures"].as_array().unwrap().len(), 1, "{}", result["failures"]);
}

#[test]
fn plans_are_listed_with_their_parts() {
    let listed = run(&["plans"]);
    assert_eq!(listed.code, 0, "{}", listed.stderr);
    let lines: Vec<&str> = listed.stdout.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("quick ")).unwrap();
    assert!(lines[at + 1].starts_with("  quick:latency "), "{}", listed.stdout);
}
