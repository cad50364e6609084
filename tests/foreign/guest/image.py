"""The guests' kernels and roots: Debian's kernel packages and initramfs put together from this machine's programs.

Nothing is installed: a kernel package is downloaded and unpacked under `out/`, and kept there for the next run. Which kernels
may run in a guest stands in `kernels.json`, each with the checksum of its package: another kernel is a decision. The last of a release is
the one that is used; those before it are for the day when Debian's archive has removed that one.
"""

import contextlib
import fcntl
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess

import servers

FOLDER = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.path.join(FOLDER, "kernels.json")

# What the guest can do beyond busybox. Their shared libraries come along.
PROGRAMS = [
    "/usr/sbin/iscsid", "/usr/sbin/iscsiadm", "/usr/sbin/mke2fs", "/usr/sbin/e2fsck", "/usr/sbin/fstrim",
    "/usr/bin/sg_persist", "/usr/bin/sg_inq", "/usr/bin/sg_readcap", "/usr/bin/sg_luns", "/usr/sbin/cryptsetup",
]
# What ending a thread needs, which no program names: cryptsetup derives keys with threads.
THREADS = "/lib/x86_64-linux-gnu/libgcc_s.so.1"
# What the guest with ublk can do.
UBLK_PROGRAMS = [
    "/usr/sbin/mke2fs", "/usr/sbin/e2fsck", "/usr/sbin/fstrim", "/usr/sbin/blkdiscard", "/usr/bin/fio", "/usr/bin/setpriv",
]
# Modules of the kernel package; what they depend on comes along.
MODULES = ["virtio_pci", "virtio_net", "iscsi_tcp", "sd_mod", "ext4", "crc32c_generic", "crc32c_intel"]
# LUKS2 images.
MODULES += ["dm_crypt", "xts", "aesni_intel", "algif_skcipher"]
# The kernel's own target.
MODULES += ["configfs", "target_core_mod", "target_core_file", "iscsi_target_mod"]
# What the guest with a drive for discs has beside that.
DISC_PROGRAMS = ["/usr/bin/sg_raw", "/usr/bin/sg_get_config", "/usr/bin/eject", "/usr/bin/xorriso"]
DISC_MODULES = ["sr_mod", "isofs", "sg"]
# What the guest that writes discs has beside that.
WRITER_PROGRAMS = ["/usr/bin/growisofs", "/usr/bin/genisoimage"]
# What the guest with a tape drive has beside that: the one mt of GNU, the other of busybox, which knows other operations.
TAPE_PROGRAMS = ["/bin/mt-gnu", "/usr/bin/tar", "/usr/bin/dd", "/usr/bin/sg_raw", "/usr/bin/sg_opcodes", "/usr/bin/sg_modes", "/usr/bin/sg_logs",
                 "/usr/bin/sg_read_attr", "/usr/bin/sg_vpd", "/usr/bin/sg_turs", "/usr/bin/stenc"]
TAPE_MODULES = ["st", "sg"]
# What the guest with a tape library has beside that.
CHANGER_PROGRAMS = ["/usr/sbin/mtx"]
CHANGER_MODULES = ["ch"]
LTFS_MODULES = ["fuse"]
# What the guest has beside that, in which people's programs use tapes.
TAPE_APPLICATIONS = ["/usr/sbin/tapeinfo", "/bin/mt-st"]
# What the guest has whose devices are passed through.
PASS_THROUGH_PROGRAMS = ["/usr/bin/setpriv", "/usr/bin/flock"]
PASS_THROUGH_MODULES = ["virtio_pci", "virtio_net", "virtio_scsi", "sd_mod", "sr_mod", "sg", "scsi_debug", "ahci"]
UBLK_MODULES = ["virtio_pci", "virtio_net", "ext4", "crc32c_generic", "ublk_drv"]
# What the guest has beside that, which verifies a disk while another process of targe takes over.
VERIFY_PROGRAMS = ["/usr/bin/fio"]
# What the guest has beside that, whose target loses its media. It serves a thin pool of its own, too.
FAULTS_PROGRAMS = ["/usr/bin/sg_turs", "/usr/sbin/dmsetup"]
FAULTS_MODULES = ["dm_thin_pool", "brd"]
# The first Debian whose kernel has ublk.
UBLK_DEBIAN = "trixie"
MIRROR, SECURITY_MIRROR = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
FOLDERS = ["bin", "sbin", "usr/bin", "usr/sbin", "etc/iscsi", "proc", "sys", "dev", "run/lock/iscsi", "tmp", "mnt", "var/lib",
           "etc/target/pr", "etc/target/alua", "var/target/pr", "var/target/alua"]
FILES = {
    "etc/passwd": "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "etc/iscsi/initiatorname.iscsi": "InitiatorName=iqn.2026-11.org.targe:guest\n",
}


def prepare(out):
    """Returns (kernel, initramfs), both files below `out`; downloads the kernel package on the first call."""
    with alone(out):
        root = unpacked_kernel(os.path.join(out, "kernel"), [])
        initramfs = os.path.join(out, "initramfs.gz")
        tree = os.path.join(out, "root")
        build(tree, root, PROGRAMS, MODULES)
        copy_into(tree, THREADS)
        add_open_iscsi(tree)
        pack(tree, lambda path: gzip.open(path, "wb", compresslevel=1), initramfs)
        return kernel_of(root), initramfs


def prepare_disc(out):
    """The same with what a drive for discs needs, and the programs that judge it."""
    return prepare_drive(out, "disc", DISC_PROGRAMS, DISC_MODULES)


def prepare_writer(out):
    """The same with programs that write discs."""
    return prepare_drive(out, "writer", [*DISC_PROGRAMS, *WRITER_PROGRAMS], DISC_MODULES)


def prepare_tape(out):
    """The same with what a tape drive needs, and the programs that judge it."""
    return prepare_drive(out, "tape", TAPE_PROGRAMS, TAPE_MODULES)


def prepare_changer(out):
    """The same with what a tape library needs, and the programs that judge it."""
    return prepare_drive(out, "changer", [*TAPE_PROGRAMS, *CHANGER_PROGRAMS], [*TAPE_MODULES, *CHANGER_MODULES])


def prepare_tape_programs(out, ltfs):
    """The same with more programs for tapes, and LTFS, if it is installed in the folder `ltfs`."""
    with alone(out):
        root = unpacked_kernel(os.path.join(out, "kernel"), [])
        tree, initramfs = os.path.join(out, "root-tape-programs"), os.path.join(out, "initramfs-tape-programs")
        build(tree, root, [*PROGRAMS, *TAPE_PROGRAMS, *CHANGER_PROGRAMS, *TAPE_APPLICATIONS],
              [*MODULES, *TAPE_MODULES, *CHANGER_MODULES, *LTFS_MODULES])
        add_open_iscsi(tree)
        tried("gcc", "-static", "-Wall", "-o", os.path.join(tree, "usr/bin/chio"), os.path.join(FOLDER, "chio.c"))
        if ltfs:
            add_ltfs(tree, ltfs)
        pack(tree, lambda path: open(path, "wb"), initramfs)
        return kernel_of(root), initramfs


def add_ltfs(tree, folder):
    """A folder with LTFS, at the same place in the guest, with the libraries of its programs and plugins."""
    inside = os.path.join(tree, os.path.relpath(folder, "/"))
    shutil.copytree(folder, inside, symlinks=True, ignore=shutil.ignore_patterns("*.a", "*.la", "include", "share", "pkgconfig"))
    plugins = os.path.join(folder, "lib", "ltfs")
    programs = [os.path.join(folder, "bin", name) for name in ("mkltfs", "ltfs", "ltfsck")]
    for path in (*programs, *(os.path.join(plugins, name) for name in os.listdir(plugins) if name.endswith(".so"))):
        add_libraries(tree, path)
    copy_into(tree, THREADS)


def prepare_verify(out):
    """The same with fio."""
    return prepare_drive(out, "verify", VERIFY_PROGRAMS, [])


def prepare_faults(out):
    """The same with the question of path checkers, what makes a thin pool, and our own binary."""
    with alone(out):
        root = unpacked_kernel(os.path.join(out, "kernel"), [])
        tree, initramfs = os.path.join(out, "root-faults"), os.path.join(out, "initramfs-faults")
        build(tree, root, [*PROGRAMS, *FAULTS_PROGRAMS], [*MODULES, *FAULTS_MODULES])
        add_open_iscsi(tree)
        add_targe(tree)
        # As it is: what emulation takes to unpack a hundred megabytes is more than it takes to copy them.
        pack(tree, lambda path: open(path, "wb"), initramfs)
        return kernel_of(root), initramfs


def prepare_pass_through(out):
    """The same with SCSI devices of its own, and our own binary in its root."""
    with alone(out):
        root = unpacked_kernel(os.path.join(out, "kernel"), [])
        tree, initramfs = os.path.join(out, "root-pass-through"), os.path.join(out, "initramfs-pass-through")
        build(tree, root, ["/usr/sbin/mke2fs", *PASS_THROUGH_PROGRAMS], PASS_THROUGH_MODULES)
        add_targe(tree)
        # As it is: what emulation takes to unpack a hundred megabytes is more than it takes to copy them.
        pack(tree, lambda path: open(path, "wb"), initramfs)
        return kernel_of(root), initramfs


def prepare_drive(out, name, programs, modules):
    with alone(out):
        root = unpacked_kernel(os.path.join(out, "kernel"), [])
        tree, initramfs = os.path.join(out, f"root-{name}"), os.path.join(out, f"initramfs-{name}.gz")
        build(tree, root, [*PROGRAMS, *programs], [*MODULES, *modules])
        add_open_iscsi(tree)
        pack(tree, lambda path: gzip.open(path, "wb", compresslevel=1), initramfs)
        return kernel_of(root), initramfs


def prepare_ublk(out):
    """The same for a kernel that has ublk, with our own binary and fio in its root."""
    with alone(out):
        root = ublk_kernel(out)
        tree, initramfs = os.path.join(out, "root-ublk"), os.path.join(out, "initramfs-ublk")
        build(tree, root, UBLK_PROGRAMS, UBLK_MODULES)
        add_targe(tree)
        # As it is: what emulation takes to unpack a hundred megabytes is more than it takes to copy them.
        pack(tree, lambda path: open(path, "wb"), initramfs)
        return kernel_of(root), initramfs


def fetch(out):
    """Downloads the kernel packages of all guests, unless they are there."""
    with alone(out):
        ublk_kernel(out)


def ublk_kernel(out):
    """The kernel of this Debian, unpacked, or of the next one if this one has no ublk."""
    root = unpacked_kernel(os.path.join(out, "kernel"), [])
    if has_module(root, "ublk_drv"):
        return root
    folder = os.path.join(out, f"kernel-{UBLK_DEBIAN}")
    if not is_unpacked(folder):
        return unpacked_kernel(folder, release_of_its_own(os.path.join(out, "apt"), UBLK_DEBIAN))
    return os.path.join(folder, "root")


@contextlib.contextmanager
def alone(out):
    """Rigs that run at the same time share the folder: one of them writes in it at a time."""
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kernel_of(root):
    (version,) = os.listdir(os.path.join(root, "lib", "modules"))
    return os.path.join(root, "boot", f"vmlinuz-{version}")


def has_module(root, module):
    (version,) = os.listdir(os.path.join(root, "lib", "modules"))
    plan = subprocess.run(["/usr/sbin/modprobe", "-d", root, "-S", version, "--show-depends", module], capture_output=True)
    return plan.returncode == 0


def unpacked_kernel(folder, options):
    """A kernel package that `kernels.json` names, unpacked; downloaded with apt (which checks its signature) unless it is there
    already. `options` are apt's."""
    done = os.path.join(folder, "complete")
    root = os.path.join(folder, "root")
    if not is_unpacked(folder):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(root)
        if options:
            tried("apt-get", *options, "-q", "update")
        tried("apt-get", *options, "-q", "download", offered(options), cwd=folder)
        (archive,) = [name for name in os.listdir(folder) if name.endswith(".deb")]
        archive = os.path.join(folder, archive)
        with open(archive, "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum not in pinned().values():
            raise RuntimeError(f"{archive}: its checksum {checksum} is none of kernels.json")
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
        os.remove(archive)
        if not os.path.exists(os.path.join(root, "lib")):
            os.symlink("usr/lib", os.path.join(root, "lib"))
        # The package leaves its modules' dependencies to be worked out where it is installed.
        (version,) = os.listdir(os.path.join(root, "lib", "modules"))
        subprocess.run(["/usr/sbin/depmod", "-b", root, version], check=True, capture_output=True)
        with open(done, "w") as file:
            file.write(checksum)
    return root


def is_unpacked(folder):
    """Whether a kernel that `kernels.json` names is there."""
    done = os.path.join(folder, "complete")
    return os.path.exists(done) and open(done).read() in pinned().values()


def pinned():
    """The kernel packages that a guest may run, as package=version, and the checksums of their archives."""
    with open(KERNELS) as file:
        return json.load(file)


def offered(options):
    """The last of the pinned packages that apt offers."""
    for package in reversed(pinned()):
        name, version = package.split("=")
        known = subprocess.run(["apt-cache", *options, "madison", name], capture_output=True, text=True).stdout
        if any(line.split("|")[1].strip() == version for line in known.splitlines()):
            return package
    raise RuntimeError(f"apt offers none of the kernels in {KERNELS}. {advice(options)}")


def advice(options):
    """What to do when no pinned kernel is to be had."""
    depends = subprocess.run(["apt-cache", *options, "depends", "linux-image-amd64"], capture_output=True, text=True).stdout
    newest = re.search(r"Depends: (linux-image-\S+)", depends)
    shown = newest and subprocess.run(["apt-cache", *options, "show", "--no-all-versions", newest[1]], capture_output=True, text=True).stdout
    facts = dict(re.findall(r"^(Version|SHA256): (\S+)$", shown or "", re.MULTILINE))
    if len(facts) < 2:
        return "It knows no kernel at all: `apt-get update` gets its lists"
    return ("Put the newest that it has at the end of those of its release, run `make test-guest` on it, and keep it if that is well: "
            f'"{newest[1]}={facts["Version"]}": "{facts["SHA256"]}"')


def release_of_its_own(folder, release):
    """apt's options for a release that this machine does not install from: lists and cache of its own, nothing of the
    machine's is touched."""
    shutil.rmtree(folder, ignore_errors=True)
    for sub in ("lists/partial", "cache/archives/partial", "parts"):
        os.makedirs(os.path.join(folder, sub))
    sources, status = os.path.join(folder, "sources.list"), os.path.join(folder, "status")
    with open(sources, "w") as file:
        main, security = own_mirrors()
        file.write(f"deb [arch=amd64 signed-by={KEYS}] {main} {release} main\n")
        if security:
            # It keeps kernels that the other has removed.
            file.write(f"deb [arch=amd64 signed-by={KEYS}] {security} {release}-security main\n")
    open(status, "w").close()
    settings = {
        "Dir::Etc::SourceList": sources, "Dir::Etc::SourceParts": os.path.join(folder, "parts"),
        "Dir::Etc::Preferences": "/dev/null", "Dir::Etc::PreferencesParts": os.path.join(folder, "parts"),
        "Dir::State::Lists": os.path.join(folder, "lists"), "Dir::State::Status": status,
        "Dir::Cache": os.path.join(folder, "cache"), "APT::Architecture": "amd64", "APT::Architectures": "amd64",
        "Acquire::Languages": "none", "Acquire::Retries": "3",
        # A user without rights reads below no home.
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def own_mirrors():
    """Where this machine gets Debian from, and its security updates, if it does."""
    shown = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(COMPONENT) $(CODENAME)",
                            "Created-By: Packages"], capture_output=True, text=True)
    main, security = [], []
    for line in shown.stdout.splitlines():
        address, *words = line.split()
        if words[:2] == ["Debian", "main"] and "backports" not in line:
            (security if words[-1].endswith("-security") else main).append(address)
    return (main[0], security[0] if security else None) if main else (MIRROR, SECURITY_MIRROR)


def tried(*command, cwd=None):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} {command[-1]}: {' '.join(done.stderr.split())[-400:]}")
    return done.stdout


def build(tree, kernel_root, programs, modules):
    shutil.rmtree(tree, ignore_errors=True)
    for folder in FOLDERS:
        os.makedirs(os.path.join(tree, folder))
    os.symlink("/run", os.path.join(tree, "var/run"))
    add_busybox(tree, programs)
    for program in programs:
        add_program(tree, program)
    os.symlink("mke2fs", os.path.join(tree, "usr/sbin/mkfs.ext4"))
    shutil.copy("/etc/mke2fs.conf", os.path.join(tree, "etc"))
    (version,) = os.listdir(os.path.join(kernel_root, "lib", "modules"))
    add_modules(tree, kernel_root, version, modules)
    for name, text in FILES.items():
        with open(os.path.join(tree, name), "w") as file:
            file.write(text)
    for script in ("init", "writer"):
        shutil.copy(os.path.join(FOLDER, script), tree)


def add_open_iscsi(tree):
    with open("/etc/iscsi/iscsid.conf") as debian, open(os.path.join(tree, "etc/iscsi/iscsid.conf"), "w") as ours:
        # Debian's start-up line asks systemd, which the guest does not have.
        ours.writelines(line for line in debian if not line.startswith("iscsid.startup"))


def pack(tree, create, initramfs):
    names = subprocess.run(["find", ".", "-print0"], cwd=tree, capture_output=True, check=True).stdout
    packed = subprocess.run(["cpio", "--null", "--create", "--format=newc", "--owner=0:0", "--quiet"], cwd=tree,
                            input=names, capture_output=True, check=True).stdout
    # A guest that starts meanwhile finds a whole file.
    with create(initramfs + ".new") as file:
        file.write(packed)
    os.replace(initramfs + ".new", initramfs)


def add_busybox(tree, programs):
    shutil.copy("/bin/busybox", os.path.join(tree, "bin/busybox"))
    applets = subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    ours = {os.path.basename(program) for program in programs}
    for applet in applets:
        # It lists itself; a link onto itself is a loop.
        if applet != "busybox" and applet not in ours:
            os.symlink("/bin/busybox", os.path.join(tree, "bin", applet))
    os.symlink("/bin/busybox", os.path.join(tree, "sbin/modprobe"))


def add_targe(tree):
    """Our own binary, without what only debuggers read, at a place that the guest mounts nothing over."""
    add_libraries(tree, servers.Targe.binary)
    tried("strip", "--strip-debug", "-o", os.path.join(tree, "bin/targe"), servers.Targe.binary)


def add_program(tree, program):
    copy_into(tree, program)
    add_libraries(tree, program)


def add_libraries(tree, program):
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(?:=> |^\t)(/\S+)", libraries, re.MULTILINE):
        copy_into(tree, library)


def add_modules(tree, kernel_root, version, modules):
    source = os.path.join(kernel_root, "lib", "modules", version)
    wanted = set()
    for module in modules:
        plan = subprocess.run(["/usr/sbin/modprobe", "-d", kernel_root, "-S", version, "--show-depends", module],
                              capture_output=True, text=True, check=True).stdout
        wanted.update(re.findall(r"^insmod (\S+)", plan, re.MULTILINE))
    for path in sorted(wanted):
        copy_into(tree, path, below=kernel_root)
    for index in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(os.path.join(source, index), os.path.join(tree, "lib", "modules", version))
    subprocess.run(["/usr/sbin/depmod", "-b", tree, version], check=True)


def copy_into(tree, path, below="/"):
    """Copies a file to the same place in the tree; a compressed module is unpacked, which busybox leaves to others."""
    target = os.path.join(tree, os.path.relpath(path, below)).removesuffix(".xz")
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path.endswith(".xz"):
            with lzma.open(path) as packed, open(target, "wb") as plain:
                shutil.copyfileobj(packed, plain)
        else:
            shutil.copy(path, target)
