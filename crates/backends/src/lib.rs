//! Placeholder until the first module of this room lands.
