"""`targe attach` as a service: what the service manager hears of it, the units that the documents show, the lines for other tools that it prints,
and shared mappings of its file.
"""

import mmap
import os
import re
import socket
import subprocess

import pytest

import servers
from attach.attached import Attached
from attach.disks import need_fuse, tool
from listening import free_port
from verdicts import expect

TOOL_MAX_S = 120
SIZE = 64 << 20


@pytest.fixture(params=(512, 4096))
def served(request, tmp_path):
    lun = servers.Lun(size=SIZE, block=request.param)
    with servers.Targe(tmp_path / "server", servers.Export(luns=(lun,))) as server:
        yield server, request.param


class Manager:
    """The end of NOTIFY_SOCKET that a service manager has."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "notify.sock")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(TOOL_MAX_S)
        self.said = []

    def hears(self, word):
        while not any(word in line for line in self.said):
            self.said += self.socket.recv(4096).decode().splitlines()


@pytest.mark.parametrize("way", ("nbd", "fuse"))
def test_a_service_manager_hears_that_the_disk_is_there_and_that_it_goes(served, tmp_path, way, monkeypatch):
    if way == "fuse":
        need_fuse()
    server, _ = served
    manager = Manager(str(tmp_path))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.path)
    with Attached(server, way) as disk:
        manager.hears("READY=1")
        expect(os.path.exists(disk.place), "it says so before the disk is there")
        expect(any(line.startswith("STATUS=") and disk.place in line for line in manager.said), str(manager.said))
        expect(not any("STOPPING" in line for line in manager.said), str(manager.said))
        expect(disk.detach() == 0, "detaches")
    manager.hears("STOPPING=1")


def test_a_service_manager_hears_that_the_csi_driver_serves(tmp_path):
    manager = Manager(str(tmp_path))
    os.makedirs(tmp_path / "pool")
    csi = subprocess.Popen([servers.Targe.binary, "csi", "--endpoint", "csi.sock", "--controller", "--pool", "pool", "--portal", f"127.0.0.1:{free_port()}",
                            "--socket", "none.sock"], cwd=tmp_path, env={**os.environ, "NOTIFY_SOCKET": manager.path}, stdin=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, preexec_fn=servers.die_with_parent)
    try:
        manager.hears("READY=1")
        socket.socket(socket.AF_UNIX).connect(str(tmp_path / "csi.sock"))
    finally:
        csi.terminate()
        expect(csi.wait(TOOL_MAX_S) == 0, "the driver ends")


def test_the_units_of_the_documents_are_valid(tmp_path):
    with open(os.path.join(servers.ROOT, "docs/attach.md"), encoding="utf-8") as page:
        text = page.read()
    units = re.findall(r"`/etc/systemd/system/([a-z-]+\.(?:service|mount))`.*?```ini\n(.*?)```", text, re.S)
    expect([name for name, _ in units] == ["targe-disk.service", "srv-data.mount"], str(units))
    for name, unit in units:
        (tmp_path / name).write_text(unit.replace("/usr/bin/targe", servers.Targe.binary))
    paths = [str(tmp_path / name) for name, _ in units]
    done = subprocess.run(["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", *paths], capture_output=True, text=True, timeout=TOOL_MAX_S,
                          env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"})
    expect((done.returncode, done.stdout + done.stderr) == (0, ""), done.stdout + done.stderr)


def test_the_printed_lines_keep_the_sectors_of_the_disk(served):
    need_fuse()
    server, sectors = served
    with Attached(server, "fuse") as disk:
        line = next(line.strip() for line in disk.said().splitlines() if "losetup" in line)
        expect(line.startswith("sudo losetup "), line)
        device = tool(*line.split()[1:]).strip()
        try:
            expect(tool("blockdev", "--getss", device).strip() == str(sectors), "the loop device has other sectors than the LUN")
            expect(int(tool("blockdev", "--getsize64", device)) == SIZE, "the loop device has another size than the LUN")
        finally:
            tool("losetup", "--detach", device)
        expect(disk.detach() == 0, "detaches")
    with Attached(server, "nbd") as disk:
        line = next(line.strip() for line in disk.said().splitlines() if "nbd-client" in line)
        expect(line == f"sudo nbd-client -unix {disk.place} /dev/nbd0 -block-size {sectors}", line)
        expect(disk.detach() == 0, "detaches")


def test_a_shared_mapping_is_the_disk(served):
    need_fuse()
    server, _ = served
    if tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) < (6, 6):
        pytest.skip("the kernel maps no such file before Linux 6.6")
    with Attached(server, "fuse") as disk:
        with open(disk.address, "r+b", buffering=0) as file, mmap.mmap(file.fileno(), SIZE, mmap.MAP_SHARED) as mapped:
            mapped[5000:5007] = b"written"
            mapped[SIZE - 1:SIZE] = b"!"
            mapped.flush()
            file.seek(5000)
            expect(file.read(7) == b"written", "a read does not see what a mapping has written")
            file.seek(9 << 20)
            file.write(b"direct")
            expect(mapped[9 << 20:(9 << 20) + 6] == b"direct", "a mapping does not see what was written")
            mapped[20 << 20:(20 << 20) + 4] = b"late"
            os.fsync(file.fileno())
        expect(disk.detach() == 0, "detaches")
    with open(server.medium_path(), "rb") as medium:
        for at, wanted in ((5000, b"written"), (SIZE - 1, b"!"), (9 << 20, b"direct"), (20 << 20, b"late")):
            medium.seek(at)
            expect(medium.read(len(wanted)) == wanted, f"at {at} the medium has something else")
