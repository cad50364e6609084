"""The lines that `targe serve` prints to be pasted work as they are printed, with the secret in its place: those of libiscsi, of QEMU and of
targe, for targets that are open, ask for CHAP, admit one initiator or both, and for a tape drive, a tape library and a disc; those for a portal
with TLS, a password login and a HyperSCSI group, with the files and the user in their places.

The lines for open-iscsi need its daemon and the kernel; the guest's rigs log in in the same way. It judges targe alone.
"""

import contextlib
import os
import re
import subprocess
import tempfile

import pytest

import servers
import tls
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
def served(folder, lun, keys, portal="", top="", of_target=""):
    """What a daemon prints."""
    with open(os.path.join(folder, "secret"), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(SECRET)
    port = free_port()
    with open(os.path.join(folder, "targe.toml"), "w") as file:
        file.write(f'state_dir = "state"\nadmin_socket = "admin.sock"\nportal = [{{ listen = "127.0.0.1:{port}"{portal} }}]\n{top}'
                   f'[[target]]\nname = "{IQN}"\n{of_target}[[target.lun]]\nlun = 3\n{lun}\n{keys}')
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
        if heading := re.fullmatch(r"(Linux \(open-iscsi\)|libiscsi|QEMU|targe|Other initiators.*|HyperSCSI on .*):?", line):
            program = heading[1].rstrip(":")
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


@contextlib.contextmanager
def proxied(folder, line):
    """The port of a proxy that runs by its printed line."""
    process = subprocess.Popen(["sh", "-c", f"exec {line} --listen 127.0.0.1:0"], cwd=folder, stderr=subprocess.PIPE, text=True,
                               preexec_fn=servers.die_with_parent)
    try:
        said = process.stderr.readline()
        expect(" for " in said, f"{line}: {said}")
        yield int(said.split(" for ")[0].rpartition(":")[2])
    finally:
        process.terminate()
        _, rest = process.communicate(timeout=60)
        expect(process.returncode == 0 and not rest, f"{line}: {rest}")


@pytest.mark.parametrize("case", ("tls", "tls and chap", "password"))
def test_every_line_of_an_encrypted_target_works(kind, case):
    with tempfile.TemporaryDirectory() as folder:
        authority = tls.Authority(os.path.join(folder, "authority"))
        if case == "password":
            subprocess.run([servers.Targe.binary, "passwd", "users", "--user", "alice"], cwd=folder, input=f"{SECRET}\n", text=True, check=True,
                           capture_output=True, timeout=60)
            portal, keys, file = "", '[target.auth]\npassword_file = "users"\n', "secret"
        else:
            certificate, key = authority.sign("target", "IP:127.0.0.1")
            portal, file = f', tls_certificate = "{certificate}", tls_key = "{key}"', authority.certificate
            keys = f"[target.auth]\n{CHAP}" if "chap" in case else ""
        with served(folder, RAM, keys, portal) as text:
            lines = lines_by_program(text)
            expect(set(lines) == {"targe", "Other initiators, at 127.0.0.1:3260 of their own host"}, f"lines are printed for {sorted(lines)}: {text}")
            own, (proxy,) = lines.pop("targe"), lines.popitem()[1]
            chap = {"TARGE_PASSWORD": SECRET} if "chap" in case else {}
            for line in own:
                line = line.replace("FILE", file).replace("USER", "alice") + " --time 0.5 --warmup 0"
                done = subprocess.run(["sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=200, env={**os.environ, **chap})
                expect(done.returncode == 0, f"{line}: exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
            with proxied(folder, proxy.replace("FILE", file).replace("USER", "alice")) as port:
                user = f"alice%{SECRET}@" if chap else ""
                done = subprocess.run(["qemu-img", "info", f"iscsi://{user}127.0.0.1:{port}/{IQN}/3"], capture_output=True, text=True, timeout=200)
                expect(done.returncode == 0, f"{proxy}: {done.stderr[-300:]}")


def test_every_line_of_a_hyperscsi_group_works(kind):
    group = '[hyperscsi]\ninterfaces = ["lo"]\n[[hyperscsi.group]]\nname = "printed"\npassword_file = "secret"\n'
    with tempfile.TemporaryDirectory() as folder, served(folder, RAM, "", top=group, of_target='groups = ["printed"]\n') as text:
        os.symlink(servers.Targe.binary, os.path.join(folder, "targe"))
        path = f"{folder}:{os.environ['PATH']}"
        found = lines_by_program(text)
        lines = found.get('HyperSCSI on lo for "printed"')
        expect(lines and len(lines) == 2, f"lines are printed for {sorted(found)}: {text}")
        for line in lines:
            if " bench " in line:
                line += " --time 0.5 --warmup 0"
            done = subprocess.run(["sh", "-c", line.replace("FILE", "secret")], cwd=folder, capture_output=True, text=True, timeout=200,
                                  env={**os.environ, "PATH": path})
            expect(done.returncode == 0, f"{line}: exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}")
