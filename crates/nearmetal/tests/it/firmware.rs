//! `firmware` and `audit --bmc`, as a user runs them: a controller answers by HTTP.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::{Run, run_in};

const SETTINGS: &str = "/redfish/v1/Systems/Self/Bios/Pending";

/// `root:calvin`.
const LOGIN: &str = "Basic cm9vdDpjYWx2aW4=";

/// What a controller knows.
struct State {
    in_force: BTreeMap<String, Value>,
    waiting: BTreeMap<String, Value>,
    version: u32,
}

/// A controller that asks for a login and counts the versions of its list of settings.
#[derive(Clone)]
struct Controller {
    state: Arc<Mutex<State>>,
    address: String,
}

impl Controller {
    fn start(in_force: &[(&str, Value)]) -> Controller {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let in_force = in_force.iter().map(|(name, value)| (name.to_string(), value.clone()));
        let state = State { in_force: in_force.collect(), waiting: BTreeMap::new(), version: 1 };
        let controller = Controller { state: Arc::new(Mutex::new(state)), address };
        let own = controller.clone();
        std::thread::spawn(move || {
            listener.incoming().flatten().for_each(|stream| own.answer(stream));
        });
        controller
    }

    fn answer(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = vec![];
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) <= 2 {
                break;
            }
            head.push(line.trim_end().to_string());
        }
        let Some(first) = head.first().cloned() else { return };
        let field = |name: &str| {
            let found = head.iter().find_map(|line| {
                let (one, value) = line.split_once(": ")?;
                one.eq_ignore_ascii_case(name).then(|| value.to_string())
            });
            found.unwrap_or_default()
        };
        let mut body = vec![0; field("content-length").parse().unwrap_or(0)];
        reader.read_exact(&mut body).unwrap();
        let path = first.split(' ').nth(1).unwrap().to_string();
        let (status, etag, document) = match field("authorization") == LOGIN {
            false if path != "/redfish/v1" => (401, 0, json!({})),
            _ if first.starts_with("PATCH") => self.patch(&path, &field("if-match"), &body),
            _ => self.document(&path),
        };
        let text = document.to_string();
        let head = format!(
            "HTTP/1.1 {status} X\r\nETag: \"{etag}\"\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            text.len()
        );
        let _ = stream.write_all((head + &text).as_bytes());
    }

    fn document(&self, path: &str) -> (u16, u32, Value) {
        let state = self.state.lock().unwrap();
        let at = |path: &str| json!({ "@odata.id": path });
        let document = match path {
            "/redfish/v1" => json!({ "Systems": at("/redfish/v1/Systems") }),
            "/redfish/v1/Systems" => json!({ "Members": [at("/redfish/v1/Systems/Self")] }),
            "/redfish/v1/Systems/Self" => json!({
                "Manufacturer": "Maker", "Model": "Server 7", "BiosVersion": "2.1",
                "Bios": at("/redfish/v1/Systems/Self/Bios"),
            }),
            "/redfish/v1/Systems/Self/Bios" => json!({
                "Attributes": state.in_force,
                "@Redfish.Settings": { "SettingsObject": at(SETTINGS) },
            }),
            SETTINGS => json!({ "Attributes": state.waiting }),
            _ => return (404, 0, json!({})),
        };
        (200, state.version, document)
    }

    fn patch(&self, path: &str, etag: &str, body: &[u8]) -> (u16, u32, Value) {
        let mut state = self.state.lock().unwrap();
        let body: Value = serde_json::from_slice(body).unwrap();
        let attributes = body["Attributes"].as_object().unwrap();
        if path != SETTINGS {
            return (405, 0, json!({}));
        }
        if etag != format!("\"{}\"", state.version) {
            return (412, 0, json!({}));
        }
        if let Some((name, _)) = attributes.iter().find(|(_, value)| *value == "Nonsense") {
            let message = format!("{name} does not take that value.");
            let info = json!({ "error": { "@Message.ExtendedInfo": [{ "Message": message }] } });
            return (400, 0, info);
        }
        state.version += 1;
        state.waiting.extend(attributes.clone());
        (204, state.version, json!({}))
    }

    /// What waited is in force.
    fn restart(&self) {
        let mut state = self.state.lock().unwrap();
        let waiting = std::mem::take(&mut state.waiting);
        state.in_force.extend(waiting);
    }
}

/// A folder with a login that only its owner can read.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let login = folder.path().join("login");
    fs::write(&login, "root:calvin\n").unwrap();
    fs::set_permissions(&login, fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

fn ask(folder: &Path, controller: &str, words: &[&str]) -> Run {
    let access = ["--bmc", controller, "--bmc-login", "login"];
    run_in(folder, &[words, &access].concat())
}

#[test]
fn settings_are_staged_shown_judged_and_taken_back() {
    let controller = Controller::start(&[
        ("SysProfile", json!("PerfPerWattOptimizedOs")),
        ("ProcCStates", json!("Disabled")),
        ("NumaNodesPerSocket", json!(1)),
        ("AssetTag", json!("owner 7")),
    ]);
    let folder = folder();
    let ask = |words: &[&str]| ask(folder.path(), &controller.address, words);
    let shown = ask(&["firmware", "show"]);
    assert_eq!(shown.code, 0, "{shown:?}");
    for line in [
        "Maker Server 7, firmware 2.1, unknown\n",
        "  power profile of the firmware: SysProfile = PerfPerWattOptimizedOs\n",
        "  4 settings in all",
        "no setting waits for a restart\n",
    ] {
        assert!(shown.stdout.contains(line), "{}", shown.stdout);
    }
    fs::write(folder.path().join("wanted"), "SysProfile = \"PerfOptimized\"\n").unwrap();
    let against = ["firmware", "show", "--wanted", "wanted"];
    let differing = ask(&against);
    assert_eq!(differing.code, 1, "{differing:?}");
    let line = "differs: SysProfile = PerfPerWattOptimizedOs, wanted PerfOptimized\n";
    assert!(differing.stdout.contains(line), "{}", differing.stdout);

    let stage = ["firmware", "stage", "SysProfile=PerfOptimized", "NumaNodesPerSocket=4"];
    let staged = ask(&[&stage[..], &["--undo-file", "before"]].concat());
    assert_eq!(staged.code, 0, "{staged:?}");
    let line = "SysProfile: PerfPerWattOptimizedOs → PerfOptimized, after the next restart";
    assert!(staged.stdout.contains(line), "{}", staged.stdout);
    assert_eq!(controller.state.lock().unwrap().waiting["NumaNodesPerSocket"], 4);
    // The file of the way back is never replaced, and nothing is changed without one.
    let again = ask(&["firmware", "stage", "ProcCStates=Enabled", "--undo-file", "before"]);
    assert_ne!(again.code, 0, "{again:?}");
    assert_eq!(controller.state.lock().unwrap().version, 2);

    let audit = ask(&["audit", "--interval", "0", "--format", "json", "--save", "host.json"]);
    assert_eq!(audit.code, 0, "{audit:?}");
    let audit: Value = serde_json::from_str(&audit.stdout).unwrap();
    let finding = |id: &str| {
        let findings = audit["findings"].as_array().unwrap();
        let found = findings.iter().find(|one| one["id"] == id).unwrap();
        (found["status"].as_str().unwrap().to_string(), found["summary"].clone())
    };
    let wanted = ("fail".to_string(), json!("SysProfile = PerfPerWattOptimizedOs"));
    assert_eq!(finding("firmware.profile"), wanted);
    assert_eq!(finding("firmware.idle").0, "pass");
    assert!(finding("firmware.waiting").1.as_str().unwrap().starts_with("2 settings wait"));
    let snapshot = fs::read_to_string(folder.path().join("host.json")).unwrap();
    assert!(snapshot.contains("ProcCStates") && !snapshot.contains("owner 7"));

    controller.restart();
    assert_eq!(ask(&against).code, 0);
    let undone = ask(&["firmware", "undo", "before"]);
    assert_eq!(undone.code, 0, "{undone:?}");
    controller.restart();
    let now = controller.state.lock().unwrap().in_force.clone();
    assert_eq!(now["SysProfile"], "PerfPerWattOptimizedOs");
    assert_eq!(now["NumaNodesPerSocket"], 1);
    let again = ask(&["firmware", "undo", "before"]);
    let line = "NumaNodesPerSocket: 1 → 1, as it is now\n";
    assert!(again.code == 0 && again.stdout.contains(line), "{again:?}");
}

#[test]
fn what_a_controller_or_its_user_does_wrong_is_one_sentence() {
    let controller = Controller::start(&[("Turbo", json!("Enabled"))]);
    let folder = folder();
    let (place, at) = (controller.address.as_str(), folder.path());
    let check = |run: Run, code: i32, words: &str| {
        assert_eq!(run.code, code, "{run:?}");
        assert!(run.stderr.contains(words) && run.stderr.trim().lines().count() == 1, "{run:?}");
    };
    let show = ["firmware", "show"];
    let nobody = run_in(at, &[&show[..], &["--bmc", place]].concat());
    check(nobody, 2, "refuses the login for /redfish/v1/Systems (status 401)");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    check(ask(at, &format!("http://{closed}"), &show), 4, "gives no usable answer");
    check(ask(at, "http://192.0.2.1", &show), 2, "is not encrypted");
    let stage = |words: &[&str], file: &str| {
        let head = ["firmware", "stage", "--undo-file", file];
        ask(at, place, &[&head[..], words].concat())
    };
    check(stage(&["turbo=Disabled"], "a"), 2, "no setting `turbo`; did you mean `Turbo`?");
    assert!(!at.join("a").exists());
    check(stage(&["Turbo=Nonsense"], "b"), 4, "status 400: Turbo does not take that value.");
    assert!(!at.join("b").exists(), "nothing was changed, so there is nothing to undo");
    check(stage(&["Turbo"], "c"), 2, "`Turbo` is no NAME=VALUE");
    fs::write(at.join("other"), "{}").unwrap();
    for words in
        [&["audit", "--bmc-login", "login"][..], &["audit", "--snapshot", "a", "--bmc", "b"]]
    {
        assert_eq!(run_in(at, words).code, 2, "{words:?}");
    }
    check(ask(at, place, &["firmware", "undo", "other"]), 2, "is no file of `firmware stage`");
    fs::set_permissions(at.join("login"), fs::Permissions::from_mode(0o644)).unwrap();
    check(ask(at, place, &show), 2, "chmod");
    // The secret is on no command line and in no message.
    fs::set_permissions(at.join("login"), fs::Permissions::from_mode(0o600)).unwrap();
    let shown = ask(at, place, &show);
    assert!(!format!("{shown:?}").contains("calvin"));
}

/// A controller that never ends its answer, and one that closes without any.
#[test]
fn an_endless_answer_and_none_at_all_are_ended() {
    let folder = folder();
    let check = |answer: fn(TcpStream), words: &str| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
        let run = ask(folder.path(), &place, &["firmware", "show"]);
        assert_eq!(run.code, 4, "{run:?}");
        assert!(run.stderr.contains(words), "{run:?}");
    };
    let endless = |mut stream: TcpStream| {
        let mut bytes = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        while stream.write_all(&bytes).is_ok() {
            bytes = vec![b' '; 1 << 16];
        }
    };
    check(endless, "gives no usable answer");
    check(drop, "gives no usable answer");
    let other = |mut stream: TcpStream| drop(stream.write_all(b"220 smtp ready\r\n\r\n"));
    check(other, "gives no usable answer");
}

/// A key that nobody has signed is taken by its sum only.
#[test]
fn a_certificate_is_trusted_by_its_authority_or_its_key() {
    let folder = folder();
    let at = folder.path();
    let shell = |script: &str| {
        let output = Command::new("sh").current_dir(at).args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_string()
    };
    shell(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
         -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout key -out certificate",
    );
    let sum = shell(
        "openssl x509 -in certificate -noout -pubkey | openssl pkey -pubin -outform der | \
         openssl dgst -sha256 -binary | openssl base64",
    );
    let mut server = Command::new("python3")
        .current_dir(at)
        .args(["-c", HTTPS])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let place = format!("localhost:{}", port.trim());
    let show = |words: &[&str]| ask(at, &place, &[&["firmware", "show"], words].concat());
    let refused = show(&[]);
    let (pinned, signed) = (show(&["--bmc-pin", &sum]), show(&["--bmc-ca", "certificate"]));
    let other = show(&["--bmc-pin", &format!("A{}", &sum[1..])]);
    server.kill().unwrap();
    server.wait().unwrap();
    for trusted in [pinned, signed] {
        assert!(trusted.stderr.contains("there is no Redfish service"), "{trusted:?}");
    }
    for refused in [refused, other] {
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains("is not trusted"), "{refused:?}");
    }
}

/// A server of files, which has no Redfish service.
const HTTPS: &str = "
import http.server, ssl
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain('certificate', 'key')
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
";
