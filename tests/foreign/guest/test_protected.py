"""The Linux kernel's initiator in a QEMU guest uses LUNs that require encryption, through `targe proxy` on the host.

The target has a portal with TLS and one without, and through the latter another target, whose sessions need the password login. The guest
reaches them on the host's loopback interface, and the proxies as well: one that carries TLS, and one that logs in with the password.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import subprocess
import time

import pytest

import listening
import servers
from configured import tls
from configured.passwords import USER, WithPasswords, secret_file
from configured.proxying import Proxy
from guest import image
from guest.file_systems import make_file_system, outlives
from guest.initiator import Initiator
from guest.machine import Guest
from guest.relay import Relay
from servers import MIB, Lun
from serving import serving
from verdicts import expect

PROTECTED, PLAIN = range(2)
EXPORT = servers.Export(luns=(Lun(size=64 * MIB, claims=(("protection", "encrypt"),)), Lun(size=16 * MIB)))
FILE_MIB = 8
LUKS_HEADER, LUKS_DATA = 16 * MIB, FILE_MIB * MIB
TEXT = "the salaries of everybody in the company"
RUN_MAX_S = 300
# Both are emulated: the guest's boot, and what it does.
pytestmark = pytest.mark.timeout(2000)


class TwoPortals(WithPasswords):
    """With one more portal, which accepts TLS only, and one more target, which accepts password logins only."""

    identity = tls_port = None

    @property
    def password_iqn(self):
        return f"{self.iqn}:password"

    def luks_image(self):
        return os.path.join(self.folder, "luks.img")

    def luks_secret(self):
        return os.path.join(self.folder, "luks.secret")

    def make_luks_image(self):
        """A LUKS2 image, which LUN 1 of the other target is, undecrypted."""
        for path, content in ((self.luks_secret(), os.urandom(32)), (self.luks_image(), b"")):
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
                file.write(content)
        os.truncate(self.luks_image(), LUKS_HEADER + LUKS_DATA)
        made = targe("luks", "format", "--key-file", self.luks_secret(), self.luks_image())
        expect(made.returncode == 0, made.stderr)

    def config_lines(self):
        yield from servers.Targe.config_lines(self)
        yield from ("[[target]]", f'name = "{self.password_iqn}"', "[target.auth]", f'password_file = "{self.passwords()}"',
                    "[target.session]", 'protection = "encrypt"', "[[target.lun]]", 'type = "ram"', 'size = "16M"',
                    "[[target.lun]]", 'type = "file"', f'path = "{self.luks_image()}"')
        certificate, key = self.identity
        yield from ("[[portal]]", 'name = "secure"', f'listen = "127.0.0.1:{self.tls_port}"', f'tls_certificate = "{certificate}"',
                    f'tls_key = "{key}"')


class Recorder(Relay):
    """Keeps what the initiators send."""

    def __init__(self, port):
        super().__init__(port)
        self.sent = bytearray()

    def read(self):
        while True:
            data = yield
            self.sent += data


class Rig:
    def __init__(self, initiator, authority, recorders, proxies, password):
        self.password = password
        self.initiator, self.guest, self.server = initiator, initiator.guest, initiator.server
        self.authority, (self.proxy, self.password_proxy) = authority, proxies
        # What passes in front of the portal without TLS, and what passes between the proxy and the portal with TLS.
        self.plain, self.secure = recorders


@pytest.fixture(scope="module")
def rig(request, server_name, tmp_path_factory):
    if server_name != "targe":
        pytest.skip("only targe has portals with TLS")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, server_name, "protected")
    os.makedirs(folder, exist_ok=True)
    authority = tls.Authority(tmp_path_factory.mktemp("authority"))
    server = TwoPortals(folder, EXPORT)
    server.identity, server.tls_port = authority.sign("target", "DNS:localhost,IP:127.0.0.1"), listening.free_port()
    server.make_record()
    server.make_luks_image()
    password = secret_file(tmp_path_factory.mktemp("password") / "password")
    kernel, initramfs = image.prepare(out)
    with serving(request, "protected", server), Recorder(server.port) as plain, Recorder(server.tls_port) as secure:
        with (Proxy(f"iscsi://127.0.0.1:{secure.port}?tls_ca={authority.certificate}") as proxy,
              Proxy(f"iscsi://{USER}@127.0.0.1:{plain.port}?auth=opaque&password_file={password}") as password_proxy,
              Guest(kernel, initramfs, folder) as guest):
            yield Rig(Initiator(guest, server), authority, (plain, secure), (proxy, password_proxy), password)


def targe(*arguments):
    return subprocess.run([servers.Targe.binary, *arguments], capture_output=True, timeout=RUN_MAX_S)


def await_that(condition, told):
    deadline = time.monotonic() + RUN_MAX_S
    while not condition():
        expect(time.monotonic() < deadline, told())
        time.sleep(0.1)


def only_session(server):
    """The session of the guest. What logged out before, through a proxy, is gone soon after the guest was told."""
    found = []

    def is_alone():
        found[:] = json.loads(server.admin("sessions"))["sessions"]
        return len(found) == 1

    await_that(is_alone, lambda: f"{len(found)} sessions: {found}")
    return found[0]


def make_text(guest):
    """A file in the guest whose every block shows the text."""
    guest.run(f"yes '{TEXT}' | head -c {FILE_MIB * MIB} > /tmp/text")


def test_lun_is_absent_through_the_portal_without_tls(rig):
    initiator, guest = rig.initiator, rig.guest
    initiator.use_port(rig.plain.port)
    with initiator.logged_in(unit=PLAIN) as disk:
        listed = guest.run(f"sg_luns {disk}")
        expect(re.findall(r"^\s*([0-9a-f]{16})$", listed, re.MULTILINE) == [f"{PLAIN:04x}000000000000"], f"REPORT LUNS lists {listed}")
        guest.run("iscsiadm -m session --rescan")
        guest.run("for host in /sys/class/scsi_host/host*/scan; do echo '- - 0' > $host; done")
        expect(not initiator.disks(PROTECTED), f"there is {initiator.disks(PROTECTED)}")
        session = only_session(rig.server)
        expect((session["protection"], session["hidden_luns"]) == ("none", 1), f"the target says {session}")
        # The search that finds nothing in what goes through the proxy finds this.
        make_text(guest)
        guest.run(f"dd if=/tmp/text of={disk} bs=1M oflag=direct 2>&1")
        expect(TEXT.encode() in rig.plain.sent, "the recorder has no text that was sent in the clear")
        expect(not initiator.complaints(), initiator.complaints())


def test_portal_with_tls_refuses_an_initiator_without(rig):
    initiator = rig.initiator
    initiator.use_port(rig.server.tls_port)
    initiator.clear()
    initiator.set_up()
    said = initiator.guest.run(f"{initiator.record} --login 2>&1", check=False)
    expect(initiator.guest.code != "0", f"logged in: {said}")
    # A thread of its own writes the log.
    await_that(lambda: "does not speak TLS" in rig.server.log_of_this_run(), rig.server.log_tail)


def test_carries_a_file_system_through_the_proxy(rig):
    initiator, guest, server = rig.initiator, rig.guest, rig.server
    initiator.use_port(rig.proxy.port)
    with initiator.logged_in(unit=PROTECTED) as disk:
        agreed = initiator.negotiated()
        expect((agreed["HeaderDigest"], agreed["DataDigest"]) == ("CRC32C", "CRC32C"), f"agreed on {agreed}")
        session = only_session(server)
        level = (session["protection"], session["protection_by"], session["hidden_luns"])
        expect(level == ("encrypt", 'TLS 1.3 on portal "secure"', 0), f"the target says {level}")
        initiator.disk(unit=PLAIN)
        make_file_system(guest, disk)
        make_text(guest)
        guest.run(f"dd if=/dev/urandom of=/tmp/random bs=1M count={FILE_MIB} 2> /dev/null")
        guest.run("cp /tmp/text /tmp/random /mnt && sync")
        sums = guest.run("cd /tmp && sha256sum text random; rm text random; cd /")
        guest.run("umount /mnt && echo 3 > /proc/sys/vm/drop_caches")
        guest.run(f"e2fsck -fn {disk} 2>&1")
        guest.run(f"mount -t ext4 {disk} /mnt")
        expect(guest.run("cd /mnt && sha256sum text random; cd /") == sums, "reads back other bytes than were written")
        guest.run("umount /mnt")
        expect(not initiator.complaints(), initiator.complaints())
    expect(len(rig.secure.sent) > 2 * FILE_MIB * MIB, f"{len(rig.secure.sent)} bytes went to the portal with TLS")
    expect(TEXT.encode() not in rig.secure.sent, "the proxy sends data in the clear")
    expect_medium(server, dict(reversed(line.split()) for line in sums.splitlines()))
    expect_read(rig)


def expect_medium(server, sums):
    """The medium itself has a clean file system with these files."""
    medium = server.medium_path(PROTECTED)
    checked = subprocess.run(["e2fsck", "-fn", medium], capture_output=True, text=True, timeout=RUN_MAX_S)
    expect(checked.returncode == 0, checked.stdout + checked.stderr)
    for name, digest in sums.items():
        dumped = subprocess.run(["debugfs", "-R", f"cat /{name}", medium], capture_output=True, timeout=RUN_MAX_S)
        expect(hashlib.sha256(dumped.stdout).hexdigest() == digest, f"{name} is otherwise on the medium; {dumped.stderr[-300:]}")


def expect_read(rig):
    """Our own initiator reads the bytes of the medium over TLS, and finds no such LUN without."""
    server = rig.server
    covered = targe("read", f"iscsi://127.0.0.1:{server.tls_port}/{server.iqn}/{PROTECTED}?tls_ca={rig.authority.certificate}")
    expect(covered.returncode == 0, covered.stderr)
    expect(hashlib.sha256(covered.stdout).hexdigest() == server.medium_digest(PROTECTED), "it reads otherwise than the medium is")
    plain = targe("read", server.url(PROTECTED, query="?timeout=0"))
    expect(plain.returncode == 1 and not plain.stdout and b"has no LUN 0" in plain.stderr, plain.stderr)


def test_resumes_after_the_proxy_was_killed_and_nothing_synced_is_lost(rig):
    def interrupt():
        rig.proxy.kill()
        # The initiator shall run into the closed port before the proxy is back.
        time.sleep(2)
        rig.proxy.start()

    rig.initiator.use_port(rig.proxy.port)
    with rig.initiator.logged_in(unit=PROTECTED) as disk:
        outlives(rig.guest, disk, interrupt, times=1)


def test_carries_data_through_the_proxy_with_a_password(rig):
    initiator, guest, proxy, sent = rig.initiator, rig.guest, rig.password_proxy, rig.plain.sent
    initiator.use_port(proxy.port, rig.server.password_iqn)
    make_text(guest)
    before = len(sent)
    with initiator.logged_in() as disk:
        agreed = initiator.negotiated()
        expect((agreed["HeaderDigest"], agreed["DataDigest"]) == ("CRC32C", "CRC32C"), f"agreed on {agreed}")
        session = only_session(rig.server)
        expect(session["protection"] == "encrypt" and "Y-org.targe." in session["protection_by"], f"the target says {session}")
        guest.run(f"dd if=/tmp/text of={disk} bs=1M oflag=direct 2>&1")
        guest.run(f"dd if={disk} bs=1M count={FILE_MIB} iflag=direct 2> /dev/null | cmp - /tmp/text")
        # The connection is closed under a load; the initiator logs in again.
        proxy.kill()
        proxy.start()
        guest.run(f"dd if=/tmp/text of={disk} bs=1M oflag=direct 2>&1")
        guest.run(f"dd if={disk} bs=1M count={FILE_MIB} iflag=direct 2> /dev/null | cmp - /tmp/text; rm /tmp/text")
    expect(len(sent) - before > 2 * FILE_MIB * MIB, f"{len(sent) - before} bytes went to the portal")
    expect(TEXT.encode() not in sent[before:], "the proxy sends data in the clear")


@contextlib.contextmanager
def attached(rig, folder):
    """The data of the LUKS2 image as an NBD export: decrypted by targe on this host, which uses the LUN as the guest does, by iSCSI."""
    url = (f"iscsi://{USER}@127.0.0.1:{rig.plain.port}/{rig.server.password_iqn}/1?auth=opaque&protection=encrypt"
           f"&password_file={rig.password}")
    process = subprocess.Popen([servers.Targe.binary, "attach", url, "--luks", rig.server.luks_secret(), "--nbd", str(folder / "nbd")],
                               stdout=subprocess.PIPE, text=True, preexec_fn=servers.die_with_parent)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        expect(process.wait(RUN_MAX_S) == 0, "targe attach fails")


def copied(*arguments):
    done = subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "raw", *map(str, arguments)], capture_output=True, text=True, timeout=RUN_MAX_S)
    expect(done.returncode == 0, done.stderr)


def test_the_kernel_and_targe_read_what_the_other_one_encrypted(rig, tmp_path):
    initiator, guest, sent = rig.initiator, rig.guest, rig.plain.sent
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_bytes(os.urandom(LUKS_DATA))
    with attached(rig, tmp_path) as export:
        copied("-n", ours, export)
    initiator.use_port(rig.password_proxy.port, rig.server.password_iqn)
    with open(rig.server.luks_secret(), "rb") as file:
        secret = base64.b64encode(file.read()).decode()
    with initiator.logged_in(unit=1) as disk:
        guest.run("modprobe dm_crypt && modprobe aesni_intel && modprobe xts")
        guest.run(f"echo {secret} | base64 -d > /tmp/secret")
        guest.run(f"DM_DISABLE_UDEV=1 cryptsetup open --type luks2 --key-file /tmp/secret {disk} plain 2>&1")
        table = guest.run("cryptsetup status plain 2>&1")
        expect("aes-xts-plain64" in table and "/dev/sd" in table, table)
        digest = guest.run("sha256sum < /dev/mapper/plain").split()[0]
        expect(digest == hashlib.sha256(ours.read_bytes()).hexdigest(), "dm-crypt reads otherwise than targe wrote")
        make_text(guest)
        before = len(sent)
        guest.run("dd if=/tmp/text of=/dev/mapper/plain bs=1M 2>&1 && sync && rm /tmp/text")
        guest.run("DM_DISABLE_UDEV=1 cryptsetup close plain 2>&1")
        expect(len(sent) - before > LUKS_DATA, f"{len(sent) - before} bytes went to the portal")
    with attached(rig, tmp_path) as export:
        copied(export, theirs)
    wanted = (f"{TEXT}\n".encode() * (LUKS_DATA // len(TEXT)))[:LUKS_DATA]
    expect(theirs.read_bytes() == wanted, "targe reads otherwise than dm-crypt wrote")
    with open(rig.server.luks_image(), "rb") as file:
        expect(TEXT.encode() not in file.read(), "the medium has the text in the clear")


def test_proxies_end_as_they_should(rig):
    rig.initiator.clear()
    for proxy in (rig.proxy, rig.password_proxy):
        code, said = proxy.stop()
        expect(code == 0 and not said, f"exit code {code}: {said}")
