//! The pictures of the first screen in `docs/images`, of constructed results. `cargo xtask
//! pictures` writes them again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nm_model::machine::{MachineUse, ProgramUse};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{RunResult, RunState, Series, Source, Statistic, TrialFailure};
use nm_model::{Outcome, Plan, RowId};
use nm_report::style::Style;
use nm_report::terminal::{self, Extent};
use nm_report::{html, reference};

use crate::browser::{Browser, Page};
use crate::fixture::{self, SMALL, Size};
use crate::golden;

/// What stands on every picture.
const LABEL: &str = "Made-up example: nothing here was measured.";

/// Largest picture, bytes.
const BYTES_MAX: usize = 150 * 1024;

const WIDTHS: [u32; 2] = [1280, 400];

const PLAN: &str = "
name = 'example'
summary = 'An example with made-up figures'
rounds = 5
references = ['deftech-hft-bm-sfc9250']

[machine]
steal_percent_max = 1.0
other_work_percent_max = 10.0

[[trials]]
environments = ['netns']
stacks = ['tcp-spin', 'tcp-blocking', 'udp-spin', 'xdp-spin', 'shm-spin']
probe = 'pingpong'
sizes = [64]

[[trials]]
environments = ['bridge']
stacks = ['tcp-spin']
probe = 'pingpong'
sizes = [64]

[[targets]]
require = 'p99 < 10us'
on = 'netns/*-spin'
probe = 'pingpong'

[[targets]]
require = 'median < 12us'
on = 'bridge/*'
probe = 'pingpong'
";

/// A constructed result and the name of its pictures.
struct Example {
    name: &'static str,
    outcome: Outcome,
    result: RunResult,
}

const SIZE: Size = Size { n_rounds: 1, n_samples: 20_000, ..SMALL };

/// How far each round lies from the median.
const SPREAD: [f64; 5] = [0.98, 1.01, 1.0, 1.03, 0.99];

/// Ping-pong at 64 B over five rounds of one mode.
fn pingpong(environment: &str, stack: &str, median_us: f64) -> Series {
    let case = Case::Message { size_bytes: 64 };
    let key = fixture::key(environment, stack, ProbeKind::Pingpong, case, Statistic::HalfRoundTrip);
    let of_round = |spread: f64| fixture::latency(key.clone(), median_us * 1e3 * spread, SIZE);
    let mut series = of_round(1.0);
    series.rounds = SPREAD.iter().flat_map(|spread| of_round(*spread).rounds).collect();
    for (number, round) in series.rounds.iter_mut().enumerate() {
        round.round = number as u32;
        round.placements.clear();
    }
    series.estimates.clear();
    series
}

fn quiet() -> MachineUse {
    MachineUse {
        window_s: 100.0,
        cpus: 8,
        cpus_allowed: 8,
        steal_s: Some(0.0),
        throttled_s: Some(0.0),
        other_work_s: Some(1.4),
        ..MachineUse::default()
    }
}

/// The run that passes, not judged yet.
fn run() -> RunResult {
    let mut facts = fixture::result(SMALL).facts;
    facts.retain(|endpoint, _| endpoint.environment == "netns");
    for facts in facts.values_mut() {
        facts.cpu.online = 8;
        facts.virtualization.hypervisor = None;
    }
    let source = Source::Measured { version: "0.0.0-made-up".into() };
    RunResult {
        started: Some("2026-01-02T03:04:05Z".into()),
        duration_s: Some(100.0),
        state: RunState::Complete,
        plan: Some(Plan::parse(PLAN).unwrap()),
        facts,
        machine: Some(quiet()),
        series: vec![
            pingpong("netns", "tcp-spin", 4.2),
            pingpong("netns", "tcp-blocking", 21.0),
            pingpong("netns", "udp-spin", 3.6),
            pingpong("netns", "xdp-spin", 2.1),
            pingpong("netns", "shm-spin", 0.2),
            pingpong("bridge", "tcp-spin", 5.4),
        ],
        ..RunResult::new("made-up-example", source)
    }
}

fn lost_host() -> RunResult {
    let mut result = run();
    let text = PLAN.replace("['bridge']", "['ssh']").replace("bridge/*", "ssh/*");
    let hosts = "[hosts]\nclient = { ssh = 'alice' }\nserver = { ssh = 'bob' }\n\n\
                 [[trials]]\nenvironments = ['netns']";
    let text = text.replacen("[[trials]]\nenvironments = ['netns']", hosts, 1);
    result.plan = Some(Plan::parse(&text).unwrap());
    result.series.truncate(5);
    let row = RowId {
        environment: "ssh".into(),
        stack: "tcp-spin".into(),
        probe: ProbeKind::Pingpong,
        case: None,
        round: Some(1),
        factor: None,
    };
    let reason = "host bob was lost; look whether it runs and can be reached".to_string();
    result.failures = vec![TrialFailure { row: Some(row), reason }];
    result
}

fn examples() -> Vec<Example> {
    let mut slow = run();
    slow.series[2] = pingpong("netns", "udp-spin", 9.3);
    let mut stolen = run();
    for facts in stolen.facts.values_mut() {
        facts.virtualization.hypervisor = Some("KVM".into());
    }
    stolen.machine = Some(MachineUse { steal_s: Some(96.0), ..quiet() });
    let mut disturbed = slow.clone();
    let programs = vec![ProgramUse { command: "backup".into(), pid: 4711, cpu_s: 80.0 }];
    disturbed.machine = Some(MachineUse { other_work_s: Some(81.0), programs, ..quiet() });
    let all = [
        ("pass", Outcome::Pass, run()),
        ("fail-figure", Outcome::Fail, slow),
        ("fail-machine", Outcome::Fail, stolen),
        ("disturbed", Outcome::Inconclusive, disturbed),
        ("lost-host", Outcome::Inconclusive, lost_host()),
    ];
    let judged = all.map(|(name, outcome, mut result)| {
        nm_judge::judge(&mut result, &|name| reference::load(name).ok());
        Example { name, outcome, result }
    });
    judged.into_iter().collect()
}

/// The names of all pictures.
fn names() -> Vec<String> {
    let of = |example: &Example| {
        let name = example.name;
        let on_pages = WIDTHS.map(|width| format!("first-screen-{name}-{width}.png"));
        on_pages.into_iter().chain([format!("first-screen-{name}-terminal.svg")])
    };
    // The last one shows a network that a test of the binary serves.
    examples().iter().flat_map(of).chain(["exchange-page.png".to_string()]).collect()
}

/// Keeps a picture in the temporary folder of the tests, and in `docs/images` on demand.
fn keep(name: &str, bytes: &[u8]) {
    assert!(bytes.len() <= BYTES_MAX, "{name} has {} bytes", bytes.len());
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), bytes).unwrap();
    if std::env::var_os("PICTURES").is_some() {
        fs::write(golden::path("../../../docs/images").join(name), bytes).unwrap();
    }
}

/// The picture with a palette of its 256 most frequent colours, which is a third of the bytes.
fn with_palette(bytes: &[u8]) -> Vec<u8> {
    let image = tiny_skia::Pixmap::decode_png(bytes).unwrap();
    let pixels: Vec<[u8; 3]> =
        image.pixels().iter().map(|pixel| [pixel.red(), pixel.green(), pixel.blue()]).collect();
    let mut counts: BTreeMap<[u8; 3], usize> = BTreeMap::new();
    pixels.iter().for_each(|pixel| *counts.entry(*pixel).or_default() += 1);
    let mut palette: Vec<[u8; 3]> = counts.keys().copied().collect();
    palette.sort_by_key(|colour| std::cmp::Reverse(counts[colour]));
    palette.truncate(256);
    let distance = |a: &[u8; 3], b: &[u8; 3]| -> u32 {
        a.iter().zip(b).map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2)).sum()
    };
    let nearest = |colour: &[u8; 3]| {
        (0..palette.len()).min_by_key(|at| distance(&palette[*at], colour)).unwrap() as u8
    };
    let index: BTreeMap<[u8; 3], u8> =
        counts.keys().map(|colour| (*colour, nearest(colour))).collect();
    let mut out = vec![];
    let mut encoder = png::Encoder::new(&mut out, image.width(), image.height());
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette(palette.concat());
    encoder.set_compression(png::Compression::High);
    encoder.set_filter(png::Filter::NoFilter);
    let mut writer = encoder.write_header().unwrap();
    let data: Vec<u8> = pixels.iter().map(|pixel| index[pixel]).collect();
    writer.write_image_data(&data).unwrap();
    writer.finish().unwrap();
    out
}

#[test]
fn the_first_screens_are_drawn_small_and_without_overflow() {
    let references = [reference::load("deftech-hft-bm-sfc9250").unwrap()];
    let mut browser = Browser::start("pictures");
    for example in examples() {
        let name = example.name;
        let why = nm_report::first_screen::first_screen(&example.result).lines;
        assert_eq!(example.result.outcome, example.outcome, "{name}: {why:?}");
        let style = "margin:0;padding:6px 20px;max-width:none;background:#fff3d6;color:#16202b;\
                     font-weight:700";
        let label = format!("<body><p style=\"{style}\">{LABEL}</p>");
        let text = html::report(&example.result, &references).replacen("<body>", &label, 1);
        let page = Page::with(&format!("picture-{name}"), &text);
        for width in WIDTHS {
            browser.window(width, 800);
            browser.open_file(page.path());
            let bottom = browser.value(
                "Math.ceil(document.querySelector('#verdict').getBoundingClientRect().bottom)",
            );
            let sideways = browser.value(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth",
            );
            assert_eq!(sideways, 0, "{name} at {width}");
            let height = bottom.as_u64().unwrap() + 10;
            let bytes = browser.shot((u64::from(width), 0, height));
            keep(&format!("first-screen-{name}-{width}.png"), &with_palette(&bytes));
        }
    }
}

/// A line of a terminal in pieces: text, whether it is bold, and its colour.
fn pieces(line: &str) -> Vec<(String, bool, &'static str)> {
    let (mut is_bold, mut colour) = (false, "#e6ebf0");
    let mut pieces = vec![];
    for (index, part) in line.split('\u{1b}').enumerate() {
        let (codes, text) = match index {
            0 => ("", part),
            _ => part.strip_prefix('[').and_then(|part| part.split_once('m')).expect("a colour"),
        };
        match codes {
            "1" => is_bold = true,
            "31" => colour = "#ff9a6b",
            "32" => colour = "#4fd3a6",
            "33" => colour = "#f1c75b",
            "0" => (is_bold, colour) = (false, "#e6ebf0"),
            _ => {}
        }
        if !text.is_empty() {
            pieces.push((text.to_string(), is_bold, colour));
        }
    }
    pieces
}

/// A terminal with this text, as SVG.
fn terminal_picture(title: &str, text: &str) -> String {
    const LETTER: f64 = 8.43;
    const LINE: usize = 20;
    let lines: Vec<&str> = text.lines().collect();
    let (width, height) = ((104.0 * LETTER) as usize, (lines.len() + 3) * LINE);
    let markup = maud::html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" width=(width) height=(height)
            viewBox=(format!("0 0 {width} {height}"))
            font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" {
            title { (title) }
            rect width=(width) height=(height) rx="6" fill="#10161c" {}
            text x="16" y="26" fill="#f1c75b" { (LABEL) }
            @for (row, line) in lines.iter().enumerate() {
                @let y = (row + 3) * LINE - 4;
                @let pieces = pieces(line);
                text x="16" y=(y) xml:space="preserve" {
                    @for (text, is_bold, colour) in &pieces {
                        tspan fill=(colour) font-weight=[is_bold.then_some("bold")] { (text) }
                    }
                }
            }
        }
    };
    markup.into_string() + "\n"
}

#[test]
fn the_terminal_is_drawn_as_it_prints() {
    let style = Style { colour: true, width: 100 };
    for example in examples() {
        let report = Some("example/report.html");
        let text = terminal::extract(&example.result, Extent::Verdict, &style, report);
        let name = format!("first-screen-{}-terminal.svg", example.name);
        let picture = terminal_picture(&format!("{}: the terminal", example.name), &text);
        assert!(picture.contains(LABEL) && picture.contains("report: example/report.html"));
        assert!(!picture.contains('\u{1b}'));
        keep(&name, picture.as_bytes());
    }
}

fn markdown_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            markdown_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn every_picture_that_the_docs_name_exists_and_is_remade() {
    let mut files = vec![golden::path("../../../README.md")];
    markdown_files(&golden::path("../../../docs"), &mut files);
    let mut named: Vec<String> = vec![];
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (at, _) in text.match_indices("images/") {
            let rest = &text[at + "images/".len()..];
            let end = rest.find([')', '"', ' ', '\n']).unwrap_or(rest.len());
            if [".png", ".svg"].iter().any(|extension| rest[..end].ends_with(extension)) {
                named.push(rest[..end].to_string());
            }
        }
    }
    let images = golden::path("../../../docs/images");
    let made = names();
    for name in &named {
        assert!(images.join(name).exists(), "docs/images/{name} is missing");
        assert!(made.contains(name), "`cargo xtask pictures` does not make {name}");
    }
    for name in &made {
        assert!(named.contains(name), "no page shows {name}");
    }
    for entry in fs::read_dir(images).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(made.contains(&name), "docs/images/{name} is made by nothing");
    }
}
