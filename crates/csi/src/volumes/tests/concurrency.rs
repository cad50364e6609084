//! Calls about different volumes at the same time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::*;

/// No call here takes a second; one that takes this long waits for the other.
const HANG: Duration = Duration::from_secs(60);

/// A daemon that makes a password record only after it is told to.
struct SlowDaemon {
    daemon: Daemon,
    begun: Mutex<Sender<()>>,
    may_end: Mutex<Receiver<()>>,
}

impl TargetAdmin for SlowDaemon {
    fn serve(&self, target: &VolumeTarget) -> Result<(), AdminError> {
        self.daemon.serve(target)
    }

    fn password_records(&self, user: &str, password: &str, of: Strength) -> Result<Vec<u8>, AdminError> {
        self.begun.lock().unwrap().send(()).unwrap();
        let told = self.may_end.lock().unwrap().recv_timeout(HANG);
        told.map_err(|_| AdminError::Refused("the other call waits".to_owned()))?;
        self.daemon.password_records(user, password, of)
    }

    fn remove(&self, name: &str) -> Result<(), AdminError> {
        self.daemon.remove(name)
    }

    fn snapshots(&self, wanted: &[(String, PathBuf)]) -> Result<Vec<bool>, AdminError> {
        self.daemon.snapshots(wanted)
    }

    fn is_alive(&self) -> bool {
        true
    }
}

#[test]
fn a_slow_publication_delays_that_of_no_other_volume_and_counts_meanwhile() {
    let bed = Bed::new("slow");
    let ((begun, has_begun), (end, may_end)) = (channel(), channel());
    let daemon = bed.daemon.clone();
    let slow = SlowDaemon { daemon, begun: Mutex::new(begun), may_end: Mutex::new(may_end) };
    let volumes = Volumes::open(&bed.folder, Box::new(slow), settings(NonZeroU32::new(2))).unwrap();
    let encrypted = volumes.create(&wanted("slow")).unwrap().id;
    let [other, third] = ["other", "third"].map(|name| {
        let parameters = BTreeMap::from([("protection".to_owned(), "none".to_owned())]);
        volumes.create(&NewVolume { parameters, ..wanted(name) }).unwrap().id
    });
    let publish = |id: &str| publish(&volumes, id, NODE, Mode::SingleNodeWriter);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| publish(&encrypted));
        has_begun.recv().unwrap();
        publish(&other).unwrap();
        assert_eq!(code(publish(&third)), Code::ResourceExhausted);
        assert_eq!(code(publish(&encrypted)), Code::Aborted);
        end.send(()).unwrap();
        call.join().unwrap().unwrap();
    });
}
