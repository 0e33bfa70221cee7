//! Received bytes, and the frames in them.

use nm_codec::DecodeError;
use nm_wire::FrameMut;

/// Most bytes of a spare buffer.
const SPARE_BYTES_MAX: usize = 512 << 10;

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

    /// Takes the space of a spare buffer, unless it has some.
    pub(super) fn borrow(&mut self, spare: &mut Vec<u8>) {
        if self.bytes.is_empty() {
            self.bytes = std::mem::take(spare);
        }
    }

    /// Gives its space to the spare buffer, if that has none, or frees it. What waits is kept in
    /// as much space as it takes.
    pub(super) fn give_back(&mut self, spare: &mut Vec<u8>) {
        let waiting = self.bytes[self.start..self.end].to_vec();
        let (start, end) = (0, waiting.len());
        let space = std::mem::replace(&mut self.bytes, waiting);
        (self.start, self.end) = (start, end);
        if spare.is_empty() && space.len() <= SPARE_BYTES_MAX {
            *spare = space;
        }
    }

    /// Frees the space beyond `kept_bytes` if nothing waits in it.
    pub(super) fn shrink(&mut self, kept_bytes: usize) {
        if self.start == self.end && self.bytes.len() > kept_bytes {
            *self = ReceiveBuffer::default();
        }
    }

    /// Bytes that are not handled yet.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.end - self.start
    }

    /// Bytes that it has allocated.
    pub fn allocated_bytes(&self) -> usize {
        self.bytes.capacity()
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
