"""Let our initiator use targets that others wrote, and ours: discover, info, write, read, bench, and what goes wrong.

What was written is compared with what lies in the medium of the target, so that our two ends cannot agree on a mistake.
"""

import functools
import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import time

import pytest

import servers
from servers import MIB, Export, Lun
from serving import serving
from verdicts import expect

SIZE = 32 * MIB
USER, TARGET_USER = ("host", "secret-of-host"), ("san", "secret-of-the-san")
EXPORTS = [
    ("plain", Export(luns=(Lun(size=SIZE), Lun(size=SIZE)))),
    ("digests required", Export(luns=(Lun(size=SIZE),), digests="required")),
    ("CHAP", Export(luns=(Lun(size=SIZE),), incoming=USER)),
    ("mutual CHAP", Export(luns=(Lun(size=SIZE),), incoming=USER, outgoing=TARGET_USER)),
]
# Longest one command may take, seconds: LIO's guest is emulated, and computes digests of all data.
COMMAND_MAX_S = 600


# gotgt ends a login that offers a key it does not know, and its residual counts are wrong: we do not get to its disk.
pytestmark = [pytest.mark.servers(*(kind for kind in servers.KINDS if kind != "gotgt")), pytest.mark.timeout(COMMAND_MAX_S * 2)]


def pytest_generate_tests(metafunc):
    rows = exports_for(tuple(metafunc.config.getoption("server") or ()))
    metafunc.parametrize("server", rows, ids=[f"{kind}, {title}" for kind, title, _ in rows], indirect=True, scope="module")


@functools.cache
def exports_for(chosen):
    """What to serve by what: (kind, title, export). The same objects for every test, by which pytest knows that they share a server."""
    # Each export is another guest to boot: without --server, two of them say what four would.
    return [(kind, title, export) for kind in chosen or servers.COMMON for title, export in EXPORTS
            if kind != "lio" or chosen or title not in ("plain", "CHAP")]


@pytest.fixture(scope="module")
def server(request):
    kind, title, export = request.param
    out = os.path.join(servers.OUT, "initiator", kind, re.sub(r"\W+", "-", title))
    with serving(request, f"{kind}, {title}", servers.KINDS[kind](out, export)) as server:
        yield server


@pytest.fixture
def kind(request):
    """The name of what is served by."""
    return request.node.callspec.params["server"][0]


def test_discovers_every_lun(server, kind):
    if server.export.incoming and kind in ("istgt", "lio"):
        pytest.skip(f"{kind}'s discovery has accounts of its own, which this rig does not set up")
    # Discovery has no account of the target's: it is not asked to prove who it is.
    # Where SPDK is to prove itself too, it refuses everyone who does not ask for that, in discovery as well.
    server_place, _, query = place(server, mutual=kind == "spdk").partition("?")
    where = server_place[:server_place.index("/iqn.")] + (f"?{query}" if query else "")
    found = json.loads(targe(server, "discover", where, "--json"))
    expect(found, "nothing is found")
    disks = [unit for unit in found if unit["device_type"] == 0 and unit["target"] == server.iqn]
    expect([unit["bytes"] for unit in disks] == [SIZE] * len(server.export.luns), f"found {disks}")
    expect(all(unit["portals"] for unit in disks), "no portal is named")
    if kind == "lio":
        return  # The address that it announces is one in its guest.
    info = json.loads(targe(server, "info", disks[0]["url"] + (f"?{query}" if query else ""), "--json"))
    expect(info["bytes"] == SIZE and info["block_bytes"] == 512, f"info says {info}")


def test_tells_what_was_agreed_on(server, kind):
    info = json.loads(targe(server, "info", place(server), "--json"))
    required = server.export.digests == "required"
    for key in ("header_digest", "data_digest"):
        expect(not required or info["connections"][0][key] == "crc32c", f"{key} is {info['connections'][0][key]}")
    expect(info["vpd"] and info["session"]["max_burst_length"] >= 512, "info lacks pages or parameters")


def test_writes_and_reads_back(server, kind):
    content = bytearray(random.Random(7).randbytes(SIZE))
    targe(server, "write", place(server), "--write", input=bytes(content))
    for offset, length in ((0, 1), (511, 2), (4096, 4096), (100_001, 777_777), (SIZE - 1000, 1000)):
        patch = random.Random(offset).randbytes(length)
        content[offset:offset + length] = patch
        targe(server, "write", place(server), "--write", "--offset", str(offset), input=patch)
        expect(targe(server, "read", place(server), "--offset", str(offset), "--length", str(length)) == patch,
               f"{length} bytes at {offset} come back otherwise")
    expect(targe(server, "read", place(server), "--depth", "32", "--bs", "64K") == content, "the disk reads otherwise")
    expect(server.medium_digest() == hashlib.sha256(content).hexdigest(), "the medium holds something else")


@pytest.mark.moves_data
def test_moves_data_whatever_was_negotiated(server, kind):
    data = random.Random(9).randbytes(3 * MIB // 2)
    queries = [f"header_digest={header}&data_digest={data_digest}"
               for header, data_digest in itertools.product(("crc32c", "none", "none,crc32c"), repeat=2)]
    queries += [f"erl={level}" for level in range(3)]
    queries += [f"immediate_data={immediate}&initial_r2t={r2t}" for immediate, r2t in itertools.product(("yes", "no"), repeat=2)]
    queries += ["first_burst_length=512&max_burst_length=512", "max_recv_data_segment_length=512", "max_outstanding_r2t=1"]
    # SPDK writes each sequence of Data-Out by itself, and fails those that are no whole blocks.
    if kind != "spdk":
        queries.append("first_burst_length=5000&max_burst_length=70000&max_recv_data_segment_length=9000&initial_r2t=yes")
    for number, query in enumerate(queries):
        if server.export.digests == "required" and "=none" in query:
            continue
        offset = str(number * MIB)
        targe(server, "write", place(server, query), "--write", "--offset", offset, input=data)
        back = targe(server, "read", place(server, query), "--offset", offset, "--length", str(len(data)))
        expect(back == data, f"with {query}, what was written comes back otherwise")


def test_bears_a_load(server, kind):
    # LIO's guest is emulated, and may not have done anything for a while.
    seconds = "5" if kind == "lio" else "2"
    for load in (["--rw", "read"], ["--rw", "mixed:70", "--write"], ["--rw", "write", "--write", "--bs", "64K", "--depth", "8"]):
        report = json.loads(targe(server, "bench", place(server), "--random", "--time", seconds, "--json", *load))
        expect(report["iops"] > 0 and report["connections_lost"] == 0, f"{load}: {report}")


@pytest.mark.moves_data
def test_verifies_the_whole_disk(server, kind):
    told = json.loads(targe(server, "verify", place(server), "--full", "--write", "--json"))
    expect(told["sound"], f"verify says {told}")


@pytest.mark.moves_data
def test_goes_on_when_the_target_was_killed_and_came_back(server, kind):
    if kind == "lio":
        pytest.skip("what LIO serves here lies in the memory of its guest, and is gone with it")
    # COMPARE AND WRITE is never sent twice, so that a loss of the session would fail it.
    with start(server, "verify", place(server), "--write", "--json", "--time", "6", "--no-compare") as verify:
        for _ in range(2):
            await_connection(server, verify)
            time.sleep(1.5)
            server.kill()
            server.start(fresh=False)
        printed, said = verify.communicate(timeout=COMMAND_MAX_S)
    expect(verify.returncode == 0, f"targe verify exits {verify.returncode}: {said.decode(errors='replace')}")
    expect(json.loads(printed)["sound"], f"verify says {printed.decode()}")


def await_connection(server, command):
    """Waits until a command that runs has a connection to the target, or has ended."""
    def is_connected():
        with open("/proc/self/net/tcp") as table:
            rows = [line.split() for line in table][1:]
        # ESTABLISHED is 01.
        return any(row[1].endswith(f":{server.port:04X}") and row[3] == "01" for row in rows)

    deadline = time.monotonic() + COMMAND_MAX_S
    while command.poll() is None and not is_connected():
        expect(time.monotonic() < deadline, "no connection")
        time.sleep(0.02)


def test_is_refused_where_it_should_be(server, kind):
    url = place(server)
    # LIO says so with sense data, the others in their INQUIRY data.
    no_lun = "no such LUN" if kind == "lio" else f"no LUN {99 + server.first_lun}"
    wrong = [(url.replace(":rig/", ":other/"), "cannot log in"), (place(server, unit=99), no_lun)]
    if server.export.incoming:
        wrong.append((url, "cannot log in", {"TARGE_PASSWORD": "not-the-secret"}))
    if server.export.outgoing:
        wrong.append((url, "cannot log in", {"TARGE_TARGET_PASSWORD": "not-the-secret"}))
    for place_, told, *environment in wrong:
        done = run(server, "info", place_, environment=dict(*environment))
        said = done.stderr.decode(errors="replace")
        expect(done.returncode == 1 and told in said, f"{place_} exits {done.returncode} and says {said}")


def place(server, query="", unit=0, mutual=True):
    """The URL of a unit, with users and without secrets, which come from the environment."""
    user = f"{server.export.incoming[0]}@" if server.export.incoming else ""
    if server.export.outgoing and mutual:
        query = "&".join(filter(None, (f"target_user={server.export.outgoing[0]}", query)))
    # Debian's tgt chooses other algorithms if they are offered, and then refuses the responses to its challenges.
    if user and isinstance(server, servers.Tgt):
        query = "&".join(filter(None, ("chap=md5", query)))
    return f"iscsi://{user}127.0.0.1:{server.port}/{server.iqn}/{server.first_lun + unit}" + (f"?{query}" if query else "")


def targe(server, *arguments, input=b""):
    done = run(server, *arguments, input=input)
    expect(done.returncode == 0, f"targe {' '.join(arguments)} exits {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def run(server, *arguments, input=b"", environment=None):
    return subprocess.run([servers.Targe.binary, *arguments], input=input, capture_output=True, timeout=COMMAND_MAX_S,
                          env=secrets(server) | (environment or {}))


def start(server, *arguments):
    return subprocess.Popen([servers.Targe.binary, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=secrets(server), preexec_fn=servers.die_with_parent)


def secrets(server):
    """The environment of a command, with the secrets that it needs."""
    found = dict(os.environ)
    if server.export.incoming:
        found["TARGE_PASSWORD"] = server.export.incoming[1]
    if server.export.outgoing:
        found["TARGE_TARGET_PASSWORD"] = server.export.outgoing[1]
    return found
