"""Limits of LUNs and of initiators: what `targe bench` gets of them, alone and side by side, while they change, and when commands that wait lose
their session.

A limit can be judged from above on any machine. From below only where other work leaves the machine enough time: what the kernel counted as idle
time during the measurement decides that beforehand.
"""

import contextlib
import json
import subprocess
import time

import pytest
import servers
from verdicts import eventually

MANY, FEW = "iqn.2026-01.com.example:many", "iqn.2026-01.com.example:few"
SECONDS, WARMUP_S = 2, 0.5
RUN_MAX_S, WAIT_MAX_S = 120, 60
# What is saved up may come on top, and responses to earlier commands that the initiator reads late.
BURST_S, BELOW, IDLE_MIN = 0.1, 0.90, 0.25
# How often something is measured that a machine which stands still for a while can spoil.
TRIES = 3
# A load goes on until it is told to end.
ENDLESS_S = 86400


class Limited(servers.Targe):
    """A target whose access list limits initiators."""

    acl = ()

    def config_lines(self):
        yield from super().config_lines()
        yield from self.acl


def server_with(tmp_path, claims=(), acl=()):
    lun = servers.Lun(medium="ram", size=64 * servers.MIB, claims=claims)
    server = Limited(tmp_path / "server", servers.Export(luns=(lun, servers.Lun(medium="ram", size=64 * servers.MIB))))
    server.acl = acl
    return server


def bench(server, *options, initiator=FEW, lun=0, seconds=SECONDS):
    url = f"iscsi://127.0.0.1:{server.port}/{server.iqn}/{lun}?initiator={initiator}"
    return subprocess.Popen(
        [servers.Targe.binary, "bench", url, "--random", f"--time={seconds}", f"--warmup={WARMUP_S}", "--json", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=servers.die_with_parent)


def reads_of(process):
    out, err = process.communicate(timeout=RUN_MAX_S)
    assert process.returncode == 0, err
    return json.loads(out)["read"]


def idle():
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(word) for word in stat.readline().split()[1:9]]
    return ticks[3], sum(ticks)


class Idle:
    """How much of the machine was idle meanwhile."""

    def __enter__(self):
        self.before = idle()
        return self

    def __exit__(self, *_):
        was, now = self.before, idle()
        self.share = (now[0] - was[0]) / max(now[1] - was[1], 1)


def judge(measure, *limits):
    """Compares measured rates with their limits, each with what was under way when the measurement began. A rate is too low only if it is so each
    time: a machine that stands still for a while need not count that as work."""
    for left in reversed(range(TRIES)):
        with Idle() as machine:
            rates = measure()
        told = f"{[f'{rate:.0f}' for rate in rates]} of {[limit for limit, _ in limits]} per second, {machine.share:.0%} idle"
        print(told)
        for rate, (limit, late) in zip(rates, limits, strict=True):
            assert 0 < rate * SECONDS <= limit * (SECONDS + BURST_S) + late, told
        if machine.share < IDLE_MIN or all(rate >= limit * BELOW for rate, (limit, _) in zip(rates, limits)):
            return
        assert left, told


def targe(server, *words):
    socket = f"--socket={server.folder}/admin/admin.sock"
    done = subprocess.run([servers.Targe.binary, *words, socket], capture_output=True, text=True, timeout=RUN_MAX_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def lun(server, number=0):
    return next(lun for lun in json.loads(targe(server, "luns", "--json"))["luns"] if lun["lun"] == number)


def limits_of_sessions(server):
    sessions = json.loads(targe(server, "sessions", "--json"))["sessions"]
    return {session["initiator"]: session["limit"]["iops"] for session in sessions if session["limit"]}


def wait_for(condition):
    eventually(condition, "the limits have this effect", WAIT_MAX_S)


@pytest.mark.parametrize("key, limit, options, unit, late", [
    ("limit_iops", 300, ("--bs=4K", "--depth=16"), "iops", 16),
    ("limit_bandwidth", 4 << 20, ("--bs=64K", "--depth=16"), "bytes_per_s", 16 * 65536),
], ids=["iops", "bandwidth"])
def test_a_lun_gets_its_limit_and_no_more(tmp_path, key, limit, options, unit, late):
    with server_with(tmp_path, ((key, limit),)) as server:
        judge(lambda: [reads_of(bench(server, *options))[unit]], (limit, late))
        told = lun(server)
        assert told["limit"][key.removeprefix("limit_")] == limit and told["limit"]["burst_ms"] == 100
        assert told["delayed_commands"] > 0 and told["delayed_ms"] > 0 and told["waiting_commands"] == 0
        assert lun(server, 1)["limit"] is None
        assert "LUN 0: limited to " in targe(server, "luns")


def test_initiators_have_their_limits_side_by_side(tmp_path):
    acl = ("[[target.acl]]", f'initiators = ["{MANY}"]', "limit_iops = 2000",
           "[[target.acl]]", 'initiators = ["*"]', "limit_iops = 200", "max_sessions = 1")
    with server_with(tmp_path, acl=acl) as server:
        def measure():
            both = bench(server, "--depth=128", initiator=MANY), bench(server, "--depth=4")
            return [reads_of(one)["iops"] for one in both]

        judge(measure, (2000, 128), (200, 4))
        wait_for(lambda: not limits_of_sessions(server))
        with contextlib.ExitStack() as cleaning:
            for options, initiator in ((("--depth=128",), MANY), (("--depth=4",), FEW)):
                cleaning.callback(bench(server, *options, initiator=initiator, seconds=ENDLESS_S).kill)
            wait_for(lambda: limits_of_sessions(server) == {MANY: 2000, FEW: 200})
            refused = bench(server, "--depth=1")
            _, err = refused.communicate(timeout=RUN_MAX_S)
            assert refused.returncode != 0 and "too many sessions" in err, err


def test_a_limit_changes_under_load_and_a_lost_session_leaves_nothing_waiting(tmp_path):
    with server_with(tmp_path, (("limit_iops", 20),)) as server, contextlib.ExitStack() as cleaning:
        load = bench(server, "--depth=32", seconds=ENDLESS_S)
        cleaning.callback(load.kill)
        wait_for(lambda: lun(server)["waiting_commands"] > 20)
        shown = targe(server, "lun", "set", server.iqn, "0", "limit_iops=500", "limit_burst=20ms")
        assert "limit_iops: 20 -> 500" in shown, shown
        began, before = time.monotonic(), lun(server)
        assert (before["limit"]["iops"], before["limit"]["burst_ms"]) == (500, 20)
        # 500 in a second: the new limit holds for what waited already.
        wait_for(lambda: lun(server)["commands"] - before["commands"] >= 500)
        after, passed = lun(server)["commands"], time.monotonic() - began
        # The counter has commands that wait as well.
        assert after - before["commands"] <= 500 * (passed + BURST_S) + 2 * 32
        targe(server, "lun", "set", server.iqn, "0", "limit_iops=10")
        wait_for(lambda: lun(server)["waiting_commands"] > 20)
        load.kill()
        wait_for(lambda: lun(server)["waiting_commands"] == 0)
        targe(server, "lun", "set", server.iqn, "0", "limit_iops=", "limit_burst=")
        assert lun(server)["limit"] is None
        assert reads_of(bench(server, "--depth=4", seconds=0.5))["iops"] > 0


def test_an_abort_ends_a_command_that_waits(tmp_path):
    with server_with(tmp_path, (("limit_iops", 10),)) as server:
        url = f"iscsi://127.0.0.1:{server.port}/{server.iqn}/0?initiator={FEW}&command_timeout=1"
        # 32 commands take 3 seconds. The initiator aborts after one, sends the commands again, and gives up after the third time. It would
        # end the session if an abort had no answer.
        for left in reversed(range(TRIES)):
            before = server.log_of_this_run().count(" is up")
            done = subprocess.run([servers.Targe.binary, "bench", url, "--random", "--depth=32", "--count=64"], capture_output=True, text=True,
                                  timeout=RUN_MAX_S)
            assert done.returncode != 0 and "did not respond in time" in done.stderr, done.stderr
            wait_for(lambda: lun(server)["waiting_commands"] == 0)
            assert lun(server)["commands"] > 64
            # One session to look at the LUN, and one for the load. A machine that stands still for a while answers an abort too late.
            sessions = server.log_of_this_run().count(" is up") - before
            if sessions == 2:
                break
            assert left, server.log_tail()
