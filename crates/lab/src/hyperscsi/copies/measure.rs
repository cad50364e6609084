//! Copies sets of files with every carrier, round after round.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::rng::Rng;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use rustix::fs::{Advice, fadvise};
use rustix::thread::gettid;

use super::disks::{AttachKind, AttachedDisk, DiskFile, FileSystem, copy_files, first_difference, sync};
use super::{Copies, CopyCell, CopySample, Direction, nfs};
use crate::bed::{Bed, MountNamespace, packets_sent, to_f64};
use crate::experiment::{Control, LabError};
use crate::hyperscsi::carrier::Carrier;
use crate::hyperscsi::plan::{FileSet, HyperScsiPlan};
use crate::report::Ended;
use crate::rounds;
use crate::system_calls::SystemCalls;
use crate::target_process::supervisor::Supervised;
use crate::target_process::{PrivateDirectory, ServedTarget, TargetProcess};
use crate::targets::{disk_directory, search_path};

/// Beside twice all files, a disk has room for the structures of the file system, its journal among them.
const DISK_SPARE: u64 = 64 << 20;

/// The files that are copied, the files that are disks, and the places where these are mounted. Dropping it
/// removes all of that, and so does the end of this process.
#[derive(Debug)]
pub(in crate::hyperscsi) struct CopyFolder {
    /// What is mounted here is seen by nobody else.
    mounts: Arc<MountNamespace>,
    /// A shell that removes the folder.
    keeper: TargetProcess,
}

/// Where the copies are measured.
#[derive(Debug)]
pub(in crate::hyperscsi) struct CopyStage<'a> {
    pub(in crate::hyperscsi) folder: &'a CopyFolder,
    pub(in crate::hyperscsi) program: &'a Path,
    pub(in crate::hyperscsi) bed: &'a mut Bed,
    pub(in crate::hyperscsi) target: &'a ServedTarget,
    /// The URLs of the LUNs: over HyperSCSI, and over iSCSI.
    pub(in crate::hyperscsi) urls: [String; 2],
}

impl CopyFolder {
    /// Creates the folder for the copies of a plan.
    ///
    /// # Errors
    /// [`LabError::System`], without the right to mount for instance.
    pub(in crate::hyperscsi) fn create(plan: &HyperScsiPlan) -> Result<Self, LabError> {
        let system = |why| LabError::System { what: "create files to copy".to_owned(), why };
        let mounts = Arc::new(MountNamespace::create()?);
        let directory = PrivateDirectory::create_in(&disk_directory().0).map_err(system)?;
        let supervised = Supervised {
            teardown: "umount -l \"$DIR\"/mounted-* 2>/dev/null".to_owned(),
            variables: vec![("PATH".to_owned(), search_path())],
            ..Supervised::default()
        };
        let keeper = mounts.run(|| supervised.start(None, directory))??;
        let folder = Self { mounts, keeper };
        folder.fill(plan).map_err(system)?;
        Ok(folder)
    }

    fn fill(&self, plan: &HyperScsiPlan) -> io::Result<()> {
        // The NFS server has all sets at the same time.
        let all: u64 = plan.copy.iter().map(|files| files.bytes()).sum();
        for carrier in Carrier::ALL {
            File::create(self.disk(carrier))?.set_len(2 * all + DISK_SPARE)?;
            fs::create_dir(self.mount_point(carrier))?;
        }
        fs::create_dir(self.returned())?;
        let mut rng = Rng::from_seed(plan.seed);
        for files in &plan.copy {
            let source = self.source(*files);
            fs::create_dir(&source)?;
            let mut data = vec![0; usize::try_from(files.len).unwrap_or(0)];
            for name in names(*files) {
                rng.fill(&mut data);
                File::create(source.join(name))?.write_all(&data)?;
            }
        }
        Ok(())
    }

    /// Returns the files of the LUNs: for HyperSCSI, and for iSCSI.
    pub(in crate::hyperscsi) fn luns(&self) -> [PathBuf; 2] {
        [Carrier::HyperScsi, Carrier::Iscsi].map(|carrier| self.disk(carrier))
    }

    fn path(&self) -> &Path {
        self.keeper.directory().path()
    }

    fn disk(&self, carrier: Carrier) -> PathBuf {
        self.path().join(format!("disk-{}", word(carrier)))
    }

    fn mount_point(&self, carrier: Carrier) -> PathBuf {
        self.path().join(format!("mounted-{}", word(carrier)))
    }

    fn source(&self, files: FileSet) -> PathBuf {
        self.path().join(format!("source-{}-{}", files.count, files.len))
    }

    /// The place for what comes back.
    fn returned(&self) -> PathBuf {
        self.path().join("returned")
    }
}

/// Returns the word for a carrier in names of files.
const fn word(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Local => "local",
        Carrier::HyperScsi => "hyperscsi",
        Carrier::Iscsi => "iscsi",
        Carrier::Nfs => "nfs",
    }
}

fn names(files: FileSet) -> Vec<String> {
    (0..files.count).map(|number| format!("file-{number}")).collect()
}

/// A carrier that is ready to copy. The order of the fields is that of the end.
#[derive(Debug)]
struct OpenCarrier {
    carrier: Carrier,
    /// The server of the file system, if there is one.
    server: Option<TargetProcess>,
    file_system: FileSystem,
    /// The program that makes a LUN a disk.
    attached: Option<TargetProcess>,
    /// How often files were copied to the file system.
    copies: u32,
}

impl OpenCarrier {
    /// Returns the directory of the last copy in the file system. Each copy has another one, since nfs-cp
    /// replaces no file.
    fn copied(&self) -> String {
        format!("copied-{}", self.copies)
    }
}

/// Removes a directory with files, if it is there. Their blocks are free even if a server keeps them open.
fn discard(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        File::create(entry?.path())?;
    }
    fs::remove_dir_all(directory)
}

/// Copies all sets of files of a plan over all its links.
pub(in crate::hyperscsi) fn measure_all(
    plan: &HyperScsiPlan,
    stage: &mut CopyStage<'_>,
    copies: &mut Copies,
    control: &mut Control<'_>,
) -> Result<Ended, LabError> {
    let rounds = usize::try_from(plan.rounds).unwrap_or(usize::MAX);
    let (total, mut done) = (rounds * copies.cells.len() * Carrier::ALL.len(), 0);
    let mut next = 0;
    while let Some(first) = copies.cells.get(next).map(|samples| samples.cell) {
        let is_same = |cell: &CopyCell| cell.link_plan() == first.link_plan();
        let here: Vec<usize> = (next..copies.cells.len())
            .take_while(|at| copies.cells.get(*at).is_some_and(|one| is_same(&one.cell)))
            .collect();
        next += here.len();
        control.step(done, total, &format!("{}: file systems", first.path()));
        stage.bed.shape(first.link_plan())?;
        let mut carriers = stage.open_all(plan, copies, control.stop);
        if control.is_stopped() {
            return Ok(Ended::Early("it was stopped before the first of the copies".to_owned()));
        }
        for round in 0..rounds {
            for at in &here {
                for place in rounds::order(carriers.len(), (round, *at), plan.seed) {
                    let Some(samples) = copies.cells.get_mut(*at) else { continue };
                    let (Some(open), files) = (carriers.get_mut(place), samples.cell.files) else { continue };
                    let carrier = open.carrier;
                    if carrier == Carrier::Nfs && !nfs::takes(files) {
                        continue;
                    }
                    let what = format!("{}, {}, files {files}", samples.cell.path(), carrier.name());
                    control.step(done, total, &what);
                    let copied = stage.copy_both_ways(open, files, control.stop);
                    // A signal may also have made a system call fail.
                    if control.is_stopped() {
                        let text = format!("it was stopped in round {} of {rounds} of the copies", round + 1);
                        return Ok(Ended::Early(text));
                    }
                    match copied {
                        Ok(both) => {
                            let lists = samples.carriers.iter_mut().find(|(one, _)| *one == carrier);
                            for (list, sample) in lists.into_iter().flat_map(|(_, lists)| lists).zip(both) {
                                list.push(sample);
                            }
                        }
                        // The others go on without it.
                        Err(why) => {
                            copies.leave_out(carrier, format!("it failed in round {}: {why}", round + 1));
                        }
                    }
                }
                done += Carrier::ALL.len();
                carriers.retain(|open| copies.absent.iter().all(|(absent, _)| *absent != open.carrier));
            }
        }
    }
    Ok(Ended::Complete)
}

impl CopyStage<'_> {
    /// Opens every carrier that this machine can have, and copies every set of files once without measuring:
    /// blocks that were never written cost more.
    fn open_all(&self, plan: &HyperScsiPlan, copies: &mut Copies, stop: &AtomicBool) -> Vec<OpenCarrier> {
        let mut carriers = Vec::new();
        for carrier in Carrier::ALL {
            if copies.absent.iter().any(|(absent, _)| *absent == carrier) {
                continue;
            }
            let opened = self.open(carrier, stop).and_then(|mut open| {
                for files in plan.copy.iter().filter(|files| carrier != Carrier::Nfs || nfs::takes(**files)) {
                    self.copy(&mut open, *files, Direction::To, stop)?;
                }
                Ok(open)
            });
            match opened {
                Ok(open) => carriers.push(open),
                // A signal ends what is being opened.
                Err(_) if stop.load(Ordering::Relaxed) => return carriers,
                Err(why) => copies.leave_out(carrier, why.to_string()),
            }
        }
        if carriers.iter().any(|open| open.attached.is_some()) {
            AttachKind::of_this_kernel().name().clone_into(&mut copies.device);
        }
        carriers
    }

    fn open(&self, carrier: Carrier, stop: &AtomicBool) -> Result<OpenCarrier, LabError> {
        let (folder, directory) = (self.folder, self.folder.mount_point(carrier));
        let on_file = |mounts: &Arc<MountNamespace>| {
            FileSystem::create(mounts, &DiskFile::Plain(folder.disk(carrier)), &directory, stop)
        };
        let [hyperscsi, iscsi] = &self.urls;
        let url = match carrier {
            Carrier::HyperScsi => hyperscsi,
            Carrier::Iscsi => iscsi,
            Carrier::Local => {
                let file_system = on_file(&folder.mounts)?;
                return Ok(OpenCarrier { carrier, server: None, file_system, attached: None, copies: 0 });
            }
            Carrier::Nfs => {
                if let Some(why) = nfs::absence() {
                    return Err(LabError::Target(why));
                }
                let file_system = on_file(&Arc::new(MountNamespace::create()?))?;
                let server = Some(nfs::serve(self.bed, &file_system, stop)?);
                return Ok(OpenCarrier { carrier, server, file_system, attached: None, copies: 0 });
            }
        };
        let place = (self.bed.initiator(), &*folder.mounts);
        let attached = AttachedDisk::attach(place, self.program, url, AttachKind::of_this_kernel(), stop)?;
        let file_system = FileSystem::create(&folder.mounts, &attached.disk, &directory, stop)?;
        Ok(OpenCarrier { carrier, server: None, file_system, attached: Some(attached.process), copies: 0 })
    }

    /// Copies a set of files to the file system and back, and compares them.
    fn copy_both_ways(
        &self,
        open: &mut OpenCarrier,
        files: FileSet,
        stop: &AtomicBool,
    ) -> Result<[CopySample; 2], LabError> {
        let to = self.copy(open, files, Direction::To, stop)?;
        let from = self.copy(open, files, Direction::From, stop)?;
        let different = first_difference(&names(files), &self.folder.source(files), &self.folder.returned());
        match different {
            Ok(None) => Ok([to, from]),
            Ok(Some(name)) => {
                Err(LabError::Target(format!("{name} is not the same after its way there and back")))
            }
            Err(why) => Err(LabError::System { what: "compare files".to_owned(), why }),
        }
    }

    fn copy(
        &self,
        open: &mut OpenCarrier,
        files: FileSet,
        direction: Direction,
        stop: &AtomicBool,
    ) -> Result<CopySample, LabError> {
        self.prepare(open, files, direction)?;
        let processes = self.processes(open);
        let before = self.usage_of_others(open)?;
        let counters = SystemCalls::open(&processes).ok();
        // Reading the usage of others costs time of this process, which is no part of the copy.
        let own_before = own_time()?;
        let (took, own_calls) = self.copy_once(open, files, direction, stop)?;
        let own = own_time()?.saturating_sub(own_before);
        let calls = counters.zip(own_calls).map(|(counters, own)| counters.total() + own);
        let (others, packets) = self.usage_of_others(open)?;
        let processor = own + others.saturating_sub(before.0);
        let gb = to_f64(files.bytes()) / 1e9;
        Ok(CopySample {
            throughput: to_f64(files.bytes()) / took.as_secs_f64() / 1e6,
            processor: processor.as_secs_f64() / gb,
            packets: (open.carrier != Carrier::Local).then(|| to_f64(packets.saturating_sub(before.1)) / gb),
            system_calls: calls.map(|calls| to_f64(calls) / gb),
        })
    }

    /// Removes what is left of the last copy. Before a copy from the disk, empties the page cache.
    fn prepare(&self, open: &mut OpenCarrier, files: FileSet, direction: Direction) -> Result<(), LabError> {
        if direction == Direction::To {
            let before = open.copied();
            open.copies += 1;
            let copied = open.copied();
            return open.file_system.run("remove copies", |directory| {
                discard(&directory.join(before))?;
                fs::create_dir(directory.join(copied))?;
                sync(directory)
            });
        }
        let returned = self.folder.returned();
        let emptied = fs::remove_dir_all(&returned).and_then(|()| fs::create_dir(&returned));
        emptied.map_err(|why| LabError::System { what: "remove copies".to_owned(), why })?;
        if open.carrier != Carrier::Nfs {
            return open.file_system.remount();
        }
        let copied = open.copied();
        open.file_system.run("empty the page cache", |directory| {
            for name in names(files) {
                fadvise(File::open(directory.join(&copied).join(name))?, 0, None, Advice::DontNeed)?;
            }
            Ok(())
        })
    }

    /// Returns how long a copy took, and the system calls of the threads and processes that copied.
    fn copy_once(
        &self,
        open: &OpenCarrier,
        files: FileSet,
        direction: Direction,
        stop: &AtomicBool,
    ) -> Result<(Duration, Option<u64>), LabError> {
        let (names, source, returned) = (names(files), self.folder.source(files), self.folder.returned());
        if open.carrier == Carrier::Nfs {
            let export = open.file_system.directory().join(open.copied());
            let within = nfs::copied_within(files.len, self.bed.link());
            return self.bed.initiator().run(|| {
                timed(|| {
                    for name in &names {
                        let url = nfs::url(&export, name);
                        match direction {
                            Direction::To => nfs::copy(&source.join(name), &url, within, stop)?,
                            Direction::From => nfs::copy(&url, &returned.join(name), within, stop)?,
                        }
                    }
                    Ok(())
                })
            })?;
        }
        let failed = |why| LabError::System { what: "copy files".to_owned(), why };
        open.file_system.run("start a thread", |directory| {
            let copied = directory.join(open.copied());
            Ok(timed(|| {
                match direction {
                    Direction::To => {
                        copy_files(&names, &source, &copied, stop).and_then(|()| sync(directory))
                    }
                    Direction::From => copy_files(&names, &copied, &returned, stop),
                }
                .map_err(failed)
            }))
        })?
    }

    /// Returns the processes beside this one that take part in a copy.
    fn processes(&self, open: &OpenCarrier) -> Vec<u32> {
        let mut processes: Vec<u32> =
            [&open.server, &open.attached].into_iter().flatten().flat_map(TargetProcess::processes).collect();
        if open.attached.is_some() {
            processes.extend(self.target.processes());
        }
        processes
    }

    /// Returns the processor time so far of the processes that take part beside this one, and the packets of
    /// both hosts.
    fn usage_of_others(&self, open: &OpenCarrier) -> Result<(Duration, u64), LabError> {
        let mut processor = Duration::ZERO;
        for process in [&open.server, &open.attached].into_iter().flatten() {
            processor += process.processor_time().map_err(system)?;
        }
        if open.attached.is_some() {
            processor += self.target.processor_time().map_err(system)?;
        }
        Ok((processor, packets_sent(self.bed.initiator())? + packets_sent(self.bed.target())?))
    }
}

fn system(why: io::Error) -> LabError {
    LabError::System { what: "read the usage of processes".to_owned(), why }
}

/// Returns the processor time so far of this process and of its children, which are those of NFS.
fn own_time() -> Result<Duration, LabError> {
    [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
        .into_iter()
        .map(|who| getrusage(who).map(spent))
        .sum::<nix::Result<Duration>>()
        .map_err(|why| system(why.into()))
}

/// Runs `work` on this thread. Returns its duration, and the system calls of this thread and its children.
fn timed(work: impl FnOnce() -> Result<(), LabError>) -> Result<(Duration, Option<u64>), LabError> {
    let own = SystemCalls::of_thread(gettid().as_raw_nonzero().get().unsigned_abs()).ok();
    let begin = Instant::now();
    work()?;
    Ok((begin.elapsed(), own.map(|own| own.total())))
}

fn spent(usage: Usage) -> Duration {
    let duration = |time: nix::sys::time::TimeVal| {
        let micros = time.tv_sec().saturating_mul(1_000_000).saturating_add(time.tv_usec());
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    };
    duration(usage.user_time()) + duration(usage.system_time())
}
