"""The guest's kernel and root: Debian's kernel package and an initramfs put together from this machine's programs.

Nothing is installed: the kernel package is downloaded and unpacked under `out/`, and kept there for the next run.
"""

import gzip
import os
import re
import shutil
import subprocess

FOLDER = os.path.dirname(os.path.abspath(__file__))

# What the guest can do beyond busybox. Their shared libraries come along.
PROGRAMS = [
    "/usr/sbin/iscsid", "/usr/sbin/iscsiadm", "/usr/sbin/mke2fs", "/usr/sbin/e2fsck", "/usr/sbin/fstrim",
    "/usr/bin/sg_persist", "/usr/bin/sg_inq", "/usr/bin/sg_readcap", "/usr/bin/sg_luns",
]
# Modules of the kernel package; what they depend on comes along.
MODULES = ["virtio_pci", "virtio_net", "iscsi_tcp", "sd_mod", "ext4", "crc32c_generic", "crc32c_intel"]
# The kernel's own target.
MODULES += ["configfs", "target_core_mod", "target_core_file", "iscsi_target_mod"]
FOLDERS = ["bin", "sbin", "usr/bin", "usr/sbin", "etc/iscsi", "proc", "sys", "dev", "run/lock/iscsi", "tmp", "mnt", "var/lib",
           "etc/target/pr", "etc/target/alua", "var/target/pr", "var/target/alua"]
FILES = {
    "etc/passwd": "root:x:0:0:root:/:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "etc/iscsi/initiatorname.iscsi": "InitiatorName=iqn.2026-11.org.targe:guest\n",
}


def prepare(out):
    """Returns (kernel, initramfs), both files below `out`; downloads the kernel package on the first call."""
    root = unpacked_kernel(os.path.join(out, "kernel"))
    (version,) = os.listdir(os.path.join(root, "lib", "modules"))
    initramfs = os.path.join(out, "initramfs.gz")
    build(os.path.join(out, "root"), root, version, initramfs)
    return os.path.join(root, "boot", f"vmlinuz-{version}"), initramfs


def unpacked_kernel(folder):
    """The unpacked kernel package, downloaded with apt (which checks its signature) unless it is there already."""
    done = os.path.join(folder, "complete")
    root = os.path.join(folder, "root")
    if not os.path.exists(done):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(root)
        depends = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=True)
        package = re.search(r"Depends: (linux-image-\S+)", depends.stdout)[1]
        subprocess.run(["apt-get", "-q", "download", package], cwd=folder, check=True, capture_output=True)
        (archive,) = [name for name in os.listdir(folder) if name.endswith(".deb")]
        archive = os.path.join(folder, archive)
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
        os.remove(archive)
        # The package leaves its modules' dependencies to be worked out where it is installed.
        (version,) = os.listdir(os.path.join(root, "lib", "modules"))
        subprocess.run(["/usr/sbin/depmod", "-b", root, version], check=True, capture_output=True)
        open(done, "w").close()
    return root


def build(tree, kernel_root, version, initramfs):
    shutil.rmtree(tree, ignore_errors=True)
    for folder in FOLDERS:
        os.makedirs(os.path.join(tree, folder))
    os.symlink("/run", os.path.join(tree, "var/run"))
    add_busybox(tree)
    for program in PROGRAMS:
        add_program(tree, program)
    os.symlink("mke2fs", os.path.join(tree, "usr/sbin/mkfs.ext4"))
    shutil.copy("/etc/mke2fs.conf", os.path.join(tree, "etc"))
    add_modules(tree, kernel_root, version)
    for name, text in FILES.items():
        with open(os.path.join(tree, name), "w") as file:
            file.write(text)
    with open("/etc/iscsi/iscsid.conf") as debian, open(os.path.join(tree, "etc/iscsi/iscsid.conf"), "w") as ours:
        # Debian's start-up line asks systemd, which the guest does not have.
        ours.writelines(line for line in debian if not line.startswith("iscsid.startup"))
    for script in ("init", "writer"):
        shutil.copy(os.path.join(FOLDER, script), tree)
    names = subprocess.run(["find", ".", "-print0"], cwd=tree, capture_output=True, check=True).stdout
    packed = subprocess.run(["cpio", "--null", "--create", "--format=newc", "--owner=0:0", "--quiet"], cwd=tree,
                            input=names, capture_output=True, check=True).stdout
    with gzip.open(initramfs, "wb", compresslevel=1) as file:
        file.write(packed)


def add_busybox(tree):
    shutil.copy("/bin/busybox", os.path.join(tree, "bin/busybox"))
    applets = subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    ours = {os.path.basename(program) for program in PROGRAMS}
    for applet in applets:
        # It lists itself; a link onto itself is a loop.
        if applet != "busybox" and applet not in ours:
            os.symlink("/bin/busybox", os.path.join(tree, "bin", applet))
    os.symlink("/bin/busybox", os.path.join(tree, "sbin/modprobe"))


def add_program(tree, program):
    copy_into(tree, program)
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(?:=> |^\t)(/\S+)", libraries, re.MULTILINE):
        copy_into(tree, library)


def add_modules(tree, kernel_root, version):
    source = os.path.join(kernel_root, "lib", "modules", version)
    wanted = set()
    for module in MODULES:
        plan = subprocess.run(["/usr/sbin/modprobe", "-d", kernel_root, "-S", version, "--show-depends", module],
                              capture_output=True, text=True, check=True).stdout
        wanted.update(re.findall(r"^insmod (\S+)", plan, re.MULTILINE))
    for path in sorted(wanted):
        copy_into(tree, path, below=kernel_root)
    for index in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(os.path.join(source, index), os.path.join(tree, "lib", "modules", version))
    subprocess.run(["/usr/sbin/depmod", "-b", tree, version], check=True)


def copy_into(tree, path, below="/"):
    target = os.path.join(tree, os.path.relpath(path, below))
    if not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(path, target)
