//! The experiments of `targe lab` against the daemon of this build, as a child process on 127.0.0.1.

#[cfg(test)]
mod risk;
