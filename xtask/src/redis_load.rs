//! An open load on a stream of Redis. Each request of a schedule is an `XADD`, sent at its time or
//! as soon as the connection takes it. It is answered when the server has stored it.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nm_sys::clock::monotonic_ns;

use crate::schedule::Request;

/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends all requests; of each the time from its intended send to its answer, ns. Ends early, with
/// the answers so far, if none comes for 10 s.
pub fn replay(port: u16, requests: &[Request]) -> Result<Vec<u64>> {
    let mut sender = TcpStream::connect(("127.0.0.1", port)).context("no connection to Redis")?;
    sender.set_nodelay(true)?;
    sender.write_all(b"*2\r\n$3\r\nDEL\r\n$6\r\norders\r\n")?;
    let mut answers = BufReader::with_capacity(1 << 16, sender.try_clone()?);
    answers.get_ref().set_read_timeout(Some(ANSWER_TIMEOUT))?;
    answers.read_line(&mut String::new())?;
    let begin_ns = monotonic_ns() + 10_000_000;
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(&sender, requests, begin_ns));
        let received = receive(&mut answers, requests, begin_ns);
        if received.as_ref().is_ok_and(|latencies_ns| latencies_ns.len() < requests.len()) {
            // A sender that waits for room in the connection would wait for ever.
            let _ = answers.get_ref().shutdown(Shutdown::Both);
            let _ = sending.join();
            return received;
        }
        sending.join().expect("the sender does not panic")?;
        received
    })
}

fn send(mut to: &TcpStream, requests: &[Request], begin_ns: u64) -> Result<()> {
    let payload = vec![b'x'; requests.iter().map(|one| one.size_bytes).max().unwrap_or(0) as usize];
    let mut batch = vec![];
    let mut rest = requests.iter().peekable();
    while let Some(next) = rest.peek() {
        let early_ns = (begin_ns + next.at_ns).saturating_sub(monotonic_ns());
        thread::sleep(Duration::from_nanos(early_ns));
        batch.clear();
        let now_ns = monotonic_ns();
        let is_due = |one: &&Request| begin_ns + one.at_ns <= now_ns;
        while let Some(one) = rest.next_if(is_due) {
            let size = one.size_bytes as usize;
            let head =
                format!("*5\r\n$4\r\nXADD\r\n$6\r\norders\r\n$1\r\n*\r\n$1\r\nm\r\n${size}\r\n");
            batch.extend_from_slice(head.as_bytes());
            batch.extend_from_slice(&payload[..size]);
            batch.extend_from_slice(b"\r\n");
        }
        to.write_all(&batch)?;
    }
    Ok(())
}

/// An answer is the length of the entry's name in a line, then the name in another one.
fn receive(from: &mut impl BufRead, requests: &[Request], begin_ns: u64) -> Result<Vec<u64>> {
    let mut latencies_ns = Vec::with_capacity(requests.len());
    let mut line = String::new();
    for request in requests {
        for sign in ['$', '1'] {
            line.clear();
            match from.read_line(&mut line) {
                Ok(0) | Err(_) => return Ok(latencies_ns),
                Ok(_) if line.starts_with(sign) => {}
                Ok(_) => bail!("Redis answers `{}`", line.trim_end()),
            }
        }
        latencies_ns.push(monotonic_ns().saturating_sub(begin_ns + request.at_ns));
    }
    Ok(latencies_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_until_they_end_and_errors_are_named() {
        let requests = [Request { at_ns: 0, size_bytes: 1 }; 3];
        let mut two = &b"$15\r\n1700000000000-0\r\n$15\r\n1700000000000-1\r\n$15\r\n"[..];
        assert_eq!(receive(&mut two, &requests, 0).unwrap().len(), 2);
        let mut error = &b"-MISCONF the disk is full\r\n"[..];
        let refused = receive(&mut error, &requests, 0).unwrap_err().to_string();
        assert_eq!(refused, "Redis answers `-MISCONF the disk is full`");
    }
}
