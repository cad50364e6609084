"""Certificates made by openssl, and the TLS of Python's `ssl`, which is OpenSSL: a foreign end for both roles."""

import os
import socket
import ssl
import subprocess

import relaying

CHUNK = 1 << 16
OPENSSL_MAX_S = 60


class Authority:
    """An authority and the certificates that it signs, as files in a folder."""

    def __init__(self, folder, name="authority"):
        self.folder, self.name = str(folder), name
        os.makedirs(self.folder, exist_ok=True)
        self.openssl("req", "-x509", *self.new_key(name), "-days", "2", "-subj", f"/CN=targe test {name}",
                     "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")

    @property
    def certificate(self):
        return self.path(self.name, "crt")

    def path(self, name, suffix):
        return os.path.join(self.folder, f"{name}.{suffix}")

    def new_key(self, name):
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.path(name, "key"),
                "-out", self.path(name, "crt"))

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=OPENSSL_MAX_S)

    def sign(self, name, names, usage="serverAuth", days=2):
        """The paths of a new certificate for these names and of its key. Fewer days than 0 make one that has expired."""
        request, extensions = self.path(name, "csr"), self.path(name, "ext")
        arguments = list(self.new_key(name))
        arguments[-1] = request
        self.openssl("req", *arguments, "-subj", f"/CN={name}")
        with open(extensions, "w") as file:
            file.write(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\nextendedKeyUsage={usage}\n")
        self.openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.path(self.name, "key"), "-CAcreateserial",
                     "-out", self.path(name, "crt"), "-days", str(days), "-extfile", extensions)
        os.chmod(self.path(name, "key"), 0o600)
        return self.path(name, "crt"), self.path(name, "key")


class Relay(relaying.Relay):
    """Accepts connections on 127.0.0.1 and carries each to `upstream`: with TLS towards the upstream (`client`) or towards the
    initiators (`server`), each an ssl.SSLContext. Counts the connections whose handshake succeeded."""

    def __init__(self, upstream, client=None, server=None, server_name="127.0.0.1"):
        self.upstream, self.client, self.server, self.server_name = upstream, client, server, server_name
        self.carried = 0
        self.faults = []
        super().__init__()

    def serve(self, near):
        try:
            far = socket.create_connection(self.upstream, timeout=60)
            if self.client:
                far = self.client.wrap_socket(far, server_hostname=self.server_name)
            if self.server:
                near.settimeout(60)
                near = self.server.wrap_socket(near, server_side=True)
        except (OSError, ssl.SSLError) as why:
            self.faults.append(str(why))
            near.close()
            return
        self.carried += 1
        # In this thread both ways: an SSL object must not be used by two at the same time.
        pump(near, far)


def pump(near, far):
    """Carries bytes both ways until one end closes."""
    import selectors
    waiting = {near: b"", far: b""}
    other = {near: far, far: near}
    for end in (near, far):
        end.setblocking(False)
    try:
        with selectors.DefaultSelector() as ready:
            for end in (near, far):
                ready.register(end, selectors.EVENT_READ)
            while True:
                for end in (near, far):
                    events = (0 if waiting[other[end]] else selectors.EVENT_READ) | (selectors.EVENT_WRITE if waiting[end] else 0)
                    if events:
                        ready.modify(end, events) if end in ready.get_map() else ready.register(end, events)
                    elif end in ready.get_map():
                        ready.unregister(end)
                # What TLS holds already makes no socket readable.
                pending = any(getattr(end, "pending", int)() and not waiting[other[end]] for end in (near, far))
                ready.select(0 if pending else None)
                for end in (near, far):
                    try:
                        if waiting[end]:
                            waiting[end] = waiting[end][end.send(waiting[end]):]
                        if not waiting[other[end]]:
                            got = end.recv(CHUNK)
                            if not got:
                                return
                            waiting[other[end]] = got
                    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                        continue
    except OSError:
        return
    finally:
        near.close()
        far.close()


def trusting(authority, identity=None):
    """The context of a client."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if identity:
        context.load_cert_chain(*identity)
    return context


def presenting(identity, client_authority=None):
    """The context of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*identity)
    if client_authority:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_authority.certificate)
    return context
