"""Errors behind TCP, on the wire: `targe verify` writes and verifies a whole disk through a proxy that breaks PDUs.

At error recovery levels 1 and 2 the caller must see no error at all, at level 0 no wrong block. The counts of the proxy, the target and
the initiator are held together. Where no connection ends, what the proxy damaged has been noticed to the last by the end that received
it. Where connections end, what was on its way goes with them unseen: then no end has noticed more than was damaged, each has noticed
half of it at least, and nothing is missing that no end of a connection and no damaged header can have hidden.
"""

import contextlib
import json
import os
import re
import subprocess

import pytest

import servers
from recovery.damage import judge_counts
from verdicts import expect

MIB = servers.MIB
# After so long a case hangs, seconds. It takes a tenth of this where the machine has nothing else to do.
CASE_MAX_S = 300
# And a tool that tells something, or is told to end.
TOOL_MAX_S = 60
DATA = "data=0.5%,data_digest=0.2%"
HEADERS = "header=0.2%,header_digest=0.1%"
CUTS = "cut=1/1500"

# Name, level, connections, faults, whether the counts must agree to the last.
CASES = [
    ("data damaged", 1, 1, DATA, True),
    ("data damaged, four connections", 1, 4, DATA, True),
    ("PDUs lost and repeated", 1, 1, "drop=0.1%", False),
    ("headers damaged", 2, 2, HEADERS, False),
    ("connections cut", 2, 1, CUTS, False),
    ("connections cut, one of four at a time", 2, 4, CUTS, False),
    ("everything at once", 2, 3, f"{DATA},{HEADERS},{CUTS},stall=0.05%:100ms", False),
    ("data and headers damaged, connections cut", 0, 1, "data=0.05%,header=0.02%,cut=1/4000", False),
]


@pytest.fixture
def size(pytestconfig):
    return pytestconfig.getoption("size") * MIB


@pytest.mark.timeout(CASE_MAX_S + 60)
@pytest.mark.servers("targe")
@pytest.mark.parametrize("name, level, connections, faults, exact", CASES, ids=[f"level {level}, {name}" for name, level, *_ in CASES])
def test_verifies_a_whole_disk(seed, size, name, level, connections, faults, exact):
    out = os.path.join(servers.OUT, "recovery")
    export = servers.Export((servers.Lun("ram", size=size),), digests="required", level=2, connections=8)
    with servers.Targe(out, export) as server, proxy(server, faults, seed) as (port, end):
        query = f"erl={level}&connections={connections}&header_digest=crc32c&data_digest=crc32c"
        url = f"iscsi://127.0.0.1:{port}/{server.iqn}/0?{query}"
        command = [server.binary, "verify", url, "--full", "--write", "--json", f"--seed={seed}", "--bs=64K"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=CASE_MAX_S)
        expect(result.stdout, result.stderr[-800:])
        report = json.loads(result.stdout)
        told = status(server)
        broken = end()
    expect(sum(report["wrong"].values()) == 0, f"wrong blocks: {report['findings'][:3]}")
    expect(report["complete"], f"not everything was verified: {report['error_texts'][:3]} {result.stderr[-300:]}")
    injected = {way: {kind: n for kind, n in broken[way].items() if kind != "bytes" and n} for way in ("requests", "responses")}
    expect(any(injected.values()), "nothing was broken")
    session = report["session"]
    if level > 0:
        expect(report["errors"] == 0, f"{report['errors']} errors seen by the caller: {report['error_texts'][:3]}")
        expect(session["sessions_rebuilt"] == 0, f"{session['sessions_rebuilt']} sessions had to be built anew: {json.dumps(nonzero(session))}")
    if level == 1:
        expect(session["connections_lost"] == 0, f"{session['connections_lost']} connections lost")
    judge_counts(injected, {"target": told, "initiator": session}, exact, session["connections_lost"])
    print(f"   broken {json.dumps(injected)}; initiator {json.dumps(nonzero(session))}; target {json.dumps(nonzero(told))}; "
          f"{report['errors']} errors, {report['seconds']:.1f} s")


def nonzero(counts):
    return {name: count for name, count in counts.items() if count}


def status(server):
    command = [server.binary, "status", "--json", "--socket", os.path.join(server.folder, "admin", "admin.sock")]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=TOOL_MAX_S, check=True).stdout)
    return repairs(answer)


def repairs(answer):
    """The counters of damage and repair, wherever in the status they stand."""
    found = {}
    for name, value in answer.items():
        if isinstance(value, dict):
            found |= repairs(value)
        elif isinstance(value, int) and re.search(r"digest|snack|recover|reassign|retain|repair", name):
            found[name] = value
    return found


@contextlib.contextmanager
def proxy(server, faults, seed):
    """Yields the port to connect to, and a function that ends the proxy and returns its report."""
    command = [server.binary, "lab", "proxy", f"--upstream=127.0.0.1:{server.port}", f"--faults={faults}", f"--seed={seed}", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=servers.die_with_parent)
    try:
        port = re.search(r"listening on \S+:(\d+)", process.stderr.readline())[1]

        def end():
            process.terminate()
            return json.loads(process.communicate(timeout=TOOL_MAX_S)[0])

        yield port, end
    finally:
        process.kill()
        process.wait()
