//! Tests of an initiator: we are a scripted target.
