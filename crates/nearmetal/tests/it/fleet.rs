//! Fleets: four hosts that share one machine, and what is refused before any host is reached.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::hosts::Hosts;
use crate::support::{Run, Running, command, finish, json, processes, run_in, signal, wait_for};

/// A plan of one short ping-pong.
fn plan(hosts: &Hosts, ms: u32) -> String {
    let path = hosts.path("fleet.toml");
    let text = format!(
        "name = \"fleet\"\nrounds = 5\n[[trials]]\nenvironments = [\"ssh\"]\n\
         stacks = [\"tcp-blocking\"]\nprobe = \"pingpong\"\nsizes = [64]\nmax_ms = {ms}\n\
         warmup_ms = 2\nmin_iterations = 20\ntimeout_ms = 10000\n\
         [[targets]]\nrequire = \"median < 10s\"\nprobe = \"pingpong\"\n"
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

/// What runs have left: files and agents on the hosts, and children here.
fn left(hosts: &Hosts, out: &Path) -> Vec<String> {
    let mut left = vec![];
    for number in 1..=hosts.count() {
        let entries = fs::read_dir(hosts.path(&format!("tmp{number}"))).unwrap().flatten();
        left.extend(entries.map(|entry| entry.path().display().to_string()));
        for process in hosts.host(number).processes() {
            if process.state != 'Z' && process.words.iter().any(|word| word == "--silence-limit") {
                left.push(format!("agent {} on host {number}", process.pid));
            }
        }
    }
    let out = out.to_str().unwrap();
    let of_run = |words: &[String]| words.iter().any(|word| word.starts_with(out));
    let here = processes().into_iter().filter(|it| it.state != 'Z' && of_run(&it.words));
    left.extend(here.map(|process| process.words.join(" ")));
    left
}

fn measured(out: &Path) -> Vec<String> {
    let pairs = fs::read_dir(out.join("pairs")).into_iter().flatten().flatten();
    let is_complete = |path: &Path| {
        let text = fs::read_to_string(path.join("result.json")).unwrap_or_default();
        let result: Value = serde_json::from_str(&text).unwrap_or_default();
        result["state"] == "complete"
            && result["series"].as_array().is_some_and(|it| !it.is_empty())
    };
    pairs
        .map(|pair| pair.path())
        .filter(|path| is_complete(path))
        .map(|p| p.display().to_string())
        .collect()
}

fn resume(hosts: &Hosts, out: &Path) -> Run {
    let words = ["fleet", "run", "--resume", out.to_str().unwrap(), "--format", "json"];
    finish(&mut hosts.nearmetal(&words))
}

#[test]
fn a_host_that_cannot_be_reached_is_set_aside_and_measured_when_the_run_goes_on() {
    let hosts = Hosts::new(4);
    let (plan, out) = (plan(&hosts, 40), hosts.path("out"));
    hosts.set_link(4, "down");
    let words = ["fleet", "run", "--hosts", "h[1-4]", "--plan", &plan, "--out"];
    let ended = finish(&mut hosts.nearmetal(&[&words[..], &[out.to_str().unwrap()]].concat()));
    assert_eq!(ended.code, 3, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("3 of 6 trials measured"), "{}", ended.stdout);
    assert!(ended.stdout.contains("h4: host h4 cannot be reached: ssh says"), "{}", ended.stdout);
    assert!(ended.stdout.lines().count() <= 30, "{}", ended.stdout);
    let found = json(&out.join("fleet.json"));
    assert_eq!(found["hosts"][3]["outcome"], "inconclusive", "{}", found["hosts"][3]);
    assert!(found["hosts"][0]["facts"]["kernel"].is_string(), "{}", found["hosts"][0]);
    let page = fs::read_to_string(out.join("fleet.html")).unwrap();
    assert!(page.contains("host h4 cannot be reached") && page.contains("<svg"), "the page");
    assert_eq!(fs::read_to_string(out.join("fleet.csv")).unwrap().lines().count(), 7);
    let junit = fs::read_to_string(out.join("junit.xml")).unwrap();
    assert!(junit.contains("tests=\"10\"") && junit.contains("set aside: host h4"), "{junit}");
    let metrics = fs::read_to_string(out.join("metrics.prom")).unwrap();
    let aside = "nearmetal_fleet_host_set_aside{host=\"h4\"} 1.0";
    assert!(metrics.contains(aside) && metrics.ends_with("# EOF\n"), "{metrics}");
    assert_eq!(left(&hosts, &out), Vec::<String>::new());

    let again = finish(&mut hosts.nearmetal(&[&words[..], &[out.to_str().unwrap()]].concat()));
    assert_eq!(again.code, 5, "{}", again.stderr);
    assert!(again.stderr.contains("go on with a fleet by --resume"), "{}", again.stderr);

    hosts.set_link(4, "up");
    let before = measured(&out);
    let ended = resume(&hosts, &out);
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(before.len(), 3, "{before:?}");
    assert_eq!(measured(&out).len(), 6, "{}", ended.stderr);
    assert!(ended.stderr.contains("3 trials (3 are done)"), "{}", ended.stderr);
    assert!(found["hosts"][3].get("set_aside").is_none(), "{}", found["hosts"][3]);
    assert!([0, 3].contains(&ended.code), "{}", ended.stderr);
    assert_eq!(left(&hosts, &out), Vec::<String>::new());
}

/// The others are measured, each fault is named with its host, and nothing is left.
#[test]
fn hosts_with_a_full_disk_without_permission_and_cut_in_the_middle_are_set_aside() {
    let hosts = Hosts::new(5);
    let (plan, out) = (plan(&hosts, 400), hosts.path("out"));
    let mounted = hosts.ssh(3, "mount -t tmpfs -o size=4k none $TMPDIR");
    assert_eq!(mounted.code, 0, "{mounted:?}");
    let mounted = hosts.ssh(4, "mount -t tmpfs -o noexec none $TMPDIR");
    assert_eq!(mounted.code, 0, "{mounted:?}");
    let words = ["fleet", "run", "--hosts", "h[1-5]", "--plan", &plan, "--out"];
    let words = [&words[..], &[out.to_str().unwrap()]].concat();
    let mut running = Running(hosts.nearmetal(&words).spawn().unwrap());
    wait_for("a trial on host 5", || {
        assert!(running.0.try_wait().unwrap().is_none(), "the run has ended");
        left(&hosts, &out).iter().any(|it| it.ends_with("on host 5")).then_some(())
    });
    hosts.set_link(5, "down");
    let ended = running.finish();
    assert_eq!(ended.code, 3, "{}{}", ended.stdout, ended.stderr);
    let found = json(&out.join("fleet.json"));
    let reason = |host: usize| found["hosts"][host - 1]["set_aside"].as_str().unwrap_or_default();
    assert!(reason(3).contains("host h3"), "{}", found["hosts"][2]);
    let sentence = "host h4 executes no program in its temporary folder";
    assert!(reason(4).contains(sentence), "{}", found["hosts"][3]);
    assert!(reason(5).contains("host h5"), "{}", found["hosts"][4]);
    assert_eq!((reason(1), reason(2), measured(&out).len()), ("", "", 1), "{}", ended.stderr);
    hosts.set_link(5, "up");
    wait_for("the end of the agents", || left(&hosts, &out).is_empty().then_some(()));
}

#[test]
fn ctrl_c_and_kill_leave_nothing_and_the_run_goes_on() {
    let hosts = Hosts::new(4);
    let (plan, out) = (plan(&hosts, 400), hosts.path("out"));
    let words = [
        "fleet",
        "run",
        "--hosts",
        "h[1-4]",
        "--pairs",
        "ring",
        "--parallel",
        "1",
        "--plan",
        &plan,
    ];
    let begin = || {
        let out = out.to_str().unwrap();
        match Path::new(out).exists() {
            true => hosts.nearmetal(&["fleet", "run", "--resume", out, "--parallel", "1"]),
            false => hosts.nearmetal(&[&words[..], &["--out", out]].concat()),
        }
    };
    for (name, code, n_before) in [("INT", 130, 1), ("KILL", -1, 2)] {
        let mut running = Running(begin().spawn().unwrap());
        wait_for("a trial after one that is done", || {
            assert!(running.0.try_wait().unwrap().is_none(), "the run has ended");
            let has_agent = left(&hosts, &out).iter().any(|it| it.starts_with("agent"));
            (measured(&out).len() == n_before && has_agent).then_some(())
        });
        let started = nm_sys::clock::Moment::now();
        signal(name, running.pid());
        let ended = running.finish();
        assert!(started.elapsed().as_secs_f64() < 2.0, "{name} took {:?}", started.elapsed());
        assert_eq!(ended.code, code, "{}{}", ended.stdout, ended.stderr);
        wait_for("the end of all", || left(&hosts, &out).is_empty().then_some(()));
        if name == "INT" {
            assert_eq!(json(&out.join("fleet.json"))["state"], "interrupted");
        }
    }
    let ended = resume(&hosts, &out);
    assert!([0, 3].contains(&ended.code), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(measured(&out).len(), 4, "{}", ended.stderr);
    assert_eq!(json(&out.join("fleet.json"))["state"], "complete");
}

#[test]
fn a_hunt_keeps_a_host_and_says_of_each_other_one_why_it_is_not_kept() {
    let hosts = Hosts::new(3);
    let (plan, out) = (plan(&hosts, 40), hosts.path("out"));
    hosts.set_link(3, "down");
    let out_word = out.to_str().unwrap();
    let words = ["fleet", "hunt", "--hosts", "h[1-3]", "--keep", "1", "--rounds", "2", "--plan"];
    let words = [&words[..], &[&plan, "--out", out_word]].concat();
    let ended = finish(&mut hosts.nearmetal(&words));
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("of 3 candidates by median, with 4 trials instead of 6"));
    assert!(ended.stderr.contains("hunt of 1 among 3 hosts"), "{}", ended.stderr);
    let found = json(&out.join("hunt.json"));
    let schema = json(&crate::support::root().join("schema/fleet-hunt.json"));
    jsonschema::validator_for(&schema).unwrap().validate(&found).unwrap();
    let fates: Vec<&str> =
        (0..3).map(|at| found["candidates"][at]["fate"].as_str().unwrap()).collect();
    assert_eq!(fates, ["kept", "not-kept", "set-aside"], "{found}");
    let sentence = |at: usize| found["candidates"][at]["sentence"].as_str().unwrap();
    assert!(sentence(0).contains(" is kept after 2 trials"), "{}", sentence(0));
    assert!(sentence(1).contains(" times that of h"), "{}", sentence(1));
    assert!(sentence(2).starts_with("h3 was set aside: host h3 "), "{}", sentence(2));
    assert_eq!(left(&hosts, &out), Vec::<String>::new());

    let again = finish(&mut hosts.nearmetal(&words));
    assert_eq!(again.code, 5, "{}", again.stderr);
    let resumed = finish(&mut hosts.nearmetal(&["fleet", "run", "--resume", out_word]));
    assert_eq!(resumed.code, 2, "{}", resumed.stderr);
    assert!(resumed.stderr.contains("holds a hunt, which cannot be resumed"), "{}", resumed.stderr);
    let many = [&["fleet", "hunt", "--hosts", "h[1-3]", "--keep", "3", "--plan"], &words[9..10]];
    let refused = finish(&mut hosts.nearmetal(&many.concat()));
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains("nobody would be stopped"), "{}", refused.stderr);
    for limit in [["--keep", "65"], ["--keep", "0"], ["--rounds", "101"], ["--rounds", "1"]] {
        let words = [&["fleet", "hunt", "--hosts", "a,b,c"], &limit[..]].concat();
        let refused = finish(&mut hosts.nearmetal(&words));
        assert_eq!(refused.code, 2, "{limit:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(limit[0]), "{limit:?}: {}", refused.stderr);
    }
}

#[test]
fn bad_input_is_refused_in_one_sentence_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("hosts.txt"), "a\nb=10.0.0.300\n").unwrap();
    fs::write(folder.path().join("inventory.json"), "{\n\"g\": [1]}").unwrap();
    let plan = ["--plan", "quick"];
    for (hosts, more, sentence) in [
        ("hosts.txt", &[][..], "hosts.txt: line 2: `10.0.0.300` is no IP address of a host; write"),
        ("inventory.json", &[], "the inventory's group `g` has a host that is no text; write"),
        ("./none.txt", &[], "cannot read the hosts in ./none.txt"),
        ("n[1-9", &[], "--hosts: line 1: `n[1-9` has a `[` without `]`"),
        ("alone", &[], "the list has one host, alone; a fleet has two hosts or more"),
        ("a,b", &plan, "plan quick has the row loopback/"),
        ("n[1-1000]", &[], "499500 trials are more than 65536; take a part of them"),
        ("a,b", &["--pairs", "some"], "write all, ring, star, or sample:K"),
    ] {
        let args = [&["fleet", "run", "--dry-run", "--hosts", hosts], more].concat();
        let run = run_in(folder.path(), &args);
        assert_eq!(run.code, 2, "{hosts}: {run:?}");
        assert!(run.stderr.contains(sentence), "{hosts}: {}", run.stderr);
    }
    let run = run_in(folder.path(), &["fleet", "run", "--resume", "nowhere"]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("nowhere holds no fleet that was begun"), "{}", run.stderr);
    assert!(!folder.path().join("nearmetal-fleet").exists());
}

#[test]
fn a_dry_run_shows_rounds_and_time_and_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["fleet", "run", "--hosts", "n[1-4]", "--dry-run", "--out", "out"];
    let run = run_in(folder.path(), &args);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.starts_with("fleet of 4 hosts, plan two-hosts: 6 trials"), "{run:?}");
    assert_eq!(run.stdout.lines().filter(|line| line.starts_with("round ")).count(), 3);
    let json = run_in(folder.path(), &[&args[..], &["--format", "json"]].concat());
    assert!(json.stdout.contains("\"about_s\""), "{json:?}");
    assert!(!folder.path().join("out").exists());
    // The inventory on stdin.
    let file = folder.path().join("inventory.json");
    fs::write(&file, r#"{"lat": {"hosts": ["a", "b"]}}"#).unwrap();
    let mut with = command(&["fleet", "run", "--hosts", "-", "--dry-run"]);
    let run = finish(with.stdin(fs::File::open(file).unwrap()));
    assert!(run.stdout.contains("round 1: "), "{run:?}");
}
