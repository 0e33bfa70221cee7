//! What an observer asks a node, and what the node answers.

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Put, Reader};
use nm_replica::MEMBERS_MAX;
use nm_sys::clock;

use crate::network::{Node, NodeId, Role};
use crate::wire;

use super::added::{read_addresses, write_addresses};
use super::link_latency::{self, LinkLatency};
use super::state::State;

/// What an observer asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminRequest {
    /// The state of control.
    Status,
    /// To move an instrument to a cell.
    Move {
        /// Which.
        instrument: InstrumentId,
        /// Its new cell.
        cell: u16,
    },
    /// How much work the node has done.
    Work,
    /// To let a mediator or gateway carry nothing, or work again. The answer is the state before;
    /// the status shows when it is done.
    Drain {
        /// Which.
        node: NodeId,
        /// Whether it is to carry nothing.
        is_drained: bool,
    },
    /// The replicas of a cell, as a mediator knows them that has one.
    Replicas {
        /// Which cell.
        cell: u16,
    },
    /// To replace a replica of a cell by one of another node. The cell's leader begins that; the
    /// answer is that to [`AdminRequest::Replicas`], which shows later when it is done.
    Replace {
        /// Which cell.
        cell: u16,
        /// The node that has the replica.
        from: NodeId,
        /// The node that is to have one.
        to: NodeId,
    },
    /// To add a node. The answer is the state before; the status shows when it is done.
    Add {
        /// Class.
        role: Role,
        /// Where it listens.
        node: Node,
    },
    /// To remove a node that was added. The answer is the state before.
    Remove(NodeId),
}

/// The codes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestCode {
    Status,
    Move,
    Work,
    Drain,
    Replicas,
    Replace,
    Add,
    Remove,
}

nm_codec::codes!(RequestCode {
    Status = 0,
    Move = 1,
    Work = 2,
    Replicas = 4,
    Replace = 5,
    Drain = 6,
    Add = 7,
    Remove = 8,
});

impl AdminRequest {
    /// Whether it changes the network, which only an operator may.
    pub fn is_change(&self) -> bool {
        match self {
            AdminRequest::Status | AdminRequest::Work | AdminRequest::Replicas { .. } => false,
            AdminRequest::Move { .. }
            | AdminRequest::Drain { .. }
            | AdminRequest::Replace { .. }
            | AdminRequest::Add { .. }
            | AdminRequest::Remove(_) => true,
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        match self {
            AdminRequest::Status => out.put_u8(RequestCode::Status.code()),
            AdminRequest::Work => out.put_u8(RequestCode::Work.code()),
            AdminRequest::Move { instrument, cell } => {
                out.put_u8(RequestCode::Move.code());
                out.put_u32(*instrument);
                out.put_u16(*cell);
            }
            AdminRequest::Drain { node, is_drained } => {
                out.put_u8(RequestCode::Drain.code());
                node.write(&mut out);
                out.put_bool(*is_drained);
            }
            AdminRequest::Replicas { cell } => {
                out.put_u8(RequestCode::Replicas.code());
                out.put_u16(*cell);
            }
            AdminRequest::Replace { cell, from, to } => {
                out.put_u8(RequestCode::Replace.code());
                out.put_u16(*cell);
                from.write(&mut out);
                to.write(&mut out);
            }
            AdminRequest::Add { role, node } => {
                out.put_u8(RequestCode::Add.code());
                out.put_u8(role.code());
                write_addresses(node, &mut out);
            }
            AdminRequest::Remove(node) => {
                out.put_u8(RequestCode::Remove.code());
                node.write(&mut out);
            }
        }
        out
    }

    /// The request that these bytes are.
    ///
    /// # Errors
    /// If they are not one.
    pub fn decode(bytes: &[u8]) -> Result<AdminRequest, DecodeError> {
        let mut reader = Reader::new(bytes);
        let request = match RequestCode::from_code("request", reader.u8("request")?)? {
            RequestCode::Status => AdminRequest::Status,
            RequestCode::Work => AdminRequest::Work,
            RequestCode::Move => AdminRequest::Move {
                instrument: reader.u32("instrument")?,
                cell: reader.u16("cell")?,
            },
            RequestCode::Drain => AdminRequest::Drain {
                node: NodeId::read(&mut reader)?,
                is_drained: reader.bool("is_drained")?,
            },
            RequestCode::Replicas => AdminRequest::Replicas { cell: reader.u16("cell")? },
            RequestCode::Replace => AdminRequest::Replace {
                cell: reader.u16("cell")?,
                from: NodeId::read(&mut reader)?,
                to: NodeId::read(&mut reader)?,
            },
            RequestCode::Add => AdminRequest::Add {
                role: Role::from_code("role", reader.u8("role")?)?,
                node: read_addresses(&mut reader)?,
            },
            RequestCode::Remove => AdminRequest::Remove(NodeId::read(&mut reader)?),
        };
        reader.finish("request")?;
        Ok(request)
    }
}

/// Pauses in one answer.
pub const PAUSES_MAX: usize = 8_192;

/// Bytes of one answer up to which it gets more instruments: it has to fit a frame.
const WORK_BYTES_MAX: usize = wire::FRAME_BYTES_MAX - (64 << 10);

/// What a node has done since it started. Only mediators move and execute anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Work {
    /// When this was counted, ns on the node's monotonic clock.
    pub at_ns: u64,
    /// CPU time of its process, ns.
    pub cpu_ns: u64,
    /// How many instruments have left its cells while it led them.
    pub moved: u64,
    /// Of a gateway: the sessions of its clients.
    pub sessions: u32,
    /// Of a gateway: whether it takes no more clients, because it is drained.
    pub is_leaving: bool,
    /// The latest pauses of these: from the release of an instrument until the new cell's
    /// announcement came back, ns. At most `PAUSES_MAX`.
    pub pauses_ns: Vec<u64>,
    /// The latencies of its links to other nodes, as far as they are measured. At most
    /// [`WORK_LINKS_MAX`](super::WORK_LINKS_MAX).
    pub links: Vec<LinkLatency>,
    /// The instruments of the cells that it leads; those with most requests, if an answer has no
    /// room for all of them.
    pub instruments: Vec<InstrumentWork>,
}

/// What was done on one instrument.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InstrumentWork {
    /// Which.
    pub instrument: InstrumentId,
    /// Its cell.
    pub cell: u16,
    /// Number of the last request that was executed.
    pub executed: u64,
    /// Time that this mediator took to execute requests as the leader, ns, estimated by a sample of
    /// them.
    pub busy_ns: u64,
    /// By gateway: requests that this mediator executed as the leader.
    pub by_gateway: Vec<u64>,
}

impl InstrumentWork {
    fn read(reader: &mut Reader<'_>) -> Result<InstrumentWork, DecodeError> {
        let (instrument, cell) = (reader.u32("instrument")?, reader.u16("cell")?);
        let (executed, busy_ns) = (reader.u64("executed")?, reader.u64("busy_ns")?);
        let gateways = reader.u16("gateways")?;
        let by_gateway = (0..gateways).map(|_| reader.u64("requests")).collect::<Result<_, _>>()?;
        Ok(InstrumentWork { instrument, cell, executed, busy_ns, by_gateway })
    }
}

impl Work {
    /// Nothing executed, until now.
    pub fn now() -> Work {
        let cpu_ns = nm_sys::counters::process_cpu_ns();
        Work { at_ns: clock::monotonic_ns(), cpu_ns, ..Work::default() }
    }
}

/// The replicas of a cell, as one of them knows them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CellReplicas {
    /// Whether the one that answers leads the cell.
    pub is_leader: bool,
    /// The nodes that have one; at most [`MEMBERS_MAX`].
    pub voters: Vec<NodeId>,
    /// Why one was not replaced, since this one was last asked to.
    pub replace_failed: Option<String>,
}

impl CellReplicas {
    fn write(&self, out: &mut Vec<u8>) {
        out.put_bool(self.is_leader);
        out.put_u8(self.voters.len() as u8);
        self.voters.iter().for_each(|node| node.write(out));
        out.put_bool(self.replace_failed.is_some());
        out.put(self.replace_failed.as_deref().unwrap_or_default().as_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<CellReplicas, DecodeError> {
        let (is_leader, count) = (reader.bool("is_leader")?, usize::from(reader.u8("voters")?));
        if count > MEMBERS_MAX {
            return Err(DecodeError::invalid("voters", "are more than a group has"));
        }
        let voters = (0..count).map(|_| NodeId::read(reader)).collect::<Result<_, _>>()?;
        let has_failed = reader.bool("has_failed")?;
        let why = std::str::from_utf8(reader.rest())
            .map_err(|_| DecodeError::invalid("reason", "is not UTF-8"))?;
        let replace_failed = has_failed.then(|| why.to_string());
        Ok(CellReplicas { is_leader, voters, replace_failed })
    }
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminResponse {
    /// The state of control as this replica has it.
    Status {
        /// Term in which this replica leads control, if it does.
        leading_term: Option<u32>,
        /// For how long a pending change could not be logged, ms; zero if all is well.
        stalled_ms: u64,
        /// The state.
        state: Box<State>,
    },
    /// The instrument belongs to the cell, in this version of the map.
    Moved {
        /// Which instrument.
        instrument: InstrumentId,
        /// Version of the map.
        map_version: u32,
    },
    /// It cannot be moved.
    Refused {
        /// Which instrument.
        instrument: InstrumentId,
        /// Why, in a sentence.
        reason: String,
    },
    /// What the node has done since its start.
    Work(Work),
    /// This node does not lead control, or no longer; or it has no replica of the cell.
    NotLeading,
    /// The replicas of a cell.
    Replicas(CellReplicas),
}

/// The codes of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseCode {
    Status,
    Moved,
    Refused,
    NotLeading,
    Work,
    Replicas,
}

nm_codec::codes!(ResponseCode {
    Status = 0,
    Moved = 1,
    Refused = 2,
    NotLeading = 3,
    Work = 4,
    Replicas = 5,
});

impl AdminResponse {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        match self {
            AdminResponse::Status { leading_term, stalled_ms, state } => {
                out.put_u8(ResponseCode::Status.code());
                out.put_u32(leading_term.unwrap_or_default());
                out.put_u64(*stalled_ms);
                out.put(&state.save());
            }
            AdminResponse::Moved { instrument, map_version } => {
                out.put_u8(ResponseCode::Moved.code());
                out.put_u32(*instrument);
                out.put_u32(*map_version);
            }
            AdminResponse::Refused { instrument, reason } => {
                out.put_u8(ResponseCode::Refused.code());
                out.put_u32(*instrument);
                out.put(reason.as_bytes());
            }
            AdminResponse::Work(work) => {
                let Work { at_ns, cpu_ns, moved, sessions, is_leaving, .. } = work;
                let Work { pauses_ns, links, instruments, .. } = work;
                let pauses_ns = &pauses_ns[..pauses_ns.len().min(PAUSES_MAX)];
                out.put_u8(ResponseCode::Work.code());
                out.put_u64s(&[*at_ns, *cpu_ns, *moved, pauses_ns.len() as u64]);
                out.put_u64s(pauses_ns);
                out.put_u32(*sessions);
                out.put_bool(*is_leaving);
                link_latency::write_all(links, &mut out);
                let mut busiest: Vec<&InstrumentWork> = instruments.iter().collect();
                busiest.sort_by_key(|one| std::cmp::Reverse(one.executed));
                for InstrumentWork { instrument, cell, executed, busy_ns, by_gateway } in busiest {
                    if out.len() + 8 * by_gateway.len() > WORK_BYTES_MAX {
                        break;
                    }
                    out.put_u32(*instrument);
                    out.put_u16(*cell);
                    out.put_u64s(&[*executed, *busy_ns]);
                    out.put_u16(by_gateway.len() as u16);
                    out.put_u64s(by_gateway);
                }
            }
            AdminResponse::NotLeading => out.put_u8(ResponseCode::NotLeading.code()),
            AdminResponse::Replicas(replicas) => {
                out.put_u8(ResponseCode::Replicas.code());
                replicas.write(&mut out);
            }
        }
        out
    }

    /// The response that these bytes are.
    ///
    /// # Errors
    /// If they are not one.
    pub fn decode(bytes: &[u8]) -> Result<AdminResponse, DecodeError> {
        let mut reader = Reader::new(bytes);
        Ok(match ResponseCode::from_code("response", reader.u8("response")?)? {
            ResponseCode::Status => {
                let (term, stalled_ms) = (reader.u32("term")?, reader.u64("stalled_ms")?);
                let state = Box::new(State::load(reader.rest())?);
                let leading_term = (term > 0).then_some(term);
                AdminResponse::Status { leading_term, stalled_ms, state }
            }
            ResponseCode::Moved => {
                let instrument = reader.u32("instrument")?;
                let map_version = reader.u32("map_version")?;
                reader.finish("map_version")?;
                AdminResponse::Moved { instrument, map_version }
            }
            ResponseCode::Refused => {
                let instrument = reader.u32("instrument")?;
                let reason = std::str::from_utf8(reader.rest())
                    .map_err(|_| DecodeError::invalid("reason", "is not UTF-8"))?;
                AdminResponse::Refused { instrument, reason: reason.to_string() }
            }
            ResponseCode::Work => {
                let (at_ns, cpu_ns) = (reader.u64("at_ns")?, reader.u64("cpu_ns")?);
                let (moved, count) = (reader.u64("moved")?, reader.u64("pauses")?);
                if count > PAUSES_MAX as u64 {
                    return Err(DecodeError::invalid("pauses", "are more than an answer has"));
                }
                let pauses_ns =
                    (0..count).map(|_| reader.u64("pause_ns")).collect::<Result<_, _>>()?;
                let (sessions, is_leaving) = (reader.u32("sessions")?, reader.bool("is_leaving")?);
                let links = link_latency::read_all(&mut reader)?;
                let mut instruments = vec![];
                while !reader.is_empty() {
                    instruments.push(InstrumentWork::read(&mut reader)?);
                }
                AdminResponse::Work(Work {
                    at_ns,
                    cpu_ns,
                    moved,
                    sessions,
                    is_leaving,
                    pauses_ns,
                    links,
                    instruments,
                })
            }
            ResponseCode::Replicas => AdminResponse::Replicas(CellReplicas::read(&mut reader)?),
            ResponseCode::NotLeading => {
                reader.finish("response")?;
                AdminResponse::NotLeading
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::routing::InstrumentMap;
    use super::*;
    use crate::limits::CELL_INSTRUMENTS_MAX;
    use crate::network::Role;
    use proptest::prelude::*;

    fn work() -> impl Strategy<Value = Work> {
        let by_gateway = prop::collection::vec(any::<u64>(), 0..3);
        let one = (any::<(u32, u16, u64, u64)>(), by_gateway).prop_map(|(numbers, by_gateway)| {
            let (instrument, cell, executed, busy_ns) = numbers;
            InstrumentWork { instrument, cell, executed, busy_ns, by_gateway }
        });
        let instruments = prop::collection::vec(one, 0..4);
        let pauses_ns = prop::collection::vec(any::<u64>(), 0..4);
        let link = (prop::sample::select(Role::ALL), any::<(u16, u64)>());
        let link = link.prop_map(|(role, (index, latency_ns))| LinkLatency {
            peer: role.node(index),
            latency_ns,
        });
        let links = prop::collection::vec(link, 0..4);
        let lists = (pauses_ns, links, instruments);
        (any::<([u64; 3], u32, bool)>(), lists).prop_map(|(numbers, lists)| {
            let ([at_ns, cpu_ns, moved], sessions, is_leaving) = numbers;
            let (pauses_ns, links, instruments) = lists;
            Work { at_ns, cpu_ns, moved, sessions, is_leaving, pauses_ns, links, instruments }
        })
    }

    fn node() -> impl Strategy<Value = NodeId> {
        (prop::sample::select(Role::ALL), any::<u16>()).prop_map(|(class, index)| class.node(index))
    }

    fn response() -> impl Strategy<Value = AdminResponse> {
        let term = prop_oneof![Just(None), (1u32..).prop_map(Some)];
        prop_oneof![
            (term, any::<u64>(), any::<u64>()).prop_map(|(leading_term, stalled_ms, index)| {
                let mut state = Box::new(State::new(InstrumentMap::new(3)));
                state.begin(index);
                AdminResponse::Status { leading_term, stalled_ms, state }
            }),
            any::<(u32, u32)>().prop_map(|(instrument, map_version)| {
                AdminResponse::Moved { instrument, map_version }
            }),
            (any::<u32>(), ".{0,40}")
                .prop_map(|(instrument, reason)| { AdminResponse::Refused { instrument, reason } }),
            work().prop_map(AdminResponse::Work),
            (any::<bool>(), prop::collection::vec(node(), 0..4), prop::option::of(".{0,40}"))
                .prop_map(|(is_leader, voters, replace_failed)| {
                    AdminResponse::Replicas(CellReplicas { is_leader, voters, replace_failed })
                }),
            Just(AdminResponse::NotLeading),
        ]
    }

    proptest! {
        #[test]
        fn requests_and_responses_are_read_back(
            instrument: u32,
            cell: u16,
            (from, to) in (node(), node()),
            response in response(),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let asks = AdminRequest::Move { instrument, cell };
            let (node, is_drained) = (Role::Gateway.node(cell), instrument % 2 == 0);
            let drain = AdminRequest::Drain { node, is_drained };
            let replicas = AdminRequest::Replicas { cell };
            let replace = AdminRequest::Replace { cell, from, to };
            let plain = [AdminRequest::Status, AdminRequest::Work];
            let [address, replica] = [0, 1].map(|at| format!("127.0.0.1:{}", 1 + at + cell / 2));
            let replication = replica.parse::<crate::link::Address>().unwrap().try_into().ok();
            let node = Node { address: address.parse().unwrap(), replication };
            let add = AdminRequest::Add { role: from.class, node: node.clone() };
            let other = Node { replication: None, ..node };
            let add_other = AdminRequest::Add { role: to.class, node: other };
            let remove = AdminRequest::Remove(from);
            let changes = [asks, drain, replicas, replace, add, add_other, remove];
            for request in plain.into_iter().chain(changes) {
                prop_assert_eq!(AdminRequest::decode(&request.encode()), Ok(request));
            }
            let mut response = response;
            if let AdminResponse::Work(work) = &mut response {
                work.instruments.sort_by_key(|one| std::cmp::Reverse(one.executed));
            }
            prop_assert_eq!(AdminResponse::decode(&response.encode()), Ok(response));
            let _ = (AdminRequest::decode(&noise), AdminResponse::decode(&noise));
        }
    }

    #[test]
    fn work_on_more_instruments_than_fit_a_frame_is_that_on_the_busiest() {
        let one = |instrument: u32| InstrumentWork {
            instrument,
            executed: u64::from(instrument),
            by_gateway: vec![1; 64],
            ..InstrumentWork::default()
        };
        let instruments = (0..CELL_INSTRUMENTS_MAX as u32).map(one).collect();
        let bytes = AdminResponse::Work(Work { instruments, ..Work::default() }).encode();
        assert!(bytes.len() + wire::HEADER_BYTES <= wire::FRAME_BYTES_MAX, "{}", bytes.len());
        let AdminResponse::Work(work) = AdminResponse::decode(&bytes).unwrap() else { panic!() };
        assert_eq!(work.instruments[0].instrument as usize, CELL_INSTRUMENTS_MAX - 1);
        assert!(work.instruments.len() > 1_000, "{}", work.instruments.len());
    }

    #[test]
    fn bytes_of_no_message_are_refused() {
        assert!(AdminRequest::decode(&[]).is_err() && AdminRequest::decode(&[0, 0]).is_err());
        assert!(AdminResponse::decode(&[9]).is_err() && AdminResponse::decode(&[0, 1]).is_err());
    }
}
