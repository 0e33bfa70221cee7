//! Makes a market on tokio, beside whatever else runs there; what it does is in `maker`.
//!
//! usage: `make_market_async SESSION INSTRUMENT STATE FILLS KEYS-OR-DASH GATEWAY...`
//! It ends after so many lots were filled, and prints a line for each event.
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod maker;

use std::error::Error;
use std::time::Duration;

use nm_client::AsyncClient;
use tokio::time::{sleep, timeout};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (settings, mut maker, fills) = maker::of_words()?;
    let mut client = AsyncClient::open(settings)?;
    while maker.filled < fills {
        tokio::select! {
            happened = client.next() => {
                let happened = happened?;
                maker.handle(&mut client, &happened)?;
            }
            // Whatever else the program waits for: no event is lost when this comes first.
            () = sleep(Duration::from_millis(20)) => {}
        }
        maker.quote(&mut client)?;
    }
    client.cancel_all(maker.instrument)?;
    while let Ok(happened) = timeout(Duration::from_millis(1500), client.next()).await {
        let happened = happened?;
        maker.handle(&mut client, &happened)?;
    }
    println!("filled {} links {}", maker.filled, client.links());
    Ok(())
}
