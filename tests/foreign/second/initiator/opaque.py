"""The client of OPAQUE-3DH (RFC 9807) with ristretto255, SHA-512 and Argon2id, as §6.3 has it."""

import hashlib
import hmac
import secrets

from argon2.low_level import Type, hash_secret_raw

from . import ristretto
from .keys import expand, extract

OPRF_CONTEXT = b"OPRFV1-\0-ristretto255-SHA512"
KE1_LEN, KE2_LEN, KE3_LEN = 96, 320, 64


class Refused(Exception):
    """A message that does not open: wrong password, unknown initiator, or forged (§6.1: all the same)."""


def oprf_blind(password, scalar):
    """RFC 9497 §3.3.1."""
    element = ristretto.hash_to_group(password, b"HashToGroup-" + OPRF_CONTEXT)
    return ristretto.encode(ristretto.multiply(scalar, element))


def oprf_finalize(password, scalar, evaluated):
    """RFC 9497 §3.3.1."""
    inverse = pow(scalar, -1, ristretto.ORDER)
    element = ristretto.encode(ristretto.multiply(inverse, ristretto.decode(evaluated)))
    return hashlib.sha512(prefixed(password) + prefixed(element) + b"Finalize").digest()


def prefixed(data):
    return len(data).to_bytes(2, "big") + data


def derive_key_pair(seed, info=b"OPAQUE-DeriveDiffieHellmanKeyPair"):
    """RFC 9497 §3.2.1."""
    for counter in range(256):
        scalar = ristretto.hash_to_scalar(seed + prefixed(info) + bytes([counter]), b"DeriveKeyPair" + OPRF_CONTEXT)
        if scalar:
            return scalar, ristretto.encode(ristretto.multiply(scalar, ristretto.GENERATOR))
    raise Refused("no key pair")


def derive_secret(secret, label, transcript_hash):
    """RFC 9807 §6.4.2: Derive-Secret, with Nx = 64."""
    label = b"OPAQUE-" + label
    return expand(secret, b"\0\x40" + bytes([len(label)]) + label + bytes([len(transcript_hash)]) + transcript_hash, 64)


def mac(key, data):
    return hmac.new(key, data, hashlib.sha512).digest()


def exchange(scalar, element):
    return ristretto.encode(ristretto.multiply(scalar, ristretto.decode(element)))


def xor(one, other):
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


class Client:
    """One login (RFC 9807 §6.2): `ke1`, then `finish` with the other end's KE2."""

    def __init__(self, password, identity, random=secrets.token_bytes):
        self.password, self.identity = password, identity
        self.blind = 1 + int.from_bytes(random(64), "little") % (ristretto.ORDER - 1)
        self.secret, share = derive_key_pair(random(32))
        self.ke1 = oprf_blind(password, self.blind) + random(32) + share

    def finish(self, ke2, context, stretch):
        """RFC 9807 §6.2.3: KE3 and the session key. `stretch` is memory in KiB, passes and lanes (§4.9)."""
        try:
            randomized = self.stretch(oprf_finalize(self.password, self.blind, ke2[:32]), *stretch)
            server_key, private, server_identity = self.recover(randomized, ke2[32:64], ke2[64:192])
            dh = exchange(self.secret, ke2[224:256]) + exchange(self.secret, server_key) + exchange(private, ke2[224:256])
        except ValueError as why:
            raise Refused(str(why)) from why
        preamble = (b"OPAQUEv1-" + prefixed(context) + prefixed(self.identity) + self.ke1 + prefixed(server_identity) + ke2[:256])
        return self.authenticate(dh, preamble, ke2[256:])

    @staticmethod
    def authenticate(dh, preamble, server_mac):
        """RFC 9807 §6.4.3 and §6.4.4."""
        digest = hashlib.sha512(preamble).digest()
        prk = extract(b"", dh)
        handshake = derive_secret(prk, b"HandshakeSecret", digest)
        if not hmac.compare_digest(mac(derive_secret(handshake, b"ServerMAC", b""), digest), server_mac):
            raise Refused("the server's MAC is wrong")
        ke3 = mac(derive_secret(handshake, b"ClientMAC", b""), hashlib.sha512(preamble + server_mac).digest())
        return ke3, derive_secret(prk, b"SessionKey", digest)

    @staticmethod
    def stretch(output, memory, passes, lanes):
        """RFC 9807 §7: Argon2id with a salt of 16 zero bytes and an output of Nh = 64 bytes."""
        stretched = hash_secret_raw(output, bytes(16), passes, memory, lanes, 64, Type.ID)
        return extract(b"", output + stretched)

    def recover(self, randomized, nonce, masked):
        """RFC 9807 §6.3.2.3 and §4.1.3: the server's public key, the client's private key, the server's identity."""
        masking_key = expand(randomized, b"MaskingKey", 64)
        clear = xor(masked, expand(masking_key, nonce + b"CredentialResponsePad", 128))
        server_key, nonce, tag = clear[:32], clear[32:64], clear[64:]
        identity = server_key
        credentials = server_key + prefixed(identity) + prefixed(self.identity)
        if not hmac.compare_digest(mac(expand(randomized, nonce + b"AuthKey", 64), nonce + credentials), tag):
            raise Refused("the envelope does not open")
        private, _ = derive_key_pair(expand(randomized, nonce + b"PrivateKey", 32))
        return server_key, private, identity
