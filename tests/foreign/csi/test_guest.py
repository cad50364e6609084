"""csi-sanity in a QEMU guest, where the node attaches by the kernel's initiator and by ublk. By hand, as test_sanity.py."""

import os
import re
import shlex
import shutil

import pytest

import servers
from csi.driver import HEAD
from csi.test_sanity import MODIFIABLE, SANITY
from guest import image
from guest.machine import Guest
from servers import MIB
from verdicts import expect, same

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(5400)]
PROGRAMS = ["/usr/sbin/iscsid", "/usr/sbin/iscsiadm", "/usr/sbin/mke2fs", "/usr/sbin/resize2fs", "/usr/sbin/blkid", "/usr/bin/mount",
            "/usr/bin/umount", servers.Targe.binary]
MODULES = [*image.UBLK_MODULES, "iscsi_tcp", "sd_mod"]
# The guest is emulated.
RUN_MAX_S = 2400
PORT = 3260
# Which tests of csi-sanity, by a regular expression: all of them take an emulated machine that does nothing else half an hour.
FOCUS = os.environ.get("CSI_FOCUS", "")


@pytest.fixture(scope="module")
def guest():
    if not SANITY:
        pytest.skip("csi-sanity is not here: name it with CSI_SANITY=PATH")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(servers.OUT, "csi", "guest")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = prepare(out)
    with Guest(kernel, initramfs, folder) as guest:
        for command in ("ifconfig lo 127.0.0.1 up", "modprobe ext4", "modprobe crc32c_generic || true", "modprobe iscsi_tcp", "modprobe sd_mod",
                        "modprobe ublk_drv", "mkdir -p /run/targe /tmp/etc", "iscsid -f > /tmp/iscsid.log 2>&1 &",
                        "for i in $(seq 100); do iscsiadm -m session; [ $? = 21 ] && break; sleep 0.1; done"):
            guest.run(command, check="modprobe" in command or "mkdir" in command)
        lines = HEAD.format(port=PORT).splitlines()
        for line in lines:
            guest.run(f"echo {shlex.quote(line)} >> /tmp/etc/targe.toml")
        guest.run(f"echo {shlex.quote(MODIFIABLE.strip())} > /tmp/mutable.yaml")
        guest.run("targe serve --config /tmp/etc/targe.toml > /tmp/daemon.log 2>&1 &")
        yield guest


def prepare(out):
    """A kernel with ublk and the initiator, and a root with csi-sanity."""
    with image.alone(out):
        folder = os.path.join(out, f"kernel-{image.UBLK_DEBIAN}")
        root = image.unpacked_kernel(folder, image.release_of_its_own(os.path.join(out, "apt"), image.UBLK_DEBIAN))
        tree, initramfs = os.path.join(out, "root-csi"), os.path.join(out, "initramfs-csi")
        image.build(tree, root, PROGRAMS, MODULES)
        image.add_open_iscsi(tree)
        # The guest mounts a file system of its own on the folders that SANITY may be in.
        shutil.copy(SANITY, os.path.join(tree, "bin/csi-sanity"))
        os.symlink(servers.Targe.binary, os.path.join(tree, "bin/targe"))
        image.pack(tree, lambda path: open(path, "wb"), initramfs)
        return image.kernel_of(root), initramfs


@pytest.mark.parametrize("access", ["mount", "block"])
@pytest.mark.parametrize("way", ["iscsi", "ublk"])
def test_csi_sanity_passes_with_devices_of_the_kernel(guest, way, access):
    place = f"/tmp/{way}-{access}"
    guest.run(f"mkdir -p {place}/pool")
    # The kernel's initiator encrypts nothing.
    protection = "none" if way == "iscsi" else "encrypt"
    guest.run(f"echo 'protection: {protection}' > {place}/parameters.yaml")
    guest.run(f"targe csi --endpoint {place}/csi.sock --controller --pool {place}/pool --portal 127.0.0.1:{PORT} "
              f"--socket /tmp/etc/admin/admin.sock --node --attach {way} --run-dir {place}/run > {place}/csi.log 2>&1 & echo $! > {place}/pid")
    guest.run(f"until [ -S {place}/csi.sock ]; do kill -0 $(cat {place}/pid) || break; sleep 0.2; done; [ -S {place}/csi.sock ]")
    said = guest.run(f"csi-sanity --csi.endpoint=unix:{place}/csi.sock --csi.mountdir={place}/mnt --csi.stagingdir={place}/stage "
                     f"--csi.testvolumeaccesstype={access} --csi.testvolumesize={24 * MIB} --csi.testvolumeexpandsize={32 * MIB} "
                     f"--csi.testvolumeparameters={place}/parameters.yaml --csi.testvolumemutableparameters=/tmp/mutable.yaml --ginkgo.no-color --ginkgo.v "
                     f"--ginkgo.focus={shlex.quote(FOCUS)} 2>&1", limit_s=RUN_MAX_S, check=False)
    code, log = guest.code, guest.run(f"cat {place}/csi.log", check=False)
    same(f"csi-sanity's exit code, which said {said[-3000:]}; the driver: {log[-1500:]}", code, "0")
    print(re.findall(r"Ran \d+ of .*|\d+ Passed.*", said))
    guest.run(f"kill $(cat {place}/pid); until ! [ -S {place}/csi.sock ]; do sleep 0.1; done")
    left = guest.run(f"find {place}/pool -type f ! -name lock; ls -d /sys/class/iscsi_session/* /dev/ublkb* 2> /dev/null", check=False)
    expect(not left, f"left behind: {left}")
