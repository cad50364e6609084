"""The lines that `targe serve` prints to be pasted work as they are printed, with the secret in its place: those of libiscsi, of QEMU and of
targe, for targets that are open, ask for CHAP, admit one initiator or both, and for a tape drive, a tape library and a disc.

The lines for open-iscsi need its daemon and the kernel; the guest's rigs log in in the same way. It judges targe alone.
"""

import contextlib
import os
import re
import subprocess
import tempfile

import pytest

import servers
from listening import free_port, listens
from verdicts import eventually, expect

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(300)]

IQN = "iqn.2026-11.org.targe:printed"
SECRET = "0123456789abcdef"
RAM = 'type = "ram"\nsize = "4M"'
CHAP = f'user = "alice"\nsecret_file = "secret"\n'
ACL = '[[target.acl]]\ninitiators = ["iqn.2026-11.org.targe:one"]\nluns = [{ lun = 3, as = 0 }]\n'
# What a target is, and the programs whose lines are printed for it.
CASES = {
    "open": (RAM, "", {"libiscsi", "QEMU", "targe"}),
    "chap": (RAM, f"[target.auth]\n{CHAP}", {"libiscsi", "QEMU", "targe"}),
    "acl": (RAM, ACL, {"libiscsi", "QEMU", "targe"}),
    "acl and chap": (RAM, f"{ACL}[target.acl.auth]\n{CHAP}", {"libiscsi", "QEMU", "targe"}),
    "tape": ('type = "tape"\npath = "cartridge"', "", {"libiscsi", "targe"}),
    "changer": ('type = "changer"\npath = "library"', "", {"libiscsi", "targe"}),
    "disc": ('type = "disc"\npath = "disc.iso"', "", {"libiscsi", "targe"}),
}


def targe(folder, *words):
    subprocess.run([servers.Targe.binary, *words], cwd=folder, check=True, capture_output=True, timeout=60)


@contextlib.contextmanager
def served(folder, lun, keys):
    """What a daemon prints."""
    with open(os.path.join(folder, "secret"), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(SECRET)
    port = free_port()
    with open(os.path.join(folder, "targe.toml"), "w") as file:
        file.write(f'state_dir = "state"\nadmin_socket = "admin.sock"\nportal = [{{ listen = "127.0.0.1:{port}" }}]\n'
                   f'[[target]]\nname = "{IQN}"\n[[target.lun]]\nlun = 3\n{lun}\n{keys}')
    printed = os.path.join(folder, "printed")
    with open(printed, "w") as out:
        process = subprocess.Popen([servers.Targe.binary, "serve", "--config", "targe.toml"], cwd=folder, stdout=out,
                                   stderr=subprocess.STDOUT, preexec_fn=servers.die_with_parent)
    try:
        eventually(lambda: listens("127.0.0.1", port) or process.poll() is not None, "the daemon listens")
        expect(process.poll() is None, "the daemon does not start")
        # It is the last line.
        eventually(lambda: "State is kept" in read(printed), lambda: f"it prints lines: {read(printed)}")
        yield read(printed)
    finally:
        process.terminate()
        process.wait(timeout=60)


def read(path):
    with open(path) as file:
        return file.read()


def lines_by_program(text):
    found, program = {}, None
    for line in text.splitlines():
        if heading := re.fullmatch(r"(Linux \(open-iscsi\)|libiscsi|QEMU|targe):", line):
            program = heading[1]
        elif program and line.startswith("  "):
            found.setdefault(program, []).append(line.strip())
        else:
            program = None
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_printed_line_works(kind, case):
    lun, keys, programs = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        targe(folder, "tape", "create", "cartridge", "--profile", "lto8")
        targe(folder, "changer", "create", "library", "--drives", "1", "--slots", "2", "--cartridges", "1", "--prefix", "A")
        with open(os.path.join(folder, "disc.iso"), "wb") as file:
            file.truncate(4 << 20)
        with served(folder, lun, keys) as text:
            lines = lines_by_program(text)
            expect(set(lines) == programs | {"Linux (open-iscsi)"}, f"lines are printed for {sorted(lines)}: {text}")
            for program in sorted(programs):
                for line in lines[program]:
                    if line.startswith("qemu-system"):
                        # The machine opens the disk, and is switched off before it starts.
                        line = f"echo quit | {line} -display none -nodefaults -S -monitor stdio"
                    if " bench " in line:
                        line += " --time 0.5 --warmup 0"
                    done = subprocess.run(["sh", "-c", line.replace("SECRET", SECRET)], cwd=folder, capture_output=True, text=True, timeout=200)
                    expect(done.returncode == 0, f"{line}: exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
