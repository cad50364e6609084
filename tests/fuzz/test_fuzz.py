"""Let libFuzzer send every fuzz target what a hostile peer can send, for a short time each.

It needs a C++ compiler for libFuzzer and nothing else beyond the stable toolchain: the compiler's coverage passes are
switched on by hand, which is what cargo-fuzz does. No address sanitizer: that needs a nightly toolchain, and the code
under test forbids `unsafe`, so what it can do wrong shows as a panic, a hang or memory without end.

An input that breaks a target stands in `out/fuzz/TARGET/` and is run again with
`pytest tests/fuzz -k TARGET --input FILE`. New inputs that reach more code are kept in `out/fuzz/TARGET/corpus`.
"""

import os
import platform
import re
import shutil
import subprocess

import pytest

import servers

FOLDER = os.path.join(servers.ROOT, "fuzz")
OUT = os.path.join(servers.OUT, "fuzz")
FLAGS = ["--cfg", "fuzzing", "-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=4",
         "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters", "-Cllvm-args=-sanitizer-coverage-pc-table",
         "-Cllvm-args=-sanitizer-coverage-trace-compares", "-Cdebug-assertions", "-Coverflow-checks"]
# One input may take so long and so much: far more than any takes that is in order, also on a machine that stands still for a while.
INPUT_MAX_S, MEMORY_MAX_MIB = 60, 2048
# Ends a build that hangs. A machine that has much else to do builds for a quarter of an hour.
BUILD_MAX_S = 5000
pytestmark = [pytest.mark.without_targe, pytest.mark.timeout(BUILD_MAX_S + 300)]


def names():
    return sorted(file[:-3] for file in os.listdir(os.path.join(FOLDER, "fuzz_targets")) if file.endswith(".rs"))


@pytest.fixture(scope="module")
def binaries():
    """Builds every target with coverage; returns the folder they are in."""
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        pytest.skip("no C++ compiler, which libFuzzer is built with")
    if platform.system() != "Linux":
        pytest.skip("libFuzzer is linked here on Linux alone")
    host = re.search(r"host: (\S+)", subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout)[1]
    # A target of its own name, so that build scripts and macros are not instrumented.
    command = [os.environ.get("CARGO", "cargo"), "build", "--release", "--locked", "--bins", "--target", host]
    target_dir = os.path.join(servers.ROOT, "target", "fuzz")
    settings = dict(os.environ, RUSTFLAGS=" ".join(FLAGS), CARGO_TARGET_DIR=target_dir)
    subprocess.run(command, cwd=FOLDER, env=settings, check=True, timeout=BUILD_MAX_S)
    return os.path.join(target_dir, host, "release")


@pytest.mark.parametrize("name", names())
def test_survives(binaries, pytestconfig, name):
    seconds, given = pytestconfig.getoption("seconds"), pytestconfig.getoption("input")
    out = os.path.join(OUT, name)
    corpus = os.path.join(out, "corpus")
    os.makedirs(corpus, exist_ok=True)
    limits = [f"-timeout={INPUT_MAX_S}", f"-rss_limit_mb={MEMORY_MAX_MIB}", f"-artifact_prefix={out}/"]
    if given:
        what = [given]
    else:
        what = [f"-max_total_time={seconds}", "-max_len=16384", corpus, os.path.join(FOLDER, "seeds", name)]
    done = subprocess.run([os.path.join(binaries, name), *limits, *what], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=seconds + 50 * INPUT_MAX_S)
    with open(os.path.join(out, "log"), "w") as log:
        log.write(done.stdout)
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines()
                if re.search(r"panicked|ERROR: libFuzzer|Test unit written|assertion|left:|right:", line)]
        raise AssertionError(f"exit code {done.returncode}: {' | '.join(said)[:800]}; the whole is in {out}/log")
    if told := re.search(r"Done (\d+) runs", done.stdout):
        print(f"   {name}: {told[1]} inputs", flush=True)
