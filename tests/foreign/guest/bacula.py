"""Bacula in a guest: its Debian packages, the configuration that the recipe prints, and its console.

Nothing is installed: the packages are downloaded with apt, which checks their signatures, and unpacked under `out/`.
"""

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import time

import servers
from guest import image
from guest.machine import CommandFailed

RECIPE = os.path.join(servers.ROOT, "docs", "howto", "bacula.md")
# The daemons, the mt that Bacula's script expects, and libraries that a machine without them may lack.
PACKAGES = ["bacula-director", "bacula-director-sqlite3", "bacula-common-sqlite3", "bacula-sd", "bacula-fd", "bacula-console",
            "bacula-common", "mt-st", "liblzo2-2", "libwrap0"]
DAEMONS = ["bacula-sd", "bacula-fd", "bacula-dir"]
PROGRAMS = [*(f"usr/sbin/{name}" for name in (*DAEMONS, "bconsole", "bls")), "bin/mt-st"]
# What Bacula's scripts call by their names.
OF_THIS_MACHINE = ["/usr/sbin/mtx", "/usr/sbin/tapeinfo", "/usr/bin/sg_raw", "/usr/bin/cmp"]
DAEMON_FOLDERS = ["var/lib/bacula", "run/bacula", "usr/lib/bacula", "etc/bacula"]
# Longest that a job may take in an emulated machine, seconds.
JOB_MAX_S = 900
# How Bacula's log ends the report of a job. "with warnings" is something else: it names volumes that may not be readable.
ENDED_WELL = re.compile(r"Termination: +Backup OK$")


def prepare(out, extra):
    """Returns (kernel, initramfs) of a guest with Bacula. `extra` are more resources of its director."""
    with image.alone(out):
        packages = unpacked(os.path.join(out, "bacula-packages"))
        root = image.unpacked_kernel(os.path.join(out, "kernel"), [])
        tree, initramfs = os.path.join(out, "root-bacula"), os.path.join(out, "initramfs-bacula")
        image.build(tree, root, [*image.PROGRAMS, *OF_THIS_MACHINE], [*image.MODULES, *image.TAPE_MODULES, *image.CHANGER_MODULES])
        image.copy_into(tree, image.THREADS)
        image.add_open_iscsi(tree)
        add(tree, packages)
        configure(tree, extra)
        image.pack(tree, lambda path: open(path, "wb"), initramfs)
        return image.kernel_of(root), initramfs


def fetch(out):
    """Downloads Bacula's packages, unless they are there."""
    with image.alone(out):
        unpacked(os.path.join(out, "bacula-packages"))


def unpacked(folder):
    """The packages, unpacked; downloaded unless they are there already."""
    done, root = os.path.join(folder, "complete"), os.path.join(folder, "root")
    if not os.path.exists(done):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(root)
        image.tried("apt-get", "-q", "download", *PACKAGES, cwd=folder)
        for name in os.listdir(folder):
            if name.endswith(".deb"):
                subprocess.run(["dpkg-deb", "-x", os.path.join(folder, name), root], check=True)
        open(done, "w").close()
    return root


def add(tree, packages):
    for folder in DAEMON_FOLDERS:
        os.makedirs(os.path.join(tree, folder), exist_ok=True)
    shutil.copytree(os.path.join(packages, "usr/lib/bacula"), os.path.join(tree, "usr/lib/bacula"), symlinks=True, dirs_exist_ok=True)
    shutil.copytree(os.path.join(packages, "etc/bacula/scripts"), os.path.join(tree, "etc/bacula/scripts"))
    libraries = [os.path.join(packages, folder) for folder in ("usr/lib/bacula", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu")]
    for program in PROGRAMS:
        image.copy_into(tree, os.path.join(packages, program), below=packages)
        listed = subprocess.run(["ldd", os.path.join(packages, program)], env={**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)},
                                capture_output=True, text=True, check=True).stdout
        if "not found" in listed:
            raise RuntimeError(f"{program} lacks a library: {listed}")
        for path in re.findall(r"(?:=> |^\t)(/\S+)", listed, re.MULTILINE):
            image.copy_into(tree, path, below=packages if path.startswith(packages) else "/")
    # busybox's shell runs its own mt, whatever PATH says.
    image.add_program(tree, "/usr/bin/dash")
    for name, target in (("mt", "mt-st"), ("sh", "/usr/bin/dash")):
        os.remove(os.path.join(tree, "bin", name))
        os.symlink(target, os.path.join(tree, "bin", name))
    with open(os.path.join(packages, "usr/share/bacula-director/make_sqlite3_tables")) as script:
        (tables,) = re.findall(r"<<END-OF-DATA\n(.*?)\nEND-OF-DATA", script.read(), re.DOTALL)
    catalog = sqlite3.connect(os.path.join(tree, "var/lib/bacula/bacula.db"))
    catalog.executescript(tables)
    catalog.close()


def configure(tree, extra):
    """Writes the files that the recipe prints, as it prints them, and adds `extra` to that of the director."""
    with open(RECIPE) as page:
        blocks = re.findall(r"^( *)```\n(.*?)^ *```$", page.read(), re.DOTALL | re.MULTILINE)
    files = {}
    for indent, text in blocks:
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        if lines[0].startswith("# /etc/bacula/"):
            files[lines[0].removeprefix("# /etc/bacula/")] = "\n".join(lines) + "\n"
    files["bacula-dir.conf"] += extra
    for name, text in files.items():
        with open(os.path.join(tree, "etc/bacula", name), "w") as file:
            file.write(text)


class Bacula:
    """The three daemons in a guest, and an administrator at the console."""

    def __init__(self, guest):
        self.guest = guest
        for name in DAEMONS:
            self.start(name)
        deadline = time.monotonic() + 120
        while "Version" not in self.console("version", check=False):
            if time.monotonic() > deadline:
                raise CommandFailed("the director does not answer: " + guest.run("cat /tmp/bacula-*.log"))
            guest.run("sleep 0.2")

    def start(self, name):
        self.guest.run(f"{name} -f -c /etc/bacula/{name}.conf > /tmp/{name}.log 2>&1 &")

    def restart_storage(self):
        self.guest.run("killall bacula-sd; while pidof bacula-sd > /dev/null; do sleep 0.1; done")
        self.start("bacula-sd")
        self.guest.run("until netstat -ltn | grep -q :9103; do sleep 0.1; done")

    def console(self, *commands, check=True, limit_s=JOB_MAX_S):
        """What the console says to commands."""
        # One line: the guest takes no longer ones for one command.
        words = shlex.quote("".join(f"{command}\\n" for command in (*commands, "quit")))
        return self.guest.run(f"printf '%b' {words} | bconsole -n -c /etc/bacula/bconsole.conf 2>&1", check=check, limit_s=limit_s)

    def started(self, command):
        """Runs a job; its number."""
        said = self.console(command)
        if not (found := re.search(r"Job (?:queued|started)\. JobId=(\d+)", said)):
            raise CommandFailed(f"`{command}` starts no job: {said}")
        return int(found[1])

    def ended(self, job):
        """Waits for the end of a job; the report that the director logs."""
        self.console(f"wait jobid={job}")
        return self.report(job)

    def report(self, job):
        """The director's report of a job that has ended."""
        log = self.guest.run("cat /var/lib/bacula/log", check=False)
        found = re.search(rf"JobId {job}: (?:Error: )?Bacula [^\n]*\n.*?Termination: [^\n]*", log, re.DOTALL)
        if not found:
            raise CommandFailed(f"job {job} has no report: {log[-2000:]}")
        return found[0]

    def drive(self, job):
        """The device that the log says a job used first."""
        return re.search(rf'JobId {job}: Using Device "([^"]+)" to write', self.guest.run("cat /var/lib/bacula/log"))[1]
