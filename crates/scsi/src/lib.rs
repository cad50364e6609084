//! Placeholder until the first module of this room lands.
#![no_std]
#![forbid(unsafe_code)]
