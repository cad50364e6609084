//! The engine against raw initiators.

mod alive;
mod happy;
mod text;
mod world;
