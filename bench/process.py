"""What a process costs: processor time, context switches, memory, system calls."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time

TRACEFS = "/sys/kernel/tracing"
COUNTER = "raw_syscalls:sys_enter"


def usage(pid):
    """Processor nanoseconds and context switches so far, over all threads."""
    cpu_ns = switches = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                cpu_ns += int(file.read().split()[0])
            with open(f"/proc/{pid}/task/{thread}/status") as file:
                switches += sum(int(n) for n in re.findall(r"ctxt_switches:\s+(\d+)", file.read()))
        except FileNotFoundError:
            continue
    return {"cpu_ns": cpu_ns, "switches": switches}


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1])


class SystemCalls:
    """Counts the system calls of a running process, all threads: by the kernel's tracepoint with perf, which disturbs
    little, or else by strace, which slows the process down."""

    def __init__(self, pid):
        self.pid = pid
        self.output = tempfile.NamedTemporaryFile(mode="r", prefix="targe-bench-")
        self.with_perf = tracepoints()
        if self.with_perf:
            command = ["perf", "stat", "-x", ",", "-e", COUNTER, "-o", self.output.name, "-p", str(pid)]
        else:
            command = ["strace", "-c", "-f", "-o", self.output.name, "-p", str(pid)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Neither says when it has attached.
        time.sleep(0.7)

    def end(self):
        """How many there were."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        text = self.output.read()
        self.output.close()
        return total(text, self.with_perf)

    @property
    def how(self):
        return "perf" if self.with_perf else "strace"


@contextlib.contextmanager
def counted():
    """Counts the system calls of a command: what it is to be prefixed with, and afterwards how many there were."""
    with tempfile.NamedTemporaryFile(mode="r", prefix="targe-bench-") as output:
        yield Counted(output)


class Counted:
    def __init__(self, output):
        self.output, self.with_perf = output, tracepoints()
        how = ["perf", "stat", "-x", ",", "-e", COUNTER] if self.with_perf else ["strace", "-c", "-f"]
        self.prefix = [*how, "-o", output.name]

    def count(self):
        return total(self.output.read(), self.with_perf)


def total(text, with_perf):
    """The number that perf or strace has written down."""
    pattern = r"^(\d+)," if with_perf else r"(\d+)\s+(?:\d+\s+)?total$"
    return int(re.search(pattern, text, re.MULTILINE)[1])


def tracepoints():
    """Whether the kernel's tracepoints can be counted here; as root, makes them visible first."""
    if subprocess.run(["sh", "-c", "command -v perf"], capture_output=True).returncode != 0:
        return False
    if os.geteuid() == 0 and not os.path.exists(f"{TRACEFS}/events"):
        subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACEFS], capture_output=True)
    tried = subprocess.run(["perf", "stat", "-e", COUNTER, "true"], capture_output=True, text=True)
    return tried.returncode == 0 and "not supported" not in tried.stderr
