//! The controller with a daemon that only remembers, killed after each of its durable steps.

use std::fs;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use tonic::Code;

use super::*;
use crate::capability::{Capability, MountCapability};
use crate::kill_point::testing::{FAILED, KILLED, fail_after, kill_after};
use crate::protection::Protection;
use crate::proto::volume_capability::access_mode::Mode;
use crate::publish::{SECRET_PASSWORD, SECRET_USER, context};
use crate::target_admin::{Access, AdminError, Login, Strength, VolumeTarget};

const NODE: &str = "iqn.2026-11.example.node:one";
const OTHER: &str = "iqn.2026-11.example.node:two";
const MIB: u64 = 1 << 20;
/// What a file begins with that the daemon copied.
const BY_DAEMON: &[u8] = b"by the daemon";

mod concurrency;
mod full;
mod groups;

/// A daemon that remembers what it is to serve.
#[derive(Clone, Default)]
struct Daemon(Arc<Mutex<BTreeMap<String, VolumeTarget>>>);

impl Daemon {
    fn targets(&self) -> MutexGuard<'_, BTreeMap<String, VolumeTarget>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TargetAdmin for Daemon {
    fn serve(&self, target: &VolumeTarget) -> Result<(), AdminError> {
        assert!(!target.access.is_empty(), "a target without an access list is open");
        for access in &target.access {
            assert!(fs::metadata(login_file(access)).unwrap().len() >= 12);
        }
        // As the daemon does.
        let file = fs::File::options().write(true).open(&target.file).unwrap();
        if file.metadata().unwrap().len() < target.bytes {
            file.set_len(target.bytes).unwrap();
        }
        self.targets().insert(target.name.clone(), target.clone());
        Ok(())
    }

    fn password_records(&self, user: &str, password: &str, _: Strength) -> Result<Vec<u8>, AdminError> {
        Ok(records_of(user, password).into_bytes())
    }

    fn remove(&self, name: &str) -> Result<(), AdminError> {
        self.targets().remove(name);
        Ok(())
    }

    fn snapshots(&self, wanted: &[(String, PathBuf)]) -> Result<Vec<bool>, AdminError> {
        let targets = self.targets();
        let copy = |(name, to): &(String, PathBuf)| {
            targets.get(name).is_some_and(|target| {
                // The contents tell that the daemon copied the file.
                fs::write(to, BY_DAEMON).unwrap();
                fs::File::options().write(true).open(to).unwrap().set_len(target.bytes).unwrap();
                true
            })
        };
        Ok(wanted.iter().map(copy).collect())
    }

    fn is_alive(&self) -> bool {
        true
    }
}

/// Returns what stands for a record.
fn records_of(user: &str, password: &str) -> String {
    format!("record of {user}: {password}")
}

fn login_file(access: &Access) -> &PathBuf {
    match &access.login {
        Login::Chap { secret_file, .. } => secret_file,
        Login::Password { password_file } => password_file,
    }
}

/// A pool that ends with the test.
struct Bed {
    folder: PathBuf,
    daemon: Daemon,
}

impl Bed {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("targe-csi-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Self { folder, daemon: Daemon::default() }
    }

    fn open(&self) -> Volumes {
        self.try_open().unwrap()
    }

    fn try_open(&self) -> CsiResult<Volumes> {
        self.open_with(None)
    }

    fn open_with(&self, max_volumes: Option<NonZeroU32>) -> CsiResult<Volumes> {
        Volumes::open(&self.folder, Box::new(self.daemon.clone()), settings(max_volumes))
    }

    /// Returns the files of the pool, but for the lock and the spare files.
    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.extend((!path.ends_with(".csi/spare")).then_some(path));
                } else if path.file_name().unwrap() != "lock" {
                    found.push(path.strip_prefix(&self.folder).unwrap().display().to_string());
                }
            }
        }
        found.sort();
        found
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn settings(max_volumes: Option<NonZeroU32>) -> Settings {
    Settings {
        target_prefix: "iqn.2026-11.example:csi".into(),
        portals: vec!["san:3260".into()],
        max_volumes,
    }
}

fn wanted(name: &str) -> NewVolume {
    NewVolume { name: name.into(), size: SizeRange { required: 4 * MIB, limit: 0 }, ..NewVolume::default() }
}

fn capability(mode: Mode, block: bool) -> Capability {
    let mount = (!block).then(|| MountCapability { file_system: None, options: Vec::new() });
    Capability { mode, mount }
}

fn publish(volumes: &Volumes, id: &str, node: &str, mode: Mode) -> CsiResult<BTreeMap<String, String>> {
    volumes.publish(id, node, &capability(mode, true), false, &BTreeMap::new())
}

fn code<T>(result: CsiResult<T>) -> Code {
    result.err().expect("a call that must fail").code
}

/// Carries out a call once for each of its steps: killed there, then repeated by a new controller. Returns
/// how many steps there are. `check` looks at what the repeated call leaves.
fn kill_everywhere(
    name: &str,
    prepare: impl Fn(&Volumes) -> String,
    call: impl Fn(&Volumes, &str) -> CsiResult<()>,
    check: impl Fn(&Bed, &Volumes, &str),
) -> u32 {
    for steps in 0.. {
        let bed = Bed::new(&format!("{name}-{steps}"));
        let volumes = bed.open();
        let id = prepare(&volumes);
        kill_after(Some(steps));
        let ended = call(&volumes, &id);
        kill_after(None);
        drop(volumes);
        let volumes = bed.open();
        match ended {
            Ok(()) => {
                check(&bed, &volumes, &id);
                return steps;
            }
            Err(error) => assert_eq!(error.message, KILLED),
        }
        for _ in 0..2 {
            call(&volumes, &id).unwrap();
            check(&bed, &volumes, &id);
        }
    }
    0
}

/// Carries out a call once for each of its steps: the step fails, and then the same controller repeats the
/// call. Then the controller is started again, and still finds the same.
fn fail_everywhere(
    name: &str,
    prepare: impl Fn(&Volumes) -> String,
    call: impl Fn(&Volumes, &str) -> CsiResult<()>,
    check: impl Fn(&Bed, &Volumes, &str),
) {
    for steps in 0.. {
        let bed = Bed::new(&format!("{name}-fails-{steps}"));
        let volumes = bed.open();
        let id = prepare(&volumes);
        fail_after(steps);
        let ended = call(&volumes, &id);
        kill_after(None);
        if let Err(error) = &ended {
            assert_eq!(error.message, FAILED);
            for _ in 0..2 {
                call(&volumes, &id).unwrap();
                check(&bed, &volumes, &id);
            }
        }
        drop(volumes);
        check(&bed, &bed.open(), &id);
        if ended.is_ok() {
            assert!(steps > 0, "the call has no steps");
            return;
        }
    }
}

fn made(volumes: &Volumes) -> String {
    volumes.create(&wanted("a")).unwrap().id
}

fn published(volumes: &Volumes) -> String {
    let id = made(volumes);
    publish(volumes, &id, NODE, Mode::MultiNodeMultiWriter).unwrap();
    id
}

#[test]
fn a_limit_alone_is_rounded_down() {
    let steps = |count: u64| SIZE_MIN + count * SIZE_STEP;
    let default = steps(10);
    let chosen = |required, limit| SizeRange { required, limit }.choose(0, default);
    for (limit, expected) in
        [(steps(3), steps(3)), (steps(4) - 1, steps(3)), (steps(20), default), (0, default)]
    {
        assert_eq!(chosen(0, limit).unwrap(), expected, "{limit}");
    }
    assert!(chosen(0, SIZE_MIN - 1).is_err(), "no size is small enough");
    // With a least size, no size between both is a multiple.
    assert!(chosen(default + 1, default + 2).is_err());
}

#[test]
fn a_killed_creation_leaves_one_volume() {
    let check = |bed: &Bed, volumes: &Volumes, _: &str| {
        let (all, _) = volumes.list(0, "").unwrap();
        assert_eq!(all.len(), 1);
        let id = &all[0].id;
        assert_eq!(bed.files(), [format!(".csi/volumes/{id}.json"), format!("{id}.img")]);
        assert_eq!(volumes.pool.len(id).unwrap(), 4 * MIB);
    };
    let create = |volumes: &Volumes, _: &str| volumes.create(&wanted("a")).map(drop);
    let steps = kill_everywhere("create", |_| String::new(), create, check);
    assert!(steps >= 4, "{steps}");
    fail_everywhere("create", |_| String::new(), create, check);
}

#[test]
fn a_volume_without_its_file_can_be_removed() {
    let bed = Bed::new("fileless");
    let volumes = bed.open();
    for ending in ["making", "gone"] {
        let id = made(&volumes);
        let image = bed.folder.join(format!("{id}.img"));
        fs::rename(&image, image.with_extension(ending)).unwrap();
        volumes.delete(&id).unwrap();
        assert!(volumes.list(0, "").unwrap().0.is_empty());
        let _ = fs::remove_file(image.with_extension("gone"));
        assert!(bed.files().is_empty(), "{:?}", bed.files());
    }
}

#[test]
fn a_file_that_nobody_makes_any_more_is_removed() {
    let bed = Bed::new("late");
    let volumes = bed.open();
    let [late, made_now] = ["1", "2"].map(|digit| format!("s-{}", digit.repeat(32)));
    for id in [&late, &made_now] {
        fs::write(volumes.pool.making(id), "x").unwrap();
    }
    let claim = volumes.claim(&made_now).unwrap();
    made(&volumes);
    assert_eq!(volumes.pool.being_made().unwrap(), [made_now]);
    drop(claim);
}

#[test]
fn a_file_with_a_record_stays_for_the_next_start() {
    let bed = Bed::new("recorded");
    let volumes = bed.open();
    let id = format!("v-{}", "1".repeat(32));
    let record = Volume { id: id.clone(), name: "failed".into(), ..volumes.create(&wanted("a")).unwrap() };
    // A call that failed could neither make this record durable nor remove it.
    record::write(&volumes.pool.volumes(), &record).unwrap();
    fs::write(volumes.pool.making(&id), "x").unwrap();
    volumes.create(&wanted("b")).unwrap();
    drop(volumes);
    let volumes = bed.open();
    assert_eq!(volumes.volume(&id).unwrap(), record);
    publish(&volumes, &id, NODE, Mode::SingleNodeWriter).unwrap();
}

#[test]
fn a_volume_whose_removal_failed_is_not_there() {
    let bed = Bed::new("half-removed");
    let volumes = bed.open();
    let id = made(&volumes);
    fail_after(0);
    assert_eq!(volumes.delete(&id).unwrap_err().message, FAILED);
    kill_after(None);
    assert_eq!(code(volumes.create(&wanted("a"))), Code::Aborted);
    volumes.delete(&id).unwrap();
    assert_ne!(made(&volumes), id);
}

#[test]
fn a_killed_removal_ends_with_nothing() {
    let check = |bed: &Bed, volumes: &Volumes, _: &str| {
        assert!(volumes.list(0, "").unwrap().0.is_empty());
        assert!(bed.files().is_empty(), "{:?}", bed.files());
    };
    let delete = |volumes: &Volumes, id: &str| volumes.delete(id);
    let steps = kill_everywhere("delete", made, delete, check);
    assert!(steps >= 3, "{steps}");
    fail_everywhere("delete", made, delete, check);
}

#[test]
fn a_killed_publication_admits_the_node_once() {
    let steps = kill_everywhere(
        "publish",
        made,
        |volumes, id| publish(volumes, id, NODE, Mode::SingleNodeWriter).map(drop),
        |bed, volumes, id| {
            let targets = bed.daemon.targets().clone();
            let target = &targets[&volumes.target_name(id)];
            assert_eq!(target.access.len(), 1);
            assert_eq!(target.access[0].initiator, NODE);
            assert_eq!(target.protection, Protection::Encrypt);
            assert_eq!(bed.files().len(), 4);
            let again = publish(volumes, id, NODE, Mode::SingleNodeWriter).unwrap();
            assert_eq!(again[context::PROTECTION], "encrypt");
            let record = fs::read_to_string(login_file(&target.access[0])).unwrap();
            assert_eq!(record, records_of(id, &again[context::SECRET]));
        },
    );
    assert!(steps >= 3, "{steps}");
}

#[test]
fn a_killed_withdrawal_refuses_the_node() {
    let steps = kill_everywhere(
        "unpublish",
        published,
        |volumes, id| volumes.unpublish(id, Some(NODE)),
        |bed, volumes, id| {
            assert!(bed.daemon.targets().is_empty());
            assert!(volumes.volume(id).unwrap().publications.is_empty());
            assert_eq!(bed.files().len(), 2, "{:?}", bed.files());
        },
    );
    assert!(steps >= 2, "{steps}");
}

#[test]
fn a_killed_expansion_is_continued() {
    for (prepare, name) in [(made as fn(&Volumes) -> String, "unused"), (published, "used")] {
        let steps = kill_everywhere(
            &format!("expand-{name}"),
            prepare,
            |volumes, id| volumes.expand(id, SizeRange { required: 8 * MIB, limit: 0 }).map(drop),
            |_, volumes, id| {
                assert_eq!(volumes.pool.len(id).unwrap(), 8 * MIB);
                assert_eq!(volumes.volume(id).unwrap().bytes, 8 * MIB);
            },
        );
        assert!(steps >= 2, "{steps}");
    }
}

#[test]
fn a_pool_has_one_driver() {
    let bed = Bed::new("owner");
    let volumes = bed.open();
    assert_eq!(code(bed.try_open().map(drop)), Code::FailedPrecondition);
    drop(volumes);
    bed.open();
}

#[test]
fn a_damaged_record_stops_the_start_and_removes_nothing() {
    let bed = Bed::new("damaged");
    let id = made(&bed.open());
    let path = bed.folder.join(format!(".csi/volumes/{id}.json"));
    for text in ["", "{", "{\"version\":2,\"record\":{}}", "{\"version\":1,\"record\":{}}"] {
        fs::write(&path, text).unwrap();
        let error = bed.try_open().map(drop).unwrap_err();
        assert!(error.message.contains("is no record"), "{error}");
        assert_eq!(bed.files().len(), 2);
    }
}

#[test]
fn files_of_nobody_stay() {
    let bed = Bed::new("strangers");
    let volumes = bed.open();
    let id = made(&volumes);
    drop(volumes);
    fs::write(bed.folder.join("notes.txt"), "x").unwrap();
    fs::write(bed.folder.join(format!("v-{}.img", "0".repeat(32))), "x").unwrap();
    fs::write(bed.folder.join(format!("v-{}.making", "1".repeat(32))), "x").unwrap();
    bed.open();
    assert_eq!(bed.files().len(), 4, "{:?}", bed.files());
    assert!(bed.files().contains(&format!("{id}.img")));
}

#[test]
fn a_repeated_creation_returns_the_volume_or_says_what_differs() {
    let bed = Bed::new("repeat");
    let volumes = bed.open();
    let name = "ü".repeat(64);
    let first = volumes.create(&wanted(&name)).unwrap();
    assert_eq!(volumes.create(&wanted(&name)).unwrap(), first);
    let larger = NewVolume { size: SizeRange { required: 8 * MIB, limit: 0 }, ..wanted(&name) };
    assert_eq!(code(volumes.create(&larger)), Code::AlreadyExists);
    let smaller = NewVolume { size: SizeRange { required: 0, limit: 2 * MIB }, ..wanted(&name) };
    assert_eq!(code(volumes.create(&smaller)), Code::AlreadyExists);
    let limited =
        NewVolume { parameters: BTreeMap::from([("limit_iops".into(), "100".into())]), ..wanted(&name) };
    assert_eq!(code(volumes.create(&limited)), Code::AlreadyExists);
}

#[test]
fn a_name_that_is_used_again_is_another_disk() {
    let bed = Bed::new("identity");
    let volumes = bed.open();
    let first = made(&volumes);
    volumes.delete(&first).unwrap();
    let second = made(&volumes);
    assert_ne!(first, second);
    publish(&volumes, &second, NODE, Mode::SingleNodeWriter).unwrap();
    let target = bed.daemon.targets()[&volumes.target_name(&second)].clone();
    assert_eq!(target.naa, format!("3{}", &second[2..17]));
    assert_eq!(target.serial, second[2..]);
}

#[test]
fn sizes_are_chosen_within_their_range() {
    let choose = |required, limit| SizeRange { required, limit }.choose(0, SIZE_DEFAULT);
    assert_eq!(choose(0, 0).unwrap(), SIZE_DEFAULT);
    assert_eq!(choose(0, 2 * MIB).unwrap(), 2 * MIB);
    // A limit alone is an upper bound, and sizes are whole steps.
    assert_eq!(choose(0, 2 * MIB + 4095).unwrap(), 2 * MIB);
    assert_eq!(choose(0, SIZE_DEFAULT + 1).unwrap(), SIZE_DEFAULT);
    assert_eq!(code(choose(0, MIB - 1)), Code::OutOfRange);
    assert_eq!(choose(MIB + 1, 0).unwrap(), MIB + SIZE_STEP);
    assert_eq!(choose(1, 0).unwrap(), MIB);
    assert_eq!(code(choose(MIB + 1, MIB + 1)), Code::OutOfRange);
    assert_eq!(code(choose(1, 4096)), Code::OutOfRange);
    assert_eq!(code(choose(u64::MAX, 0)), Code::OutOfRange);
    assert_eq!(code(choose(SIZE_MAX + 1, 0)), Code::OutOfRange);
}

#[test]
fn the_journal_of_a_copy_is_replayed_before_the_first_node_gets_it_to_read() {
    use crate::ext::ExtSuperblock;
    use crate::program::run_well;
    use std::os::unix::fs::FileExt;
    const BLOCK: u64 = 3000;
    let bed = Bed::new("journal");
    let volumes = bed.open();
    for (mode, read_only, block, is_replayed) in [
        (Mode::MultiNodeReaderOnly, false, false, true),
        (Mode::SingleNodeWriter, true, false, true),
        (Mode::SingleNodeWriter, false, false, false),
        // A program that reads the device itself finds it as it was copied.
        (Mode::SingleNodeReaderOnly, false, true, false),
    ] {
        let name = format!("{mode:?} {read_only} {block}");
        let size = SizeRange { required: 16 * MIB, limit: 0 };
        let id = volumes.create(&NewVolume { size, ..wanted(&name) }).unwrap().id;
        let image = volumes.pool.image(&id);
        run_well(&["mkfs.ext4", "-q", "-F", "-b", "1024", image.to_str().unwrap()]).unwrap();
        // One block of data that was synced is in the journal only.
        let (data, commands) = (bed.folder.join("data"), bed.folder.join("commands"));
        fs::write(&data, [0x5a; 1024]).unwrap();
        fs::write(&commands, format!("jo\njw -b {BLOCK} {}\njc\n", data.display())).unwrap();
        run_well(&["debugfs", "-w", "-f", commands.to_str().unwrap(), image.to_str().unwrap()]).unwrap();
        let needs_recovery = || ExtSuperblock::read(&image).unwrap().unwrap().needs_recovery;
        assert!(needs_recovery(), "{name}");
        volumes.publish(&id, NODE, &capability(mode, block), read_only, &BTreeMap::new()).unwrap();
        let mut found = [0; 1024];
        fs::File::open(&image).unwrap().read_exact_at(&mut found, BLOCK * 1024).unwrap();
        assert_eq!((found == [0x5a; 1024], !needs_recovery()), (is_replayed, is_replayed), "{name}");
    }
}

#[test]
fn a_volume_that_does_not_fit_is_refused() {
    let bed = Bed::new("full");
    let volumes = bed.open();
    let huge = NewVolume { size: SizeRange { required: 1 << 59, limit: 0 }, ..wanted("a") };
    assert_eq!(code(volumes.create(&huge)), Code::ResourceExhausted);
    let id = made(&volumes);
    assert_eq!(code(volumes.expand(&id, SizeRange { required: 1 << 59, limit: 0 })), Code::ResourceExhausted);
    assert_eq!(bed.files().len(), 2);
}

#[test]
fn nodes_share_a_volume_only_as_its_mode_allows() {
    let bed = Bed::new("modes");
    let volumes = bed.open();
    for (first, second, allowed) in [
        (Mode::SingleNodeWriter, Mode::SingleNodeWriter, false),
        (Mode::MultiNodeMultiWriter, Mode::SingleNodeWriter, false),
        (Mode::SingleNodeSingleWriter, Mode::MultiNodeReaderOnly, false),
        (Mode::MultiNodeSingleWriter, Mode::MultiNodeSingleWriter, false),
        (Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter, false),
        (Mode::MultiNodeMultiWriter, Mode::MultiNodeSingleWriter, false),
        (Mode::MultiNodeSingleWriter, Mode::MultiNodeReaderOnly, true),
        (Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter, true),
        (Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter, true),
        (Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly, true),
    ] {
        let id = made(&volumes);
        publish(&volumes, &id, NODE, first).unwrap();
        let ended = publish(&volumes, &id, OTHER, second);
        match allowed {
            true => drop(ended.unwrap()),
            false => assert_eq!(code(ended), Code::FailedPrecondition, "{first:?}, {second:?}"),
        }
        assert_eq!(code(volumes.delete(&id)), Code::FailedPrecondition);
        volumes.unpublish(&id, None).unwrap();
        assert!(bed.daemon.targets().is_empty());
        volumes.delete(&id).unwrap();
    }
}

#[test]
fn a_node_has_at_most_as_many_volumes_as_it_may() {
    let bed = Bed::new("limit");
    let volumes = bed.open_with(NonZeroU32::new(2)).unwrap();
    let ids = ["a", "b", "c"].map(|name| volumes.create(&wanted(name)).unwrap().id);
    let publish = |volumes: &Volumes, id: &String, node: &'static str| {
        publish(volumes, id, node, Mode::SingleNodeWriter)
    };
    publish(&volumes, &ids[0], NODE).unwrap();
    publish(&volumes, &ids[1], NODE).unwrap();
    assert_eq!(code(publish(&volumes, &ids[2], NODE)), Code::ResourceExhausted);
    let files = bed.files();
    publish(&volumes, &ids[1], NODE).unwrap();
    publish(&volumes, &ids[2], OTHER).unwrap();
    volumes.unpublish(&ids[2], None).unwrap();
    assert_eq!(bed.files(), files, "a refused call leaves a secret");
    volumes.unpublish(&ids[0], Some(NODE)).unwrap();
    publish(&volumes, &ids[2], NODE).unwrap();
    drop(volumes);
    // A lower limit takes nothing away.
    let volumes = bed.open_with(NonZeroU32::new(1)).unwrap();
    publish(&volumes, &ids[2], NODE).unwrap();
    assert_eq!(code(publish(&volumes, &ids[0], NODE)), Code::ResourceExhausted);
}

#[test]
fn calls_at_the_same_time_do_not_exceed_the_limit() {
    let bed = Bed::new("limit-threads");
    let volumes = bed.open_with(NonZeroU32::new(3)).unwrap();
    let ids: Vec<String> =
        (0..8).map(|number| volumes.create(&wanted(&number.to_string())).unwrap().id).collect();
    let ended: Vec<Option<Code>> = std::thread::scope(|scope| {
        let publish = |id: &String| publish(&volumes, id, NODE, Mode::SingleNodeWriter).err();
        let calls: Vec<_> = ids.iter().map(|id| scope.spawn(move || publish(id))).collect();
        calls.into_iter().map(|call| call.join().unwrap().map(|error| error.code)).collect()
    });
    assert_eq!(ended.iter().filter(|code| code.is_none()).count(), 3, "{ended:?}");
    assert!(ended.iter().flatten().all(|code| *code == Code::ResourceExhausted), "{ended:?}");
}

#[test]
fn a_node_is_an_initiator_and_has_one_way() {
    let bed = Bed::new("nodes");
    let volumes = bed.open();
    let id = made(&volumes);
    for node in ["fake-node-id-1", "iqn.a b", "iqn.*", "@all", &format!("iqn.{}", "a".repeat(220))] {
        assert_eq!(code(publish(&volumes, &id, node, Mode::SingleNodeWriter)), Code::NotFound, "{node}");
    }
    assert_eq!(code(publish(&volumes, "v-0", NODE, Mode::SingleNodeWriter)), Code::NotFound);
    publish(&volumes, &id, NODE, Mode::SingleNodeWriter).unwrap();
    publish(&volumes, &id, &NODE.to_uppercase(), Mode::SingleNodeWriter).unwrap();
    let read_only =
        volumes.publish(&id, NODE, &capability(Mode::SingleNodeWriter, true), true, &BTreeMap::new());
    assert_eq!(code(read_only), Code::AlreadyExists);
    volumes.unpublish(&id, Some(OTHER)).unwrap();
    assert_eq!(bed.daemon.targets().len(), 1);
}

#[test]
fn a_secret_of_the_caller_is_used_and_not_told() {
    let bed = Bed::new("secrets");
    let volumes = bed.open();
    let id = made(&volumes);
    let secrets = |password: &str| {
        BTreeMap::from([(SECRET_USER.into(), "me".into()), (SECRET_PASSWORD.into(), password.into())])
    };
    let publish =
        |secrets| volumes.publish(&id, NODE, &capability(Mode::SingleNodeWriter, false), false, &secrets);
    assert_eq!(code(publish(secrets("short"))), Code::InvalidArgument);
    assert_eq!(code(publish(BTreeMap::from([(SECRET_USER.into(), "me".into())]))), Code::InvalidArgument);
    // The daemon does not count a newline at the end, and would not load a secret of eleven bytes.
    for password in
        ["eleven byte\n", "eleven byte\r\n", "correct\nhorse", "correct horse\n\n", "correct\0horse"]
    {
        assert_eq!(code(publish(secrets(password))), Code::InvalidArgument, "{password:?}");
    }
    for (given, password) in [
        ("correct horse", "correct horse"),
        ("another horse", "another horse"),
        ("correct horse\n", "correct horse"),
        ("twelve bytes\r\n", "twelve bytes"),
    ] {
        let told = publish(secrets(given)).unwrap();
        assert_eq!(told.get(context::SECRET), None);
        let access = bed.daemon.targets()[&volumes.target_name(&id)].access[0].clone();
        assert_eq!(fs::read_to_string(login_file(&access)).unwrap(), records_of("me", password));
    }
}

#[test]
fn a_volume_without_protection_is_served_with_chap() {
    let bed = Bed::new("unprotected");
    let volumes = bed.open();
    let parameters = BTreeMap::from([("protection".to_owned(), "none".to_owned())]);
    let id = volumes.create(&NewVolume { parameters, ..wanted("plain") }).unwrap().id;
    let told = publish(&volumes, &id, NODE, Mode::SingleNodeWriter).unwrap();
    assert_eq!(told[context::PROTECTION], "none");
    let target = bed.daemon.targets()[&volumes.target_name(&id)].clone();
    let Login::Chap { user, secret_file } = &target.access[0].login else { panic!("{target:?}") };
    assert_eq!((user, target.protection), (&id, Protection::None));
    assert_eq!(fs::read_to_string(secret_file).unwrap(), told[context::SECRET]);
    // An earlier version reads the record of a volume that it can serve.
    let record = fs::read_to_string(bed.folder.join(format!(".csi/volumes/{id}.json"))).unwrap();
    let file: serde_json::Value = serde_json::from_str(&record).unwrap();
    let record = &file["record"];
    assert!(record["parameters"]["protection"] == "none" && record.get("protection").is_none(), "{record}");
}

#[test]
fn the_record_of_a_password_is_that_of_the_secret_wherever_a_change_is_killed() {
    let given = |password: &str| {
        BTreeMap::from([(SECRET_USER.into(), "me".into()), (SECRET_PASSWORD.into(), password.into())])
    };
    for steps in 0..6 {
        let bed = Bed::new("record");
        let volumes = bed.open();
        let id = made(&volumes);
        let capability = capability(Mode::SingleNodeWriter, false);
        let publish = |volumes: &Volumes, password: &str| {
            volumes.publish(&id, NODE, &capability, false, &given(password))
        };
        publish(&volumes, "correct horse").unwrap();
        kill_after(Some(steps));
        let _ = publish(&volumes, "another horse");
        kill_after(None);
        drop(volumes);
        let volumes = bed.open();
        // The caller takes its change back.
        publish(&volumes, "correct horse").unwrap();
        let access = bed.daemon.targets()[&volumes.target_name(&id)].access[0].clone();
        assert_eq!(fs::read_to_string(login_file(&access)).unwrap(), records_of("me", "correct horse"));
    }
}

#[test]
fn lists_come_in_parts() {
    let bed = Bed::new("lists");
    let volumes = bed.open();
    for number in 0..5 {
        volumes.create(&wanted(&format!("{number}"))).unwrap();
    }
    let (first, token) = volumes.list(2, "").unwrap();
    let token = token.unwrap();
    // The last of a part may go.
    volumes.delete(&first[1].id).unwrap();
    let (second, token) = volumes.list(2, &token).unwrap();
    let (third, end) = volumes.list(2, &token.unwrap()).unwrap();
    assert_eq!((first.len(), second.len(), third.len(), end), (2, 2, 1, None));
    assert_eq!(code(volumes.list(2, "invalid-token")), Code::Aborted);
}

#[test]
fn a_call_is_refused_while_another_works() {
    let bed = Bed::new("busy");
    let volumes = bed.open();
    let id = made(&volumes);
    let claim = volumes.claim(&id).unwrap();
    assert_eq!(code(volumes.delete(&id)), Code::Aborted);
    assert_eq!(code(publish(&volumes, &id, NODE, Mode::SingleNodeWriter)), Code::Aborted);
    drop(claim);
    volumes.delete(&id).unwrap();
    volumes.delete(&id).unwrap();
}

#[test]
fn limits_are_kept_and_served() {
    let bed = Bed::new("limits");
    let volumes = bed.open();
    let limits = |iops: &str| BTreeMap::from([("limit_iops".to_owned(), iops.to_owned())]);
    let id = volumes.create(&NewVolume { mutable: limits("100"), ..wanted("a") }).unwrap().id;
    publish(&volumes, &id, NODE, Mode::SingleNodeWriter).unwrap();
    let settings = || bed.daemon.targets()[&volumes.target_name(&id)].settings.clone();
    assert_eq!(settings(), [("limit_iops".to_owned(), "100".to_owned())]);
    volumes.modify(&id, &limits("200")).unwrap();
    assert_eq!(settings(), [("limit_iops".to_owned(), "200".to_owned())]);
    assert_eq!(code(volumes.modify(&id, &limits("x"))), Code::InvalidArgument);
    volumes.modify(&id, &limits("")).unwrap();
    assert!(settings().is_empty());
}

#[test]
fn a_node_can_tell_a_publication_from_an_earlier_one() {
    let bed = Bed::new("tokens");
    let volumes = bed.open();
    let id = made(&volumes);
    let publish = || publish(&volumes, &id, NODE, Mode::SingleNodeWriter).unwrap();
    let first = publish();
    assert_eq!(publish(), first);
    assert_eq!(first[context::READ_ONLY], "false");
    volumes.unpublish(&id, Some(NODE)).unwrap();
    assert_ne!(publish()[context::TOKEN], first[context::TOKEN]);
}

#[test]
fn a_node_that_may_only_read_is_told_so() {
    let bed = Bed::new("read-only");
    let volumes = bed.open();
    let id = made(&volumes);
    for (mode, read_only) in [(Mode::SingleNodeWriter, true), (Mode::MultiNodeReaderOnly, false)] {
        let told = volumes.publish(&id, NODE, &capability(mode, true), read_only, &BTreeMap::new()).unwrap();
        assert_eq!(told[context::READ_ONLY], "true");
        volumes.unpublish(&id, None).unwrap();
    }
}
