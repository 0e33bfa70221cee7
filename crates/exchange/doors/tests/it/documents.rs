//! What documents say of the door.
