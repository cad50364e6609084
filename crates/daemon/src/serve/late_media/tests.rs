//! Tests of media that cannot be served yet.

use std::io::Write;

use super::opening::tests::{look, pass_quiet};
use super::*;
use crate::mailbox::{Receiver, channel};
use crate::scratch::Scratch;
use crate::serve::media::tests::{unit, units};

#[test]
fn a_file_that_comes_late_is_opened_and_never_created() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.path().join("state")).unwrap();
    let unit = unit(scratch.path(), "type = \"file\", path = \"mnt/disk.img\", size = \"1M\"");
    let path = scratch.path().join("mnt/disk.img");
    assert!(is_absent(&unit, &ServeError::Failed("it is not there".to_owned()), &state));
    let (late, (events, arrived)) = (LateMedia::default(), channel());
    late.add(UnitId(7), &unit, "it is not there");
    assert_eq!(late.reasons(), BTreeMap::from([(UnitId(7), "it is not there".to_owned())]));
    assert!(late.waits_for(&unit));
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    assert!(look(&late, &state, &events), "the file is missing");
    assert!(!path.exists(), "its file system is not mounted yet");
    assert!(late.reasons()[&UnitId(7)].ends_with("disk.img does not exist; restart targe to create it"));
    // Somebody restores it.
    let mut file = std::fs::File::create(&path).unwrap();
    for _ in 0..4 {
        file.write_all(&[7; 1 << 18]).unwrap();
        assert!(look(&late, &state, &events) && arrived.try_iter().next().is_none());
        let why = &late.reasons()[&UnitId(7)];
        assert!(why.ends_with(" is served when nobody has written to it for 10 seconds"), "{why}");
        pass_quiet(&late);
    }
    assert!(look(&late, &state, &events));
    let Some(DaemonEvent::MediumArrived(medium)) = arrived.try_iter().next() else { panic!("nothing") };
    assert!(medium.id == UnitId(7) && medium.unit == unit && medium.medium.identity().is_some());
    // It is not opened twice.
    assert!(look(&late, &state, &events) && arrived.try_iter().next().is_none());
    late.served(UnitId(7));
    assert!(!look(&late, &state, &events) && late.reasons().is_empty());
}

#[test]
fn a_new_file_is_created_when_its_directory_answers_and_one_that_was_served_is_not() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.path().join("state")).unwrap();
    let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"1M\"");
    let path = scratch.path().join("disk.img");
    let (events, arrived) = channel();
    let silent = |mount: Option<Mount>| {
        let late = LateMedia::default();
        late.add_silent(UnitId(7), &unit, "it does not answer");
        if mount.is_some() {
            late.list().units.get_mut(&UnitId(7)).unwrap().creatable_on = mount;
        }
        assert!(look(&late, &state, &events));
        late.reasons().remove(&UnitId(7)).unwrap()
    };
    // Another file system is mounted there now.
    let other = Mount::of(Path::new("/proc/self")).unwrap();
    assert!(silent(Some(other)).ends_with("disk.img does not exist; restart targe to create it"));
    assert!(!path.exists());
    silent(None);
    assert_eq!(arrivals(&arrived), [UnitId(7)]);
    assert!(!path.exists(), "dropping what has arrived undoes its creation");
    let directory = std::os::unix::fs::MetadataExt::ino(&scratch.path().metadata().unwrap());
    let record = format!("2 {} {} {directory} {path:?}\n", 1 << 20, 1 << 20);
    std::fs::write(state.size_file(unit.identity.naa), record).unwrap();
    let why = silent(None);
    assert!(why.contains("is missing, and 1048576 bytes of it were served before"), "{why}");
    assert!(arrivals(&arrived).is_empty() && !path.exists());
}

#[test]
fn a_medium_that_is_prepared_hides_no_mistake_of_another() {
    let scratch = Scratch::new();
    let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"1M\"");
    std::fs::write(scratch.path().join("disk.img"), [0; 1 << 20]).unwrap();
    let late = LateMedia::default();
    late.add(UnitId(7), &unit, "it is not there");
    assert!(late.waits_for(&unit));
    late.list().units.get_mut(&UnitId(7)).unwrap().stage = Stage::Preparing(1);
    assert!(!late.waits_for(&unit));
}

#[test]
fn a_medium_whose_secret_comes_late_is_not_touched_before_and_encrypted_then() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.path().join("state")).unwrap();
    let keys = "type = \"file\", path = \"disk.img\", size = \"1M\", encrypt = \"mnt/secret\"";
    let (unit, path) = (unit(scratch.path(), keys), scratch.path().join("disk.img"));
    let why = missing_secret(&unit).unwrap();
    assert!(why.contains("cannot read secret file ") && why.contains("mnt/secret"), "{why}");
    let (late, (events, arrived)) = (LateMedia::default(), channel());
    late.add(UnitId(7), &unit, &why);
    assert!(late.waits_for(&unit));
    std::fs::write(&path, [0; 1 << 20]).unwrap();
    assert!(look(&late, &state, &events));
    pass_quiet(&late);
    assert!(look(&late, &state, &events) && why.ends_with(&late.reasons()[&UnitId(7)]), "{late:?}");
    assert_eq!(std::fs::read(&path).unwrap(), [0; 1 << 20]);
    std::fs::create_dir(scratch.path().join("mnt")).unwrap();
    let secret = scratch.path().join("mnt/secret");
    std::fs::write(&secret, "a secret of more than thirty-two bytes").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(missing_secret(&unit).is_none() && look(&late, &state, &events));
    let Some(DaemonEvent::MediumArrived(medium)) = arrived.try_iter().next() else { panic!("{late:?}") };
    assert!(medium.id == UnitId(7) && luks::is_image(&path));
}

#[test]
fn a_library_comes_after_its_drives_and_with_as_many_as_before() {
    const LIBRARY: &str =
        "targe-library 1\nserial LIB00001\nprofile lto8\ndrives 2\nslots 4\nmail-slots 0\ncrc32c ea029480\n";
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.path().join("state")).unwrap();
    let folder = scratch.path().join("library");
    let make = || {
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("library"), LIBRARY).unwrap();
    };
    make();
    let units = units(scratch.path(), "type = \"changer\", path = \"library\"");
    assert_eq!(units.len(), 3);
    std::fs::remove_dir_all(&folder).unwrap();
    let (events, arrived) = channel();
    for (known, is_other) in [(2, false), (3, false), (3, true)] {
        let late = LateMedia::default();
        let mut units = units.clone();
        if is_other {
            units[1].identity.serial = "LIB0000901".to_owned();
        }
        for (id, unit) in (7..).zip(&units[..known]) {
            assert!(is_absent(unit, &ServeError::Failed("it is not there".to_owned()), &state));
            late.add(UnitId(id), unit, "it is not there");
        }
        late.keep(&units[..known], |id| units.get(usize::try_from(id.0 - 7).unwrap()));
        assert!(units[..known].iter().all(|unit| late.waits_for(unit)));
        assert!(look(&late, &state, &events) && arrived.try_iter().next().is_none());
        make();
        assert!(look(&late, &state, &events) && arrived.try_iter().next().is_none());
        let why = &late.reasons()[&UnitId(7)];
        assert!(why.ends_with(" is served when nobody has written to it for 10 seconds"), "{why}");
        pass_quiet(&late);
        assert!(look(&late, &state, &events));
        let came = arrivals(&arrived);
        if is_other {
            let why = &late.reasons()[&UnitId(7)];
            let told = ": a drive has the serial number LIB0000101, and had LIB0000901; reload the configuration to serve it";
            assert!(came.is_empty() && why.ends_with(told), "{why}");
        } else if known == 3 {
            assert_eq!(came, [8, 9, 7].map(UnitId));
            // Only one drive could be served.
            late.served(UnitId(8));
            late.refused(UnitId(9), "no unit number is free");
            late.refused(UnitId(7), "no unit number is free");
            assert!(look(&late, &state, &events));
            // The attempt before has locked the library, which its folder shows.
            pass_quiet(&late);
            assert!(look(&late, &state, &events));
            assert_eq!(arrivals(&arrived), [9, 7].map(UnitId));
        } else {
            let why = &late.reasons()[&UnitId(7)];
            let told = " has 2 drives, and 1 were served before; reload the configuration to serve it";
            assert!(came.is_empty() && why.ends_with(told), "{why}");
            // A reload brings the other drive.
            assert!(late.awaits_library(&units[2]) && late.is_closed(&units[0]));
            late.add(UnitId(9), &units[2], "its library is not there");
            late.keep(&units, |id| units.get(usize::try_from(id.0 - 7).unwrap()));
            assert!(look(&late, &state, &events));
            // The attempt before has locked the library, which its folder shows.
            pass_quiet(&late);
            assert!(look(&late, &state, &events));
            assert_eq!(arrivals(&arrived), [8, 9, 7].map(UnitId));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// Returns the units whose media have come.
fn arrivals(events: &Receiver<DaemonEvent>) -> Vec<UnitId> {
    let arrived = events.try_iter().map(|event| match event {
        DaemonEvent::MediumArrived(medium) => medium.id,
        other => panic!("{other:?}"),
    });
    arrived.collect()
}

#[test]
fn a_key_is_derived_again_only_if_the_secret_or_the_image_changed() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.path().join("state")).unwrap();
    let keys = "type = \"file\", path = \"disk.img\", encrypt = \"secret\"";
    let (unit, path) = (unit(scratch.path(), keys), scratch.path().join("disk.img"));
    let write_secret = |secret: &str| {
        let path = scratch.path().join("secret");
        std::fs::write(&path, secret).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    };
    write_secret("the secret of this image, which is long enough");
    std::fs::File::create(&path).unwrap().set_len(24 << 20).unwrap();
    drop(opened(&unit, &state).unwrap());
    write_secret("another secret, which is long enough as well");
    let (late, (events, arrived)) = (LateMedia::default(), channel());
    late.add(UnitId(7), &unit, "it is not there");
    let unfit = || late.list().units[&UnitId(7)].unfit;
    assert!(look(&late, &state, &events));
    pass_quiet(&late);
    assert!(look(&late, &state, &events));
    let (found, why) = (unfit().expect("a wrong secret"), late.reasons()[&UnitId(7)].clone());
    assert!(why.contains("secret"), "{why}");
    // The next attempt does not open the image, and its reason is not that somebody has locked it.
    let lock = std::fs::File::open(&path).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(look(&late, &state, &events));
    assert_eq!((unfit(), &late.reasons()[&UnitId(7)]), (Some(found), &why));
    drop(lock);
    write_secret("the secret of this image, which is long enough");
    // The attempt before has changed the times of the image.
    assert!(look(&late, &state, &events));
    pass_quiet(&late);
    assert!(look(&late, &state, &events));
    assert!(matches!(arrived.try_iter().next(), Some(DaemonEvent::MediumArrived(_))), "{late:?}");
}

fn nbd(scratch: &Scratch, uri: &str) -> Unit {
    unit(scratch.path(), &format!("type = \"nbd\", uri = \"{uri}\""))
}

fn opened(unit: &Unit, state: &StateDir) -> Result<OpenMedium, ServeError> {
    Ok(crate::serve::media::open(unit, state, &mut FileRollback::default(), None)?)
}

#[test]
fn a_server_is_absent_if_it_does_not_answer_and_is_connected_to_once() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.path().join("state")).unwrap();
    let unit = nbd(&scratch, "nbd+unix:///?socket=/nonexistent");
    assert!(is_absent(&unit, &opened(&unit, &state).unwrap_err(), &state));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unit = nbd(&scratch, &format!("nbd://{}/", listener.local_addr().unwrap()));
    let served = std::thread::spawn(move || {
        listener.accept().unwrap().0.write_all(b"220 mail.example.org ESMTP\r\n").unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err());
    });
    // A server that is there and does not do what it should is a mistake.
    assert!(!is_absent(&unit, &opened(&unit, &state).unwrap_err(), &state));
    served.join().unwrap();
    assert!(is_absent(&unit, &opened(&unit, &state).unwrap_err(), &state));
}

#[test]
fn a_start_tries_a_dead_server_once_and_waits_for_servers_so_long_in_all() {
    let scratch = Scratch::new();
    let late = LateMedia::default();
    let [a, b, c] = ["a:1/x", "a:1/y", "b:1/x"].map(|place| nbd(&scratch, &format!("nbd://{place}")));
    let file = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"1M\"");
    assert_eq!(late.put_off(&a), None);
    late.add(UnitId(1), &a, "it does not answer");
    late.waited_for(&a, Duration::from_secs(9));
    assert!(late.put_off(&b).is_some_and(|why| why.ends_with(": a:1 does not answer")));
    assert_eq!(late.put_off(&c), None);
    late.waited_for(&c, Duration::from_secs(1));
    let other = nbd(&scratch, "nbd://c:1/x");
    assert!(late.put_off(&other).is_some_and(|why| why.ends_with(": c:1 is connected to after the start")));
    assert_eq!(late.put_off(&file), None);
}

#[test]
fn a_server_that_does_not_answer_delays_no_other_medium() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.path().join("state")).unwrap();
    // It accepts connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = nbd(&scratch, &format!("nbd://{}/", silent.local_addr().unwrap()));
    let file = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"1M\"");
    let (late, (events, arrived)) = (LateMedia::default(), channel());
    late.add(UnitId(1), &dead, "it does not answer");
    late.add(UnitId(2), &file, "it is not there");
    std::fs::write(scratch.path().join("disk.img"), [7; 1 << 20]).unwrap();
    let found = std::iter::repeat_with(|| {
        late.look(&state, &events);
        std::thread::sleep(Duration::from_millis(2));
        pass_quiet(&late);
        arrived.try_iter().next()
    });
    let Some(DaemonEvent::MediumArrived(medium)) = found.take(30_000).flatten().next() else {
        panic!("{late:?}")
    };
    assert!(medium.id == UnitId(2) && matches!(late.list().units[&UnitId(1)].stage, Stage::Opening(_)));
    assert!(late.waits_for(&dead));
}

#[test]
fn a_medium_that_is_not_what_was_served_before_stays_late() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.path().join("state")).unwrap();
    let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"2M\"");
    let path = scratch.path().join("disk.img");
    let directory = std::os::unix::fs::MetadataExt::ino(&scratch.path().metadata().unwrap());
    let record = format!("2 {} {} {directory} {path:?}\n", 2 << 20, 2 << 20);
    std::fs::write(state.size_file(unit.identity.naa), record).unwrap();
    std::fs::write(&path, [7; 1 << 20]).unwrap();
    let (late, (events, arrived)) = (LateMedia::default(), channel());
    late.add(UnitId(7), &unit, "it is not there");
    for _ in 0..2 {
        assert!(look(&late, &state, &events) && arrived.try_iter().next().is_none());
        pass_quiet(&late);
    }
    let why = &late.reasons()[&UnitId(7)];
    assert!(why.contains("has 1048576 bytes, and 2097152 were served when targe ran last"), "{why}");
    assert_eq!(path.metadata().unwrap().len(), 1 << 20, "it is not extended");
}
