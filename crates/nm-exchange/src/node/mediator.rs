//! Mediator: puts requests in order and matches them.

use crate::book::Book;
use crate::cell::{Cell, Request};
use crate::link::{Arrived, Broken};
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
    /// Index of the batch of this turn, if it has begun.
    batch: Option<u64>,
    answers: Answers,
    requests: u64,
}

impl Mediator {
    /// A mediator with empty books.
    pub fn new(network: &Network, index: usize) -> Mediator {
        Mediator {
            index: index as u16,
            processor: index % network.processor.len(),
            cell: Cell::default(),
            batch: None,
            answers: Answers::default(),
            requests: 0,
        }
    }

    /// Tells routers that requests find their way from now on, and that those before may be lost.
    fn lead(&self, links: &mut Links, routers: &[LinkId]) {
        let header = Header { cell: self.index, ..Header::new(FrameKind::Lead) };
        for router in routers {
            links.send(*router, &header, &[], 0);
        }
    }

    fn request(&mut self, links: &mut Links, frame: &Arrived<'_>) {
        // Without a processor nobody would get the reply: it is sent again when there is one.
        let Some(processor) = links.to(Role::Processor, self.processor) else { return };
        let Ok(request) = Request::from_parts(&frame.header, frame.body()) else { return };
        self.requests += 1;
        if self.batch.is_none() {
            let index = self.cell.index() + 1;
            self.batch = Some(index);
            self.cell.begin(index, links.now_ns);
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
    fn up(&mut self, links: &mut Links, peer: Peer, starts_before: u64) {
        match peer {
            Peer::Node(Role::Processor, _) => {
                self.cell.forgives |= starts_before > 0;
                let routers = links.all_to(Role::Router);
                self.lead(links, &routers);
            }
            Peer::Node(Role::Router, index) => {
                let router = links.to(Role::Router, index);
                if let (Some(_), Some(router)) =
                    (links.to(Role::Processor, self.processor), router)
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
        frame: &mut Arrived<'_>,
    ) -> Result<(), Broken> {
        match (from.1, frame.header.kind) {
            (Peer::Node(Role::Router, _), FrameKind::Request)
                if frame.header.cell == self.index =>
            {
                self.request(links, frame);
                Ok(())
            }
            (peer, kind) => Err(Broken(format!("{peer} sent a {kind:?} to a mediator"))),
        }
    }

    fn turn(&mut self, _links: &mut Links) -> Result<(), nm_model::agent::Failure> {
        self.batch = None;
        Ok(())
    }

    fn counts(&self) -> (u64, u64) {
        (self.requests, 0)
    }
}
