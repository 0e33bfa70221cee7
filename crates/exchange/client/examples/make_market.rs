//! Makes a market in a thread that waits; what it does is in `maker`.
//!
//! usage: `make_market SESSION INSTRUMENT STATE FILLS KEYS-OR-DASH GATEWAY...`
//! It ends after so many lots were filled, and prints a line for each event.
#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod maker;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use maker::Maker;
use nm_client::{Client, Credentials, Settings};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [session, instrument, state, fills, keys, gateways @ ..] = &words[..] else {
        return Err("SESSION INSTRUMENT STATE FILLS KEYS-OR-DASH GATEWAY... are needed".into());
    };
    let gateways = gateways.iter().map(|it| it.parse()).collect::<Result<_, _>>()?;
    let mut client = Client::open(Settings {
        credentials: if keys == "-" { None } else { Some(Credentials::read(keys.as_ref())?) },
        state: Some(PathBuf::from(state)),
        ..Settings::new(gateways, session.parse()?)
    })?;
    let (instrument, fills) = (instrument.parse()?, fills.parse::<u64>()?);
    let mut maker = Maker { instrument, position: 0, filled: 0 };
    while maker.filled < fills {
        let happened = client.next(Duration::from_millis(200))?;
        happened.iter().try_for_each(|it| maker.handle(&mut client, it))?;
        maker.quote(&mut client)?;
    }
    client.cancel_all(instrument)?;
    while let Some(happened) = client.next(Duration::from_millis(1500))? {
        maker.handle(&mut client, &happened)?;
    }
    println!("filled {} links {}", maker.filled, client.links());
    Ok(())
}
