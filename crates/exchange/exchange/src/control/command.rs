//! Commands in control's log.

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Put, Reader};
use nm_wire::{FirmRecord, Listing, Value};

use crate::moves::{MoveId, MoveRefusal};
use crate::network::{Node, NodeId, Role};

use super::added::{read_address, read_addresses, write_address, write_addresses};
use super::routing::{CellLeader, InstrumentMap};

/// A change of control's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A node is up.
    Joined {
        /// Which.
        node: NodeId,
        /// Number that identifies the start of its process.
        start: u64,
        /// Where it listens.
        address: String,
    },
    /// No node is connected to a node any more.
    Left {
        /// Which.
        node: NodeId,
        /// The start that ended.
        start: u64,
    },
    /// A mediator leads a cell.
    Leader {
        /// Which cell, or control itself.
        cell: u16,
        /// The leader.
        leader: CellLeader,
    },
    /// An instrument is to be moved to another cell.
    Move {
        /// Which.
        instrument: InstrumentId,
        /// Its new cell.
        cell: u16,
    },
    /// A move has ended.
    MoveEnded {
        /// Which.
        id: MoveId,
        /// Why the new cell did not take the instrument, if so.
        refusal: Option<MoveRefusal>,
    },
    /// A mediator or gateway is to carry nothing, or to work again.
    Drain {
        /// Which.
        node: NodeId,
        /// Whether it is to carry nothing.
        is_drained: bool,
    },
    /// The network gets another node; a mediator with its cell.
    Add {
        /// Class.
        role: Role,
        /// Where it listens.
        node: Node,
    },
    /// A node that was added is no part of the network any more, and neither is a mediator's cell.
    Remove(NodeId),
    /// An instrument may be traded from now on, or by other rules.
    List(Listing),
    /// An instrument may not be traded any more.
    Delist(InstrumentId),
    /// A phase of the schedule has begun.
    Begun {
        /// Name of its group of instruments.
        group: String,
        /// When it was due, s since 1970.
        at_s: u64,
    },
    /// There is a firm, or it is like this from now on.
    SetFirm(FirmRecord),
    /// There is no firm of this number any more.
    RemoveFirm(u32),
    /// A newer map than the state has: all replicas of control have lost their memory.
    RestoreMap(InstrumentMap),
}

/// The codes of the commands. A command without one does not compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandCode {
    Joined,
    Left,
    Leader,
    Move,
    MoveEnded,
    RestoreMap,
    Drain,
    Add,
    Remove,
    List,
    Delist,
    Begun,
    SetFirm,
    RemoveFirm,
}

nm_codec::codes!(CommandCode {
    Joined = 1,
    Left = 2,
    Leader = 3,
    Move = 4,
    MoveEnded = 5,
    RestoreMap = 6,
    // 7 was that of a mediator alone.
    Drain = 8,
    // 9 and 10 were those of mediators alone.
    Add = 11,
    Remove = 12,
    List = 13,
    Delist = 14,
    Begun = 15,
    SetFirm = 48,
    RemoveFirm = 49,
});

impl Command {
    fn command_code(&self) -> CommandCode {
        match self {
            Command::Joined { .. } => CommandCode::Joined,
            Command::Left { .. } => CommandCode::Left,
            Command::Leader { .. } => CommandCode::Leader,
            Command::Move { .. } => CommandCode::Move,
            Command::MoveEnded { .. } => CommandCode::MoveEnded,
            Command::RestoreMap(_) => CommandCode::RestoreMap,
            Command::Drain { .. } => CommandCode::Drain,
            Command::Add { .. } => CommandCode::Add,
            Command::Remove(_) => CommandCode::Remove,
            Command::List(_) => CommandCode::List,
            Command::Delist(_) => CommandCode::Delist,
            Command::Begun { .. } => CommandCode::Begun,
            Command::SetFirm(_) => CommandCode::SetFirm,
            Command::RemoveFirm(_) => CommandCode::RemoveFirm,
        }
    }

    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.command_code().code());
        match self {
            Command::Joined { node, start, address } => {
                node.write(out);
                out.put_u64(*start);
                write_address(address, out);
            }
            Command::Left { node, start } => {
                node.write(out);
                out.put_u64(*start);
            }
            Command::Leader { cell, leader } => {
                out.put_u16(*cell);
                leader.put(out);
            }
            Command::Move { instrument, cell } => {
                out.put_u32(*instrument);
                out.put_u16(*cell);
            }
            Command::MoveEnded { id, refusal } => {
                out.put_u32(id.instrument);
                out.put_u32(id.epoch);
                out.put_bool(refusal.is_some());
                if let Some(refusal) = refusal {
                    out.put_u8(refusal.code());
                }
            }
            Command::RestoreMap(map) => map.write(out),
            Command::Drain { node, is_drained } => {
                node.write(out);
                out.put_bool(*is_drained);
            }
            Command::Add { role, node } => {
                out.put_u8(role.code());
                write_addresses(node, out);
            }
            Command::Remove(node) => node.write(out),
            Command::List(listing) => listing.put(out),
            Command::Delist(instrument) => out.put_u32(*instrument),
            Command::SetFirm(firm) => firm.put(out),
            Command::RemoveFirm(number) => out.put_u32(*number),
            Command::Begun { group, at_s } => {
                group.put(out);
                out.put_u64(*at_s);
            }
        }
    }

    /// Reads what [`Command::write`] appended.
    ///
    /// # Errors
    /// If the bytes are not a command.
    pub fn read(reader: &mut Reader<'_>) -> Result<Command, DecodeError> {
        Ok(match CommandCode::from_code("command", reader.u8("command")?)? {
            CommandCode::Joined => Command::Joined {
                node: NodeId::read(reader)?,
                start: reader.u64("start")?,
                address: read_address(reader)?,
            },
            CommandCode::Left => {
                Command::Left { node: NodeId::read(reader)?, start: reader.u64("start")? }
            }
            CommandCode::Leader => Command::Leader {
                cell: reader.u16("cell")?,
                leader: CellLeader::take("leader", reader)?,
            },
            CommandCode::Move => {
                Command::Move { instrument: reader.u32("instrument")?, cell: reader.u16("cell")? }
            }
            CommandCode::MoveEnded => {
                let (instrument, epoch) = (reader.u32("instrument")?, reader.u32("epoch")?);
                let is_refused = reader.bool("is_refused")?;
                let code = if is_refused { Some(reader.u8("refusal")?) } else { None };
                let refusal = code.map(|code| MoveRefusal::from_code("refusal", code));
                let id = MoveId { instrument, epoch };
                Command::MoveEnded { id, refusal: refusal.transpose()? }
            }
            CommandCode::RestoreMap => Command::RestoreMap(InstrumentMap::read(reader)?),
            CommandCode::Drain => Command::Drain {
                node: NodeId::read(reader)?,
                is_drained: reader.bool("is_drained")?,
            },
            CommandCode::Add => Command::Add {
                role: Role::from_code("role", reader.u8("role")?)?,
                node: read_addresses(reader)?,
            },
            CommandCode::Remove => Command::Remove(NodeId::read(reader)?),
            CommandCode::List => Command::List(Listing::take("listing", reader)?),
            CommandCode::Delist => Command::Delist(reader.u32("instrument")?),
            CommandCode::SetFirm => Command::SetFirm(FirmRecord::take("firm", reader)?),
            CommandCode::RemoveFirm => Command::RemoveFirm(reader.u32("firm")?),
            CommandCode::Begun => {
                Command::Begun { group: String::take("group", reader)?, at_s: reader.u64("at_s")? }
            }
        })
    }
}

/// An entry of control's log: commands, and the time at which they were proposed, ms since 1970.
pub fn encode_batch(now_ms: u64, commands: &[Command]) -> Vec<u8> {
    let mut out = vec![];
    out.put_u64(now_ms);
    commands.iter().for_each(|command| command.write(&mut out));
    out
}

/// The time and the commands of a log entry.
///
/// # Errors
/// If the bytes are not a batch of commands.
pub fn decode_batch(batch: &[u8]) -> Result<(u64, Vec<Command>), DecodeError> {
    let mut reader = Reader::new(batch);
    let (now_ms, mut commands) = (reader.u64("now_ms")?, vec![]);
    while !reader.is_empty() {
        commands.push(Command::read(&mut reader)?);
    }
    Ok((now_ms, commands))
}
