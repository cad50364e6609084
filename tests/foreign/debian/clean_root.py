"""A root directory in which nothing is installed but what is installed here, and a network of its own.

It is an overlay over this machine's root, less what targe has left there: what is changed lands in memory, and is gone when the process
ends that holds the namespaces.
"""

import os
import shlex
import subprocess
import tempfile

import servers

LIMIT_S = 300
# Mounts at `$1/root` this machine's root without a package of targe, its configuration and its state: a machine that has run targe before
# is judged like one that has not. What is removed stands in a layer of its own, below the one that receives the changes of the tests.
CLEAN = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/clean" "$1/cleaning" "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/clean,workdir=$1/cleaning" "$1/root"
if [ -e "$1/root/var/lib/dpkg/info/targe.list" ]; then chroot "$1/root" dpkg --purge targe >&2; fi
for name in etc var/lib var/cache var/log root/.local/state; do rm -rf "$1/root/$name/targe"; done
umount "$1/root"
mount -t overlay overlay -o "lowerdir=$1/clean:/,upperdir=$1/upper,workdir=$1/work" "$1/root"
"""
# The holder's mounts and its network are its own. It waits until its stdin is closed.
HOLD = CLEAN + """
for name in proc sys dev; do mount --rbind "/$name" "$1/root/$name"; done
mount -t tmpfs -o mode=755 tmpfs "$1/root/run"
mount -t tmpfs -o mode=1777 tmpfs "$1/root/tmp"
mount --bind "$1/upper" "$1/root/mnt"
ip link set lo up
exec chroot "$1/root" sh -c 'echo ready; read line'
"""


class CleanRoot:
    def __init__(self, namespaces=("--mount", "--net"), hold=HOLD):
        self.folder = tempfile.TemporaryDirectory()
        command = ["unshare", *namespaces, "--propagation", "private", "sh", "-c", hold, "sh", self.folder.name]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       preexec_fn=servers.die_with_parent)
        if self.holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"no clean root: {self.holder.communicate()[1]}")

    def close(self):
        self.holder.communicate()
        self.folder.cleanup()

    def command(self, *command):
        """What runs a command in this root."""
        return ["nsenter", "--target", str(self.holder.pid), "--mount", "--net", "--root", "--wd", *command]

    def run(self, *command):
        """Runs a command to its end."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
        return subprocess.run(self.command(*command), capture_output=True, text=True, errors="replace", timeout=LIMIT_S, env=environment,
                              stdin=subprocess.DEVNULL)

    def check(self, *command):
        """Runs a command that has to succeed; returns what it printed."""
        done = self.run(*command)
        if done.returncode != 0:
            raise AssertionError(f"{shlex.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def path(self, name):
        """A file of this root, as this process reaches it."""
        return f"/proc/{self.holder.pid}/root{name}"

    def changed(self):
        """What differs from the machine's root, as paths."""
        top = self.path("/mnt")
        for folder, _, names in os.walk(top):
            yield from (os.path.join(folder, name).removeprefix(top) for name in names)
            yield folder.removeprefix(top) + "/"
