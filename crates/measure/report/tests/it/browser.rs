//! The report in a real browser: headless Chromium, driven over its debugging pipe.
//!
//! `SCREENSHOTS=DIR` keeps pictures of the report in light, dark, narrow and print.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};

use nm_model::RunResult;

use crate::fixture::{self, LARGE, SMALL};
use crate::golden;

const CHROMIUM: &str = "/usr/bin/chromium";

/// Longest wait for any answer of the browser.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<Value>,
    session: String,
    next_id: u64,
    events: Vec<Value>,
    profile: PathBuf,
}

impl Browser {
    pub fn start(name: &str) -> Browser {
        assert!(
            Path::new(CHROMIUM).exists(),
            "{CHROMIUM} is missing: install the package `chromium` (apt-get install chromium)"
        );
        let profile =
            std::env::temp_dir().join(format!("nm-browser-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&profile).unwrap();
        // The browser uses descriptors 3 and 4; the shell puts our pipes there.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg("exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null")
            .arg(CHROMIUM)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--disable-background-networking", "--disable-component-update"])
            .args(["--disable-sync", "--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            // What it leaves there when it is killed goes with the profile.
            .env("TMPDIR", &profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            let mut message = vec![];
            while lines.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                if let Ok(value) = serde_json::from_slice(&message)
                    && sender.send(value).is_err()
                {
                    return;
                }
                message.clear();
            }
        });
        let (session, next_id, events) = (String::new(), 0, vec![]);
        let mut browser = Browser { child, requests, answers, session, next_id, events, profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let id = &target["targetId"];
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": id, "flatten": true}));
        browser.session = attached["sessionId"].as_str().unwrap().to_string();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends a command and waits for its answer; events are kept.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        let mut request = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            request["sessionId"] = json!(self.session);
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        loop {
            let message = self
                .answers
                .recv_timeout(ANSWER_TIMEOUT)
                .unwrap_or_else(|error| panic!("no answer to {method}: {error}"));
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    /// Opens a file and waits until it is loaded.
    pub fn open(&mut self, file: &Path) {
        self.events.clear();
        self.call("Page.navigate", json!({"url": format!("file://{}", file.display())}));
        while !self.events.iter().any(|e| e["method"] == "Page.loadEventFired") {
            let event = self.answers.recv_timeout(ANSWER_TIMEOUT).expect("the page loads");
            self.events.push(event);
        }
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    fn width(&mut self, width: u32) {
        self.window(width, 900);
    }

    pub fn window(&mut self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Opens everything that is folded.
    fn unfold(&mut self) {
        self.value("document.querySelectorAll('details').forEach(d => d.open = true)");
    }

    fn media(&mut self, media: &str, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"media": media, "features": features}));
    }

    fn tab(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            let key =
                json!({"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9});
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    /// Keeps pictures of the entire page, screen by screen, where they are wanted.
    fn picture(&mut self, name: &str) {
        const HEIGHT: u64 = 1500;
        let Some(folder) = std::env::var_os("SCREENSHOTS") else { return };
        let size = self
            .value("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]");
        let (width, height) = (size[0].as_u64().unwrap(), size[1].as_u64().unwrap());
        for screen in 0..height.div_ceil(HEIGHT) {
            let file = Path::new(&folder).join(format!("{name}-{screen:02}.png"));
            self.screenshot((width, screen * HEIGHT, HEIGHT), &file);
        }
    }

    /// Writes a picture of the page: width, top and height of the part, px.
    fn screenshot(&mut self, part: (u64, u64, u64), file: &Path) {
        let bytes = self.shot(part);
        keep(&bytes, file);
    }

    /// A picture of the page as PNG: width, top and height of the part, px.
    pub fn shot(&mut self, (width, top, height): (u64, u64, u64)) -> Vec<u8> {
        let clip = json!({"x": 0, "y": top, "width": width, "height": height, "scale": 1});
        let params = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        self.data("Page.captureScreenshot", params)
    }

    /// The page on A4 as PDF.
    fn pdf(&mut self) -> Vec<u8> {
        let a4 = json!({"printBackground": true, "paperWidth": 8.27, "paperHeight": 11.69});
        self.data("Page.printToPDF", a4)
    }

    fn data(&mut self, method: &str, params: Value) -> Vec<u8> {
        let answer = self.call(method, params);
        let data = answer["data"].as_str().unwrap();
        base64::engine::general_purpose::STANDARD.decode(data).unwrap()
    }
}

fn keep(bytes: &[u8], file: &Path) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, bytes).unwrap();
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its helpers may still be writing their last files.
        for _ in 0..20 {
            if std::fs::remove_dir_all(&self.profile).is_ok() || !self.profile.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A report on disk, removed at the end.
pub struct Page(PathBuf);

impl Page {
    fn write(name: &str, size: fixture::Size) -> Page {
        let references = [fixture::reference(), fixture::round_trip_reference()];
        Page::of(name, &fixture::result(size), &references)
    }

    fn of(name: &str, result: &RunResult, references: &[RunResult]) -> Page {
        Page::with(name, &nm_report::html::report(result, references))
    }

    /// A page with this text.
    pub fn with(name: &str, text: &str) -> Page {
        let file = std::env::temp_dir().join(format!("nm-page-{}-{name}.html", std::process::id()));
        std::fs::write(&file, text).unwrap();
        Page(file)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Fails if the page wrote to the console or requested anything but itself.
fn check_no_messages(browser: &Browser, file: &Path) {
    fn of<'b>(browser: &'b Browser, method: &str) -> impl Iterator<Item = &'b Value> {
        browser.events.iter().filter(move |e| e["method"] == method)
    }
    for method in ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"] {
        let messages: Vec<&Value> = of(browser, method).collect();
        assert!(messages.is_empty(), "{method}: {messages:?}");
    }
    let requested: Vec<&str> = of(browser, "Network.requestWillBeSent")
        .filter_map(|e| e["params"]["request"]["url"].as_str())
        .collect();
    assert_eq!(requested, [format!("file://{}", file.display())]);
}

/// Charts that are missing, hidden or empty.
const BAD_CHARTS: &str = "JSON.stringify([...document.querySelectorAll('svg')]
    .filter(svg => svg.checkVisibility()).filter(svg => {
    const box = svg.getBoundingClientRect();
    const named = svg.getAttribute('aria-labelledby').split(' ')
        .every(id => document.getElementById(id)?.textContent.length > 0);
    const marks = [...svg.querySelectorAll('.line,.bar,.point,.heat')];
    return !(box.width > 300 && box.height > 80 && named && svg.getAttribute('role') == 'img'
        && marks.some(mark => mark.getBoundingClientRect().width > 0)
        && svg.closest('figure')?.querySelector('details table tbody tr'));
}).map(svg => svg.id))";

/// How far the page reaches beyond the window, px.
const SIDEWAYS: &str =
    "document.documentElement.scrollWidth - document.documentElement.clientWidth";

/// Boxes that scroll sideways and do not say so.
const SCROLLS: &str = "JSON.stringify([...document.querySelectorAll('.scroll, section')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .filter(e => getComputedStyle(e, '::before').content == 'none')
    .map(e => e.scrollWidth + '>' + e.clientWidth + ' ' + (e.getAttribute('aria-label') || e.id)))";

/// Elements that hide a part of their text.
const CUT: &str = "JSON.stringify([...document.querySelectorAll('body *')].filter(e =>
    e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1
    && !['visible', 'auto', 'scroll'].includes(getComputedStyle(e).overflowX)
).map(e => e.tagName + ' ' + e.className + ': ' + e.textContent.slice(0, 60)))";

/// Pairs of labels of one chart that overlap.
const OVERLAPS: &str = "JSON.stringify([...document.querySelectorAll('svg')].flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')].filter(t => t.textContent);
    const boxes = texts.map(t => t.getBoundingClientRect());
    const frame = svg.getBoundingClientRect();
    const found = [];
    boxes.forEach((a, i) => {
        if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1)
            found.push(svg.id + ' outside: ' + texts[i].textContent);
        boxes.slice(i + 1).forEach((b, j) => {
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            const other = texts[i + 1 + j].textContent;
            if (wide > 1 && high > 3)
                found.push(svg.id + ': ' + texts[i].textContent + ' / ' + other);
        });
    });
    return found;
}))";

#[test]
fn the_report_shows_every_chart_and_requests_nothing() {
    let page = Page::write("charts", SMALL);
    let mut browser = Browser::start("charts");
    browser.width(1200);
    browser.open(&page.0);
    check_no_messages(&browser, &page.0);
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    browser.unfold();
    let charts = browser.value("document.querySelectorAll('figure svg').length").as_u64().unwrap();
    assert!(charts >= 8, "{charts} charts");
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    assert_eq!(browser.value(OVERLAPS), "[]");
    let titles =
        browser.value("[...document.querySelectorAll('main h2')].map(h => h.textContent).join()");
    assert_eq!(
        titles,
        "FAIL,Every stack,Targets,Comparisons,How far to trust this,All figures,Charts,Endpoints,\
         Not measured,Published runs,Method"
    );
    // Headings go down one level at a time, and every link of the contents leads somewhere.
    assert_eq!(
        browser.value(
            "[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])
                .every((level, i, all) => level <= (all[i - 1] ?? 0) + 1)"
        ),
        true
    );
    assert_eq!(
        browser.value(
            "[...document.querySelectorAll('a')]
                .every(a => document.querySelector(a.getAttribute('href')))"
        ),
        true
    );
    assert_eq!(
        browser.value(
            "(ids => ids.length == new Set(ids).size)
                ([...document.querySelectorAll('[id]')].map(e => e.id))"
        ),
        true
    );
    let json = browser.value("JSON.parse(document.getElementById('result').textContent).name");
    assert_eq!(json, fixture::result(SMALL).name);
    browser.picture("light");
}

/// Walks over the page by the tab key, fails if it misses a link, a heading of folded content or a
/// table, and returns the number of stops.
fn walk_by_tabs(browser: &mut Browser) -> u64 {
    // What is inside a closed <details> takes no focus.
    const REACHABLE: &str = "[...document.querySelectorAll('a[href], summary, [tabindex=\"0\"]')]
        .filter(e => e.checkVisibility())";
    let wanted = browser.value(&format!("window.seen = new Set(); {REACHABLE}.length"));
    let wanted = wanted.as_u64().unwrap();
    browser.tab();
    assert_eq!(browser.value("document.activeElement.className"), "skip");
    browser.value("seen.add(document.activeElement)");
    for _ in 1..wanted {
        browser.tab();
        browser.value("seen.add(document.activeElement); 0");
    }
    let missed = browser.value(&format!(
        "JSON.stringify({REACHABLE}.filter(e => !seen.has(e))
            .map(e => e.tagName + ' ' + e.textContent.slice(0, 40)))"
    ));
    assert_eq!(missed, "[]");
    wanted
}

#[test]
fn virtual_machines_are_shown_with_charts_tables_and_the_mark_of_emulated_ones() {
    let references = [nm_report::reference::load("deftech-hft-vm-pf").unwrap()];
    let page = Page::of("guests", &crate::guests::result(), &references);
    let mut browser = Browser::start("guests");
    browser.width(1200);
    browser.open(&page.0);
    check_no_messages(&browser, &page.0);
    check_nothing_is_cut(&mut browser);
    browser.unfold();
    let in_section = |what: &str| format!("document.querySelectorAll('#guests {what}').length");
    // Waterfall, sweep, two percentile plots, throughput.
    assert_eq!(browser.value(&in_section("figure svg")), 5);
    assert_eq!(browser.value(&in_section("figure details table")), 5);
    // Each row of a table, and each legend, with figures of the emulated environment has the word.
    assert_eq!(
        browser.value(
            "JSON.stringify([...document.querySelectorAll('tbody tr')]
                .filter(row => row.closest('#guests, #charts, #figures'))
                .filter(row => /vm-vhost/.test(row.textContent)
                    && !/EMULATED/.test(row.textContent))
                .filter(row => !/virtual CPU/.test(row.textContent))
                .map(row => row.textContent))"
        ),
        "[]"
    );
    let marks = "[...document.querySelectorAll('#guests svg, #charts svg')].filter(svg =>
        /vm-vhost|tcg/.test(svg.textContent)).every(svg => /EMULATED/.test(svg.textContent))";
    assert_eq!(browser.value(marks), true);
    browser.media("screen", "dark");
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    browser.picture("guests");
    browser.media("print", "light");
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    browser.media("screen", "light");
    browser.width(400);
    assert_eq!(browser.value(SIDEWAYS), 0);
}

#[test]
fn every_table_is_reached_by_keyboard() {
    let page = Page::write("keyboard", SMALL);
    let mut browser = Browser::start("keyboard");
    browser.width(1200);
    browser.open(&page.0);
    assert!(walk_by_tabs(&mut browser) > 20);
    // Everything that is folded is reached once it is open.
    browser.open(&page.0);
    browser.unfold();
    assert!(walk_by_tabs(&mut browser) > 80);
    browser.value("document.querySelectorAll('details').forEach(d => d.open = false)");
    // Every table is in a region that takes the focus, and has a caption and headings.
    assert_eq!(
        browser.value(
            "[...document.querySelectorAll('table')].every(t =>
                t.parentElement.matches('[tabindex=\"0\"][role=region][aria-label]')
                && t.caption.textContent && t.querySelector('thead th[scope=col]')
                && [...t.querySelectorAll('tbody tr')]
                    .every(r => r.querySelector('th[scope=row]')))"
        ),
        true
    );
    // The return key opens a table, and the next tab stop is the table itself.
    browser.value("document.querySelector('figure summary').focus()");
    for kind in ["keyDown", "keyUp"] {
        let key = json!({
            "type": kind, "key": "Enter", "code": "Enter", "text": "\r",
            "windowsVirtualKeyCode": 13,
        });
        browser.call("Input.dispatchKeyEvent", key);
    }
    assert_eq!(browser.value("document.querySelector('figure details').open"), true);
    browser.tab();
    assert_eq!(browser.value("!!document.activeElement.querySelector('table')"), true);
}

#[test]
fn the_report_works_without_scripts_in_dark_on_paper_and_when_narrow() {
    let page = Page::write("media", SMALL);
    let mut browser = Browser::start("media");
    browser.call("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    browser.width(1200);
    browser.open(&page.0);
    check_no_messages(&browser, &page.0);
    browser.unfold();
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    browser.value("document.querySelectorAll('details').forEach(d => d.open = false)");

    const COLOURS: &str = "(style => [style.backgroundColor, style.color].join())
        (getComputedStyle(document.body))";
    let light = browser.value(COLOURS);
    browser.media("screen", "dark");
    let dark = browser.value(COLOURS);
    assert_eq!(light, "rgb(244, 246, 248),rgb(22, 32, 43)");
    assert_eq!(dark, "rgb(16, 22, 28),rgb(230, 235, 240)");
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    browser.unfold();
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    browser.value("document.querySelectorAll('details').forEach(d => d.open = false)");
    browser.picture("dark");

    // On paper stand the main tables, and what else is open.
    browser.media("print", "light");
    const MAIN: &str = "(all => all.length > 2 && all.every(t => t.checkVisibility()))
        ([...document.querySelectorAll('.paper > .scroll > table')])";
    const SHOWN: &str = "[...document.querySelectorAll('details:not(.paper) > .scroll > table')]
        .filter(t => t.checkVisibility()).length";
    assert_eq!(browser.value(MAIN), true);
    assert_eq!(browser.value(SHOWN), 0);
    browser.unfold();
    assert_ne!(browser.value(SHOWN), 0);
    browser.value("document.querySelectorAll('details').forEach(d => d.open = false)");

    browser.width(760);
    browser.picture("print");

    browser.media("screen", "light");
    browser.width(400);
    assert_eq!(browser.value(SIDEWAYS), 0);
    browser.picture("narrow");
}

#[test]
fn a_large_report_has_the_same_quality() {
    let page = Page::write("large", LARGE);
    let mut browser = Browser::start("large");
    browser.width(1200);
    browser.open(&page.0);
    check_no_messages(&browser, &page.0);
    browser.unfold();
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    assert_eq!(browser.value(OVERLAPS), "[]");
    browser.picture("large");
    browser.width(400);
    assert_eq!(browser.value(SIDEWAYS), 0);
}

/// Tallest folded page at 1 280 px, px.
const FOLDED_HEIGHT_MAX: u64 = 6800;

/// Height of the first screen, px.
const FIRST_SCREEN: u32 = 800;

/// A complete run of the plan `quick` on a busy virtual machine, without histograms and slices,
/// judged by the present rules.
fn real_run() -> (RunResult, Vec<RunResult>) {
    let mut result = nm_report::folder::load(&golden::path("tests/data/quick.json")).unwrap();
    nm_judge::judge(&mut result, &|name| nm_report::reference::load(name).ok());
    let names = result.plan.iter().flat_map(|plan| &plan.references);
    let references = names.map(|name| nm_report::reference::load(name).unwrap()).collect();
    (result, references)
}

/// Fails if the page is wider than the window or hides a part of a text, folded and unfolded.
fn check_nothing_is_cut(browser: &mut Browser) {
    assert_eq!(browser.value(SIDEWAYS), 0);
    assert_eq!(browser.value(CUT), "[]");
    browser.unfold();
    assert_eq!(browser.value(SIDEWAYS), 0);
    assert_eq!(browser.value(SCROLLS), "[]");
    assert_eq!(browser.value(CUT), "[]");
    assert_eq!(browser.value(OVERLAPS), "[]");
    assert_eq!(browser.value(BAD_CHARTS), "[]");
    browser.value("document.querySelectorAll('details').forEach(d => d.open = false)");
}

/// Most pages of the printed report of the plan `quick`.
const PAGES_MAX: usize = 10;

#[test]
fn a_real_report_has_at_most_ten_pages_on_paper() {
    let (result, references) = real_run();
    let page = Page::of("paper", &result, &references);
    let mut browser = Browser::start("paper");
    browser.open(&page.0);
    let bytes = browser.pdf();
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.pdf"), &bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let n_pages = text.split("/Type /Page").skip(1).filter(|rest| !rest.starts_with('s')).count();
    assert!((1..=PAGES_MAX).contains(&n_pages), "{n_pages} pages");
}

#[test]
fn a_real_report_answers_on_its_first_screen_and_is_short() {
    let (result, references) = real_run();
    let page = Page::of("real", &result, &references);
    let mut browser = Browser::start("real");
    browser.window(1280, FIRST_SCREEN);
    browser.open(&page.0);
    check_no_messages(&browser, &page.0);
    browser.picture("real");
    let height = browser.value("document.documentElement.scrollHeight").as_u64().unwrap();
    assert!(height <= FOLDED_HEIGHT_MAX, "the folded page is {height} px tall");
    // Word, sentence, doubts and picture are inside the first screen, beside each other.
    let bottoms = browser.value(
        "['#verdict h2', '#verdict .sentence', '#verdict ul.doubts', 'svg#curves']
            .map(name => document.querySelector(name).getBoundingClientRect().bottom)",
    );
    for bottom in bottoms.as_array().unwrap() {
        assert!(bottom.as_f64().unwrap() <= f64::from(FIRST_SCREEN), "{bottoms}");
    }
    let title = browser.value("[document.title, document.querySelector('h1').textContent]");
    assert_eq!(title[1], nm_report::title::title(&result));
    assert!(title[0].as_str().unwrap().contains(title[1].as_str().unwrap()), "{title}");
    check_nothing_is_cut(&mut browser);

    browser.window(400, FIRST_SCREEN);
    check_nothing_is_cut(&mut browser);
    // Word and sentence need no scrolling on a telephone either, and the picture is its own.
    assert_eq!(
        browser.value(
            "document.querySelector('#verdict .sentence').getBoundingClientRect().bottom < 500
                && document.querySelector('svg#curves-narrow').checkVisibility()
                && !document.querySelector('svg#curves').checkVisibility()"
        ),
        true
    );
}

#[test]
fn hostile_texts_execute_nothing_in_a_browser() {
    let attack = "</script><img src=x onerror=console.error(1)><svg onload=console.error(2)>\"'";
    let file = std::env::temp_dir().join(format!("nm-page-{}-hostile.html", std::process::id()));
    let page = Page(file);
    std::fs::write(&page.0, nm_report::html::report(&fixture::hostile(attack), &[])).unwrap();
    let mut browser = Browser::start("hostile");
    browser.width(400);
    browser.open(&page.0);
    check_no_messages(&browser, &page.0);
    assert_eq!(browser.value("document.querySelectorAll('img, [onload], [onerror]').length"), 0);
    assert_eq!(browser.value(SIDEWAYS), 0);
}
