//! `nearmetal exchange top-of-book`: show the conflated feed of best prices.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use nm_feed::consume;
use nm_feed::mold::Packet;
use nm_feed::top::{Best, Top};
use nm_sys::clock::Deadline;

use crate::campaign::interrupt;
use crate::cli::exchange::TopOfBookArgs;
use crate::exit::{Exit, Stop};
use crate::output;

use super::feed::{consume_exit, price_text};

/// How long a datagram is waited for before the end is looked for.
const WAIT: Duration = Duration::from_millis(100);

/// Shows each message in a line until Ctrl-C, or for a time.
pub fn show(args: &TopOfBookArgs) -> Result<Exit> {
    let TopOfBookArgs { line, interface, seconds } = args;
    let interrupted = interrupt::flag()?;
    let any: IpAddr = match line {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = consume::listen(*line, interface.unwrap_or(any))
        .map_err(|error| Stop::with(consume_exit(&error), error.to_string()))?;
    socket.set_read_timeout(Some(WAIT))?;
    let deadline = seconds.map(|seconds| Deadline::after(Duration::from_secs(seconds)));
    let (mut bytes, mut shown) = (vec![0; 1 << 16], 0_u64);
    while !interrupted.load(Ordering::Relaxed) && deadline.is_none_or(|deadline| !deadline.passed())
    {
        let length = match socket.recv(&mut bytes) {
            Ok(length) => length,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let Ok(packet) = Packet::read(&bytes[..length]) else { continue };
        let tops = packet.messages().filter_map(|(_, message)| Top::read(message));
        let text: String = tops.map(|top| line_of(&top)).collect();
        shown += text.lines().count() as u64;
        output::data(&text)?;
    }
    Ok(if shown > 0 { Exit::Pass } else { Exit::Fail })
}

fn line_of(top: &Top) -> String {
    let side = |best: Best| match best {
        Some((price, shares)) => format!("{shares} at {}", price_text(price)),
        None => "none".to_string(),
    };
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{} {}: bid {}, offer {}, last {}, volume {}",
        String::from_utf8_lossy(&top.stock).trim_end(),
        char::from(top.state),
        side(top.bid),
        side(top.offer),
        side(top.last),
        top.volume
    );
    text
}
