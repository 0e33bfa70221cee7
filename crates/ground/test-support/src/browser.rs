//! A real browser: headless Chromium, driven over its debugging pipe.
//!
//! `SCREENSHOTS=DIR` keeps pictures of pages.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};

/// How far the page reaches beyond the window, px.
pub const SIDEWAYS: &str =
    "document.documentElement.scrollWidth - document.documentElement.clientWidth";

/// Elements that hide a part of their text.
pub const CUT: &str = "JSON.stringify([...document.querySelectorAll('body *')].filter(e =>
    e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1
    && !['visible', 'auto', 'scroll'].includes(getComputedStyle(e).overflowX)
).map(e => e.tagName + ' ' + e.className + ': ' + e.textContent.slice(0, 60)))";

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
    /// One of its own, with a profile that goes with it.
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
    pub fn call(&mut self, method: &str, params: Value) -> Value {
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
    pub fn open_file(&mut self, file: &Path) {
        self.open(&format!("file://{}", file.display()));
    }

    /// Opens a page and waits until it is loaded.
    pub fn open(&mut self, url: &str) {
        self.events.clear();
        self.call("Page.navigate", json!({"url": url}));
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

    /// Makes the window as wide as this, px.
    pub fn width(&mut self, width: u32) {
        self.window(width, 900);
    }

    /// Makes the window as large as this, px.
    pub fn window(&mut self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Opens everything that is folded.
    pub fn unfold(&mut self) {
        self.value("document.querySelectorAll('details').forEach(d => d.open = true)");
    }

    /// Shows the page on this medium in `light` or `dark`.
    pub fn media(&mut self, media: &str, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"media": media, "features": features}));
    }

    /// Presses the tab key.
    pub fn tab(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            let key =
                json!({"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9});
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    /// Presses the key of a character.
    pub fn press(&mut self, character: char) {
        let text = character.to_string();
        let down = json!({"type": "keyDown", "key": text, "text": text});
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", json!({"type": "keyUp", "key": text}));
    }

    /// What the browser has reported since the page was opened, as far as it was read.
    pub fn events(&self) -> &[Value] {
        &self.events
    }

    /// Keeps pictures of the entire page, screen by screen, where they are wanted.
    pub fn picture(&mut self, name: &str) {
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
    pub fn screenshot(&mut self, part: (u64, u64, u64), file: &Path) {
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
    pub fn pdf(&mut self) -> Vec<u8> {
        let a4 = json!({"printBackground": true, "paperWidth": 8.27, "paperHeight": 11.69});
        self.data("Page.printToPDF", a4)
    }

    fn data(&mut self, method: &str, params: Value) -> Vec<u8> {
        let answer = self.call(method, params);
        let data = answer["data"].as_str().unwrap();
        base64::engine::general_purpose::STANDARD.decode(data).unwrap()
    }
}

/// Writes a picture, in a folder that is made for it.
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
