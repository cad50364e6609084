//! Drives for discs: the store of a drive, whose disc a reload replaces, and the images of discs.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use backends::open::{Allocation, FileIdentity, FileSpec, OpenError, Opened};
use base::state_machine::MediumId;
use drivers::files::Files;
use store::Store;
use store::api::{Capabilities, Completion, Fault, Op, OpAction, Space};
use store::null::Null;
use target::target::UnitReport;
use target::units::UnitId;

use crate::config::Unit;
use crate::disc_image;
use crate::serve::media::disk::{Disk, DiskInfo, LEAVING_FLUSH};
use crate::serve::media::handed_over::MovedDisc;
use crate::serve::media::handed_over::Obstacle;
use crate::serve::media::identity::MediumIdentity;
use crate::serve::media::image_state::ImageState;
use crate::serve::media::known_loss::{NotAccepted, SyncSender};
use crate::serve::media::lost_writes::LossSubject;
use crate::serve::media::opened::{OpenedMedium, Place};
use crate::serve::media::served::describe_not_ready;
use crate::serve::media::served::{LossRecorder, MediumHealth, ServedMedium, accept_of_unit};
use crate::serve::media::{MediaError, loss};
use crate::serve::state::StateDir;

/// An opened image, which can be moved to the reactor that will serve it.
#[derive(Debug)]
pub(in crate::serve) struct DiscImage {
    opened: Opened,
    path: PathBuf,
    state: Option<ImageState>,
    /// The last bytes of the image, if they can hold the record of a writable disc.
    trailer: Option<Vec<u8>>,
}

/// A disc that a reload puts into a drive.
#[derive(Debug)]
pub(in crate::serve) struct NewDisc {
    pub(in crate::serve) id: UnitId,
    /// The image; `None` empties the drive.
    pub(in crate::serve) image: Option<DiscImage>,
}

/// Opens an image. Without a file there is no disc.
pub(in crate::serve) fn open(path: &Path, read_only: bool) -> Result<Option<DiscImage>, OpenError> {
    open_by(path, read_only, FileSpec::open)
}

/// Opens the image of a writable disc that is withheld once more, for writing: the lock that `withheld` holds
/// refuses any other descriptor. No operation of the disc must be under way.
pub(in crate::serve) fn open_again(path: &Path, withheld: &DiskInfo) -> Result<Option<DiscImage>, OpenError> {
    let locked = withheld.duplicate_lock();
    let locked = locked.map_err(|source| OpenError::Query { path: path.to_owned(), source })?;
    open_by(path, false, |spec| locked.map_or_else(|| spec.open(), |locked| spec.open_again(locked)))
}

/// Takes the image of the disc that is in a drive of another process, whatever its path leads to now.
pub(in crate::serve) fn take(disc: MovedDisc, file: File) -> Result<DiscImage, OpenError> {
    let MovedDisc { path, read_only, state } = disc;
    let opened = image_spec(&path, read_only).take(file)?;
    let trailer =
        trailer_of_file(&opened).map_err(|source| OpenError::Query { path: path.clone(), source })?;
    Ok(DiscImage { opened, path, state, trailer })
}

fn open_by(
    path: &Path,
    read_only: bool,
    opener: impl FnOnce(&FileSpec) -> Result<Opened, OpenError>,
) -> Result<Option<DiscImage>, OpenError> {
    // Before the file is opened: a change that comes between is found at the next reload.
    let state = ImageState::of(path);
    match opener(&image_spec(path, read_only)) {
        Ok(opened) => {
            let trailer = trailer_of(path, &opened)?;
            Ok(Some(DiscImage { opened, path: path.to_owned(), state, trailer }))
        }
        Err(OpenError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn image_spec(path: &Path, read_only: bool) -> FileSpec {
    FileSpec {
        path: path.to_owned(),
        size: None,
        allocation: Allocation::Sparse,
        read_only,
        direct: false,
        write_cache: !read_only,
    }
}

/// Reads the last bytes of an image that another process still serves. That process writes one of the two
/// copies of a record at a time, so that the other one always tells what kind of disc it is.
fn trailer_of_file(opened: &Opened) -> io::Result<Option<Vec<u8>>> {
    let file = opened.duplicate()?;
    let len = file.metadata()?.len();
    disc_image::trailer(&file, len)
}

/// Reads the last bytes of an image that is open and locked.
fn trailer_of(path: &Path, opened: &Opened) -> Result<Option<Vec<u8>>, OpenError> {
    let failed = |source| OpenError::Query { path: path.to_owned(), source };
    let read = || {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        if FileIdentity::of_path(path)?.0 != opened.identity() {
            return Err(io::Error::other("the file was replaced while it was opened"));
        }
        disc_image::trailer(&file, len)
    };
    read().map_err(failed)
}

/// A drive before it is on its reactor, with the image of the disc in it.
#[derive(Debug)]
pub(in crate::serve) struct OpenDrive(pub(in crate::serve) Option<DiscImage>);

impl OpenedMedium for OpenDrive {
    fn check_loss(&mut self, unit: &Unit, state: &StateDir) -> Result<Option<String>, MediaError> {
        let Self(Some(DiscImage { opened, path, .. })) = self else { return Ok(None) };
        let identity = MediumIdentity::of_opened(opened);
        loss::check(unit, (opened, path), identity, state)
    }

    fn place(self: Box<Self>, Place { files, id, label, .. }: Place<'_>) -> Box<dyn ServedMedium> {
        Box::new(DiscDrive::new(self.0.map(|image| image.place(files, id, label))))
    }
}

impl DiskInfo {
    /// Describes the image of a disc for another process.
    pub(in crate::serve) fn moved_disc(&self) -> MovedDisc {
        MovedDisc { path: self.path.clone(), read_only: self.read_only, state: self.image }
    }

    /// Returns whether the path leads to the image that is served, unchanged. An image that is served for
    /// writing changes all the time.
    pub(in crate::serve) fn serves_image(&self, path: &Path) -> bool {
        let is_same = FileIdentity::of_path(path).is_ok_and(|(identity, _)| identity == self.identity);
        let is_unchanged = !self.read_only || ImageState::of(path) == self.image;
        self.path == path && !self.is_withheld() && is_same && is_unchanged
    }
}

impl DiscImage {
    /// Moves the image to the reactor that has `files`.
    pub(in crate::serve) fn place(self, files: &Files, id: MediumId, label: &str) -> Disk {
        let medium = MediumIdentity::of_opened(&self.opened);
        let disk = Disk::new((self.opened, medium), (self.path, self.state), files.queue(id), label);
        disk.with_trailer(self.trailer)
    }
}

/// A drive. The logical unit and the daemon share it.
#[derive(Clone)]
pub(in crate::serve) struct DiscDrive<S = Disk>(Rc<RefCell<Inner<S>>>);

struct Inner<S> {
    disc: Option<LoadedDisc<S>>,
    /// Discs that were taken out, and on which operations are under way.
    leaving: Vec<LeavingDisc<S>>,
    /// Completions of operations that an empty drive refused.
    refused: VecDeque<Completion>,
}

struct LoadedDisc<S> {
    disk: S,
    /// How many operations are under way.
    outstanding: usize,
}

/// A disc that was taken out.
struct LeavingDisc<S> {
    loaded: LoadedDisc<S>,
    /// Takes whether everything that hosts wrote to the disc is durable, once that is known.
    when_flushed: Option<WhenFlushed>,
}

type WhenFlushed = Box<dyn FnOnce(bool)>;

impl<S: Store> LeavingDisc<S> {
    /// Flushes a disc that can be written.
    fn new(mut loaded: LoadedDisc<S>, when_flushed: WhenFlushed) -> Self {
        let capabilities = loaded.disk.capabilities();
        let is_flushed = capabilities.volatile_cache && !capabilities.read_only;
        if is_flushed {
            loaded.submit(Op { id: LEAVING_FLUSH, action: OpAction::Flush });
        }
        Self { loaded, when_flushed: is_flushed.then_some(when_flushed) }
    }

    const fn is_busy(&self) -> bool {
        self.loaded.outstanding > 0
    }

    /// Returns the next completion of an operation of the unit.
    fn poll(&mut self) -> Option<Completion> {
        loop {
            let completion = self.loaded.poll()?;
            if completion.id != LEAVING_FLUSH {
                return Some(completion);
            }
            if let Some(tell) = self.when_flushed.take() {
                tell(completion.result.is_ok());
            }
        }
    }
}

impl<S: Store> LoadedDisc<S> {
    const fn new(disk: S) -> Self {
        Self { disk, outstanding: 0 }
    }

    fn submit(&mut self, op: Op) {
        self.outstanding += 1;
        self.disk.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        let completion = self.disk.poll()?;
        self.outstanding = self.outstanding.saturating_sub(1);
        Some(completion)
    }
}

impl<S: Store + Clone> DiscDrive<S> {
    /// Creates a drive with this disc in it.
    pub(in crate::serve) fn new(disc: Option<S>) -> Self {
        let disc = disc.map(LoadedDisc::new);
        Self(Rc::new(RefCell::new(Inner { disc, leaving: Vec::new(), refused: VecDeque::new() })))
    }

    /// Returns the image of the disc in the drive.
    pub(in crate::serve) fn disc(&self) -> Option<S> {
        self.0.borrow().disc.as_ref().map(|loaded| loaded.disk.clone())
    }

    /// Returns whether operations are under way on a disc that was taken out.
    pub(in crate::serve) fn has_leaving(&self) -> bool {
        !self.0.borrow().leaving.is_empty()
    }

    /// Replaces the disc. Operations under way end on the former one, which is flushed before it is closed.
    /// `when_flushed` takes whether everything that hosts wrote to it is durable; it is not called if the
    /// former disc cannot be written.
    pub(in crate::serve) fn put(&self, disc: Option<S>, when_flushed: impl FnOnce(bool) + 'static) {
        let mut inner = self.0.borrow_mut();
        let former = std::mem::replace(&mut inner.disc, disc.map(LoadedDisc::new));
        let former = former.map(|former| LeavingDisc::new(former, Box::new(when_flushed)));
        inner.leaving.extend(former.filter(LeavingDisc::is_busy));
    }
}

/// The daemon deals with the disc in the drive.
impl ServedMedium for DiscDrive {
    fn store(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }

    fn configure(&self, unit: &Unit) {
        self.disc().inspect(|disc| disc.configure(unit));
    }

    fn enable_write_cache(&self) {
        self.disc().inspect(Disk::enable_write_cache);
    }

    fn health(&self) -> MediumHealth {
        let of_disc = self.disc().map_or_else(MediumHealth::default, |disc| disc.health());
        MediumHealth { is_rom: self.capabilities().read_only, ..of_disc }
    }

    fn why_not_ready(&self, report: &UnitReport) -> Option<Cow<'static, str>> {
        if report.medium_present {
            return report.not_ready.map(|sense| describe_not_ready(sense).into());
        }
        Some(match self.disc() {
            Some(_) => "an initiator has ejected the disc".into(),
            None => "there is no disc in the drive".into(),
        })
    }

    fn record_losses(&self, unit: &Unit, recorder: LossRecorder<'_>, known: Option<&str>) {
        self.disc().inspect(|disc| disc.record_losses(unit, recorder, known));
    }

    fn loss_subject(&self, unit: &Unit) -> Option<LossSubject> {
        self.disc()?.loss_subject(unit)
    }

    fn begin_acceptance(&self, has_failed_flush: bool, done: SyncSender) -> Result<(), NotAccepted> {
        match self.disc() {
            Some(disc) => disc.begin_acceptance(has_failed_flush, done),
            None => accept_of_unit(has_failed_flush, &done),
        }
    }

    fn end_acceptance(&self, is_accepted: bool) -> bool {
        self.disc().map_or(is_accepted, |disc| disc.end_acceptance(is_accepted))
    }

    fn accept_failure(&self) -> Option<String> {
        self.disc()?.accept_failure()
    }

    fn obstacle(&self) -> Option<Obstacle> {
        self.disc()?.obstacle()
    }

    fn busy(&self) -> Option<Obstacle> {
        let leaving =
            || self.has_leaving().then(|| "a disc that was taken out of its drive has I/O in flight".into());
        self.disc().and_then(|disc| disc.busy()).or_else(leaving)
    }
}

impl<S: Store> Store for DiscDrive<S> {
    fn capabilities(&self) -> Capabilities {
        match &self.0.borrow().disc {
            Some(loaded) => loaded.disk.capabilities(),
            None => Capabilities { read_only: true, volatile_cache: false, ..Null::new(0).capabilities() },
        }
    }

    fn space(&self) -> Option<Space> {
        None
    }

    fn trailer(&self) -> Option<Vec<u8>> {
        self.0.borrow().disc.as_ref().and_then(|loaded| loaded.disk.trailer())
    }

    fn submit(&mut self, op: Op) {
        let mut inner = self.0.borrow_mut();
        match &mut inner.disc {
            Some(loaded) => loaded.submit(op),
            None => {
                inner.refused.push_back(Completion { id: op.id, result: Err(Fault::NotSubmitted.into()) })
            }
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        let Inner { disc, leaving, refused } = &mut *inner;
        let completion = refused
            .pop_front()
            .or_else(|| disc.as_mut().and_then(LoadedDisc::poll))
            .or_else(|| leaving.iter_mut().find_map(LeavingDisc::poll));
        leaving.retain(LeavingDisc::is_busy);
        completion
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use drivers::config::{Config, EngineChoice};
    use drivers::reactor::Reactor;
    use store::api::{OpId, OpOutput};
    use store::ram::Ram;

    use super::*;
    use crate::serve::reactor_shard::ReactorShard;

    /// A disc whose sectors hold one byte, and which answers when it is told to.
    #[derive(Clone)]
    struct SlowDisc(Rc<RefCell<Held>>);

    struct Held {
        ram: Ram,
        answers: bool,
        /// Whether it has a volatile write cache, whether flushes fail, and how many there were.
        is_cached: bool,
        flush_fails: bool,
        flushes: usize,
    }

    impl SlowDisc {
        fn new(byte: u8) -> Self {
            let mut ram = Ram::new(2048);
            let data = base::buffer::Bytes::copied_from(&[byte; 2048]).into();
            let durability = store::api::Durability::Cached;
            ram.submit(Op { id: OpId(0), action: OpAction::Write { at: 0, data, durability } });
            assert!(ram.poll().unwrap().result.is_ok());
            Self(Rc::new(RefCell::new(Held {
                ram,
                answers: false,
                is_cached: false,
                flush_fails: false,
                flushes: 0,
            })))
        }

        fn answer(&self) {
            self.0.borrow_mut().answers = true;
        }
    }

    impl Store for SlowDisc {
        fn capabilities(&self) -> Capabilities {
            let held = self.0.borrow();
            Capabilities { volatile_cache: held.is_cached, ..held.ram.capabilities() }
        }

        fn submit(&mut self, op: Op) {
            let mut held = self.0.borrow_mut();
            held.flushes += usize::from(matches!(op.action, OpAction::Flush));
            held.ram.submit(op);
        }

        fn poll(&mut self) -> Option<Completion> {
            let mut held = self.0.borrow_mut();
            if !held.answers {
                return None;
            }
            let completion = held.ram.poll()?;
            let fails = held.flush_fails && completion.id == LEAVING_FLUSH;
            Some(if fails {
                Completion { result: Err(Fault::Medium.into()), ..completion }
            } else {
                completion
            })
        }
    }

    fn read(drive: &mut DiscDrive<SlowDisc>, id: u64) {
        drive.submit(Op { id: OpId(id), action: OpAction::Read { at: 0, len: 2048 } });
    }

    /// Polls a completion; returns its number, and the first byte that was read.
    fn polled(drive: &mut DiscDrive<SlowDisc>) -> Option<(u64, Option<u8>)> {
        let completion = drive.poll()?;
        let byte = match completion.result {
            Ok(OpOutput::Data(data)) => data.parts().first().map(|part| part[0]),
            _ => None,
        };
        Some((completion.id.0, byte))
    }

    #[test]
    fn operations_end_on_the_disc_that_they_began_on() {
        let (first, second) = (SlowDisc::new(1), SlowDisc::new(2));
        let mut drive = DiscDrive::new(Some(first.clone()));
        read(&mut drive, 10);
        drive.put(Some(second.clone()), |_| panic!("it has no write cache"));
        read(&mut drive, 11);
        second.answer();
        assert_eq!(polled(&mut drive), Some((11, Some(2))));
        assert_eq!(polled(&mut drive), None);
        assert_eq!(Rc::strong_count(&first.0), 2, "it is open until its operation ends");
        first.answer();
        assert_eq!(polled(&mut drive), Some((10, Some(1))));
        assert_eq!((polled(&mut drive), Rc::strong_count(&first.0)), (None, 1));
    }

    #[test]
    fn a_writable_disc_that_leaves_is_flushed_and_a_failure_is_told() {
        for fails in [false, true] {
            let (first, second) = (SlowDisc::new(1), SlowDisc::new(2));
            first.0.borrow_mut().is_cached = true;
            first.0.borrow_mut().flush_fails = fails;
            let mut drive = DiscDrive::new(Some(first.clone()));
            read(&mut drive, 10);
            let told = Rc::new(RefCell::new(Vec::new()));
            let tell = Rc::clone(&told);
            drive.put(Some(second), move |is_durable| tell.borrow_mut().push(is_durable));
            assert_eq!(first.0.borrow().flushes, 1);
            assert_eq!(polled(&mut drive), None);
            assert!(told.borrow().is_empty(), "the flush is under way");
            first.answer();
            assert_eq!(polled(&mut drive), Some((10, Some(1))));
            assert_eq!(polled(&mut drive), None, "the unit did not request the flush");
            assert_eq!(*told.borrow(), [!fails]);
            assert_eq!(Rc::strong_count(&first.0), 1, "it is closed");
        }
    }

    #[test]
    fn an_empty_drive_has_no_byte_and_refuses_operations() {
        let mut drive = DiscDrive::new(Some(SlowDisc::new(1)));
        assert_eq!(drive.capabilities().len, 2048);
        drive.put(None, |_| panic!("it has no write cache"));
        assert_eq!((drive.capabilities().len, drive.capabilities().read_only), (0, true));
        read(&mut drive, 12);
        assert_eq!((polled(&mut drive), polled(&mut drive)), (Some((12, None)), None));
        assert!(drive.disc().is_none());
    }

    /// Opens the image at a path and serves it.
    fn served(path: &Path, read_only: bool) -> Disk {
        let config = Config { engine: EngineChoice::Epoll, ..Config::default() };
        let reactor = Reactor::<ReactorShard>::new(&config).unwrap();
        let image = open(path, read_only).unwrap().expect("a file");
        image.place(reactor.files(), MediumId(1), "drive")
    }

    #[test]
    fn a_disc_is_another_when_its_file_is_and_a_read_only_one_when_it_changes() {
        let scratch = crate::scratch::Scratch::new();
        let path = scratch.path().join("disc.iso");
        assert!(open(&path, true).unwrap().is_none(), "there is no file");
        std::fs::create_dir(scratch.path().join("folder")).unwrap();
        for read_only in [true, false] {
            std::fs::write(&path, [0; 4096]).unwrap();
            let disc = served(&path, read_only).info();
            assert!(disc.serves_image(&path), "nothing has changed");
            let same = scratch.path().join("folder/../disc.iso");
            assert!(disc.is_at(&same) && !disc.serves_image(&same), "the configuration names another path");
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!(disc.serves_image(&path), !read_only, "hosts change a writable disc");
            file.set_len(6144).unwrap();
            assert_eq!(disc.serves_image(&path), !read_only);
            let other = scratch.path().join("other.iso");
            std::fs::write(&other, [0; 6144]).unwrap();
            std::fs::rename(&other, &path).unwrap();
            assert!(!disc.serves_image(&path), "it is another file");
        }
        let withheld = served(&path, false);
        assert!(withheld.info().serves_image(&path));
        withheld.withhold("it was truncated");
        assert!(!withheld.info().serves_image(&path));
    }
}
