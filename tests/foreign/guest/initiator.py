"""The Linux kernel's initiator in the guest: records, sessions and the disks they bring."""

import contextlib
import re
import time

from guest.machine import HOST, CommandFailed
from verdicts import expect

# Longest the kernel may take from the login to the disk, seconds.
DISK_MAX_S = 200
# What the kernel says when something on the way to the disk went wrong.
COMPLAINTS = "I/O error|Sense Key|detected conn error|session recovery timed out|rejecting I/O|digest|EXT4-fs error"
# What the kernel says when iscsid sends the next Login Request before it is done with the last answer; iscsid then logs in anew.
OVERTAKEN = "Login/Text in progress"
# What follows it at once, and nothing else may: the connection of that login, which is given up.
GIVEN_UP = "detected conn error"


class Initiator:
    # What the kernel's names of its block devices begin with.
    kind = "sd"

    def __init__(self, guest, server):
        self.guest, self.server = guest, server
        self.use_port(server.port)
        for command in ("ifconfig lo 127.0.0.1 up", "modprobe virtio_pci", "modprobe virtio_net", "modprobe iscsi_tcp",
                        "modprobe sd_mod", "modprobe ext4", "modprobe crc32c_generic",
                        "until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done",
                        "ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up", "route add default gw 10.0.2.2",
                        # One refusal is an answer; the default asks eight times.
                        "echo node.session.initial_login_retry_max = 1 >> /etc/iscsi/iscsid.conf",
                        # The defaults are 15 s and 5 s, which a machine that has much else to do may exceed.
                        "echo node.conn[0].timeo.login_timeout = 120 >> /etc/iscsi/iscsid.conf",
                        "echo node.conn[0].timeo.noop_out_timeout = 60 >> /etc/iscsi/iscsid.conf",
                        "iscsid -f > /tmp/iscsid.log 2>&1 &",
                        # Its socket has no file to wait for: ask until it answers (21: no session).
                        "for i in $(seq 1000); do iscsiadm -m session; [ $? = 21 ] && break; sleep 0.1; done"):
            guest.run(command)

    def use_port(self, port, iqn=None):
        """From now on logs in at this port of the host's loopback interface, to the server's target or another one."""
        self.portal = f"{HOST}:{port}"
        self.record = f"iscsiadm -m node -T {iqn or self.server.iqn} -p {self.portal}"

    def discover(self):
        return self.guest.run(f"iscsiadm -m discovery -t sendtargets -p {self.portal}")

    def set_up(self, header="CRC32C", data="CRC32C", algorithm="SHA256", secrets=None):
        """A record made by hand, with CHAP both ways if the server asks for it."""
        self.guest.run(f"{self.record} -o delete > /dev/null 2>&1", check=False)
        self.guest.run(f"{self.record} -o new")
        self.update("node.conn[0].iscsi.HeaderDigest", header)
        self.update("node.conn[0].iscsi.DataDigest", data)
        incoming, outgoing = secrets or (self.server.export.incoming, self.server.export.outgoing)
        if incoming:
            self.update("node.session.auth.authmethod", "CHAP")
            self.update("node.session.auth.chap_algs", algorithm)
            self.update("node.session.auth.username", incoming[0])
            self.update("node.session.auth.password", incoming[1])
        if outgoing:
            self.update("node.session.auth.username_in", outgoing[0])
            self.update("node.session.auth.password_in", outgoing[1])

    def update(self, key, value):
        self.guest.run(f"{self.record} -o update -n '{key}' -v '{value}'")

    @contextlib.contextmanager
    def logged_in(self, unit=0, **settings):
        """Logs in, yields the disk (as /dev/sdX, a drive as /dev/srN), logs out; whatever an earlier test left behind is cleared first."""
        self.clear()
        self.set_up(**settings)
        self.guest.run(f"{self.record} --login")
        yield self.disk(unit=unit)
        self.guest.run(f"{self.record} --logout")
        sessions = self.guest.run("iscsiadm -m session 2>&1", check=False)
        expect(self.guest.code == "21", f"a session is left after logout: {sessions}")

    def clear(self):
        self.guest.run("umount /mnt 2> /dev/null", check=False)
        self.guest.run("iscsiadm -m session > /dev/null 2>&1 && iscsiadm -m node --logoutall=all", check=False, limit_s=300)
        self.guest.run("dmesg -c > /dev/null")

    def disks(self, unit=0):
        lun = self.server.first_lun + unit
        listed = self.guest.run(f"ls -d /sys/class/iscsi_session/session*/device/target*/*:{lun}/block/{self.kind}* 2> /dev/null",
                                check=False)
        return [f"/dev/{path.rsplit('/', 1)[1]}" for path in listed.split()]

    def disk(self, count=1, unit=0):
        """The disk of a unit, once the kernel has `count` of them; the last one of several."""
        deadline = time.monotonic() + DISK_MAX_S
        while len(found := self.disks(unit)) < count:
            if time.monotonic() > deadline:
                raise CommandFailed(f"no disk: {self.guest.run('dmesg | tail -n 15')}")
            time.sleep(0.1)
        self.guest.run(f"until [ -b {found[-1]} ]; do sleep 0.1; done")
        return found[-1]

    def negotiated(self):
        """The session's parameters as iscsiadm shows them."""
        shown = self.guest.run("iscsiadm -m session -P 2")
        return dict(re.findall(r"^\s*(\w+): (\S+)$", shown, re.MULTILINE))

    def size(self, disk):
        return int(self.guest.run(f"cat /sys/block/{disk.removeprefix('/dev/')}/size")) * 512

    def complaints(self):
        """What the kernel complains of. A login in which iscsid overtakes its kernel is excused, once."""
        said = self.guest.run(f"dmesg | grep -E '{COMPLAINTS}|{OVERTAKEN}'", check=False).splitlines()
        return "\n".join(without_one_overtaken_login(said))


def without_one_overtaken_login(said):
    """The lines of a log without the first that tells of such a login, and the end of its connection behind that."""
    at = next((number for number, line in enumerate(said) if OVERTAKEN in line), len(said))
    behind = said[at + 1:]
    return said[:at] + behind[bool(behind and GIVEN_UP in behind[0]):]
