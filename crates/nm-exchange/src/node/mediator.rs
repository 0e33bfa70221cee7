//! Mediator without replicas: puts requests in order and matches them.

use std::path::PathBuf;

use nm_book::book::Book;
use nm_model::agent::Failure;
use nm_replica::journal::{self, Recorder};

use crate::batch;
use crate::cell::{Cell, Request};
use crate::hashes::StateHashes;
use crate::leader_clock::LeaderClock;
use crate::link::ReceivedFrame;
use crate::message::Leader;
use crate::network::{Network, Role};
use crate::wire::{Frame, FrameKind};

use super::behaviour::Behaviour;
use super::links::{LinkId, Links};
use super::peer::{Peer, PeerError};
use super::responses::Responses;

/// A mediator without replicas: it executes requests as they arrive and sends the outcomes to its
/// processor.
#[derive(Debug)]
pub struct Mediator {
    index: u16,
    processor: usize,
    cell: Cell<Book>,
    /// Index of its first batch: rises with each start, if there is a record.
    term: u64,
    /// Index of the batch of this iteration, if it has begun.
    batch: Option<u64>,
    /// Where batches are recorded, if they are, and the present batch.
    recorder: Option<Recorder>,
    recorded: Vec<u8>,
    clock: LeaderClock,
    hashes: Option<StateHashes>,
    responses: Responses,
    requests: u64,
}

impl Mediator {
    /// A mediator with empty books.
    pub fn new(network: &Network, index: usize) -> Result<Mediator, Failure> {
        let folder = network.folder(Role::Mediator, index).filter(|_| network.record);
        let folder = folder.map(|folder| folder.join(format!("cell-{index}")));
        let open = |folder: PathBuf| Recorder::open(&folder, journal::Settings::default());
        let hashes = folder.as_deref().map(StateHashes::open).transpose()?;
        let recorder = folder.map(open).transpose()?;
        // A mediator that restarts continues after the last recorded batch, in another term.
        let first = recorder.as_ref().map_or(1, Recorder::next);
        let mut cell = Cell::default();
        cell.accepts_unknown_sessions = true;
        cell.begin(first - 1, 0);
        Ok(Mediator {
            index: index as u16,
            processor: index % network.processor.len(),
            cell,
            term: first,
            batch: None,
            recorder,
            recorded: vec![],
            clock: LeaderClock::new(vec![format!("{} {index}", Role::Mediator)], 0),
            hashes,
            responses: Responses::default(),
            requests: 0,
        })
    }

    /// Announces to routers that requests reach this mediator from now on, and that those before
    /// may be lost.
    fn announce(&self, links: &mut Links, routers: &[LinkId]) {
        for router in routers {
            if let Some(output) = links.output(*router) {
                Leader { cell: self.index, term: 0 }.write(output);
            }
        }
    }

    /// Records the batch of this iteration.
    fn flush(&mut self) -> Result<(), Failure> {
        if let (Some(index), Some(recorder)) = (self.batch.take(), &mut self.recorder) {
            recorder.batch(index, self.term, &self.recorded)?;
            recorder.flush()?;
        }
        Ok(())
    }

    fn request(&mut self, links: &mut Links, frame: &ReceivedFrame<'_>) {
        // Without a processor the reply would be lost: the request is resent when there is one.
        let Some(processor) = links.to(Role::Processor, self.processor) else { return };
        let Ok(request) = Request::decode(&frame.header, frame.body()) else { return };
        self.requests += 1;
        if self.batch.is_none() {
            let index = self.cell.index() + 1;
            self.batch = Some(index);
            let time_ns = self.clock.now_ns(|_| vec![]);
            self.clock.warnings.drain(..).for_each(|warning| links.warnings.push(warning));
            self.cell.begin(index, time_ns);
            batch::begin(time_ns, &mut self.recorded);
        }
        if self.recorder.is_some() {
            self.recorded.extend_from_slice(frame.bytes);
        }
        let (now_ns, frames_before) = (links.now_ns, links.frames_out);
        let Some(output) = links.output(processor) else { return };
        let frame = Frame { header: frame.header, body: frame.body(), bytes: &*frame.bytes };
        let mut frames = 0;
        self.responses.handle(&mut self.cell, &request, &frame, &[(2, now_ns)], |out| {
            frames += 1;
            out.write(output);
        });
        links.frames_out = frames_before + frames;
    }
}

impl Behaviour for Mediator {
    fn on_connected(&mut self, links: &mut Links, peer: Peer) {
        match peer {
            Peer::Node(Role::Processor, _) => {
                let routers = links.all_to(Role::Router);
                self.announce(links, &routers);
            }
            Peer::Node(Role::Router, index) => {
                let router = links.to(Role::Router, index);
                if let (Some(_), Some(router)) = (links.to(Role::Processor, self.processor), router)
                {
                    self.announce(links, &[router]);
                }
            }
            _ => {}
        }
    }

    fn on_frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), PeerError> {
        match (from.1, frame.header.kind) {
            (Peer::Node(Role::Router, _), FrameKind::Request)
                if frame.header.cell == self.index =>
            {
                self.request(links, frame);
                Ok(())
            }
            (Peer::Node(Role::Processor, _), FrameKind::ResendRequest) => {
                if let Some(output) = links.output(from.0) {
                    self.responses.resend(&self.cell, &frame.header, output);
                }
                Ok(())
            }
            (peer, kind) => Err(PeerError::UnexpectedFrame { peer, kind, role: Role::Mediator }),
        }
    }

    fn on_iteration(&mut self, _links: &mut Links) -> Result<(), Failure> {
        self.flush()
    }

    fn on_stop(&mut self) -> Result<(), Failure> {
        self.flush()?;
        match &mut self.hashes {
            // Before the first batch of this term the state is that of another term.
            Some(hashes) if self.cell.index() >= self.term => {
                hashes.record(self.cell.index(), self.cell.hash())
            }
            _ => Ok(()),
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}
