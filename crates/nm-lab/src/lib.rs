//! Environments and agents: where endpoints run, and how they are driven.
