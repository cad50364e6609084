"""A target whose initiators log in with a password (docs/iscsi-aead.md §3)."""

import os
import subprocess

import servers

USER, PASSWORD = "alice", "correct horse"
RUN_MAX_S = 300


class WithPasswords(servers.Targe):
    """Initiators log in with a password of the record file, and all sessions need the protection `requires`. `discovers`: discovery needs
    the password too."""

    requires, discovers = None, False

    def passwords(self):
        return os.path.join(self.folder, "users")

    def config_lines(self):
        yield from super().config_lines()
        yield from ("[target.auth]", f'password_file = "{self.passwords()}"')
        if self.requires:
            yield from ("[target.session]", f'protection = "{self.requires}"')
        if self.discovers:
            yield from ("[discovery.auth]", f'password_file = "{self.passwords()}"')

    def make_record(self):
        """Makes the record of the user's password, a cheap one."""
        os.makedirs(self.folder, exist_ok=True)
        made = subprocess.run([servers.Targe.binary, "passwd", self.passwords(), "--user", USER, "--memory", "1M", "--passes", "1"],
                              capture_output=True, timeout=RUN_MAX_S, input=f"{PASSWORD}\n".encode())
        assert made.returncode == 0, made.stderr


def secret_file(path, text=PASSWORD):
    """Writes a password into a file that nobody else can read. Returns its path."""
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return path
