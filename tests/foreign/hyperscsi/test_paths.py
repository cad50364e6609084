"""Sessions over several cables, cables that are cut and narrowed, and servers that cannot be told apart."""

import contextlib
import json
import os
import time

import pytest

from hyperscsi import network
import servers
from hyperscsi.served import (Accounts, Served, asked, await_that, discovered, end_verify, expect_each_once, paths_of, protected, serving, start_verify, told,
                    verify)
from attach.attached import Attached
from attach.disks import finish_fio, fio_process, image, need_fuse, tool, carries_a_file_system_through_restarts
from verdicts import expect

# Each has hosts and cables of its own.
pytestmark = [pytest.mark.servers("targe"), pytest.mark.own_process(limit_s=500)]
MIB = 1 << 20
# How long a cable is out for which nobody may notice, seconds.
PULLED_S = 20
# A verify that goes on until everything was tried.
ENDLESS = "--time=86400"


@pytest.mark.waits(30)
@pytest.mark.parametrize("level", ["none", "encrypt"])
def test_two_cables_carry_one_session_and_each_is_cut(seed, level):
    """Both carry data; either can go and come back."""
    with network.Network(9000, cables=2) as net, protected(level) as (flags, query):
        with serving(net.target, "--iface=eth0", "--iface=eth1", "--group=backup", f"--lun=ram:96M,protection={level}", *flags) as folder:
            bad = ("--rate=100M", "--loss=0.1%", f"--seed={seed}")
            with net.wire(*bad, cable=1), contextlib.ExitStack() as first:
                first.enter_context(net.wire(*bad))
                url = discovered(net, "backup")[0]["url"]
                url += f"{query}&paths=eth1" if query else "?paths=eth1"
                accounts = Accounts(net.target, folder)
                process = start_verify(net, url, ENDLESS)
                carry(net, folder, process, "eth0", "eth1")
                # The first one is silent from now on: nobody is told.
                first.close()
                time.sleep(1.0)
                carry(net, folder, process, "eth1")
                with net.wire(*bad):
                    carry(net, folder, process, "eth0", "eth1")
                    # The other one: its end here is down.
                    net.initiator.up("eth1", up=False)
                    time.sleep(0.5)
                    carry(net, folder, process, "eth0")
                    net.initiator.up("eth1")
                    carry(net, folder, process, "eth0", "eth1")
                    report, _ = end_verify(process)
                expect(report["session"]["sessions_rebuilt"] == 0, f"the session did not live through it: {report['session']}")
                expect_each_once(accounts.since(), report)


def carry(net, folder, process, *interfaces):
    """Waits until these interfaces of the target have carried data for a while that begins now."""
    before = paths_of(net.target, folder)

    def moved():
        expect(process.poll() is None, "the run ended before everything was tried")
        now = paths_of(net.target, folder)
        return all(interface in now and all(now[interface][way] > before.get(interface, {way: 0})[way] + 200
                                            for way in ("frames_in", "frames_out")) for interface in interfaces)

    await_that(moved, f"data by {' and '.join(interfaces)}")


def test_luns_of_two_targets_are_striped(seed):
    """Two LUNs of one target, in one session, and one of another make one disk."""
    names = ("iqn.2026-11.com.example:pair", "iqn.2026-11.com.example:single")
    with network.Network(9000, cables=2, wired=False) as net:
        with serving(net.target, "--iface=eth0", "--group=backup", f"--target={names[0]}", "--lun=ram:32M", "--lun=ram:32M") as pair, \
             serving(net.target, "--iface=eth1", "--group=backup", f"--target={names[1]}", "--lun=ram:32M") as single:
            urls = [f"hyperscsi://backup@eth0/{names[0]}/0", f"hyperscsi://backup@eth0/{names[0]}/1", f"hyperscsi://backup@eth1/{names[1]}/0"]
            server = Several(net, pair, urls)
            with Attached(server, "nbd", units=(0, 1, 2), arguments=["--stripe", "64K"]) as disk:
                size = int(tool("nbdinfo", "--size", disk.address))
                expect(size >= 95 * MIB, f"{size} bytes")
                source = image(server, size)
                tool("nbdcopy", "--connections=4", "--flush", source, disk.address)
                tool("qemu-img", "compare", "-f", "raw", "-F", "raw", source, disk.address)
                for folder, luns in ((pair, 2), (single, 1)):
                    sessions = asked(net.target, folder, "sessions")["hyperscsi"]
                    expect(len(sessions) == 1, f"{len(sessions)} sessions with a target: {sessions}")
                    wrote = [lun["write_bytes"] for lun in asked(net.target, folder, "luns")["luns"]]
                    expect(len(wrote) == luns and min(wrote) > MIB, f"written: {wrote}")
                expect(disk.detach() == 0, f"detaches; it says {disk.said()[-300:]}")
            os.remove(source)


class Several:
    """LUNs of several servers, for `Attached`."""

    def __init__(self, net, folder, urls):
        self.net, self.folder, self.urls = net, folder, urls

    def url(self, unit=0, query=""):
        return self.urls[unit] + query

    def inside(self, command):
        return self.net.initiator.inside(*command)


@pytest.mark.waits(20)
@pytest.mark.parametrize("level", ["none", "encrypt"])
def test_the_mtu_changes_in_mid_verify(seed, level):
    """9000, 1500, 9000 in mid-verify: at one end, at the other, at both."""
    with network.Network(9000) as net, net.wire("--rate=200M", "--loss=0.1%", f"--seed={seed}"), protected(level) as (flags, query):
        with serving(net.target, "--iface=eth0", "--group=backup", f"--lun=ram:96M,protection={level}", *flags) as folder:
            url = discovered(net, "backup")[0]["url"] + query
            accounts = Accounts(net.target, folder)
            process = start_verify(net, url, ENDLESS)
            carries(net, folder, process, 9000)
            for hosts in ((net.initiator,), (net.target,), (net.initiator, net.target)):
                for mtu in (1500, 9000):
                    for host in hosts:
                        host.run("ip", "link", "set", "eth0", "mtu", mtu)
                    carries(net, folder, process, mtu)
                    carry(net, folder, process, "eth0")
            report, aside = end_verify(process)
            expect(report["session"]["sessions_rebuilt"] == 0, f"the session did not live through it: {report['session']}")
            expect_each_once(accounts.since(), report)
            # Each end says so when the other one takes less.
            less = "frames have up to 1500 bytes only: the MTU is 9000 here and 1500 there"
            for name, said in (("the target", told(folder)), ("the initiator", aside)):
                expect(less in said and "frames have up to 9000 bytes again" in said, f"{name} says nothing of it: {said[-800:]}")


def carries(net, folder, process, mtu):
    def is_so():
        expect(process.poll() is None, "the run ended before everything was tried")
        return [path["mtu"] for path in paths_of(net.target, folder).values()] == [mtu]
    await_that(is_so, f"frames of {mtu} bytes")


def finished(process):
    """What `targe verify` reports, and what it said beside."""
    said, aside = process.communicate(timeout=servers.STOP_MAX_S + 100)
    expect(process.returncode == 0, f"verify: exit code {process.returncode}: {aside[-800:]} {said[-1200:]}")
    report = json.loads(said)
    expect(report["sound"] and report["complete"], f"{said}")
    return report, aside


def test_ends_of_different_mtu_say_so(seed):
    """Ends that take different lengths, and a cable that carries less than both."""
    for here, there, between, words in (
            (9000, 1500, 9000, "frames have up to 1500 bytes only: the MTU is 9000 here and 1500 there"),
            (1500, 9000, 9000, None),
            (9000, 9000, 1500, "the MTU is 9000 here and 9000 there, and less gets through between")):
        with network.Network(9000) as net, net.wire(f"--mtu={between}"):
            net.initiator.run("ip", "link", "set", "eth0", "mtu", here)
            net.target.run("ip", "link", "set", "eth0", "mtu", there)
            with serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:4M") as folder:
                url = discovered(net, "backup")[0]["url"]
                report, aside = finished(start_verify(net, url, "--full"))
                expect((words or "no such words") in aside or (words is None and "bytes only" not in aside), f"the initiator says: {aside}")
                if there == 9000:
                    await_that(lambda: "bytes only" in told(folder), "the target's word on it")
                expect(("bytes only" in told(folder)) == (there == 9000), f"the target says: {told(folder)}")


def test_two_servers_with_one_identity_are_noticed(seed):
    """Two servers say of one target that it is theirs: whoever looks or logs in is told."""
    name = "iqn.2026-11.com.example:twin"
    flags = ("--group=backup", f"--target={name}", "--lun=ram:4M")
    with network.Network(cables=2, wired=False) as net:
        with serving(net.target, "--iface=eth0", *flags), serving(net.target, "--iface=eth1", *flags):
            # A discovery ends after some silence, within which one of two servers on a busy machine may not have answered.
            deadline = time.monotonic() + network.PATIENCE_S
            while True:
                result = net.initiator.run(servers.Targe.binary, "discover", "--group=backup", "--iface=eth0,eth1", check=False)
                if result.stdout.count(name) >= 2 or time.monotonic() > deadline:
                    break
            expect(result.returncode == 1 and "two servers with one identity" in result.stderr and result.stdout.count(name) >= 2,
                   f"exit code {result.returncode}: {result.stdout} {result.stderr}")
            url = f"hyperscsi://backup@eth0/{name}/0?paths=eth1"
            for command in (("info",), ("verify", "--write", "--full")):
                result = net.initiator.run(servers.Targe.binary, *command, url)
                expect(result.stderr.count("two servers with one identity") == 1, f"{command[0]} says: {result.stderr}")
            # Who knows the way to one of them only meets that.
            result = net.initiator.run(servers.Targe.binary, "info", url.split("?")[0])
            expect("identity" not in result.stderr, result.stderr)


def test_an_interface_that_is_down_is_told_by_its_name(seed):
    """A URL whose interface is down, or is none, is told by its name."""
    with network.Network(wired=False) as net:
        net.initiator.up("eth0", up=False)
        for interface, words in (("eth0", "interface eth0 is not up"), ("eth9", "there is no interface `eth9`")):
            url = f"hyperscsi://backup@{interface}/iqn.2026-11.com.example:disk/0?connect_timeout=1"
            result = net.initiator.run(servers.Targe.binary, "info", url, check=False)
            expect(result.returncode == 1 and words in result.stderr, f"exit code {result.returncode}: {result.stderr}")


@pytest.mark.waits(9)
def test_a_killed_initiator_is_back_at_once(seed):
    """An initiator that was killed takes its own place at once, with the same ISID; and without, nobody waits for the dead one."""
    with network.Network(9000) as net, net.wire("--rate=200M", f"--seed={seed}"):
        with serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:64M") as folder:
            url = discovered(net, "backup")[0]["url"]
            sessions = lambda: asked(net.target, folder, "sessions")["hyperscsi"]
            at_work = lambda: sum(session["commands"] > 100 for session in sessions())
            for query, left in (("?isid=0080000000a1", 1), ("", 2)):
                process = start_verify(net, url + query, "--full")
                await_that(lambda: at_work() == 1, "the first session at work")
                expect(process.poll() is None, "verify ended before it was killed")
                process.kill()
                process.wait()
                process = start_verify(net, url + query, "--full")
                await_that(lambda: at_work() == left, "the new session at work")
                alive = [session for session in sessions() if query == "" or session["isid"] == query[-12:]]
                expect(len(alive) == left, f"{len(alive)} sessions: {alive}")
                report = verify(net, url, process=process)
                expect(report["session"]["sessions_rebuilt"] == 0, f"{report['session']}")
            expect("is over: the initiator logged in again" in told(folder), f"nothing is told of the old session: {told(folder)[-600:]}")


@pytest.mark.waits(45)
def test_a_cable_out_for_20_s_is_not_noticed(seed):
    """The cable is out for 20 s while a disk is verified and another one is written through `targe attach`."""
    with network.Network(9000) as net, net.wire("--rate=150M", f"--seed={seed}"):
        with Served(net, "--lun=ram:48M") as server:
            with Attached(server, "nbd") as disk:
                fio = fio_process("--name=load", "--ioengine=nbd", f"--uri={disk.address}", "--size=16m", "--rw=randwrite", "--bs=16k", "--iodepth=16", "--fsync=64",
                                  "--verify=crc32c", "--do_verify=1", "--loops=6", "--rate=4m")
                process = start_verify(net, server.place.rsplit("/", 1)[0] + "/1", "--full")
                time.sleep(1.5)
                expect(process.poll() is None and fio.poll() is None, "the runs ended before the cable was pulled")
                net.initiator.up("eth0", up=False)
                time.sleep(PULLED_S)
                expect(process.poll() is None and fio.poll() is None, "a run ended while the cable was out")
                net.initiator.up("eth0")
                report = verify(net, None, process=process)
                finish_fio(fio, disk)
                expect(report["session"]["sessions_rebuilt"] == 0, f"the session did not live through it: {report['session']}")
                expect("no path" not in disk.said(), f"attach lost its session: {disk.said()[-300:]}")
                expect(disk.detach() == 0, f"detaches; it says {disk.said()[-300:]}")


@pytest.mark.waits(40)
def test_a_file_system_outlives_kills_of_the_target(seed):
    """ext4 on a loop device over FUSE over HyperSCSI; the target is killed and started again under it."""
    need_fuse()
    with network.Network(9000) as net, net.wire("--loss=0.1%", "--dup=1%", "--reorder=1%", f"--seed={seed}"):
        with Served(net) as server:
            carries_a_file_system_through_restarts(server, "--loops=4", "--rate=25m")
