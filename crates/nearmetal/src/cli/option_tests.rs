//! An option of one name means one thing in all commands.

use std::collections::BTreeMap;

use clap::{Command, CommandFactory};

use super::Cli;

/// Options that have several meanings, and why.
const SEVERAL_MEANINGS: &[(&str, &str)] = &[
    ("address", "of an agent that connects out, or of a node of the exchange"),
    ("against", "what is measured in turn with this host, or a run beside a certificate"),
    ("all", "what `compare` prints, or the instruments of a direction"),
    ("allow", "`tune ab` has one step, the other commands of `tune` have several"),
    ("baseline", "is read here, or where a file of `generate` is used"),
    ("data", "the folder of an agent's runs, or that of the nodes of a network that begins again"),
    ("every", "the time from trial to trial, or how often a timer of systemd runs"),
    ("from", "the first rate of a search, or the time of a day that is replayed"),
    ("guest", "a snapshot for `audit`, a machine to measure in for `qualify`"),
    ("hosts", "a fleet measures between them, the exchange runs nodes on them"),
    ("keep", "the folder of a watch, or the number of hosts that a hunt keeps"),
    ("key", "signs certificates, or is that of a controller"),
    ("label", "of the site of a run, or of an agent"),
    ("limit", "of a search, or one of the limits of a node"),
    ("link", "a step is applied to one link, an audit reads several"),
    ("listen", "for agents that connect out, or for clients of the exchange"),
    ("name", "of a firm, of a guest, of a job, or of an agent"),
    ("network", "a file of the exchange, or a network of pods"),
    ("nic", "`generate` gives a guest one device, a pair of guests may get two"),
    ("node", "of the exchange, or of a cluster of Kubernetes"),
    ("nodes", "of each class of the exchange, or the number of those of a job of Slurm"),
    ("once", "one client of a server, one trial of a watch, or one look of `exchange top`"),
    ("only", "selects rows of a plan, or steps of `tune`"),
    (
        "out",
        "a folder; a file for texts of `generate`, pages of `watch`, certificates, keys; `torture` \
         empties it",
    ),
    ("page", "what a supervisor shows to browsers, or the size of pages of memory"),
    ("pairs", "of hosts of a fleet, or the number of those of virtual machines"),
    ("percentile", "is recorded by `pingpong`, and decides in `tune ab`"),
    ("plan", "a fleet reads it again for each pair, so it cannot be stdin"),
    ("profile", "a set of steps of `tune`, or of values of the accelerator"),
    ("program", "of the nodes of the exchange, or the place of nearmetal in a file of `generate`"),
    ("record", "is a switch of the exchange, and a folder of `audit`"),
    ("rounds", "the number without the option is another one for each kind of run"),
    ("seconds", "of a round; of a trial of `torture`; until `exchange policy` ends"),
    ("server", "is reached by ssh with `qualify`, by its own port with `tune ab`"),
    ("sessions", "keys of so many sessions, or the file of those of `exchange fix`"),
    ("sizes", "a request and its response of `rr` have one each"),
    ("step", "the step of `tune ab`, or of a load"),
    ("sessions", "keys are made for numbers, a door reads who may log on"),
    ("to", "the target of a move, or the end of a search"),
];

/// Text and value name of each option, with the commands that have it so.
type Meanings = BTreeMap<String, BTreeMap<(String, String), Vec<String>>>;

fn collect(command: &Command, path: &str, all: &mut Meanings) {
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let Some(long) = arg.get_long() else { continue };
        let names: Vec<&str> = match arg.get_action().takes_values() {
            true => arg.get_value_names().unwrap_or_default().iter().map(|n| n.as_str()).collect(),
            false => vec![],
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let meaning = (help, names.join(" "));
        all.entry(long.to_string()).or_default().entry(meaning).or_default().push(path.to_string());
    }
    for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        collect(one, format!("{path} {}", one.get_name()).trim(), all);
    }
}

#[test]
fn options_of_one_name_have_one_text() {
    let mut all = Meanings::new();
    collect(&Cli::command(), "", &mut all);
    assert!(all["format"].len() == 1 && all["cpus"].len() == 1, "{:?}", all["cpus"]);
    for (name, meanings) in &all {
        let is_exempt = SEVERAL_MEANINGS.iter().any(|(exempt, _)| exempt == name);
        match is_exempt {
            false => assert_eq!(meanings.len(), 1, "--{name}: {meanings:#?}"),
            true => assert!(meanings.len() > 1, "--{name} has one meaning: end its exemption"),
        }
    }
    let unknown = SEVERAL_MEANINGS.iter().find(|(name, _)| !all.contains_key(*name));
    assert_eq!(unknown, None, "an exemption without an option");
}
