//! The order book beside exchange-core's fastest one: both play the same commands, in turn, each in
//! its own process on the same CPU. The peer comes from Maven Central; its driver is
//! `xtask/peers/exchange-core`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, bail};

use crate::peer::{self, Peer};

/// What the peer is named in the tables.
const PEER: &str = "exchange-core 0.5.3, OrderBookDirectImpl";

/// Its folder in `xtask/peers`.
const NAME: &str = "exchange-core";

/// Its heap is there from the beginning, and nothing else runs beside it on its CPU.
const JAVA: &str = "java -XX:+UseSerialGC -Xms1g -Xmx1g -XX:+AlwaysPreTouch";

/// How many mixes the bench has.
const MIXES: usize = 2;

/// What a player answers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Played {
    ns: f64,
    commands: u64,
    trades: u64,
    traded: u64,
}

/// Lets a program play the commands once.
fn play(player: &mut Peer) -> Result<Played> {
    let line = player.ask()?;
    let words: Vec<&str> = line.split(' ').collect();
    let [ns, commands, trades, traded] = words[..] else { bail!("`{line}` is no answer") };
    Ok(Played {
        ns: ns.parse()?,
        commands: commands.parse()?,
        trades: trades.parse()?,
        traded: traded.parse()?,
    })
}

/// Plays all mixes in so many rounds; the tables.
pub fn compare(rounds: usize, commands: usize, cpu: usize) -> Result<String> {
    let folder = peer::prepare(NAME, "BookPeer")?;
    let mut text = format!(
        "\n# Beside {PEER}\n\nMade by `cargo xtask bench-book --peers --rounds {rounds} --commands \
         {commands}`: both books play the same commands in turn, in processes of their own on CPU \
         {cpu}; the first fifth is warm-up. The peer's JIT has 8 s to compile, its heap is touched \
         beforehand, its orders and nodes are pooled. Its orders are numbered densely; this \
         project's have random 64-bit ids. A ratio is that of one round.\n\n\
         | mix | trades | ns per command, median: this book | the peer | ratio, median | range | \
         goal 0.4 |\n|---|---|---|---|---|---|---|\n"
    );
    for mix in 0..MIXES {
        writeln!(text, "{}", row(mix, (rounds, commands, cpu), &folder)?)?;
    }
    Ok(text)
}

fn row(
    mix: usize,
    (rounds, commands, cpu): (usize, usize, usize),
    folder: &Path,
) -> Result<String> {
    let file = folder.join(format!("commands-{mix}"));
    let (file, jars, classes) = (file.display(), folder.join("jars"), folder.join("classes"));
    let own = format!(
        "taskset -c {cpu} cargo bench --locked -q -p nm-book --bench book -- --commands {commands} \
         --serve {mix} --file {file}"
    );
    let mut own = Peer::start(&own)?;
    let peer = format!(
        "taskset -c {cpu} {JAVA} -cp {}/*:{} BookPeer {file}",
        jars.display(),
        classes.display()
    );
    let mut peer = Peer::start(&peer)?;
    let (mut own_ns, mut peer_ns, mut ratios) = (vec![], vec![], vec![]);
    let mut trades = 0;
    for round in 0..rounds {
        let (of_own, of_peer) = if round % 2 == 0 {
            let first = play(&mut own)?;
            (first, play(&mut peer)?)
        } else {
            let first = play(&mut peer)?;
            (play(&mut own)?, first)
        };
        if (of_own.trades, of_own.traded) != (of_peer.trades, of_peer.traded) {
            bail!("the books do not trade the same: {of_own:?} and {of_peer:?}");
        }
        trades = of_own.trades;
        own_ns.push(of_own.ns / of_own.commands as f64);
        peer_ns.push(of_peer.ns / of_peer.commands as f64);
        ratios.push(of_own.ns / of_peer.ns);
    }
    let ratio = median(&mut ratios);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    Ok(format!(
        "| {} | {trades} | {:.1} | {:.1} | {ratio:.2} | {least:.2} to {most:.2} | {} |",
        own.title,
        median(&mut own_ns),
        median(&mut peer_ns),
        if most <= 0.4 { "met" } else { "**missed**" }
    ))
}

/// The median; sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_player_answers_each_line() {
        let program = concat!(
            r#"print("a","mix");print("ready");"#,
            r#"[print(5.5,4,7,9)for(_)in(__import__("sys").stdin)]"#
        );
        let mut player = Peer::start(&format!("python3 -u -c {program}")).unwrap();
        assert_eq!(
            play(&mut player).unwrap(),
            Played { ns: 5.5, commands: 4, trades: 7, traded: 9 }
        );
        assert_eq!((play(&mut player).unwrap().trades, player.title.as_str()), (7, "a mix"));
        assert!(Peer::start("true").is_err());
        assert!(Peer::start("/does/not/exist").is_err());
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }
}
