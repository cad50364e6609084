"""LUKS2 images of ours judged by cryptsetup, and its images opened by ours; the data by a second implementation of AES-XTS.

No device mapper is needed: cryptsetup checks headers and secrets by itself, and prints the volume key.
"""

import json
import os
import random
import re
import socket
import subprocess
import time

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import listening
import servers

TARGE = os.environ.get("TARGE", os.path.join(servers.ROOT, "target", "release", "targe"))
CRYPTSETUP = "/usr/sbin/cryptsetup"
MIB = 1 << 20
DATA = 16 * MIB
SIZE = 8 * MIB
IQN = "iqn.2001-04.com.example:luks"
START_MAX_S = 60
pytestmark = pytest.mark.without_targe


@pytest.fixture(name="secret")
def fixture_secret(tmp_path):
    return key_file(tmp_path / "secret", os.urandom(32))


@pytest.mark.parametrize("sector", [512, 4096])
def test_cryptsetup_opens_what_we_format_and_reads_what_we_write(tmp_path, secret, sector):
    disk = tmp_path / "disk.img"
    with serving(disk, secret, sector) as url:
        content = write_some(url)
    dump = cryptsetup("luksDump", disk)
    assert re.search(rf"sector:\s+{sector}\b", dump) and "argon2id" in dump, dump
    cryptsetup("open", "--test-passphrase", "--key-file", secret, disk)
    wrong = key_file(tmp_path / "wrong", bytes(32))
    assert fails([CRYPTSETUP, "open", "--test-passphrase", "--key-file", wrong, disk])
    key = volume_key(disk, secret)
    raw = disk.read_bytes()
    assert len(raw) == DATA + SIZE and not any(piece in raw for piece in pieces(content))
    for at, data in content.items():
        assert xts(key, raw[DATA + at:DATA + at + len(data)], at, sector, "decryptor") == data


@pytest.mark.parametrize("options", [
    ["--pbkdf", "argon2id", "--pbkdf-memory", "65536"], ["--pbkdf", "argon2i", "--pbkdf-memory", "65536"],
    ["--pbkdf", "pbkdf2"], ["--pbkdf", "pbkdf2", "--hash", "sha512", "--key-size", "256"],
    ["--pbkdf", "pbkdf2", "--sector-size", "4096"], ["--pbkdf", "pbkdf2", "--luks2-metadata-size", "64k", "--offset", "65536"],
], ids=" ".join)
def test_we_open_what_cryptsetup_formats(tmp_path, secret, options):
    disk = tmp_path / "disk.img"
    disk.write_bytes(b"")
    offset = 32 * MIB if "--offset" in options else DATA
    os.truncate(disk, offset + SIZE)
    cryptsetup("luksFormat", "--batch-mode", "--type", "luks2", "--iter-time", "10", *options, "--key-file", secret, disk)
    sector = 4096 if "4096" in options else int(re.search(r"sector:\s+(\d+)", cryptsetup("luksDump", disk))[1])
    key = volume_key(disk, secret)
    text = random.Random(1).randbytes(3 * 4096)
    with disk.open("r+b") as file:
        file.seek(offset + 5 * 4096)
        file.write(xts(key, text, 5 * 4096, sector, "encryptor"))
    with serving(disk, secret, sector, size=None) as url:
        assert read(url, 5 * 4096, len(text)) == text
        content = write_some(url)
    raw = disk.read_bytes()
    for at, data in content.items():
        assert xts(key, raw[offset + at:offset + at + len(data)], at, sector, "decryptor") == data
    cryptsetup("open", "--test-passphrase", "--key-file", secret, disk)


def test_what_we_do_not_support_is_refused_in_one_sentence(tmp_path, secret):
    disk = tmp_path / "disk.img"
    for options, why in [(["--type", "luks1"], "this is a LUKS image of version 1; only version 2 is supported"),
                         (["--type", "luks2", "--cipher", "serpent-xts-plain64"], 'is encrypted with "serpent-xts-plain64"')]:
        disk.write_bytes(bytes(DATA + SIZE))
        # cryptsetup asks the kernel for other ciphers, which may not have them.
        made = subprocess.run([CRYPTSETUP, "luksFormat", "--batch-mode", "--pbkdf", "pbkdf2", "--iter-time", "10", *options, "--key-file",
                               str(secret), str(disk)], capture_output=True, text=True)
        if made.returncode == 0:
            refused(disk, secret, why)


def test_a_check_refuses_an_image_that_no_secret_opens(tmp_path, secret):
    disk, config = tmp_path / "disk.img", tmp_path / "targe.toml"
    disk.write_bytes(bytes(DATA + SIZE))
    config.write_text(f'[[target]]\nname = "{IQN}"\n[[target.lun]]\ntype = "file"\npath = "{disk}"\nencrypt = "{secret}"\n')
    assert "LUKS" not in run([TARGE, "check", config])
    cryptsetup("luksFormat", "--batch-mode", "--type", "luks2", "--sector-size", "512", "--pbkdf", "pbkdf2", "--iter-time", "10", "--key-file", secret,
               disk)
    assert "LUKS" not in run([TARGE, "check", config])
    cryptsetup("luksKillSlot", "--batch-mode", "--key-file", secret, disk, "0")
    refused = subprocess.run([TARGE, "check", config], capture_output=True, text=True)
    assert refused.returncode == 2 and "the LUKS2 image has no keyslot, so no secret opens it" in refused.stdout + refused.stderr


def test_the_backup_header_is_used_and_both_damaged_are_refused(tmp_path, secret):
    disk = tmp_path / "disk.img"
    with serving(disk, secret, 512) as url:
        content = write_some(url)
    with disk.open("r+b") as file:
        file.write(bytes(512))
    told = subprocess.run([TARGE, "luks", "info", str(disk)], capture_output=True, text=True)
    assert told.returncode == 0 and "the primary LUKS2 header is damaged, and the backup header was used" in told.stderr
    with serving(disk, secret, 512) as url:
        assert {at: read(url, at, len(data)) for at, data in content.items()} == content
    # The daemon has repaired it.
    cryptsetup("luksDump", disk)
    with disk.open("r+b") as file:
        for at in (4096, 16384 + 4096):
            file.seek(at)
            file.write(b"x")
    refused(disk, secret, "both copies of the LUKS2 header are damaged")
    assert fails([CRYPTSETUP, "luksDump", disk])


def test_an_image_of_the_command_line_is_one_for_cryptsetup(tmp_path, secret):
    disk = tmp_path / "disk.img"
    disk.write_bytes(b"")
    os.truncate(disk, DATA + SIZE)
    run([TARGE, "luks", "format", "--key-file", secret, "--sector", "4096", disk])
    cryptsetup("open", "--test-passphrase", "--key-file", secret, disk)
    assert "sector       4096" in run([TARGE, "luks", "info", disk])
    again = subprocess.run([TARGE, "luks", "format", "--key-file", str(secret), str(disk)], capture_output=True, text=True)
    assert again.returncode == 1 and "holds data" in again.stderr
    os.chmod(secret, 0o644)
    refused(disk, secret, "can be read by others")


def test_an_initiator_decrypts_what_the_target_never_sees(tmp_path, secret):
    disk = tmp_path / "disk.img"
    disk.write_bytes(b"")
    os.truncate(disk, DATA + SIZE)
    cryptsetup("luksFormat", "--batch-mode", "--type", "luks2", "--pbkdf", "pbkdf2", "--iter-time", "10", "--sector-size", "512", "--key-file", secret, disk)
    text = random.Random(4).randbytes(4096) * 16
    (tmp_path / "text").write_bytes(text.ljust(SIZE, b"."))
    with serving(disk, None, 512, size=None) as url:
        run([TARGE, "verify", url, "--luks", secret, "--count", "300", "--write", "--seed", "5"])
        wrong = key_file(tmp_path / "wrong", bytes(32))
        refusal = subprocess.run([TARGE, "verify", url, "--luks", str(wrong), "--count", "1", "--write"], capture_output=True, text=True)
        assert refusal.returncode == 1 and "the secret opens no keyslot of the LUKS2 image" in refusal.stderr, refusal.stderr
        with subprocess.Popen([TARGE, "attach", url, "--luks", str(secret), "--nbd", str(tmp_path / "nbd")], stdout=subprocess.PIPE) as attached:
            uri = attached.stdout.readline().decode().strip()
            run(["qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", tmp_path / "text", uri])
            run(["qemu-img", "compare", "-f", "raw", "-F", "raw", tmp_path / "text", uri])
            attached.terminate()
        assert attached.returncode == 0
    assert "is a LUKS2 image and is served as it is" in (tmp_path / "state" / "log").read_text()
    raw = disk.read_bytes()
    assert text[:64] not in raw and bytes(64).replace(b"\0", b".") not in raw
    key = volume_key(disk, secret)
    assert xts(key, raw[DATA:DATA + len(text)], 0, 512, "decryptor") == text


@pytest.mark.parametrize("sector", [512, 4096])
def test_a_load_uses_the_data_of_an_image_and_leaves_its_header(tmp_path, secret, sector):
    disk, block = tmp_path / "disk.img", 65536
    disk.write_bytes(b"")
    os.truncate(disk, DATA + SIZE)
    run([TARGE, "luks", "format", "--key-file", secret, "--sector", str(sector), disk])
    header = disk.read_bytes()[:DATA]
    with serving(disk, None, 512, size=None) as url:
        load = [TARGE, "bench", url, "--luks", secret, "--bs", str(block), "--json"]
        wrote = json.loads(run([*load, "--rw", "write", "--write", "--count", str(SIZE // block), "--depth", "4"]))
        assert wrote["luks"] and wrote["write"]["ios"] == SIZE // block, wrote
        read_back = json.loads(run([*load, "--random", "--count", "64"]))
        assert read_back["read"]["bytes_per_s"] > 0
        wrong = key_file(tmp_path / "wrong", bytes(32))
        for options, why in [(["--luks", str(wrong)], "the secret opens no keyslot"), (["--luks", str(secret), "--range", f"0,{SIZE + block}"], f"has {SIZE} bytes"),
                             (["--luks", str(secret), "--range", "512,64k"], "does not start at" if sector == 4096 else "")]:
            refusal = subprocess.run([TARGE, "bench", url, "--bs", "4k", "--time", "1", *options], capture_output=True, text=True)
            assert (refusal.returncode != 0) == bool(why) and why in refusal.stderr, refusal.stderr
    raw = disk.read_bytes()
    assert raw[:DATA] == header
    # Every command writes the same bytes, which look different at every place on the disk.
    plain = xts(volume_key(disk, secret), raw[DATA:], 0, sector, "decryptor")
    assert plain == plain[:block] * (SIZE // block) and len(set(plain[:block])) == 256
    assert len({raw[DATA + at:DATA + at + sector] for at in range(0, SIZE, sector)}) == SIZE // sector


def xts(key, data, at, sector, direction):
    """AES-XTS as dm-crypt does it: each sector under the number of its first 512 bytes."""
    out = b""
    for offset in range(0, len(data), sector):
        number = (at + offset) // 512
        cipher = Cipher(algorithms.AES(key), modes.XTS(number.to_bytes(16, "little")))
        out += getattr(cipher, direction)().update(data[offset:offset + sector])
    return out


class serving:
    """A daemon with one disk; gives its URL."""

    def __init__(self, disk, secret, sector, size=SIZE):
        self.portal = f"127.0.0.1:{listening.free_port()}"
        size = f",size={size}" if size else ""
        lun = f"file:{disk}{size},bs={sector}" + (f",encrypt={secret}" if secret else "")
        self.log = disk.parent / "state" / "log"
        self.log.parent.mkdir(mode=0o700, exist_ok=True)
        self.command = [TARGE, "serve", "--listen", self.portal, "--target", IQN, "--lun", lun, "--state-dir", str(disk.parent / "state"),
                        "--socket", str(disk.parent / "state" / "socket")]

    def __enter__(self):
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        until = time.monotonic() + START_MAX_S
        while self.process.poll() is None and time.monotonic() < until:
            try:
                host, port = self.portal.split(":")
                socket.create_connection((host, int(port))).close()
                return f"iscsi://{self.portal}/{IQN}/0"
            except ConnectionRefusedError:
                time.sleep(0.05)
        self.process.kill()
        self.process.wait()
        raise AssertionError(self.log.read_text())

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(START_MAX_S) == 0, self.log.read_text()


def refused(disk, secret, why):
    """The daemon ends by itself, and says why. Its portal listens before that."""
    daemon = serving(disk, secret, 512, size=None)
    with daemon.log.open("wb") as log:
        code = subprocess.run(daemon.command, stdout=log, stderr=log, timeout=START_MAX_S).returncode
    told = daemon.log.read_text()
    assert code != 0 and why in told, (code, told)


def write_some(url, reach=SIZE):
    """Writes at a few places; returns what is where."""
    rng = random.Random(3)
    content = {at: rng.randbytes(length) for at, length in ((0, 65536), (1 * MIB + 4096, 12288), (reach - 4096, 4096))}
    content[2 * MIB] = bytes(4096)
    for at, data in content.items():
        subprocess.run([TARGE, "write", url, "--write", "--offset", str(at)], input=data, check=True, capture_output=True)
    return content


def pieces(content):
    return [data[at:at + 64] for data in content.values() if any(data) for at in range(0, len(data), 4096)]


def read(url, at, length):
    return subprocess.run([TARGE, "read", url, "--offset", str(at), "--length", str(length)], check=True, capture_output=True).stdout


def volume_key(disk, secret):
    dump = cryptsetup("luksDump", "--dump-volume-key", "--batch-mode", "--key-file", secret, disk)
    return bytes.fromhex(re.search(r"MK dump:\s+((?:[0-9a-f]{2}\s+)+)", dump)[1])


def key_file(path, content):
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def cryptsetup(*arguments):
    return run([CRYPTSETUP, *arguments])


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def fails(command):
    return subprocess.run([str(word) for word in command], capture_output=True).returncode != 0
