//! The probes: ping-pong, stream and request-response; a transport and a clock become samples.
