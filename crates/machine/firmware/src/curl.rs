//! A controller that `curl` asks. What is secret goes to its standard input: neither the list of
//! processes nor a file has it.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use nm_model::limits;
use serde_json::Value;

use crate::controller::{Answer, Controller};
use crate::error::FirmwareError;

/// Time to connect, s.
const CONNECT_S_MAX: u64 = 10;

/// Longest head of an answer, bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Longest text of a program's error that is repeated, characters.
const REASON_CHARS_MAX: usize = 200;

/// Codes of `curl` for certificates and keys that are not trusted.
const CERTIFICATE_CODES: [i32; 4] = [51, 60, 77, 90];

/// Longest name and longest password, bytes.
const LOGIN_BYTES_MAX: usize = 256;

/// Where a controller answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(String);

/// Why a text is no place of a controller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It is neither a host nor an address.
    #[error("`{0}` is no management controller; write a host or https://host:port")]
    Malformed(String),
    /// The login would be readable on the way.
    #[error("`{0}` is not encrypted, which is taken for 127.0.0.1, [::1] and localhost only")]
    Plain(String),
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Place, PlaceError> {
        let malformed = || PlaceError::Malformed(text.to_string());
        let (scheme, rest) = text.split_once("://").unwrap_or(("https", text));
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let is_sign = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
        if rest.is_empty()
            || rest.len() > 300
            || rest.starts_with('-')
            || !rest.chars().all(is_sign)
        {
            return Err(malformed());
        }
        match scheme {
            "https" => {}
            "http" if is_here(rest) => {}
            "http" => return Err(PlaceError::Plain(text.to_string())),
            _ => return Err(malformed()),
        }
        let bare_v6 = rest.parse::<std::net::Ipv6Addr>().is_ok();
        let host = if bare_v6 { format!("[{rest}]") } else { rest.to_string() };
        Ok(Place(format!("{scheme}://{host}")))
    }
}

/// Whether a host with or without a port is this machine by its name.
fn is_here(rest: &str) -> bool {
    let host = match rest.strip_prefix('[') {
        Some(inner) => inner.split(']').next().unwrap_or_default(),
        None => rest.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.split_once("://").map_or(&self.0, |(_, host)| host))
    }
}

/// A user of the controller.
#[derive(Clone, PartialEq, Eq)]
pub struct Login(String);

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login")
    }
}

/// Why a text is no login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it must have one line `user:password`, each of 1 to {LOGIN_BYTES_MAX} bytes without control \
     characters"
)]
pub struct LoginError;

impl FromStr for Login {
    type Err = LoginError;

    fn from_str(text: &str) -> Result<Login, LoginError> {
        let line = text.strip_suffix('\n').unwrap_or(text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        let (user, password) = line.split_once(':').ok_or(LoginError)?;
        let is_fit = |part: &str| (1..=LOGIN_BYTES_MAX).contains(&part.len());
        match is_fit(user) && is_fit(password) && !line.chars().any(char::is_control) {
            true => Ok(Login(line.to_string())),
            false => Err(LoginError),
        }
    }
}

/// Whose certificates are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// Those that this machine trusts.
    Machine,
    /// Those of the authorities in this file.
    Authority(String),
    /// One key, by its SHA-256 sum in base64.
    Key(String),
}

/// A controller that `curl` asks.
#[derive(Debug)]
pub struct Curl {
    place: Place,
    login: Option<Login>,
    trust: Trust,
}

impl Curl {
    /// The controller at a place. Nothing is asked yet.
    pub fn new(place: Place, login: Option<Login>, trust: Trust) -> Curl {
        Curl { place, login, trust }
    }

    /// What `curl` is to do.
    fn configuration(&self, path: &str, change: Option<(Option<&str>, &Value)>) -> String {
        let mut text = format!(
            "url = {}\nsilent\nshow-error\ninclude\ngloboff\nnoproxy = \"*\"\n\
             proto = \"=http,https\"\nconnect-timeout = {CONNECT_S_MAX}\nmax-time = {}\n\
             max-filesize = {}\nheader = \"Accept: application/json\"\n\
             header = \"OData-Version: 4.0\"\nheader = \"Expect:\"\n",
            quoted(&format!("{}{path}", self.place.0)),
            limits::FIRMWARE_ANSWER_S_MAX,
            limits::FIRMWARE_ANSWER_BYTES_MAX,
        );
        if let Some(Login(login)) = &self.login {
            text += &format!("user = {}\nbasic\n", quoted(login));
        }
        match &self.trust {
            Trust::Machine => {}
            Trust::Authority(file) => text += &format!("cacert = {}\n", quoted(file)),
            // The key is compared although nobody vouches for it.
            Trust::Key(sum) => {
                text += &format!("insecure\npinnedpubkey = {}\n", quoted(&format!("sha256//{sum}")))
            }
        }
        if let Some((etag, body)) = change {
            text += "request = \"PATCH\"\nheader = \"Content-Type: application/json\"\n";
            if let Some(etag) = etag {
                text += &format!("header = {}\n", quoted(&format!("If-Match: {etag}")));
            }
            text += &format!("data-raw = {}\n", quoted(&body.to_string()));
        }
        text
    }

    fn ask(
        &self,
        path: &str,
        change: Option<(Option<&str>, &Value)>,
    ) -> Result<Answer, FirmwareError> {
        let (output, errors, code) =
            run(&self.configuration(path, change)).map_err(FirmwareError::NoCurl)?;
        if code != Some(0) {
            return Err(self.failure(&errors, code, change.is_some()));
        }
        answer(&output).ok_or_else(|| FirmwareError::Document {
            path: path.to_string(),
            what: "it is no answer of HTTP".to_string(),
        })
    }

    fn failure(&self, errors: &str, code: Option<i32>, is_change: bool) -> FirmwareError {
        let host = self.place.to_string();
        let reason = match reason(errors) {
            text if text.is_empty() => "curl was ended".to_string(),
            text => text,
        };
        match code {
            Some(code) if CERTIFICATE_CODES.contains(&code) => {
                FirmwareError::Certificate { host, reason }
            }
            // Those that end before anything is sent.
            Some(5..=7) => FirmwareError::Unreachable { host, reason },
            _ if is_change => FirmwareError::Unknown { host, reason },
            _ => FirmwareError::Unreachable { host, reason },
        }
    }
}

impl Controller for Curl {
    fn get(&mut self, path: &str) -> Result<Answer, FirmwareError> {
        self.ask(path, None)
    }

    fn patch(
        &mut self,
        path: &str,
        etag: Option<&str>,
        body: &Value,
    ) -> Result<Answer, FirmwareError> {
        self.ask(path, Some((etag, body)))
    }
}

/// Ends and collects the child, whatever happens.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `curl` with a configuration: what it wrote, as far as that is read, and its exit code.
fn run(configuration: &str) -> io::Result<(Vec<u8>, String, Option<i32>)> {
    let mut command = Command::new("curl");
    // The first word: without the user's own configuration.
    command.args(["--disable", "--config", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Guard(command.spawn()?);
    let mut input = child.0.stdin.take().expect("piped");
    let wanted = configuration.to_string();
    // All of it is read before anything is written, and errors are a line.
    let _ = input.write_all(wanted.as_bytes());
    drop(input);
    let max = (limits::FIRMWARE_ANSWER_BYTES_MAX + HEAD_BYTES_MAX) as u64;
    let mut output = vec![];
    child.0.stdout.take().expect("piped").take(max).read_to_end(&mut output)?;
    if output.len() as u64 == max {
        return Ok((output, "the answer is too long".to_string(), None));
    }
    let mut errors = vec![];
    child.0.stderr.take().expect("piped").take(max).read_to_end(&mut errors)?;
    let code = child.0.wait()?.code();
    Ok((output, String::from_utf8_lossy(&errors).into_owned(), code))
}

/// The last line of errors, without what names `curl`.
fn reason(errors: &str) -> String {
    let line = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let line = line.strip_prefix("curl: ").unwrap_or(line);
    let line = line.split_once(") ").map_or(line, |(_, text)| text);
    line.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect()
}

/// A value of a configuration file of `curl`.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for sign in text.chars() {
        match sign {
            '"' | '\\' => quoted.extend(['\\', sign]),
            '\n' => quoted += "\\n",
            '\r' => quoted += "\\r",
            '\t' => quoted += "\\t",
            _ => quoted.push(sign),
        }
    }
    quoted + "\""
}

/// Head and body of an answer; interim heads before it are left out.
fn answer(bytes: &[u8]) -> Option<Answer> {
    let mut rest = bytes;
    loop {
        let end = rest.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (head, body) = (std::str::from_utf8(&rest[..end]).ok()?, &rest[end + 4..]);
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        words.next().filter(|word| word.starts_with("HTTP/"))?;
        let status: u16 = words.next()?.parse().ok()?;
        if (100..200).contains(&status) {
            rest = body;
            continue;
        }
        let etag = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("etag").then(|| value.trim().to_string())
        });
        return Some(Answer { status, etag, body: body.to_vec() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_sent_encrypted_or_not_beyond_this_machine() {
        let place = |text: &str| text.parse::<Place>().map(|place| place.0);
        assert_eq!(place("bmc7"), Ok("https://bmc7".to_string()));
        assert_eq!(place("https://10.0.0.7:8443/"), Ok("https://10.0.0.7:8443".to_string()));
        assert_eq!(place("fd00::7"), Ok("https://[fd00::7]".to_string()));
        assert_eq!(place("http://127.0.0.1:80"), Ok("http://127.0.0.1:80".to_string()));
        assert_eq!(place("http://[::1]:80"), Ok("http://[::1]:80".to_string()));
        for text in ["http://bmc7", "http://127.0.0.1.example.org", "http://10.0.0.7"] {
            assert_eq!(place(text), Err(PlaceError::Plain(text.to_string())));
        }
        for text in ["", "-k", "ftp://a", "https://a/b", "https://u:p@a", "a b", "a\"b", "a\nb"] {
            assert_eq!(place(text), Err(PlaceError::Malformed(text.to_string())), "{text}");
        }
    }

    #[test]
    fn a_request_has_limits_and_its_login_is_one_line_that_is_never_shown() {
        let login: Login = "root:pa\"ss\\wo:rd\n".parse().unwrap();
        assert_eq!(format!("{login:?}"), "Login");
        let curl = Curl::new("bmc".parse().unwrap(), Some(login), Trust::Machine);
        let text = curl.configuration("/redfish/v1", None);
        for limit in ["max-time = 30\n", "connect-timeout = 10\n", "max-filesize = 4194304\n"] {
            assert!(text.contains(limit), "{text}");
        }
        assert!(text.contains("user = \"root:pa\\\"ss\\\\wo:rd\"\n"), "{text}");
        for text in ["", "root", ":x", "root:", "root:a\nurl = b", "root:a\tb"] {
            assert_eq!(text.parse::<Login>(), Err(LoginError), "{text:?}");
        }
        assert!(format!("a:{}", "b".repeat(LOGIN_BYTES_MAX + 1)).parse::<Login>().is_err());
    }

    #[test]
    fn an_answer_is_what_follows_the_last_head() {
        let bytes =
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\neTag: W/\"7\"\r\n\r\n{}\r\n\r\n";
        let wanted =
            Answer { status: 200, etag: Some("W/\"7\"".to_string()), body: b"{}\r\n\r\n".to_vec() };
        assert_eq!(answer(bytes), Some(wanted));
        for cut in [&bytes[..40], b"", b"HTTP/1.1\r\n\r\n", b"220 ready\r\n\r\n"] {
            assert_eq!(answer(cut), None);
        }
    }

    #[test]
    fn a_reason_is_one_line_without_the_program() {
        let text = "\ncurl: (7) Failed to connect to bmc port 443: \x1b[31mrefused\n\n";
        assert_eq!(reason(text), "Failed to connect to bmc port 443: [31mrefused");
        assert_eq!(reason(""), "");
    }
}
