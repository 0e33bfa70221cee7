//! Received bytes, and the frames in them.

use nm_codec::DecodeError;
use nm_wire::FrameMut;

/// Received bytes that are not handled yet: complete frames first, then the beginning of one.
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    /// The next complete frame. Its bytes may be changed; the next call may overwrite them.
    ///
    /// # Errors
    /// If the next bytes are not a frame.
    pub fn next_frame(&mut self) -> Result<Option<FrameMut<'_>>, DecodeError> {
        let frame = nm_wire::read_mut(&mut self.bytes[self.start..self.end])?;
        if let Some(frame) = &frame {
            self.start += frame.bytes.len();
            debug_assert!(self.start <= self.end);
        }
        Ok(frame)
    }

    /// Frees the space beyond `kept_bytes` if nothing waits in it; the bytes that wait.
    pub(super) fn shrink(&mut self, kept_bytes: usize) -> usize {
        if self.start == self.end && self.bytes.len() > kept_bytes {
            *self = ReceiveBuffer::default();
        }
        self.end - self.start
    }

    /// Free space of at least `bytes` behind what was received.
    pub(super) fn free_space(&mut self, bytes: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && self.bytes.len() - self.end < bytes {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < bytes {
            self.bytes.resize(self.end + bytes, 0);
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were written to the free space.
    pub(super) fn received(&mut self, bytes: usize) {
        self.end += bytes;
        debug_assert!(self.end <= self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl ReceiveBuffer {
        /// These bytes were received.
        pub fn of(bytes: Vec<u8>) -> ReceiveBuffer {
            let end = bytes.len();
            ReceiveBuffer { bytes, start: 0, end }
        }
    }
}
