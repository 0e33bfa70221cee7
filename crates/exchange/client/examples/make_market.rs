//! Makes a market in a thread that waits; what it does is in `maker`.
//!
//! usage: `make_market SESSION INSTRUMENT STATE FILLS KEYS-OR-DASH GATEWAY...`
//! It ends after so many lots were filled, and prints a line for each event.
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod maker;

use std::error::Error;
use std::time::Duration;

use nm_client::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let (settings, mut maker, fills) = maker::of_words()?;
    let mut client = Client::open(settings)?;
    while maker.filled < fills {
        let happened = client.next(Duration::from_millis(200))?;
        happened.iter().try_for_each(|it| maker.handle(&mut client, it))?;
        maker.quote(&mut client)?;
    }
    client.cancel_all(maker.instrument)?;
    while let Some(happened) = client.next(Duration::from_millis(1500))? {
        maker.handle(&mut client, &happened)?;
    }
    println!("filled {} links {}", maker.filled, client.links());
    Ok(())
}
