//! A host between the two others that forwards their frames and loses some: for kernels without a network
//! emulator of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use netem::frame::FramePlan;
use netem::probability::Probability;

use super::link::RELAY_PORTS;
use super::namespace::Namespace;
use crate::experiment::LabError;
use crate::wire::Wire;

/// The host in the middle. Nothing passes until [`Self::lose`] starts a wire.
#[derive(Debug)]
pub struct Relay {
    host: Namespace,
    wire: Option<RunningWire>,
}

#[derive(Debug)]
struct RunningWire {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(super) const fn new(host: Namespace) -> Self {
        Self { host, wire: None }
    }

    /// Forwards frames from now on, and loses each with this probability, in either direction.
    ///
    /// # Errors
    /// [`LabError::Target`] if the interfaces cannot be opened.
    pub fn lose(&mut self, loss: Probability, seed: u64) -> Result<(), LabError> {
        // The wire before holds the interfaces.
        self.wire = None;
        let plan = FramePlan { loss, burst: loss, ..FramePlan::CLEAN };
        let ends = Arc::new(AtomicBool::new(false));
        let (opened, is_open) = mpsc::channel();
        let its_end = Arc::clone(&ends);
        let forward = move || match Wire::open(RELAY_PORTS, None, [plan.clone(), plan], seed) {
            Ok(mut wire) => {
                let _ = opened.send(Ok(()));
                let _ = wire.run(&its_end, None);
            }
            Err(why) => {
                let _ = opened.send(Err(why.to_string()));
            }
        };
        // A thread is in the namespace of the thread that starts it.
        let thread = self.host.run(|| std::thread::Builder::new().name("relay".to_owned()).spawn(forward))?;
        let thread = thread.map_err(|why| LabError::System { what: "start a relay".to_owned(), why })?;
        self.wire = Some(RunningWire { ends, thread: Some(thread) });
        match is_open.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(LabError::Target(format!("the relay does not start: {why}"))),
            Err(_) => Err(LabError::Target("the relay does not start".to_owned())),
        }
    }
}

impl Drop for RunningWire {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
