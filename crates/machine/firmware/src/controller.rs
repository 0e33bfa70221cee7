//! What answers requests: `curl` with a controller behind it, or a test.

use serde_json::Value;

use crate::error::FirmwareError;

/// An answer of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Status of HTTP.
    pub status: u16,
    /// The state that the answer is about, for a change that must not hit another one.
    pub etag: Option<String>,
    /// The document.
    pub body: Vec<u8>,
}

/// What answers requests.
pub trait Controller {
    /// Asks for the document at `path`.
    ///
    /// # Errors
    /// If there is no answer.
    fn get(&mut self, path: &str) -> Result<Answer, FirmwareError>;

    /// Changes the document at `path`, if it still is in the state `etag`.
    ///
    /// # Errors
    /// If there is no answer: the change may have been made.
    fn patch(
        &mut self,
        path: &str,
        etag: Option<&str>,
        body: &Value,
    ) -> Result<Answer, FirmwareError>;
}
