//! The exchange: its network is started by the run itself, so no agent is asked to do anything.

use std::convert::Infallible;

use crate::exchange::{ExchangeSpec, MESSAGE_BYTES};
use crate::limits::SpecError;
use crate::probe::case::{Case, RrSize};
use crate::probe::definition::Probe;
use crate::stack::{Protocol, StackPair};

impl Probe for ExchangeSpec {
    type Work = Infallible;

    fn check(&self, _protocol: Protocol) -> Result<(), SpecError> {
        ExchangeSpec::check(self)
    }

    fn cases(&self) -> Vec<Case> {
        let size = RrSize { request_bytes: MESSAGE_BYTES, response_bytes: MESSAGE_BYTES };
        vec![Case::Request { size, rate_per_s: Some(self.rate_per_s) }]
    }

    fn work(&self, _case: Case) -> Option<Infallible> {
        None
    }

    fn duration_s(&self) -> f64 {
        self.seconds + self.warmup_ms as f64 / 1e3
    }

    /// The layout of the exchange with its options.
    fn stack_name(&self, stacks: &StackPair) -> String {
        self.name(stacks.client)
    }
}
