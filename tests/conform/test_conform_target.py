"""Judges a target by `targe conform`: ours, or a rival with --server; --reports DIR keeps what it finds.

Tape drives, medium changers and disc drives are judged by the cases on them, where the target has such devices."""

import contextlib
import os
import threading

import pytest

import servers
from conform import tool
from servers import MIB, Export, Lun
from serving import serving

USER, TARGET = ("alice", "correct-horse-battery"), ("the-target", "staple-battery-horse")
DISK = (Lun("ram", size=64 * MIB),)
# A cartridge that a few commands fill.
TAPE_SIZE = 24 * MIB
DVD, BD, WORM = ("profile", "dvd"), ("profile", "bd"), ("worm", True)
# What to serve, and which cases to judge it by: those on CHAP need a target that insists on it, the others one that does not. Of the cases
# on devices each suite has those that its medium is for.
SUITES = {
    "plain": (Export(luns=DISK, level=2, connections=16), "!chap-*,!ssc-*,!smc-*,!mmc-*"),
    "chap": (Export(luns=DISK, incoming=USER, outgoing=TARGET), "chap-*"),
    "tape": (Export(luns=(Lun("tape", size=TAPE_SIZE),)), "ssc-*,!ssc-worm-*,!ssc-write-protect"),
    "tape-protected": (Export(luns=(Lun("tape", size=TAPE_SIZE, readonly=True),)), "ssc-write-protect"),
    "tape-worm": (Export(luns=(Lun("tape", size=TAPE_SIZE, claims=(WORM,)),)), "ssc-worm-*"),
    "changer": (Export(luns=(Lun("changer", size=TAPE_SIZE),)), "smc-*"),
    "cd": (Export(luns=(Lun("disc", size=8 * MIB),)), "mmc-*,!mmc-structure"),
    "dvd": (Export(luns=(Lun("disc", size=8 * MIB, claims=(DVD,)),)), "mmc-*,!mmc-read-cd*,!mmc-toc-full"),
    "bd": (Export(luns=(Lun("disc", size=8 * MIB, claims=(BD,)),)), "mmc-*,!mmc-read-cd*,!mmc-toc-full,!mmc-structure"),
}
# The suites that other targets have what to serve for. A disc in tgt is a DVD, and it has no write-once cartridges.
SUITES_OF_TGT = ("plain", "chap", "tape", "tape-protected", "changer", "dvd")
SUITES_OF_OTHERS = ("plain", "chap")
# Longest one suite may take, seconds.
SUITE_MAX_S = 900
NAMES = {"targe": "targe", "tgt": "tgt (Debian 12)", "istgt": "istgt (Debian 12)", "lio": "LIO (Linux of Debian 12)",
         "spdk": "SPDK", "gotgt": "gotgt"}
SUBJECTS = {"chap": ", with CHAP", "tape": ": tape drive", "tape-protected": ": tape drive, write-protected cartridge",
            "tape-worm": ": tape drive, WORM cartridge", "changer": ": medium changer", "cd": ": disc drive, CD", "dvd": ": disc drive, DVD",
            "bd": ": disc drive, BD"}
pytestmark = pytest.mark.timeout(900)


def pytest_generate_tests(metafunc):
    judged = (metafunc.config.getoption("server") or ["targe"])[0]
    names = {"targe": tuple(SUITES), "tgt": SUITES_OF_TGT}.get(judged, SUITES_OF_OTHERS)
    rows = [(name, case) for name in names for case in tool.cases(metafunc.config, "target", "--only", SUITES[name][1])]
    metafunc.parametrize("suite, case", rows, ids=[f"{name}, {case}" for name, case in rows], indirect=["suite"], scope="module")


@pytest.fixture(scope="module")
def suite(request, pytestconfig, kind, server_name):
    """The tool while it judges a target by those cases of a suite that are selected."""
    name = request.param
    export, _ = SUITES[name]
    cases = [item.callspec.params["case"] for item in request.session.items
             if item.path == request.path and item.callspec.params["suite"] == name]
    suffix = "" if name == "plain" else f"-{name}"
    out = os.path.join(servers.OUT, "conform", server_name + suffix)
    with serving(request, f"suite {name}", kind(out, export)) as server, Revival(server) as revival:
        secrets = {"TARGE_PASSWORD": USER[1], "TARGE_MUTUAL_PASSWORD": TARGET[1]}
        command = [*command_for(pytestconfig, server, server_name, name, suffix), "--revive", revival.command, "--only", ",".join(cases)]
        limit_s = SUITE_MAX_S * (4 if server_name == "lio" else 1)
        with tool.Tool(command, os.path.join(server.folder, "conform.log"), limit_s, secrets) as judged:
            yield judged


def test_conforms(suite, case):
    suite.expect_passed(case)


class Revival:
    """Brings a server back that died of a case, when the tool runs `command`, which prints what it died of."""

    def __init__(self, server):
        self.server = server
        self.asked, self.told = (os.path.join(server.folder, name) for name in ("revive", "revived"))
        self.command = f"echo > '{self.asked}'; cat '{self.told}'"

    def __enter__(self):
        for path in (self.asked, self.told):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
            os.mkfifo(path)
        threading.Thread(target=self.revive, daemon=True).start()
        return self

    def __exit__(self, *_):
        os.remove(self.asked)
        os.remove(self.told)

    def revive(self):
        while True:
            with open(self.asked) as asked:
                asked.read()
            cause = self.server.cause_of_death()
            self.server.kill()
            self.server.start(fresh=False)
            with open(self.told, "w") as told:
                told.write(cause + "\n")


def command_for(config, server, server_name, suite_name, suffix):
    command = [config.getoption("judge"), "conform", "target", *(f"{host}:{server.port}" for host in ("127.0.0.1", "127.0.0.2")),
               "--target", server.iqn, "--write"]
    if server_name == "lio":
        # It announces an address of its guest, and software emulation is slow.
        command += ["--patience", "8000", "--limit", "90"]
    else:
        # What has to come may take this long on a busy machine. How long nothing may come is not judged by it.
        command += ["--patience", "12000", "--limit", "120"]
    if server.export.incoming:
        command += ["--user", server.export.incoming[0], "--mutual-user", server.export.outgoing[0]]
    if reports := config.getoption("reports"):
        os.makedirs(reports, exist_ok=True)
        subject = NAMES[server_name] + server.version() + SUBJECTS.get(suite_name, "")
        command += ["--report", os.path.join(reports, f"{server_name}{suffix}.md"), "--subject", subject]
    return command
