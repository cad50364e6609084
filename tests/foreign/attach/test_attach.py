"""Let QEMU's and libnbd's tools, fio, and the kernel's loop device use LUNs through `targe attach`."""

import dataclasses
import json
import os
import socket
import subprocess
import time

import pytest

import servers
from attach.attached import Attached, fresh_folder, refused
from attach.disks import (TOOL_MAX_S, Loop, Mounted, carries_a_file_system_through_restarts, finish_fio, fio_process, image, kill_and_restart,
                          need_fuse, same, start_fio_in, tool)
from servers import MIB, Export, Lun
from serving import serving
from verdicts import eventually, expect

SIZE = 128 * MIB
CHUNK = 64 << 10


@pytest.fixture
def server(request, kind, server_name):
    with serving(request, request.node.name, kind(fresh_folder(request, server_name), Export(luns=(Lun(size=SIZE), Lun(size=SIZE))))) as server:
        yield server


# NBD


def test_nbd_tells_what_it_is(server):
    with Attached(server, "nbd") as disk:
        export = json.loads(tool("nbdinfo", "--json", disk.address))["exports"][0]
    expect(export["export-size"] == SIZE, f"size {export['export-size']}")
    for can in ("can_flush", "can_fua", "can_multi_conn", "can_zero", "can_trim", "can_df", "can_cache"):
        expect(export[can], can)
    expect(not export["is_read_only"] and "base:allocation" in export["contexts"], "writable, with its map")
    expect(export["block_size_minimum"] == 512, f"blocks of {export['block_size_minimum']}")


def test_nbd_converts_images(server):
    source, copy = image(server, SIZE), os.path.join(server.folder, "copy.qcow2")
    with Attached(server, "nbd") as disk:
        tool("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, disk.address)
        tool("qemu-img", "compare", "-f", "raw", "-F", "raw", source, disk.address)
        tool("qemu-img", "convert", "-f", "raw", "-O", "qcow2", disk.address, copy)
        tool("qemu-img", "compare", source, copy)
        expect(disk.detach() == 0, "detaches")
    same(source, server.medium_path())


def test_nbd_copies_with_many_connections(server):
    source, copy = image(server, SIZE), os.path.join(server.folder, "copy.raw")
    with Attached(server, "nbd") as disk:
        tool("nbdcopy", "--connections=4", "--requests=64", "--flush", source, disk.address)
        tool("nbdcopy", "--connections=4", "--requests=64", disk.address, copy)
        holes = sum(extent["length"] for extent in json.loads(tool("nbdinfo", "--json", "--map", disk.address)) if extent["type"] & 1)
    same(source, copy)
    same(source, server.medium_path())
    expect(holes > SIZE // 4, f"only {holes} bytes are holes")


def test_nbd_keeps_patterns(server):
    with Attached(server, "nbd") as disk:
        qemu_io(disk, "write -P 0x11 0 1M", "write -P 0x22 1M 3M", "write -f -P 0x33 4k 4k", "flush")
        qemu_io(disk, "read -P 0x11 0 4k", "read -P 0x33 4k 4k", "read -P 0x11 8k 1016k", "read -P 0x22 1M 3M")
        qemu_io(disk, "write -P 0x44 1000 77", "read -P 0x11 0 1000", "read -P 0x44 1000 77", "read -P 0x11 1077 3019")
        qemu_io(disk, *[f"aio_write -P {n + 1} {8 + n}M 1M" for n in range(64)], "aio_flush",
                *[f"aio_read -P {n + 1} {8 + n}M 1M" for n in range(64)], "aio_flush")


def test_nbd_gives_storage_back(server):
    with Attached(server, "nbd") as disk:
        qemu_io(disk, "write -P 0x55 0 64M", "flush")
        qemu_io(disk, "discard 8M 8M", "write -z -u 24M 8M", "write -z 40M 8M", "flush")
        qemu_io(disk, "read -P 0x55 0 8M", "read -P 0x55 16M 8M", "read -P 0 24M 8M", "read -P 0 40M 8M", "read -P 0x55 48M 16M")
        told = [(extent["offset"], extent["length"]) for extent in json.loads(tool("nbdinfo", "--json", "--map", disk.address))
                if extent["type"] & 1 and extent["offset"] < 64 * MIB]
    expect(told[:2] == [(8 * MIB, 8 * MIB), (24 * MIB, 8 * MIB)], f"the map tells holes at {told}")
    expect(holes_of(server.medium_path(), 64 * MIB) == [(8 * MIB, 8 * MIB), (24 * MIB, 8 * MIB)],
           f"the file has holes at {holes_of(server.medium_path(), 64 * MIB)}")


def test_nbd_serves_on_when_clients_die(server):
    with Attached(server, "nbd") as disk:
        for _ in range(8):
            fio = start_fio(disk, "--rw=randwrite", "--bs=64k", "--time_based", "--runtime=30")
            time.sleep(0.3)
            fio.kill()
            fio.wait()
        for junk in (b"", b"\0\0\0\xff", b"\0\0\0\3" + b"GET / HTTP/1.1\r\n\r\n" * 10, b"\0\0\0\3IHAVEOPT\0\0\0\7\xff\xff\xff\xff"):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(disk.place)
                client.sendall(junk)
        qemu_io(disk, "write -P 7 0 1M", "read -P 7 0 1M")
        expect(disk.detach() == 0, "detaches")


def test_nbd_target_killed_and_restarted_under_fio(server):
    with Attached(server, "nbd") as disk:
        fio = start_fio(disk, "--rw=randwrite", "--bs=16k", "--iodepth=32", "--verify=crc32c", "--do_verify=1", "--fsync=64",
                        "--size=128m", "--loops=4", "--rate=20m")
        kill_and_restart(server, disk, fio)
        finish_fio(fio, disk)
        eventually(lambda: "no path to the target: the connection was lost: " in disk.said(), "it says how it lost the target")
        expect(disk.detach() == 0, "detaches")


def test_nbd_fails_after_the_limit(server):
    with Attached(server, "nbd", query="?timeout=2") as disk:
        qemu_io(disk, "write -P 7 0 1M")
        # The limit counts from the loss, which comes later than this.
        began = time.monotonic()
        server.kill()
        done = subprocess.run(["qemu-io", "-f", "raw", "-c", "read 0 4k", disk.address], capture_output=True, text=True, timeout=TOOL_MAX_S)
        took = time.monotonic() - began
        expect("Input/output error" in done.stdout + done.stderr, f"the read says {done.stdout}{done.stderr}")
        expect(took >= 1, f"it failed after {took:.1f} s already")
        disk.ask_to_end()
        code = disk.end()
        expect(code in (0, 1), f"ends with {code}")


def test_nbd_never_writes_to_another_disk(server):
    if not hasattr(server, "config_lines"):
        pytest.skip("only a target of ours can be given another disk under the same address here")
    with Attached(server, "nbd") as disk:
        qemu_io(disk, "write -P 7 0 1M")
        server.kill()
        # Under the same name and LUN there is another disk from now on.
        lines = list(server.config_lines())
        at = next(number for number, line in enumerate(lines) if line.startswith("lun = 0"))
        server.config_lines = lambda: [*lines[:at + 1], 'naa = "3000000000000077"', *lines[at + 1:]]
        writes = subprocess.Popen(["qemu-io", "-f", "raw", "-c", "write -P 9 0 1M", disk.address], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        time.sleep(0.5)
        server.start(fresh=False)
        said = writes.communicate(timeout=TOOL_MAX_S)[0]
        expect("Input/output error" in said, f"a write that waited says {said}")
        done = subprocess.run(["qemu-io", "-f", "raw", "-c", "write -P 9 0 1M", disk.address], capture_output=True, text=True,
                              timeout=TOOL_MAX_S)
        expect("Input/output error" in done.stdout + done.stderr, f"a later write says {done.stdout}{done.stderr}")
        with open(server.medium_path(), "rb") as medium:
            expect(medium.read(MIB) == b"\7" * MIB, "the other disk was written to")
        eventually(lambda: "naa.3000000000000077" in disk.said(), lambda: f"the other disk is named: {disk.said()[-300:]}")
        disk.ask_to_end()
        code = disk.end()
        expect(code in (0, 1), f"ends with {code}")


def test_nbd_detaches_under_load(server):
    with Attached(server, "nbd") as disk:
        fio = start_fio(disk, "--rw=randwrite", "--bs=64k", "--iodepth=32", "--time_based", "--runtime=30")
        time.sleep(1)
        code = disk.detach()
        fio.wait(TOOL_MAX_S)
        expect(code == 0, f"ends with {code}: {disk.said()[-300:]}")
        expect(not os.path.exists(disk.place), "its socket is still there")
    with Attached(server, "nbd") as disk:
        qemu_io(disk, "write -P 7 0 1M", "read -P 7 0 1M")


def test_nbd_replaces_stale_sockets_only(server):
    with Attached(server, "nbd") as disk:
        disk.process.kill()
        disk.end()
        expect(os.path.exists(disk.place), "a killed one leaves its socket")
    with Attached(server, "nbd") as disk:
        code, said = refused(disk.command())
        expect(code == 1 and "listens" in said, f"a second one ends with {code}: {said}")
        qemu_io(disk, "read 0 4k")
    with open(disk.place, "w"):
        pass
    code, said = refused(disk.command())
    os.remove(disk.place)
    expect(code == 1 and "not a socket" in said, f"on a file it ends with {code}: {said}")


def test_nbd_clients_never_continue_on_another_disk(server):
    with Attached(server, "nbd") as disk, socket.socket(socket.AF_UNIX) as client:
        client.connect(disk.place)
        expect(client.recv(8, socket.MSG_WAITALL) == b"NBDMAGIC", "the client is connected")
        expect(disk.detach() == 0, "detaches")
    code, said = refused(Attached(server, "nbd", units=(1,)).command())
    expect(code == 1 and f"remove {disk.place}.disk" in said, f"another disk at the same socket ends with {code}: {said}")
    with Attached(server, "nbd") as disk:
        expect(disk.detach() == 0, "detaches")
    os.remove(f"{disk.place}.disk")
    with Attached(server, "nbd", units=(1,)) as disk:
        expect(disk.detach() == 0, "detaches")
    expect(not os.path.exists(f"{disk.place}.disk"), "the key is left although no client was there")


def test_nbd_refuses_what_cannot_be(server):
    url = server.url()
    place = os.path.join(server.folder, "socket")
    table = [
        ([url.replace(f":{server.port}/", ":1/")], 1, "refused"),
        ([url.replace("rig", "other")], 1, ""),
        ([url.rsplit("/", 1)[0] + "/77"], 1, "77"),
        ([url.replace("iscsi", "http")], 2, "iscsi://"),
        ([url, server.url(1)], 2, "--stripe"),
        ([url, url, "--stripe", "64K"], 2, "twice"),
        ([url, server.url(1), "--stripe", "1000"], 2, "power of two"),
    ]
    for arguments, expected, words in table:
        code, said = refused([servers.Targe.binary, "attach", *arguments, "--nbd", place])
        expect(code == expected and words in said, f"{arguments} ends with {code}: {said}")
        expect(not os.path.exists(place), f"{arguments} leaves a socket")
    # What it does where the kernel has it is seen in a guest.
    if not os.path.exists("/dev/ublk-control"):
        code, said = refused([servers.Targe.binary, "attach", url, "--ublk"])
        expect(code == 1 and "ublk_drv" in said, f"--ublk ends with {code}: {said}")


def test_nbd_sees_the_disk_grow(server):
    if server.first_lun:
        pytest.skip("tgt does not grow a disk that is in use")
    with Attached(server, "nbd") as disk:
        qemu_io(disk, "write -P 7 0 1M")
        grow(server, 2 * SIZE)
        deadline = time.monotonic() + TOOL_MAX_S
        while json.loads(tool("nbdinfo", "--json", disk.address))["exports"][0]["export-size"] != 2 * SIZE:
            expect(time.monotonic() < deadline, "the new size is not seen")
            # The target tells of it with the next command.
            qemu_io(disk, "read 0 4k")
            time.sleep(0.2)
        qemu_io(disk, f"write -P 8 {SIZE} 1M", f"read -P 8 {SIZE} 1M")


def test_nbd_stripes_over_two(server):
    source = image(server, 2 * SIZE)
    with Attached(server, "nbd", units=(0, 1), arguments=["--stripe", "64K"]) as disk:
        expect(tool("nbdinfo", "--size", disk.address).strip() == str(2 * SIZE), "twice the size")
        tool("nbdcopy", "--connections=4", "--flush", source, disk.address)
        tool("qemu-img", "compare", "-f", "raw", "-F", "raw", source, disk.address)
        fio = start_fio(disk, "--rw=randrw", "--bsrange=512-200k", "--bs_unaligned=0", "--iodepth=16", "--verify=crc32c",
                        "--do_verify=1", "--offset=0", "--size=32m")
        finish_fio(fio)
        expect(disk.detach() == 0, "detaches")
    with open(source, "rb") as whole, open(server.medium_path(0), "rb") as even, open(server.medium_path(1), "rb") as odd:
        for at in range(32 * MIB, 2 * SIZE, CHUNK):
            half = (even, odd)[at // CHUNK % 2]
            whole.seek(at)
            half.seek(at // (2 * CHUNK) * CHUNK)
            expect(whole.read(CHUNK) == half.read(CHUNK), f"the chunk at {at} is not where it should be")


# FUSE


def test_fuse_is_a_file(server):
    need_fuse()
    source = image(server, SIZE)
    with Attached(server, "fuse") as disk:
        expect(os.stat(disk.address).st_size == SIZE, "it is as long as the disk")
        tool("dd", f"if={source}", f"of={disk.address}", "bs=1M", "conv=notrunc,fsync")
        same(source, disk.address)
        same(source, server.medium_path())
        tool("dd", "if=/dev/zero", f"of={disk.address}", "bs=777", "count=11", "seek=3", "conv=notrunc")
        tool("fallocate", "--punch-hole", "--offset", str(16 * MIB), "--length", str(8 * MIB), disk.address)
        code = subprocess.run(["truncate", "-s", "1G", disk.address], capture_output=True, timeout=60).returncode
        expect(code != 0, "it can be made longer")
        with open(source, "r+b") as expected:
            for at, length in ((3 * 777, 11 * 777), (16 * MIB, 8 * MIB)):
                expected.seek(at)
                expected.write(bytes(length))
        same(source, disk.address)
        expect(disk.detach() == 0, "detaches")
        expect(os.listdir(disk.place) == [], "the directory is empty again")
    same(source, server.medium_path())
    expect(any(at <= 16 * MIB and at + length >= 24 * MIB for at, length in holes_of(server.medium_path(), SIZE)), "the hole is one")


def test_fuse_carries_ext4_on_a_loop_device_under_fio(server):
    need_fuse()
    with Attached(server, "fuse") as disk, Loop(disk.address) as loop:
        tool("mkfs.ext4", "-q", loop.device)
        with Mounted(loop.device, os.path.join(server.folder, "fs")) as folder:
            finish_fio(start_fio_in(folder, "--rw=randrw", "--bs=4k", "--iodepth=32", "--size=64m", "--fsync=100"))
            for name in os.listdir(folder):
                if name.startswith("data"):
                    os.remove(os.path.join(folder, name))
            # What is deleted can be trimmed once that is committed.
            tool("sync", "--file-system", folder)
            tool("fstrim", folder)
        tool("e2fsck", "-fn", loop.device)
        loop.detach()
        expect(disk.detach() == 0, "detaches")
    used = os.stat(server.medium_path()).st_blocks * 512
    expect(used < 32 * MIB, f"after the trim the disk's file still takes {used} bytes")


def test_fuse_carries_ext4_under_fio_while_the_target_is_killed(server):
    carries_a_file_system_through_restarts(server)


def test_fuse_is_served_until_it_is_closed(server):
    need_fuse()
    with Attached(server, "fuse") as disk, Loop(disk.address) as loop:
        disk.ask_to_end()
        eventually(lambda: not os.listdir(disk.place), "the file leaves its place", TOOL_MAX_S)
        tool("mkfs.ext4", "-q", loop.device)
        tool("e2fsck", "-fn", loop.device)
        loop.detach()
        expect(disk.end() == 0, "ends once it is closed")


def test_fuse_takes_its_place_back(server):
    need_fuse()
    with Attached(server, "fuse") as disk:
        disk.process.kill()
        disk.end()
    with Attached(server, "fuse") as disk:
        expect(os.stat(disk.address).st_size == SIZE, "it is there again")
        code, said = refused(disk.command())
        expect(code == 1 and "already" in said, f"a second one ends with {code}: {said}")
        expect(disk.detach() == 0, "detaches")


def start_fio(disk, *arguments):
    return fio_process("--name=load", "--ioengine=nbd", f"--uri={disk.address}", f"--size={SIZE}", *arguments)


def qemu_io(disk, *commands):
    said = tool("qemu-io", "-f", "raw", *[part for command in commands for part in ("-c", command)], disk.address)
    # qemu-io exits 0 on a pattern that does not match.
    wrong = [line for line in said.splitlines() if "Pattern verification failed" in line or "failed:" in line]
    expect(not wrong, "; ".join(wrong[:3]))


def holes_of(path, end):
    """Runs of a file before `end` that have no storage."""
    holes = []
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        at = 0
        while at < end:
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            if hole >= end:
                break
            try:
                at = min(os.lseek(file.fileno(), hole, os.SEEK_DATA), end)
            except OSError:
                at = end
            holes.append((hole, at - hole))
    return holes


def grow(server, size):
    os.truncate(server.medium_path(0), size)
    lun = dataclasses.replace(server.export.luns[0], size=size)
    server.export = dataclasses.replace(server.export, luns=(lun, *server.export.luns[1:]))
    server.reload()
