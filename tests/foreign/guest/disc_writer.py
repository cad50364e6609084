"""A guest with drives for writable discs: what the tests of programs that burn discs share."""

import contextlib
import json
import os
import subprocess
import time

import servers
from guest import image
from guest.initiator import Initiator
from guest.machine import Guest
from serving import serving
from verdicts import expect

MIB = 1 << 20
# The longest that a burn may take to reach the image, seconds.
BURNING_MAX_S = 300


class WriterInitiator(Initiator):
    kind = "sr"

    def __init__(self, guest, server):
        super().__init__(guest, server)
        for module in ("sr_mod", "isofs", "sg"):
            guest.run(f"modprobe {module}")
        for name in ("first", "second", "third"):
            # The same bytes in every run, and no sector like another.
            guest.run(f"mkdir -p /tmp/{name} && seq 100000 103999 | sed 's/$/ {name}/' > /tmp/{name}/{name}.txt")
        # genisoimage opens the disc by the number of a file descriptor.
        guest.run("[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd")


class Writer:
    """The drives in the guest, one with each kind of disc."""

    def __init__(self, initiator, names):
        self.initiator, self.guest, self.server, self.names = initiator, initiator.guest, initiator.server, names

    def drive(self, kind):
        return self.initiator.disk(unit=self.names.index(kind))

    def burn(self, device, command):
        """Burns, and loads the disc again: only then the kernel reads how long it is."""
        told = self.guest.run(f"{command} 2>&1", limit_s=300)
        self.reload(device)
        return told

    def reload(self, device):
        self.guest.run(f"eject {device} && eject -t {device}")

    def path(self, kind):
        return self.server.medium_path(self.names.index(kind))

    def listing(self, kind):
        told = subprocess.run([self.server.binary, "disc", "ls", "--json", self.path(kind)], check=True, capture_output=True)
        return json.loads(told.stdout)

    def wait_until_written(self, kind):
        """Waits until the image takes more storage than now, or is newer."""
        def now():
            facts = os.stat(self.path(kind))
            return facts.st_blocks, facts.st_mtime_ns
        before, deadline = now(), time.monotonic() + BURNING_MAX_S
        while now() == before:
            expect(time.monotonic() < deadline, "nothing is written to the image")
            time.sleep(0.05)

    def expect_files(self, device, *names):
        """Mounts the disc, and expects these files."""
        self.guest.run(f"mount -t iso9660 -o ro {device} /mnt")
        found = self.guest.run("ls /mnt").split()
        digests = self.guest.run("cd /mnt && sha256sum * | cut -d ' ' -f 1; cd /").split()
        self.guest.run("umount /mnt")
        wanted = [f"{name}.txt" for name in sorted(names)]
        expect(sorted(found) == wanted, f"the disc has the files {found}, and not {wanted}")
        for name, digest in zip(sorted(names), digests):
            expect(digest == self.guest.run(f"sha256sum < /tmp/{name}/{name}.txt | cut -d ' ' -f 1").strip(), f"{name} differs")

    def expect_plain_image(self, kind, *names):
        """The image on the host is an image as any other."""
        told = subprocess.run(["xorriso", "-indev", f"stdio:{self.path(kind)}", "-find", "/", "-type", "f"], check=True, capture_output=True, text=True)
        found = sorted(line.strip("'/\n") for line in told.stdout.splitlines())
        expect(found == [f"{name}.txt" for name in sorted(names)], f"the image has the files {found}; {told.stderr}")

    def kill_and_restart(self):
        self.server.kill()
        time.sleep(1)
        self.server.start(fresh=False)


@contextlib.contextmanager
def writing(request, kind, name, discs):
    """A guest whose drives hold blank discs of these names and kinds."""
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare_writer(out)
    export = servers.Export(luns=tuple(servers.Lun(medium="disc", size=64 * MIB, writable=disc) for disc in discs.values()))
    server = kind(folder, export)
    with serving(request, name, server), Guest(kernel, initramfs, folder) as guest:
        yield Writer(WriterInitiator(guest, server), list(discs))


def growisofs(device, option, volume, folder):
    return f"growisofs {option} {device} -quiet -R -V {volume} {folder}"
