//! Mediator: puts requests in order and matches them.

use std::path::PathBuf;

use nm_book::book::Book;
use nm_model::agent::Failure;
use nm_replica::journal::{self, Recorder};

use crate::batch;
use crate::cell::{Cell, Request};
use crate::hashes::StateHashes;
use crate::link::{LinkError, ReceivedFrame};
use crate::network::{Network, Role};
use crate::wire::{Frame, FrameKind, Header};

use super::Behaviour;
use super::answer::Answers;
use super::links::{LinkId, Links, Peer};

/// A mediator that has its cell alone: it executes requests as they come and hands the outcomes to
/// its processor.
#[derive(Debug)]
pub struct Mediator {
    index: u16,
    processor: usize,
    cell: Cell<Book>,
    /// Index of its first batch: rises with each start, if there is a record.
    term: u64,
    /// Index of the batch of this turn, if it has begun.
    batch: Option<u64>,
    /// What is written down of each batch, if anything is, and the batch.
    recorder: Option<Recorder>,
    recorded: Vec<u8>,
    hashes: Option<StateHashes>,
    answers: Answers,
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
        // A mediator that starts again goes on counting where the record ends, in another term.
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
            hashes,
            answers: Answers::default(),
            requests: 0,
        })
    }

    /// Tells routers that requests find their way from now on, and that those before may be lost.
    fn lead(&self, links: &mut Links, routers: &[LinkId]) {
        let header = Header { cell: self.index, ..Header::new(FrameKind::Leader) };
        for router in routers {
            links.send(*router, &header, &[], 0);
        }
    }

    /// Writes down what this turn carried out.
    fn flush(&mut self) -> Result<(), Failure> {
        if let (Some(index), Some(recorder)) = (self.batch.take(), &mut self.recorder) {
            recorder.batch(index, self.term, &self.recorded)?;
            recorder.flush()?;
        }
        Ok(())
    }

    fn request(&mut self, links: &mut Links, frame: &ReceivedFrame<'_>) {
        // Without a processor nobody would get the reply: it is sent again when there is one.
        let Some(processor) = links.to(Role::Processor, self.processor) else { return };
        let Ok(request) = Request::from_parts(&frame.header, frame.body()) else { return };
        self.requests += 1;
        if self.batch.is_none() {
            let index = self.cell.index() + 1;
            self.batch = Some(index);
            let time_ns = batch::now_ns();
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
        self.answers.handle(&mut self.cell, &request, &frame, &[(2, now_ns)], |out| {
            frames += 1;
            out.write(output);
        });
        links.frames_out = frames_before + frames;
    }
}

impl Behaviour for Mediator {
    fn up(&mut self, links: &mut Links, peer: Peer) {
        match peer {
            Peer::Node(Role::Processor, _) => {
                let routers = links.all_to(Role::Router);
                self.lead(links, &routers);
            }
            Peer::Node(Role::Router, index) => {
                let router = links.to(Role::Router, index);
                if let (Some(_), Some(router)) = (links.to(Role::Processor, self.processor), router)
                {
                    self.lead(links, &[router]);
                }
            }
            _ => {}
        }
    }

    fn frame(
        &mut self,
        links: &mut Links,
        from: (LinkId, Peer),
        frame: &mut ReceivedFrame<'_>,
    ) -> Result<(), LinkError> {
        match (from.1, frame.header.kind) {
            (Peer::Node(Role::Router, _), FrameKind::Request)
                if frame.header.cell == self.index =>
            {
                self.request(links, frame);
                Ok(())
            }
            (Peer::Node(Role::Processor, _), FrameKind::ResendRequest) => {
                if let Some(output) = links.output(from.0) {
                    self.answers.recall(&self.cell, &frame.header, output);
                }
                Ok(())
            }
            (peer, kind) => Err(LinkError(format!("{peer} sent a {kind:?} to a mediator"))),
        }
    }

    fn turn(&mut self, _links: &mut Links) -> Result<(), Failure> {
        self.flush()
    }

    fn end(&mut self) -> Result<(), Failure> {
        self.flush()?;
        match &mut self.hashes {
            // Not the state of another term, after whose last batch this one began.
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
