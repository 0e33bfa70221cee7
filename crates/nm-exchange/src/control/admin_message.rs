//! What an observer asks a node, and what the node answers.

use nm_book::order::InstrumentId;
use nm_codec::{DecodeError, Put, Reader};

use super::state::State;

/// What an observer asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRequest {
    /// The state of control.
    Status,
    /// To move an instrument to a cell.
    Assign {
        /// Which.
        instrument: InstrumentId,
        /// Its new cell.
        cell: u16,
    },
}

/// The codes of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestCode {
    Status,
    Assign,
}

nm_codec::codes!(RequestCode { Status = 0, Assign = 1 });

impl AdminRequest {
    /// Whether it changes the network, which only an operator may.
    pub fn is_change(&self) -> bool {
        match self {
            AdminRequest::Status => false,
            AdminRequest::Assign { .. } => true,
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        match self {
            AdminRequest::Status => out.put_u8(RequestCode::Status.code()),
            AdminRequest::Assign { instrument, cell } => {
                out.put_u8(RequestCode::Assign.code());
                out.put_u32(*instrument);
                out.put_u16(*cell);
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
            RequestCode::Assign => AdminRequest::Assign {
                instrument: reader.u32("instrument")?,
                cell: reader.u16("cell")?,
            },
        };
        reader.finish("request")?;
        Ok(request)
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
    Assigned(u32),
    /// It cannot be moved; the reason, in a sentence.
    Refused(String),
    /// This node does not lead control, or no longer.
    NotLeading,
}

/// The codes of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseCode {
    Status,
    Assigned,
    Refused,
    NotLeading,
}

nm_codec::codes!(ResponseCode { Status = 0, Assigned = 1, Refused = 2, NotLeading = 3 });

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
            AdminResponse::Assigned(map_version) => {
                out.put_u8(ResponseCode::Assigned.code());
                out.put_u32(*map_version);
            }
            AdminResponse::Refused(reason) => {
                out.put_u8(ResponseCode::Refused.code());
                out.put(reason.as_bytes());
            }
            AdminResponse::NotLeading => out.put_u8(ResponseCode::NotLeading.code()),
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
            ResponseCode::Assigned => {
                let map_version = reader.u32("map_version")?;
                reader.finish("map_version")?;
                AdminResponse::Assigned(map_version)
            }
            ResponseCode::Refused => match std::str::from_utf8(reader.rest()) {
                Ok(reason) => AdminResponse::Refused(reason.to_string()),
                Err(_) => return Err(DecodeError::invalid("reason", "is not UTF-8")),
            },
            ResponseCode::NotLeading => {
                reader.finish("response")?;
                AdminResponse::NotLeading
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn response() -> impl Strategy<Value = AdminResponse> {
        let term = prop_oneof![Just(None), (1u32..).prop_map(Some)];
        prop_oneof![
            (term, any::<u64>(), any::<u64>()).prop_map(|(leading_term, stalled_ms, index)| {
                let mut state = Box::new(State::new(3));
                state.begin(index);
                AdminResponse::Status { leading_term, stalled_ms, state }
            }),
            any::<u32>().prop_map(AdminResponse::Assigned),
            ".{0,40}".prop_map(AdminResponse::Refused),
            Just(AdminResponse::NotLeading),
        ]
    }

    proptest! {
        #[test]
        fn requests_and_responses_are_read_back(
            instrument: u32,
            cell: u16,
            response in response(),
            noise in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            for request in [AdminRequest::Status, AdminRequest::Assign { instrument, cell }] {
                prop_assert_eq!(AdminRequest::decode(&request.encode()), Ok(request));
            }
            prop_assert_eq!(AdminResponse::decode(&response.encode()), Ok(response));
            let _ = (AdminRequest::decode(&noise), AdminResponse::decode(&noise));
        }
    }

    #[test]
    fn bytes_of_no_message_are_refused() {
        assert!(AdminRequest::decode(&[]).is_err() && AdminRequest::decode(&[0, 0]).is_err());
        assert!(AdminResponse::decode(&[9]).is_err() && AdminResponse::decode(&[0, 1]).is_err());
    }
}
