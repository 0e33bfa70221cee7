//! The cost of connections: a program of its own that does nothing but connect and accept, so that
//! it can be put under an accelerator.

use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, bail};
use nm_sys::clock::Moment;

/// Connections made before the clock starts.
const WARM_UP: u32 = 100;

/// Connects to itself, accepts and closes both ends, COUNT times; prints the time of one, ns. It is
/// one thread, so that the time is that of the calls, without a wake-up.
pub fn run(args: &[String]) -> Result<()> {
    let [count] = args else { bail!("usage: xtask connect COUNT") };
    let count: u32 = count.parse().context("COUNT is no number")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let connect = |times: u32| -> Result<()> {
        for _ in 0..times {
            let own = TcpStream::connect(address)?;
            let (other, _) = listener.accept()?;
            // This end first, so that the port of the listener gathers no connections in TIME_WAIT.
            drop(own);
            drop(other);
        }
        Ok(())
    };
    connect(WARM_UP)?;
    let begin = Moment::now();
    connect(count)?;
    println!("{:.0}", begin.elapsed().as_nanos() as f64 / f64::from(count));
    Ok(())
}
