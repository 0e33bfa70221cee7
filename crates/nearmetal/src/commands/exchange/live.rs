//! `nearmetal exchange top`: shows a running network again and again, with rates.
//!
//! On a terminal it draws the page anew each second until `q`; elsewhere, and with `--once`, it
//! prints one page. A page takes two looks, a second apart: one has no rates.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use jiff::Timestamp;
use nm_model::Failure;
use nm_operate::health::Trading;
use nm_operate::live::{Events, LiveView, NodeSight, Sight};
use nm_report::style::{self, Tone};
use rustix::termios::{self, OptionalActions, Termios};

use crate::campaign::interrupt;
use crate::cli::exchange::TopArgs;
use crate::exit::Exit;
use crate::output;

use super::status;

/// From one look to the next.
const INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait between two looks at Ctrl-C.
const WAIT: Duration = Duration::from_millis(100);

/// Latest events that are shown.
const EVENTS_SHOWN: usize = 10;

/// Instruments that are shown.
const INSTRUMENTS_SHOWN: usize = 10;

/// Another screen, without a cursor; and the one before.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Shows the network until `q`, or once.
pub fn run(args: &TopArgs) -> Result<Exit> {
    let network = status::network_of(&args.running, &args.credentials)?;
    let mut view = LiveView::new(&network);
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        view.look()?;
        thread::sleep(INTERVAL);
        let sight = view.look()?;
        let mut events = Events::default();
        note(&sight, &mut events);
        output::text(&page(&sight, &events))?;
        return Ok(status::exit(sight.trading));
    }
    show(view)
}

/// What is waited for.
enum Happened {
    Key(u8),
    Seen(Box<Result<Sight, Failure>>),
}

/// Draws each look until `q`, Ctrl-C or the end of the terminal; the exit code is that of the last.
fn show(mut view: LiveView) -> Result<Exit> {
    let interrupted = interrupt::flag()?;
    let (sender, happened) = channel();
    let keys = sender.clone();
    thread::spawn(move || read_keys(&keys));
    thread::spawn(move || {
        while sender.send(Happened::Seen(Box::new(view.look()))).is_ok() {
            thread::sleep(INTERVAL);
        }
    });
    let screen = Screen::enter()?;
    let (mut events, mut exit) = (Events::default(), Exit::Inconclusive);
    screen.draw("asking the nodes\n")?;
    while !interrupted.load(Ordering::Relaxed) {
        match happened.recv_timeout(WAIT) {
            // Ctrl-C and Ctrl-D come as bytes.
            Ok(Happened::Key(b'q' | b'Q' | 3 | 4)) => break,
            Ok(Happened::Key(_)) | Err(_) => {}
            Ok(Happened::Seen(seen)) => match *seen {
                Ok(sight) => {
                    note(&sight, &mut events);
                    exit = status::exit(sight.trading);
                    screen.draw(&page(&sight, &events))?;
                }
                Err(failure) => {
                    exit = Exit::Environment;
                    // A node may have written a part of it.
                    screen.draw(&format!("{}\n", style::clean(&failure.to_string())))?;
                }
            },
        }
    }
    Ok(exit)
}

/// Sends each key; the end of the terminal as Ctrl-D.
fn read_keys(to: &Sender<Happened>) {
    let mut key = [0];
    loop {
        let read = io::stdin().read(&mut key).unwrap_or(0);
        let byte = if read == 0 { 4 } else { key[0] };
        if to.send(Happened::Key(byte)).is_err() || read == 0 {
            return;
        }
    }
}

fn note(sight: &Sight, events: &mut Events) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    for (kind, sentence) in &sight.happened {
        events.add(now.as_millis() as u64, *kind, sentence);
    }
}

/// The terminal, which is as before when this is dropped.
struct Screen {
    before: Termios,
}

impl Screen {
    fn enter() -> Result<Screen> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // Lines begin at the left as before.
        raw.output_modes = before.output_modes;
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let screen = Screen { before };
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Draws as many lines as there is room for.
    fn draw(&self, text: &str) -> Result<()> {
        let rows = termios::tcgetwinsize(io::stdout()).map_or(24, |size| size.ws_row);
        let mut drawn = "\x1b[H".to_string();
        for line in text.lines().take(usize::from(rows).saturating_sub(1)) {
            // The rest of the line is cleared, and nothing wraps.
            let _ = writeln!(drawn, "\x1b[?7l{line}\x1b[0m\x1b[K");
        }
        self.write(&(drawn + "\x1b[Jq ends"))
    }

    fn write(&self, text: &str) -> Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.write(LEAVE);
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// The page, as text.
fn page(sight: &Sight, events: &Events) -> String {
    let style = output::style();
    let tone = match sight.trading {
        Trading::Healthy => Tone::Good,
        Trading::Degraded => Tone::Unsure,
        Trading::NotTrading => Tone::Bad,
    };
    let rate = number(sight.requests_per_s(), 0);
    let mut text =
        format!("{}   {rate} requests/s executed\n", style.tone(tone, sight.trading.words()));
    for sentence in sight.not_traded.iter().chain(&sight.waits) {
        let _ = writeln!(text, "  {}", style.tone(Tone::Bad, sentence));
    }
    let _ = writeln!(
        text,
        "\n{:<14}{:<16}{:>12}{:>8}{:>10}  latency of one way",
        "node", "state", "requests/s", "CPU %", "sessions"
    );
    for node in &sight.nodes {
        node_line(node, &mut text);
    }
    let _ = writeln!(text, "\n{:<14}{:<16}replicas", "cell", "leader");
    for cell in &sight.status.cells {
        let leader = cell.leader.map_or("nobody".to_string(), |it| format!("mediator {it}"));
        let _ = writeln!(text, "{:<14}{leader:<16}{}", cell.cell, cell.voters.join(", "));
    }
    let (executed, rate) = ("executed", "requests/s");
    let _ = writeln!(
        text,
        "\n{:<14}{:<6}{:<14}{executed:>12}{rate:>12}",
        "instrument", "cell", "owner"
    );
    for one in sight.instruments.iter().take(INSTRUMENTS_SHOWN) {
        let (owner, rate) = (format!("mediator {}", one.owner), number(one.requests_per_s, 0));
        let (instrument, cell, executed) = (one.instrument, one.cell, one.executed);
        let _ = writeln!(text, "{instrument:<14}{cell:<6}{owner:<14}{executed:>12}{rate:>12}");
    }
    let _ = writeln!(text, "\nmoves, leaders and faults");
    for event in events.iter().rev().take(EVENTS_SHOWN) {
        let at = Timestamp::from_millisecond(event.at_unix_ms as i64).unwrap_or_default();
        let _ = writeln!(text, "  {}  {}", at.strftime("%H:%M:%SZ"), event.sentence);
    }
    text
}

fn node_line(node: &NodeSight, text: &mut String) {
    let status = &node.status;
    let word = match (status.answers, status.is_up, status.is_drained) {
        (Some(false), ..) if status.is_gone => "not up",
        (Some(false), ..) => "does not answer",
        (_, false, _) => "not up",
        (_, true, true) => "up, drained",
        (_, true, false) => "up",
    };
    let tone = if status.works() { Tone::Good } else { Tone::Bad };
    let links: Vec<String> = node
        .links
        .iter()
        .map(|link| match link.latency_ns {
            0 => format!("{}: this host", link.peer),
            ns => format!("{}: {:.1} µs", link.peer, ns as f64 / 1e3),
        })
        .collect();
    let _ = writeln!(
        text,
        "{:<14}{}{:>12}{:>8}{:>10}  {}",
        status.id.to_string(),
        output::style().tone(tone, &format!("{word:<16}")),
        number(node.requests_per_s, 0),
        number(node.cpu_share.map(|share| share * 100.0), 1),
        number(node.sessions.map(f64::from), 0),
        links.join(", ")
    );
}

/// A figure, or a dash if nobody knows it.
fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_string(), |value| format!("{value:.digits$}"))
}
