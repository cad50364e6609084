"""`targe trace`, judged by Wireshark's dissectors: what a session did stands in the capture, in step, and no secret does."""

import collections
import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
import zlib

import pytest

from configured import passwords
from hyperscsi import network
import servers
from hyperscsi.served import discovered, protected, serving
from verdicts import expect

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(1500)]

US, BENCH = "iqn.2026-11.org.targe:traced", ["--rw", "mixed:50", "--random", "--depth", "8", "--write", "--json"]
WRONG = ["_ws.malformed", "_ws.expert.severity", "iscsi.opcode.invalid", "iscsi.keyvalue.invalid", "tcp.analysis.flags"]
FIELDS = ["iscsi.opcode", "scsi.lun", "iscsi.cmdsn", "iscsi.datasegmentlength", "iscsi.scsidata.S", "tcp.stream", "iscsi.isid"]
# Of tshark: the severity of an error, which is above that of a warning.
EXPERT_ERROR = 0x00800000
# Opcodes of RFC 7143 §11.2.1.2.
COMMAND, LOGIN, DATA_OUT, RESPONSE, LOGIN_RESPONSE, DATA_IN, R2T = 0x01, 0x03, 0x05, 0x21, 0x23, 0x25, 0x31
PATIENCE_S = 300
# Data comes in many PDUs, and is asked for by R2T.
LENGTHS = "max_recv_data_segment_length=65536&max_burst_length=131072&first_burst_length=65536"


@pytest.fixture
def out(request):
    return folder(request.node.name)


def folder(name):
    """An empty folder for a test. A path of an admin socket has room for 107 bytes."""
    out = os.path.join(servers.OUT, "wireshark", f"trace-{zlib.crc32(name.encode()):08x}")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    return out


@pytest.mark.parametrize("digests, connections", [("none", 1), ("crc32c", 1), ("none", 2), ("crc32c", 2)])
def test_a_capture_has_what_the_daemon_counted(out, digests, connections):
    export = servers.Export(luns=(servers.Lun("ram"), servers.Lun("ram", size=16 * servers.MIB)), connections=connections)
    with servers.Targe(out, export) as server:
        before = counts(server)
        # There is room for everything, however slowly it is written.
        with traced(server, "all", "--follow", "--buffer", "256") as trace:
            bench(server, f"?header_digest={digests}&data_digest={digests}&{LENGTHS}", "--count", "40", "--bs", "512K", "--connections", str(connections), unit=1)
        done = {name: value - before[name] for name, value in counts(server).items() if isinstance(value, int)}
        expect(trace.dropped == 0, f"{trace.told}")
        pdus = judge(trace.file, server.port)
        sent = collections.Counter(pdu.opcode for pdu in pdus)
        expect(sum(count for opcode, count in sent.items() if opcode < 0x20) == done["pdus_in"], f"{sent}, {done}")
        expect(sum(count for opcode, count in sent.items() if opcode >= 0x20) == done["pdus_out"], f"{sent}, {done}")
        expect(trace.recorded == len(pdus), f"{trace.told}: {len(pdus)} PDUs in the capture")
        expect(sent[COMMAND] == done["commands"] and sent[R2T] and sent[DATA_OUT] and sent[LOGIN] == sent[LOGIN_RESPONSE] > 0, f"{sent}, {done}")
        expect(sum(pdu.length for pdu in pdus if pdu.opcode == DATA_IN) == done["data_in_bytes"], f"{done}")
        # Every command is answered once, by a response or on its last data.
        answers = sum(pdu.opcode == RESPONSE or pdu.opcode == DATA_IN and pdu.has_status for pdu in pdus)
        expect(answers == sent[COMMAND], f"{answers} statuses for {sent[COMMAND]} commands")
        luns = {pdu.lun for pdu in pdus if pdu.opcode == COMMAND}
        expect(luns == {1}, f"LUNs {luns}")
        # The first session only looks at the disk.
        streams = collections.defaultdict(set)
        for pdu in pdus:
            if pdu.opcode == LOGIN:
                streams[pdu.isid].add(pdu.stream)
        expect(sorted(map(len, streams.values())) == [1, connections], f"connections of each session: {streams}")
        for members in streams.values():
            numbers = [pdu.cmd_sn for pdu in pdus if pdu.opcode == COMMAND and pdu.stream in members]
            # Over several connections the commands may come in another order. Other requests have numbers too.
            expect(len(set(numbers)) == len(numbers), "a CmdSN comes twice")
            expect(len(members) > 1 or numbers == sorted(numbers), "CmdSNs are out of order on one connection")
            known = {pdu.cmd_sn for pdu in pdus if pdu.opcode < 0x20 and pdu.stream in members and pdu.cmd_sn is not None}
            expect(set(range(min(numbers), max(numbers) + 1)) <= known, "CmdSNs have holes")
        if digests == "crc32c":
            good = digests_seen(trace.file, server.port)
            expect(good["HeaderDigest", "Good"] > 100 and good["DataDigest", "Good"] > 50, f"{good}")


def test_a_trace_that_begins_in_the_middle_is_in_step_and_ends_with_the_session(out):
    with servers.Targe(out, servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB),))) as server:
        load = start_bench(server, "?header_digest=crc32c&data_digest=crc32c", "--bs", "16K", "--time", "3600")
        try:
            await_session(server)
            with traced(server, "count", "--count", "500", "--buffer", "256") as trace:
                trace.process.wait(PATIENCE_S)
            expect(trace.recorded == 500 and "count" in trace.told, trace.told)
            pdus = judge(trace.file, server.port)
            expect(len(pdus) == 500 and not any(pdu.opcode == LOGIN for pdu in pdus), f"{len(pdus)}")
            with traced(server, "short", "--snap", "32", "--count", "500") as trace:
                trace.process.wait(PATIENCE_S)
            expect(os.path.getsize(trace.file) < 500 * 400, f"{os.path.getsize(trace.file)} bytes")
            opcodes = [pdu.opcode for pdu in judge(trace.file, server.port)]
            expect({COMMAND, DATA_IN, RESPONSE} <= set(opcodes), f"{set(opcodes)}")
            with traced(server, "end", "--snap", "0", "--buffer", "1024") as trace:
                trace.await_bytes(100_000)
                load.terminate()
                trace.process.wait(PATIENCE_S)
            expect("no session is left" in trace.told, trace.told)
            judge(trace.file, server.port)
        finally:
            load.kill()
            load.communicate()
        # The daemon notes the end of a trace after it has told its client.
        await_that(lambda: audit(out).count('"trace end"') == 3, "the end of three traces")
        actions = [json.loads(line) for line in audit(out).splitlines()]
        ours = [line for line in actions if line["action"].startswith("trace")]
        expect([line["action"] for line in ours] == ["trace", "trace end"] * 3, f"{ours}")
        expect(all(line["uid"] == os.getuid() and US in line["changes"][0] for line in ours), f"{ours}")


def test_no_secret_of_chap_is_written(out):
    export = servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB),), incoming=("the-user-name", "secret-of-the-user"),
                            outgoing=("the-target-name", "secret-of-the-target"))
    with servers.Targe(out, export) as server:
        with traced(server, "chap", "--follow", initiator="iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq") as trace:
            query = "?target_user=the-target-name&target_password=secret-of-the-target"
            done = subprocess.run(["iscsi-inq", server.url(query=query)], capture_output=True, text=True, timeout=PATIENCE_S)
            expect(done.returncode == 0, f"{done.stderr}")
        judge(trace.file, server.port)
        with open(trace.file, "rb") as file:
            capture = file.read()
        keys = re.findall(rb"CHAP_([NR])=([^\0]*)\0", capture)
        expect(sorted(key for key, _ in keys) == [b"N", b"N", b"R", b"R"], f"{keys}")
        expect(all(set(value) == set(b"*") for _, value in keys), f"{keys}")
        expect(len(b"the-user-name") in {len(value) for _, value in keys}, "the length of a masked value changed")
        for secret in (b"the-user-name", b"the-target-name", b"secret-of"):
            expect(secret not in capture, f"{secret} is in the capture")


def test_what_an_aead_digest_protects_is_written_only_if_the_operator_says_so(out):
    server = passwords.WithPasswords(out, servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB),)))
    server.make_record()
    password = passwords.secret_file(pathlib.Path(out, "password"))
    with server:
        url = (f"iscsi://{passwords.USER}@127.0.0.1:{server.port}/{server.iqn}/0?auth=opaque&password_file={password}&protection=encrypt"
               f"&initiator={US}")
        load = start_bench(server, None, "--time", "3600", url=url)
        try:
            await_session(server)
            refused = subprocess.run(command(server, os.path.join(out, "no.pcapng")), capture_output=True, text=True, timeout=PATIENCE_S)
            expect(refused.returncode == 1 and "--plain" in refused.stderr, f"{refused.stderr}")
            expect(not os.path.exists(os.path.join(out, "no.pcapng")), "a refused trace leaves a file")
            with traced(server, "plain", "--plain", "--count", "300", "--buffer", "256") as trace:
                trace.process.wait(PATIENCE_S)
            expect(len(judge(trace.file, server.port)) == 300, trace.told)
        finally:
            load.kill()
            load.communicate()
        # The daemon sees the end of the connection after the client is gone.
        await_that(lambda: not json.loads(server.admin("sessions"))["sessions"], "the end of the session of the load")
        with traced(server, "without", "--follow") as trace:
            subprocess.run(bench_command(server, None, "--count", "50", url=url), check=True, capture_output=True, timeout=PATIENCE_S)
        expect(not any(pdu.opcode in (COMMAND, RESPONSE) for pdu in judge(trace.file, server.port)), "commands without --plain")


def test_a_client_that_is_killed_or_does_not_read_harms_nobody(out):
    with servers.Targe(out, servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB),))) as server:
        load = start_bench(server, "", "--bs", "16K", "--time", "3600")
        try:
            await_session(server)
            with traced(server, "killed", ends=False) as trace:
                trace.await_bytes(1_000_000)
                trace.process.kill()
            await_that(lambda: audit(out).count('"trace end"') == 1, "the end of a trace whose client was killed")
            # Nobody reads the other end of this pipe, until the memory of the trace is full.
            pipe = os.path.join(out, "pipe.pcapng")
            os.mkfifo(pipe)
            end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            process = subprocess.Popen(command(server, pipe, "--buffer", "1"), stderr=subprocess.PIPE, text=True, preexec_fn=servers.die_with_parent)
            told = process.stderr.readline()
            expect("sessions are traced" in told, told)
            moved = counts(server)["pdus_in"]
            await_that(lambda: counts(server)["pdus_in"] > moved + 2000, "work while a client does not read")
            process.send_signal(signal.SIGINT)
            file = os.path.join(out, "slow.pcapng")
            os.set_blocking(end, True)
            with open(end, "rb") as source, open(file, "wb") as to:
                to.write(source.read())
            process.wait(PATIENCE_S)
            # What was read with the first line is in the buffer of the stream, which communicate() passes over.
            told = process.stderr.read()
            process.stderr.close()
            dropped = re.search(r"(\d+) dropped", told)
            expect(process.returncode == 0 and dropped and int(dropped[1]) > 0, told)
            statistics = subprocess.run(["capinfos", "-M", file], capture_output=True, text=True, timeout=PATIENCE_S).stdout
            expect(f"{dropped[1]} were dropped" in open(file, "rb").read()[-400:].decode(errors="replace"), statistics)
            lost = tshark(file, server.port, "-Y", "tcp.analysis.lost_segment")
            expect(lost, "the capture does not show the hole")
            wrong = tshark(file, server.port, "-Y", "_ws.malformed || iscsi.opcode.invalid")
            expect(not wrong, f"{wrong[:3]}")
        finally:
            load.terminate()
            _, told = load.communicate(timeout=PATIENCE_S)
        expect("error" not in told.lower(), told)


def test_clients_that_close_before_the_answer_leave_no_trace_behind(out):
    with servers.Targe(out, servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB),))) as server:
        sessions_of = {"initiator": US, "target": None, "isid": None}
        request = {"method": "trace", "trace": {"sessions": sessions_of, "plain": False, "follow": True}}
        for number in range(5):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(os.path.join(server.folder, "admin", "admin.sock"))
                client.sendall(json.dumps(request).encode() + b"\n")
            await_that(lambda: audit(out).count('"trace end"') == number + 1, f"the end of trace {number + 1}")
        with traced(server, "fifth", "--follow"):
            pass


def test_a_buffer_that_the_daemon_cannot_get_is_refused(out):
    with servers.Targe(out, servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB),))) as server:
        with open(f"/proc/{server.process.pid}/statm", encoding="utf-8") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (now + (512 << 20), resource.RLIM_INFINITY))
        done = subprocess.run(command(server, os.path.join(out, "large.pcapng"), "--follow", "--buffer", "1024"), capture_output=True, text=True,
                              timeout=PATIENCE_S)
        expect(done.returncode == 1 and "no memory for a buffer of 1024 MiB" in done.stderr, done.stderr)
        counts(server)


def test_a_trace_of_nobody_is_refused_in_one_sentence(out):
    with servers.Targe(out, servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB),))) as server:
        file = os.path.join(out, "kept.pcapng")
        for flags, words in (((), "has no such session"), (("--isid", "12"), "not an ISID"), (("--follow", "--buffer", "0"), "MiB"),
                             (("--follow", "--count", "0"), "records nothing")):
            done = subprocess.run(command(server, file, *flags), capture_output=True, text=True, timeout=PATIENCE_S)
            expect(done.returncode == 1 and words in done.stderr and len(done.stderr.splitlines()) == 1, f"{flags}: {done.stderr}")
            expect(not os.path.exists(file), f"{flags}: a file is left")
        with open(file, "w", encoding="utf-8") as kept:
            kept.write("mine")
        done = subprocess.run(command(server, file, "--follow"), capture_output=True, text=True, timeout=PATIENCE_S)
        expect(done.returncode == 1 and "exists already" in done.stderr, done.stderr)
        expect(open(file, encoding="utf-8").read() == "mine", "a file was overwritten")


def test_a_trace_of_nobody_ends_at_its_time_and_is_a_capture(out):
    with servers.Targe(out, servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB),))) as server:
        done = subprocess.run(command(server, "-", "--follow", "--time", "1"), capture_output=True, timeout=PATIENCE_S)
        expect(done.returncode == 0 and b"0 PDUs and frames recorded: the limit of the time" in done.stderr, f"{done.stderr}")
        file = os.path.join(out, "empty.pcapng")
        with open(file, "wb") as capture:
            capture.write(done.stdout)
        expect(judge(file, server.port) == [], "an empty capture")


@pytest.mark.own_process(limit_s=500)
@pytest.mark.parametrize("level", ["none", "encrypt"])
def test_hyperscsi_frames_are_those_of_the_session(level):
    try:
        network.be_able()
    except network.NoNamespaces as why:
        pytest.skip(str(why))
    out = folder(f"hyperscsi-{level}")
    with network.Network(9000, wired=False) as net, protected(level) as (flags, query):
        with serving(net.target, "--iface=eth0", "--group=backup", f"--lun=ram:16M,protection={level}", *flags) as served:
            url = discovered(net, "backup")[0]["url"] + query
            load = net.initiator.start(*bench_command(None, None, "--time", "3600", url=url))
            try:
                socket = f"{served}/admin/s"
                # The first session only looks at the disk.
                busy = lambda: [one["initiator"] for one in sessions(socket)["hyperscsi"] if one["commands"] > 100]
                await_that(busy, "a session under load")
                name = busy()[0]
                file = os.path.join(out, "frames.pcapng")
                done = subprocess.run([servers.Targe.binary, "trace", "--session", name, "--out", file, "--count", "400", "--socket", socket],
                                      capture_output=True, text=True, timeout=PATIENCE_S)
                expect(done.returncode == 0 and "400 PDUs and frames recorded" in done.stderr, done.stderr)
            finally:
                load.kill()
                load.communicate()
    script = ["-X", f"lua_script:{os.path.join(servers.ROOT, 'docs', 'hyperscsi.lua')}"]
    names = ["_ws.malformed", "_ws.lua.error", "hyperscsi2.malformed", "hyperscsi2.crc.bad", "hyperscsi.cmd", "eth.src"]
    rows = run("tshark", "-r", file, *script, "-T", "fields", *[part for name in names for part in ("-e", name)])
    rows = [row.split("\t") for row in rows]
    wrong = [row for row in rows if any(row[:4]) or not row[4]]
    expect(not wrong, f"{wrong[:3]}")
    rows = [row[4:] for row in rows]
    kinds = {int(row[0], 0) for row in rows}
    expect(len(rows) == 400 and {0, 1} <= kinds, f"{kinds}")
    expect(len({row[1] for row in rows}) == 2, "frames of both ends")


# The trace

class Trace:
    def __init__(self, process, file):
        self.process, self.file, self.told, self.recorded, self.dropped = process, file, "", None, None

    def await_bytes(self, least):
        await_that(lambda: os.path.exists(self.file) and os.path.getsize(self.file) >= least, f"{least} bytes of the capture")

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_S)
        # What was read with the first line is in the buffer of the stream, which communicate() passes over.
        self.told += self.process.stderr.read()
        expect(self.process.returncode == 0, self.told)
        self.recorded = int(re.search(r"(\d+) PDUs and frames recorded", self.told)[1])
        dropped = re.search(r"(\d+) dropped", self.told)
        self.dropped = int(dropped[1]) if dropped else 0


def command(server, file, *flags, initiator=US):
    socket = os.path.join(server.folder, "admin", "admin.sock")
    return [servers.Targe.binary, "trace", "--session", initiator, "--out", file, "--socket", socket, *flags]


@contextlib.contextmanager
def traced(server, name, *flags, ends=True, initiator=US):
    """Runs `targe trace` meanwhile, and reads what it says at its end."""
    file = os.path.join(server.folder, f"{name}.pcapng")
    process = subprocess.Popen(command(server, file, *flags, initiator=initiator), stderr=subprocess.PIPE, text=True,
                               preexec_fn=servers.die_with_parent)
    trace = Trace(process, file)
    try:
        trace.told = process.stderr.readline()
        expect("sessions are traced" in trace.told, trace.told)
        yield trace
        if ends:
            trace.end()
    finally:
        process.kill()
        process.communicate()


def bench_command(server, query, *flags, unit=0, url=None):
    if url is None:
        separator = "&" if query else "?"
        url = server.url(unit, query=f"{query}{separator}initiator={US}")
    return [servers.Targe.binary, "bench", url, *BENCH, *flags]


def start_bench(server, query, *flags, url=None):
    return subprocess.Popen(bench_command(server, query, *flags, url=url), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            preexec_fn=servers.die_with_parent)


def bench(server, query, *flags, unit=0):
    done = subprocess.run(bench_command(server, query, *flags, unit=unit), capture_output=True, text=True, timeout=PATIENCE_S)
    expect(done.returncode == 0, f"bench: {done.stderr}")
    return json.loads(done.stdout)


# What the daemon and the dissectors say

Pdu = collections.namedtuple("Pdu", "opcode lun cmd_sn length has_status stream isid")


def counts(server):
    return json.loads(server.admin("status"))["iscsi"]


def sessions(socket):
    done = subprocess.run([servers.Targe.binary, "sessions", "--json", "--socket", socket], capture_output=True, text=True, timeout=PATIENCE_S)
    return json.loads(done.stdout)


def await_session(server):
    await_that(lambda: any(session["initiator"] == US and session["commands"] > 20 for session in json.loads(server.admin("sessions"))["sessions"]),
               "a session under load")


def audit(folder):
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, "state", "audit.log"), encoding="utf-8") as log:
        return log.read()
    return ""


def judge(file, port):
    """Fails on anything wrong; returns the PDUs."""
    rows = tshark(file, port, "-T", "fields", "-E", "occurrence=a", *[part for name in WRONG + FIELDS for part in ("-e", name)])
    pdus = []
    for row in (row.split("\t") for row in rows):
        wrong, values = dict(zip(WRONG, row)), dict(zip(FIELDS, row[len(WRONG):]))
        worst = max([int(number) for number in wrong.pop("_ws.expert.severity").split(",") if number], default=0)
        expect(not any(wrong.values()) and worst < EXPERT_ERROR, f"{wrong}, severity {worst}, in {values}")
        if not values["iscsi.opcode"]:
            continue
        opcodes = [int(opcode, 0) & 0x3f for opcode in values["iscsi.opcode"].split(",")]
        expect(len(opcodes) == 1, f"several PDUs in one packet: {values}")
        first = {name: value.split(",")[0] for name, value in values.items()}
        number, lun = (int(first[name], 0) if first[name] else None for name in ("iscsi.cmdsn", "scsi.lun"))
        has_status = first["iscsi.scsidata.S"] in ("1", "True")
        pdus.append(Pdu(opcodes[0], lun, number, int(first["iscsi.datasegmentlength"] or "0", 0), has_status, int(first["tcp.stream"]), first["iscsi.isid"]))
    return pdus


def digests_seen(file, port):
    text = "\n".join(tshark(file, port, "-O", "iscsi"))
    found = collections.Counter(re.findall(r"(HeaderDigest|DataDigest): 0x\w+ \((Good|Bad) CRC32", text))
    expect(not any(verdict == "Bad" for _, verdict in found), f"{found}")
    return found


def tshark(file, port, *arguments):
    return run("tshark", "-r", file, "-d", f"tcp.port=={port},iscsi", "-o", "iscsi.bogus_pdu_max_data_len:16777216", *arguments)


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
    expect(done.returncode == 0, f"{words[:3]}: {done.stderr[-600:]}")
    return done.stdout.splitlines()


def await_that(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        expect(time.monotonic() < deadline, f"never: {what}")
        time.sleep(0.05)
