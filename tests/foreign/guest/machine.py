"""A QEMU machine (software emulation unless told otherwise) that boots the guest and does what it is told."""

import os
import queue
import subprocess
import threading
import time

from servers import die_with_parent

# How the guest's processors are made. Emulation works anywhere; GUEST_ACCEL=kvm is faster where /dev/kvm is to be had. Both processors in
# one thread, for a kernel patches its own code as it runs, and emulated ones that run at the same time may meet the patch half done
# ("Oops: int3").
ACCELERATOR = os.environ.get("GUEST_ACCEL", "tcg,thread=single")
# A machine that has much else to do emulates a boot in minutes.
BOOT_MAX_S = 600
COMMAND_MAX_S = 300
HOST = "10.0.2.2"


class CommandFailed(Exception):
    pass


class Guest:
    """`run` gives a command to the guest's shell and returns what it printed."""

    def __init__(self, kernel, initramfs, folder, forwards=(), devices=()):
        """`forwards` are (host address, host port, guest port), `devices` more arguments for QEMU."""
        self.console = os.path.join(folder, "console.log")
        self.transcript = open(os.path.join(folder, "transcript.log"), "w")
        self.lines = queue.Queue()
        # The kernel counts the ticks of its timer as it boots, and gives up where a busy machine lets too few of them through.
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", ACCELERATOR, "-cpu", "max", "-smp", "2", "-m", "1024",
             "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
             "-kernel", kernel, "-initrd", initramfs,
             "-append", "console=ttyS0 quiet loglevel=5 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check",
             "-serial", f"file:{self.console}", "-serial", "stdio",
             "-netdev", ",".join(["user", "id=net", *(f"hostfwd=tcp:{host}:{port}-:{guest}" for host, port, guest in forwards)]),
             "-device", "virtio-net-pci,netdev=net,romfile=", *devices],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        threading.Thread(target=self.read_lines, daemon=True).start()
        try:
            self.answer("boot", BOOT_MAX_S)
        except Exception:
            self.off()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.off()

    def off(self):
        self.process.kill()
        self.process.wait()
        self.transcript.close()

    def read_lines(self):
        for line in self.process.stdout:
            self.lines.put(line.decode(errors="replace").rstrip("\r\n"))
        self.lines.put(None)

    def run(self, command, limit_s=COMMAND_MAX_S, check=True):
        """What `command` printed; raises CommandFailed when it exits non-zero (unless `check` is off) or takes too
        long. `.code` of the last command is kept."""
        self.tell(command)
        return self.answer(command, limit_s, check)

    def tell(self, command):
        """Gives a command without waiting for it; `answer` does."""
        self.transcript.write(f"$ {command}\n")
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def next_line(self, what, printed, deadline):
        """The next line of what the guest prints; `printed` came before it."""
        try:
            line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise CommandFailed(f"`{what}` took too long; {self.last_words(printed)}") from None
        if line is None:
            raise CommandFailed(f"the guest is gone during `{what}`; {self.last_words(printed)}")
        self.transcript.write(line + "\n")
        self.transcript.flush()
        return line

    def answer(self, what, limit_s, check=True):
        deadline, printed = time.monotonic() + limit_s, []
        while not (line := self.next_line(what, printed, deadline)).startswith("@@ "):
            printed.append(line)
        self.code = line.removeprefix("@@ ")
        text = "\n".join(printed)
        if check and self.code not in ("0", "ready"):
            raise CommandFailed(f"`{what}` exits {self.code}: {text[-600:]}")
        return text

    def last_words(self, printed):
        with open(self.console, errors="replace") as console:
            said = console.read().splitlines()
        return f"it printed: {' / '.join(printed[-8:])}; the console ends: {' / '.join(said[-24:])}"
