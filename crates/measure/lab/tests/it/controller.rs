//! What this program does when tests start it as a controller process.

use std::io::Write;

use nm_lab::environment::{self, Setup};

/// Starts an environment, prints the agents' process ids and waits to be killed.
pub fn hold_environment(kind: &str) {
    let environment = environment::start(kind.parse().unwrap(), &Setup::default()).unwrap();
    println!("{} {}", environment.pair.client.pid(), environment.pair.server.pid());
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// Starts an environment as an ordinary user and prints the result.
pub fn as_ordinary_user(kind: &str) {
    assert!(!rustix::process::geteuid().is_root());
    match environment::start(kind.parse().unwrap(), &Setup::default()) {
        Ok(mut environment) => {
            let links = |facts: nm_model::Facts| {
                facts.links.into_iter().map(|link| link.name).collect::<Vec<_>>().join(",")
            };
            println!(
                "started {} {}",
                links(environment.pair.client.describe().unwrap()),
                links(environment.pair.server.describe().unwrap())
            );
        }
        Err(failure) => println!("refused {failure}"),
    }
}
