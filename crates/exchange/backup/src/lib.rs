//! Copies of a running exchange's cells on disk, and networks that begin again from them.
//!
//! ```text
//! network.toml                 the network as it was
//! backup.json                  each group's position, time and state hash
//! manifest.json                length and digest of each file, written last
//! cell-C/, control/            as in the folder of a replica:
//!   snapshot                   where the copy begins, if the replica has one
//!   INDEX.journal, watermark-* what was committed after that
//!   content-format-*           what batches and snapshots are made of
//! ```
//!
//! - **Copying** (`copy`) reads the files of one replica of each group, while it runs. It takes
//!   only what the replica knows to be committed, and replays it.
//! - **Restoring** (`restore`) replays each group up to a place, and makes the folders of all
//!   replicas from the states there. Where moves of instruments demand it, a group goes back
//!   further (`consistent`).
//! - **Recovery** (`recover`) does the same from what a single replica has, committed or not.
//!
//! A group that begins again is of another generation, so that no replica of before takes part (see
//! [`nm_replica::saved`]). Its numbers leave a gap, so that clients learn of the loss (see
//! [`nm_exchange::cell`]).
#![forbid(unsafe_code)]

mod consistent;
mod copy;
mod description;
mod error;
mod group_copy;
mod group_state;
mod recover;
mod restore;

pub use copy::{backup, check};
pub use description::{Description, GroupDescription};
pub use error::BackupError;
pub use recover::{Survivor, recover, survivors};
pub use restore::{Lost, Restored, RestoredGroup, To, restore};
