//! The report in a real browser. `SCREENSHOTS=DIR` keeps pictures of it in light, dark, narrow and
//! print.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use nm_model::RunResult;
pub use nm_test_support::browser::Browser;
use nm_test_support::browser::{CUT, SIDEWAYS};

use crate::fixture::{self, LARGE, SMALL};
use crate::golden;

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
        browser.events().iter().filter(move |e| e["method"] == method)
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

/// Boxes that scroll sideways and do not say so.
const SCROLLS: &str = "JSON.stringify([...document.querySelectorAll('.scroll, section')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .filter(e => getComputedStyle(e, '::before').content == 'none')
    .map(e => e.scrollWidth + '>' + e.clientWidth + ' ' + (e.getAttribute('aria-label') || e.id)))";

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
    browser.open_file(&page.0);
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
    browser.open_file(&page.0);
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
    browser.open_file(&page.0);
    assert!(walk_by_tabs(&mut browser) > 20);
    // Everything that is folded is reached once it is open.
    browser.open_file(&page.0);
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
    browser.open_file(&page.0);
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
    browser.open_file(&page.0);
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
    browser.open_file(&page.0);
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
    browser.open_file(&page.0);
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
    browser.open_file(&page.0);
    check_no_messages(&browser, &page.0);
    assert_eq!(browser.value("document.querySelectorAll('img, [onload], [onerror]').length"), 0);
    assert_eq!(browser.value(SIDEWAYS), 0);
}
