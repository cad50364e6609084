"""Cartridges judged by a second reader of their format, tape images by a second reader and writer, and imports that are killed."""

import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import time

import pytest

import cartridges
import servers

TARGE = os.environ.get("TARGE", os.path.join(servers.ROOT, "target", "release", "targe"))
RUN_MAX_S = 300
KILLS = 25
pytestmark = pytest.mark.without_targe


@pytest.fixture(name="tape")
def fixture_tape(tmp_path):
    return made(tmp_path / "tape")


@pytest.mark.parametrize("form", ["simh", "e11", "tpc"])
def test_an_image_comes_back_and_a_second_reader_reads_the_cartridge(tmp_path, tape, seed, form):
    found = some(random.Random(seed), 60)
    (tmp_path / "in.tap").write_bytes(cartridges.image(found, form))
    run("import", *(["--form", "tpc"] if form == "tpc" else []), tape, tmp_path / "in.tap")
    assert cartridges.objects(tape) == found
    run("verify", tape)
    run("export", tape, tmp_path / "out.tap")
    assert cartridges.content((tmp_path / "out.tap").read_bytes()) == found
    run("export", "--form", form, tape, tmp_path / "same.tap")
    end = {"simh": b"\xff" * 4, "e11": b"\xff" * 4, "tpc": b"\xff" * 2}[form]
    assert (tmp_path / "same.tap").read_bytes() == cartridges.image(found, form) + end
    listed = json.loads(run("ls", "--json", tape))["partitions"][0]
    assert listed["objects"] == len(found) and listed["filemarks"] == found.count(b"")
    records = [len(file) for file in files_of(found)]
    assert [file["records"] for file in listed["files"]] == records


def test_compressed_records_come_back(tmp_path, tape):
    found = [bytes([number]) * 100_000 for number in range(50)] + [b"", os.urandom(5000)]
    (tmp_path / "in.tap").write_bytes(cartridges.image(found, "simh"))
    run("import", "--compress", tape, tmp_path / "in.tap")
    assert sum(file.stat().st_size for file in tape.glob("p0-*.log")) < 100_000
    run("export", tape, tmp_path / "out.tap")
    assert cartridges.content((tmp_path / "out.tap").read_bytes()) == found


def test_gaps_are_skipped_and_the_end_of_the_medium_ends_the_image(tmp_path, tape):
    gap = b"\xfe\xff\xff\xff"
    record = cartridges.image([b"data"], "simh")
    (tmp_path / "in.tap").write_bytes(gap + record + gap + gap + bytes(4) + b"\xff" * 4 + b"behind the end")
    run("import", tape, tmp_path / "in.tap")
    assert cartridges.objects(tape) == [b"data", b""]


def test_bad_images_are_refused_and_change_nothing(tmp_path, tape):
    good = cartridges.image([b"abc", b"", b"defg" * 100], "simh")
    (tmp_path / "good.tap").write_bytes(good)
    run("import", tape, tmp_path / "good.tap")
    before = everything(tape)
    bad = {
        "cut": (good[:-7], "is no tape image"),
        "other length behind": (good[:-4] + struct.pack("<I", 5), "another length behind it"),
        "read with an error": (struct.pack("<I", 0x80000003) + b"abc\0" + struct.pack("<I", 0x80000003), "read with an error"),
        "reserved": (struct.pack("<I", 0x70000003) + b"abc\0", "means nothing"),
        "too long": (struct.pack("<I", 9 << 20) + bytes(9 << 20) + struct.pack("<I", 9 << 20), "at most 8 MiB"),
        "no image": (b"What is this? A text, which is no tape image at all.", "is no tape image"),
    }
    for name, (data, why) in bad.items():
        (tmp_path / "bad.tap").write_bytes(data)
        told = fails("import", "--append", tape, tmp_path / "bad.tap")
        assert why in told and len(told.splitlines()) == 1, (name, told)
        assert everything(tape) == before, name
    assert "give --append or --overwrite" in fails("import", tape, tmp_path / "good.tap")
    assert "no partition 1" in fails("import", "--partition", "1", tape, tmp_path / "good.tap")
    assert "No such file" in fails("import", tape, tmp_path / "missing.tap")
    assert cartridges.objects(tape) == [b"abc", b"", b"defg" * 100]


def test_what_does_not_fit_is_refused_before_and_removed_after(tmp_path):
    tape = made(tmp_path / "small", "--capacity", "4M")
    (tmp_path / "first.tap").write_bytes(cartridges.image([b"first", b""], "simh"))
    run("import", tape, tmp_path / "first.tap")
    (tmp_path / "large.tap").write_bytes(cartridges.image([os.urandom(100_000)] * 50, "simh"))
    before = everything(tape)
    assert "of the partition" in fails("import", "--append", tape, tmp_path / "large.tap")
    assert everything(tape) == before
    assert "partition is full" in fails("import", "--append", "--compress", tape, tmp_path / "large.tap")
    assert cartridges.objects(tape) == [b"first", b""]
    run("verify", tape)


def test_a_killed_import_leaves_whole_objects(tmp_path, seed):
    """What was there before an import stays, and of the import the first objects are there, whole, however early it is killed."""
    choose = random.Random(seed)
    kept = [b"kept", b"", b"more" * 1000]
    found = [choose.randbytes(choose.choice([17, 4000, 100_000, 1_000_000])) if choose.random() < 0.9 else b"" for _ in range(300)]
    (tmp_path / "kept.tap").write_bytes(cartridges.image(kept, "simh"))
    (tmp_path / "in.tap").write_bytes(cartridges.image(found, "simh"))
    partial = 0
    took = None
    for number in range(KILLS + 1):
        tape = made(tmp_path / f"tape{number}")
        run("import", tape, tmp_path / "kept.tap")
        began = time.monotonic()
        with subprocess.Popen([TARGE, "tape", "import", "--append", tape, tmp_path / "in.tap"], stderr=subprocess.DEVNULL) as process:
            if took is not None:
                time.sleep(choose.random() * took)
                process.send_signal(signal.SIGKILL)
            process.wait(RUN_MAX_S)
        if took is not None and process.returncode == 0:
            # It was over before it was killed: the first one took longer than the others do.
            took = min(took, time.monotonic() - began)
        if took is None:
            # The first one is not killed, and tells how long an import takes.
            took = time.monotonic() - began
            assert process.returncode == 0
        run("verify", tape)
        run("export", tape, tmp_path / f"{number}.tap")
        back = cartridges.content((tmp_path / f"{number}.tap").read_bytes())
        assert len(back) >= len(kept) and back == (kept + found)[:len(back)], f"seed {seed}, kill {number}"
        partial += len(kept) < len(back) < len(kept) + len(found)
        # The next write goes behind what is there, and nothing that was lost comes back.
        run("import", "--append", tape, tmp_path / "kept.tap")
        if number % 8 == 1:
            assert cartridges.objects(tape) == back + kept, f"seed {seed}, kill {number}"
        run("verify", tape)
        for file in (*tape.iterdir(), tmp_path / f"{number}.tap"):
            file.unlink()
    print(f"   {partial} of {KILLS} imports were killed with a part of the image written", flush=True)
    assert partial > 0, "no import was killed in its midst"


def test_damage_is_named_and_the_rest_can_be_read(tmp_path, tape):
    found = [bytes([number]) * 10_000 for number in range(30)]
    (tmp_path / "in.tap").write_bytes(cartridges.image(found, "simh"))
    run("import", tape, tmp_path / "in.tap")
    whole = json.loads(run("verify", "--json", tape))
    assert whole["whole"] and whole["partitions"][0]["records"] == 30
    log = next(tape.glob("p0-*.log"))
    data = bytearray(log.read_bytes())
    data[data.index(bytes([7]) * 100)] ^= 1
    log.write_bytes(data)
    told = subprocess.run([TARGE, "tape", "verify", "--json", tape], capture_output=True, text=True, timeout=RUN_MAX_S)
    assert told.returncode == 1 and "the cartridge is damaged" in told.stderr
    damaged = json.loads(told.stdout)["partitions"][0]
    assert damaged["damaged"] == [{"first_object": 7, "count": 1}] and damaged["records"] == 29
    assert damaged["sha256"] != whole["partitions"][0]["sha256"]
    assert "object 7 is damaged" in fails("export", tape, tmp_path / "out.tap")
    assert not (tmp_path / "out.tap").exists()


def test_what_the_disk_cannot_read_is_told_and_not_overwritten(tmp_path, tape):
    (tmp_path / "in.tap").write_bytes(cartridges.image([bytes([number]) * 10_000 for number in range(30)], "simh"))
    run("import", tape, tmp_path / "in.tap")
    log = next(tape.glob("p0-*.log"))
    log.rename(tmp_path / "log")
    # Reading a folder fails like a disk.
    log.mkdir()
    damaged = json.loads(run("verify", "--json", tape, code=1))["partitions"][0]
    assert damaged["damaged"] == [{"first_object": 0, "count": 30}] and not damaged["end_unreadable"]
    assert "a read failed" in fails("export", tape, tmp_path / "out.tap")
    # What a killed process wrote is found by reading, so here the end of the data is not known.
    cartridges.forget_unload(tape)
    assert "more objects may be behind the last one" in run("verify", tape, code=1)
    assert json.loads(run("verify", "--json", tape, code=1))["partitions"][0]["end_unreadable"]
    assert json.loads(run("ls", "--json", tape))["partitions"][0]["objects"] == 0
    assert "a read failed" in fails("import", tape, tmp_path / "in.tap")
    log.rmdir()
    (tmp_path / "log").rename(log)
    assert "30 records" in run("verify", tape)
    run("import", "--append", tape, tmp_path / "in.tap")
    assert len(cartridges.objects(tape)) == 60


def test_a_damaged_label_is_repaired_by_its_copy_and_both_damaged_are_refused(tmp_path, tape):
    (tmp_path / "in.tap").write_bytes(cartridges.image([b"data"], "simh"))
    run("import", tape, tmp_path / "in.tap")
    flip(tape / "label", 40)
    assert "one copy of the label is damaged" in run("verify", tape, code=1)
    run("import", "--append", tape, tmp_path / "in.tap")
    run("verify", tape)
    flip(tape / "label", 40)
    flip(tape / "label", 65_536 + 40)
    for command in (["ls"], ["verify"], ["import", "--append"], ["export"]):
        files = [tmp_path / "in.tap"] if command[0] == "import" else [tmp_path / "new.tap"] if command[0] == "export" else []
        assert "both copies of the label are damaged" in fails(*command, tape, *files)
    assert not (tmp_path / "new.tap").exists()


def test_one_process_writes_and_several_read(tmp_path, tape):
    (tmp_path / "in.tap").write_bytes(cartridges.image([b"data"], "simh"))
    with open(tape / "label", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for command in (["ls", tape], ["import", tape, tmp_path / "in.tap"]):
            assert "another process uses the cartridge" in fails(*command)
        fcntl.flock(other, fcntl.LOCK_SH)
        run("ls", tape)
        assert "another process uses the cartridge" in fails("import", tape, tmp_path / "in.tap")
    run("import", tape, tmp_path / "in.tap")


def test_worm_takes_more_and_changes_nothing(tmp_path):
    tape = made(tmp_path / "worm", "--worm", "--barcode", "A00001LY")
    (tmp_path / "in.tap").write_bytes(cartridges.image([b"first", b""], "simh"))
    run("import", tape, tmp_path / "in.tap")
    assert "WORM" in fails("import", "--overwrite", tape, tmp_path / "in.tap")
    run("import", "--append", tape, tmp_path / "in.tap")
    assert cartridges.objects(tape) == [b"first", b"", b"first", b""]
    listed = json.loads(run("ls", "--json", tape))
    assert listed["worm"] and listed["barcode"] == "A00001LY"


def test_partitions_are_written_one_by_one(tmp_path):
    tape = made(tmp_path / "parts", "--capacity", "1G", "--partitions", "10M,rest")
    for partition, data in enumerate([b"index", b"data"]):
        (tmp_path / "in.tap").write_bytes(cartridges.image([data], "simh"))
        run("import", "--partition", str(partition), tape, tmp_path / "in.tap")
    assert [cartridges.objects(tape, partition) for partition in (0, 1)] == [[b"index"], [b"data"]]
    capacities = [part["capacity"] for part in json.loads(run("ls", "--json", tape))["partitions"]]
    assert capacities == [10 << 20, (1 << 30) - (10 << 20)]


def test_what_cannot_be_made_is_refused_in_one_sentence(tmp_path):
    for options in (["--profile", "lto8", "--barcode", "A00001L7"], ["--barcode", "white space"], ["--worm", "--partitions", "1G,rest"],
                    ["--partitions", "1G,1G,1G,1G,1G"], ["--profile", "lto5", "--partitions", "1G,1G,1G"], ["--capacity", "100"],
                    ["--capacity", "1G", "--partitions", "2G"]):
        told = subprocess.run([TARGE, "tape", "create", tmp_path / "x", *options], capture_output=True, text=True, timeout=RUN_MAX_S)
        assert told.returncode == 2 and len(told.stderr.splitlines()) == 1, (options, told.stderr)
        assert not (tmp_path / "x").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("something")
    assert "not empty" in fails("create", tmp_path / "full")
    assert "holds no cartridge" in fails("ls", tmp_path / "full")


def made(folder, *options):
    run("create", *(options or ["--barcode", "A00001L8"]), folder)
    return folder


def some(choose, count):
    """Returns records of all kinds of lengths, with filemarks between them."""
    lengths = [1, 2, 63, 64, 65, 511, 4096, 40_001, 65_534]
    return [choose.randbytes(choose.choice(lengths)) if choose.random() < 0.8 else b"" for _ in range(count)]


def files_of(found):
    """Returns the records between filemarks: no last file if nothing is behind the last filemark."""
    files = [[]]
    for data in found:
        if data:
            files[-1].append(data)
        else:
            files.append([])
    return files if files[-1] else files[:-1]


def everything(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def flip(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def run(*args, code=0):
    done = subprocess.run([TARGE, "tape", *args], capture_output=True, text=True, timeout=RUN_MAX_S)
    assert done.returncode == code, done.stderr
    return done.stdout


def fails(*args):
    done = subprocess.run([TARGE, "tape", *args], capture_output=True, text=True, timeout=RUN_MAX_S)
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    return done.stderr
