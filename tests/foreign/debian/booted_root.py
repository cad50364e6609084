"""A clean root in which systemd runs: process 1 of namespaces of its own, with the units that a service needs and no others."""

import os
import time

import servers
from debian.clean_root import CLEAN, CleanRoot

FLAGS = ["--mount", "--net", "--pid", "--cgroup", "--uts", "--ipc", "--fork", "--kill-child"]
# Devices of the machine are not seen here, and its control groups only below the one of this process. Nothing is enabled.
BOOT = CLEAN + """
cd "$1/root"
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do touch "dev/$name"; mount --bind "/dev/$name" "dev/$name"; done
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount --bind "$1/upper" mnt
# With version 1 of control groups a systemd in a container does not wait for the end of a process that it has not started.
mount -t cgroup2 cgroup sys/fs/cgroup
ip link set lo up
rm -rf etc/systemd/system/*.wants usr/sbin/policy-rc.d
printf '[Unit]\\nRequires=basic.target\\nAfter=basic.target\\nAllowIsolate=yes\\n' > etc/systemd/system/bare.target
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-remount-fs.service systemd-modules-load.service \\
    systemd-binfmt.service proc-sys-fs-binfmt_misc.automount sys-kernel-debug.mount sys-kernel-tracing.mount \\
    dev-hugepages.mount dev-mqueue.mount; do
    ln -sf /dev/null "etc/systemd/system/$unit"
done
echo ready
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd --show-status=no --unit=bare.target
"""


class BootedRoot(CleanRoot):
    def __init__(self):
        super().__init__(FLAGS, BOOT)
        # It ends with the holder, whose only child it is.
        with open(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children") as file:
            self.pid, = map(int, file.read().split())
        # A unit that cannot run on this machine is none of the package.
        self.wait("systemd starts", lambda: self.run("systemctl", "is-system-running").stdout.strip() in ("running", "degraded"))

    def close(self):
        self.holder.kill()
        super().close()

    def command(self, *command):
        namespaces = ["--mount", "--net", "--pid", "--cgroup", "--uts", "--ipc", "--root", "--wd"]
        return ["nsenter", "--target", str(self.pid), *namespaces, *command]

    def wait(self, what, condition):
        """Waits until a condition holds."""
        deadline = time.monotonic() + servers.START_MAX_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not in time: {what}: {self.journal()}")
            time.sleep(0.05)

    def unit(self, name, what):
        """A property of a unit."""
        return self.check("systemctl", "show", "--property", what, "--value", name).strip()

    def journal(self):
        return self.run("journalctl", "--no-pager", "--lines=60").stdout

    def path(self, name):
        return os.path.join(f"/proc/{self.pid}/root", name.lstrip("/"))
