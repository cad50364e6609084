//! The engine against raw initiators.

mod alive;
mod chaos;
mod commands;
mod data_out;
mod erl1;
mod happy;
mod management;
mod sessions;
mod stream;
mod text;
mod world;
