"""Bacula uses a tape library of ours: labels by bar codes, jobs over several cartridges and in two drives at once, restores compared.

The configuration of Bacula is what docs/howto/bacula.md prints. By hand: `make test-bacula`.
"""

import os
import random
import re
import subprocess
import time

import pytest

import servers
from guest import bacula
from guest.machine import Guest
from guest.test_changer import Library
from serving import serving
from verdicts import expect

MIB = servers.MIB
SLOTS = 10
CARTRIDGE = 24 * MIB
EXPORT = servers.Export(luns=(servers.Lun(medium="changer", size=CARTRIDGE, slots=SLOTS, cartridges=SLOTS),))
BARCODES = [f"A{number:05}L8" for number in range(1, SLOTS + 1)]
# The jobs, and how many MiB of files each has.
JOBS = {"Long": 55, "Left": 8, "Right": 8, "Killed": 40, "After": 4, "Marked": 4}
# Each of these waits until the other has a drive too.
TOGETHER = {"Left": "Right", "Right": "Left"}
# What is found in the files of a cartridge.
MARKED = b"a file that the disk will not keep "
WAIT_MAX_S = 900
pytestmark = pytest.mark.timeout(3600)


def resources():
    """More jobs than the recipe has."""
    for name in JOBS:
        meet = f'Client Run Before Job = "/bin/meet {name} {TOGETHER[name]}"' if name in TOGETHER else ""
        yield (f"Job {{\n  Name = {name}\n  JobDefs = OnTape\n  FileSet = {name}\n  {meet}\n}}\n"
               f"FileSet {{\n  Name = {name}\n  Include {{\n    Options {{\n      Signature = SHA1\n    }}\n    File = /data/{name}\n  }}\n}}\n")


class Backup:
    """Bacula in the guest, and the library that it uses."""

    def __init__(self, guest, server):
        self.guest, self.server = guest, server
        self.library = Library(guest, server)
        devices = [self.library.generic, *self.library.drives]
        expect(devices == ["/dev/sg0", "/dev/nst0", "/dev/nst1"], f"the recipe names other devices than {devices}")
        guest.run("printf '#!/bin/sh\\n> /tmp/$1.met\\nuntil [ -e /tmp/$2.met ]; do sleep 0.1; done\\n' > /bin/meet && chmod +x /bin/meet")
        guest.run("mkdir -p /data /var/restored")
        for name, size in JOBS.items():
            # One long file, and small ones.
            guest.run(f"mkdir /data/{name} && cd /data/{name} && dd if=/dev/urandom of=long bs=1M count={size - 1} 2> /dev/null && "
                      "for i in $(seq 64); do dd if=/dev/urandom of=$i bs=16k count=1 2> /dev/null; done", limit_s=WAIT_MAX_S)
        self.bacula = bacula.Bacula(guest)
        # The jobs that ended well, and their numbers.
        self.done = {}

    def run(self, *names):
        """Runs jobs at the same time to their ends, which must be good; the cartridges of each."""
        jobs = {name: self.bacula.started(f"run job={name} yes") for name in names}
        used = []
        for name, job in jobs.items():
            report = self.bacula.ended(job)
            expect(bacula.ENDED_WELL.search(report), f"job {name} ends otherwise than well: {report}")
            used.append(re.search(r"Volume name\(s\):\s+(\S+)", report)[1].split("|"))
        self.done.update(jobs)
        return used

    def stored(self):
        """How many bytes the files of all cartridges have."""
        return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(self.server.medium_path()) for name in names)

    def restore(self, name, job):
        """Restores all files of a job, and compares them with what they were made from."""
        guest = self.guest
        guest.run("rm -rf /var/restored/*")
        said = self.bacula.console(f"restore jobid={job} client=backup-fd restorejob=Restore where=/var/restored all done yes")
        expect("JobId=" in said, f"the restore of {name} does not start: {said}")
        report = self.bacula.ended(int(re.search(r"JobId=(\d+)", said)[1]))
        expect("Restore OK" in report, f"the restore of {name}: {report}")
        told = guest.run(f"cd /data/{name} && ls | wc -l && for file in *; do cmp $file /var/restored/data/{name}/$file 2>&1; done; "
                         f"ls /var/restored/data/{name} | wc -l", limit_s=WAIT_MAX_S)
        expect(told.split() == ["65", "65"], f"the restore of {name} differs: {told}")


@pytest.fixture(scope="module")
def backup(request, kind, server_name):
    if server_name != "targe":
        pytest.skip("the libraries of others are others' business")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, "bacula")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = bacula.prepare(out, "".join(resources()))
    server = kind(folder, EXPORT)
    with serving(request, "bacula", server), Guest(kernel, initramfs, folder) as guest:
        yield Backup(guest, server)


def test_labels_by_bar_codes(backup):
    said = backup.bacula.console(f"label barcodes storage=Library pool=Tapes slots=1-{SLOTS} drive=0", "yes")
    listed = backup.bacula.console("list volumes pool=Tapes")
    for barcode in BARCODES:
        expect(f"| {barcode} " in listed, f"{barcode} is not labelled: {said} {listed}")


def test_spans_several_cartridges(backup):
    (volumes,) = backup.run("Long")
    expect(len(volumes) == 3, f"{JOBS['Long']} MiB are on {volumes}")
    backup.restore("Long", backup.done["Long"])


def test_writes_two_jobs_in_two_drives(backup):
    left, right = backup.run(*TOGETHER)
    # Each waits until the other has its first cartridge. The second one may be that of a job that has ended.
    expect(left[0] != right[0], f"two jobs at the same time used {left} and {right}")
    drives = [backup.bacula.drive(backup.done[name]) for name in TOGETHER]
    expect(sorted(drives) == ["Drive-0", "Drive-1"], f"two jobs at the same time used {drives}")
    for name in TOGETHER:
        backup.restore(name, backup.done[name])


def test_a_kill_of_the_target_harms_no_job_that_ends_well(backup):
    """Bacula repeats the block that failed, which must not overwrite the start of the cartridge: what jobs before have there."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    moment = random.Random(seed)
    before, wanted = backup.stored(), moment.randrange(2 * MIB, JOBS["Killed"] * MIB // 2)
    job = backup.bacula.started("run job=Killed yes")
    deadline = time.monotonic() + WAIT_MAX_S
    while backup.stored() - before < wanted:
        expect(time.monotonic() < deadline, "the job writes nothing")
        time.sleep(0.005)
    time.sleep(moment.uniform(0, 0.1))
    backup.server.kill()
    backup.server.start(fresh=False)
    report = backup.bacula.ended(job)
    print(report)
    if bacula.ENDED_WELL.search(report):
        backup.restore("Killed", job)
    # The jobs before it, which share cartridges with it, and the next ones.
    for name, earlier in backup.done.items():
        backup.restore(name, earlier)
    for name in ("After", "Killed"):
        backup.run(name)
        backup.restore(name, backup.done[name])


def test_names_a_damaged_cartridge_and_not_the_next_one(backup):
    """Bacula's alert command asks the drive for its TapeAlert flags (`tapeinfo`) after an error, and at the end of each job."""
    console = backup.bacula.console
    backup.guest.run(f"cd /data/Marked && rm long && i=0; while [ $i -lt 400 ]; do echo -n '{MARKED.decode()}'; i=$((i + 1)); done > long")
    ((volume, *_),) = backup.run("Marked")
    damaged = os.path.join(backup.server.medium_path(), volume)
    flip(damaged)
    said = console(f"restore jobid={backup.done['Marked']} client=backup-fd restorejob=Restore where=/var/restored all done yes")
    report = backup.bacula.ended(int(re.search(r"JobId=(\d+)", said)[1]))
    expect("Restore OK" not in report, f"a damaged cartridge is restored: {report}")
    expect(set(alerts(backup)) == {(volume, flag) for flag in "345"}, f"the alerts are {alerts(backup)}: {report}")
    # The next cartridge is good. Until it ends, the storage daemon repeats what it heard in each job, under the name of that cartridge.
    backup.bacula.restart_storage()
    before = alerts(backup)
    console(f"update volume={volume} volstatus=Used")
    ((after, *_),) = backup.run("After")
    expect(after != volume, f"a cartridge that is marked as used is written on: {after}")
    backup.restore("After", backup.done["After"])
    expect(alerts(backup) == before, f"the next cartridge has alerts: {alerts(backup)}")
    flip(damaged)
    backup.restore("Marked", backup.done["Marked"])


def alerts(backup):
    """The cartridges and TapeAlert flags in Bacula's log."""
    return re.findall(r'Alert: Volume="(\w+)" alert=(\d+):', backup.guest.run("cat /var/lib/bacula/log"))


def flip(cartridge):
    """Changes one byte of the marked file on a cartridge, or changes it back."""
    for name in sorted(os.listdir(cartridge)):
        with open(os.path.join(cartridge, name), "r+b") as file:
            data = file.read()
            at = data.find(MARKED)
            if at >= 0:
                file.seek(at + 20 * len(MARKED))
                byte = data[at + 20 * len(MARKED)]
                file.write(bytes([byte ^ 1]))
                return
    raise AssertionError(f"no file of {cartridge} has the marked file")


def test_leaves_sound_cartridges(backup):
    backup.server.stop()
    for name in BARCODES:
        verified = subprocess.run([backup.server.binary, "tape", "verify", os.path.join(backup.server.medium_path(), name)],
                                  capture_output=True, text=True)
        expect(verified.returncode == 0, f"targe tape verify {name}: {verified.stdout}{verified.stderr}")
    backup.server.start(fresh=False)
