//! What of a network's file may change while its nodes are served, and what may not.

use nm_exchange::network::{LogLimits, Network, Role};

/// What a file that was read again changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reload {
    /// The sizes of logs, if they are others.
    pub logs: Option<LogLimits>,
    /// Fields of the file that say something else and are not followed, with what would.
    pub ignored: Vec<Ignored>,
}

/// A field of the file that is not followed while nodes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ignored {
    /// Which.
    pub field: &'static str,
    /// The commands that change such a thing of a running network, if there are some.
    pub commands: Option<&'static str>,
}

impl Reload {
    /// What `new` changes. `begun` is the file as the nodes began with it; `running` has what was
    /// changed since by commands.
    pub fn of(begun: &Network, running: &Network, new: &Network) -> Reload {
        let mut ignored = vec![];
        let mut field = |is_other: bool, field, commands| {
            ignored.extend(is_other.then_some(Ignored { field, commands }));
        };
        field(new.cluster != begun.cluster, "cluster", None);
        field(new.durability != begun.durability, "durability", None);
        field(new.data != begun.data, "data", None);
        field(new.record != begun.record, "record", None);
        field(new.secret != begun.secret, "secret", None);
        field(new.spare_mediators != begun.spare_mediators, "spare_mediators", None);
        for class in Role::ALL.iter().copied() {
            let nodes = &new.classes[class];
            let is_other = *nodes != begun.classes[class] && *nodes != running.classes[class];
            field(is_other, class.name(), Some("`exchange add` and `exchange retire`"));
        }
        field(
            new.master != begun.master,
            "instrument",
            Some("the commands `exchange instruments`"),
        );
        field(new.firms != begun.firms, "firm", Some("the commands `exchange firms`"));
        Reload { logs: Some(new.logs).filter(|logs| *logs != running.logs), ignored }
    }
}

#[cfg(test)]
mod tests {
    use nm_exchange::network::{AddedNode, Durability, Node};

    use super::*;

    fn network() -> Network {
        Network::new("1-2-1-1".parse().unwrap(), node)
    }

    fn node(id: nm_exchange::network::NodeId) -> Node {
        let address = nm_exchange::link::Address::Unix(format!("/{}", id.file_name()).into());
        Node { address, replication: None }
    }

    fn ignored(reload: &Reload) -> Vec<&'static str> {
        reload.ignored.iter().map(|it| it.field).collect()
    }

    #[test]
    fn logs_change_and_all_else_is_named_and_ignored() {
        let begun = network();
        let same = Reload::of(&begun, &begun, &begun);
        assert_eq!(same, Reload { logs: None, ignored: vec![] });
        let logs = LogLimits { bytes: 8192, files: 2 };
        let mut new = Network { logs, durability: Durability::MemoryQuorum, ..begun.clone() };
        new.data = Some("elsewhere".into());
        new.classes[Role::Router].nodes.pop();
        let reload = Reload::of(&begun, &begun, &new);
        assert_eq!(reload.logs, Some(logs));
        assert_eq!(ignored(&reload), ["durability", "data", "router"]);
    }

    #[test]
    fn a_file_that_has_what_commands_have_added_says_nothing_new() {
        let begun = network();
        let mut running = begun.clone();
        let added = AddedNode { node: node(Role::Router.node(2)), is_removed: false };
        running.set_added(Role::Router, &[added]);
        for file in [&begun, &running] {
            assert_eq!(ignored(&Reload::of(&begun, &running, file)), [""; 0]);
        }
        assert_eq!(ignored(&Reload::of(&begun, &begun, &running)), ["router"]);
    }
}
