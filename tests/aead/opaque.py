"""The initiator's side of OPAQUE-3DH (RFC 9807) over the OPRF of RFC 9497, with the choices of docs/iscsi-aead.md §3.2."""

import hashlib
import hmac
import os

import argon2.low_level
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from second.initiator import ristretto

CONTEXT = b"OPRFV1-\0-ristretto255-SHA512"


class Refused(Exception):
    """The target does not know the password, or somebody changed the login."""


def sized(value, size=2):
    return len(value).to_bytes(size, "big") + value


def expand(key, info, length=64):
    return HKDFExpand(SHA512(), length, info).derive(key)


def derive_secret(secret, label, transcript_hash):
    """RFC 9807 §6.4.2."""
    return expand(secret, (64).to_bytes(2, "big") + sized(b"OPAQUE-" + label, 1) + sized(transcript_hash, 1))


def multiplied(scalar, element):
    return ristretto.encode(ristretto.multiply(scalar, element))


def derive_key_pair(seed):
    """RFC 9497 §3.2.1, with the info of RFC 9807 §2.1. Returns the private key."""
    message = seed + sized(b"OPAQUE-DeriveDiffieHellmanKeyPair")
    for counter in range(256):
        private = ristretto.hash_to_scalar(message + bytes([counter]), b"DeriveKeyPair" + CONTEXT)
        if private:
            return private
    raise Refused("no key pair")


def random_scalar():
    return 1 + int.from_bytes(os.urandom(64), "little") % (ristretto.ORDER - 1)


def stretched(value, cost):
    memory, passes, lanes = cost
    return argon2.low_level.hash_secret_raw(value, bytes(16), time_cost=passes, memory_cost=memory, parallelism=lanes, hash_len=64,
                                            type=argon2.low_level.Type.ID, version=0x13)


class Client:
    """One login: `ke1`, then `finish` with the target's answer."""

    def __init__(self, user, password, blind=None, nonce=None, ephemeral=None):
        self.user, self.password = user, password
        self.blind, self.ephemeral = blind or random_scalar(), ephemeral or random_scalar()
        element = ristretto.hash_to_group(password, b"HashToGroup-" + CONTEXT)
        self.ke1 = multiplied(self.blind, element) + (nonce or os.urandom(32)) + multiplied(self.ephemeral, ristretto.GENERATOR)

    def finish(self, ke2, cost, context):
        """Returns (ke3, session key)."""
        evaluated, masking_nonce, masked = ke2[:32], ke2[32:64], ke2[64:192]
        server_nonce, server_share, server_mac = ke2[192:224], ke2[224:256], ke2[256:]
        element = multiplied(pow(self.blind, -1, ristretto.ORDER), ristretto.decode(evaluated))
        output = hashlib.sha512(sized(self.password) + sized(element) + b"Finalize").digest()
        randomized = hmac.digest(b"", output + stretched(output, cost), "sha512")

        # RFC 9807 §6.3.2.3 and §4.1.3: the target's public key and the client's own key.
        masking_key = expand(randomized, b"MaskingKey")
        pad = expand(masking_key, masking_nonce + b"CredentialResponsePad", len(masked))
        opened = bytes(a ^ b for a, b in zip(masked, pad, strict=True))
        server_public, nonce, tag = opened[:32], opened[32:64], opened[64:]
        private = derive_key_pair(expand(randomized, nonce + b"PrivateKey", 32))
        identities = sized(server_public) + sized(self.user)
        expected = hmac.digest(expand(randomized, nonce + b"AuthKey"), nonce + server_public + identities, "sha512")
        if not hmac.compare_digest(expected, tag):
            raise Refused("the envelope does not open")

        # RFC 9807 §6.4: 3DH.
        share = ristretto.decode(server_share)
        agreed = [multiplied(self.ephemeral, share), multiplied(self.ephemeral, ristretto.decode(server_public)),
                  multiplied(private, share)]
        preamble = (b"OPAQUEv1-" + sized(context) + sized(self.user) + self.ke1 + sized(server_public) + ke2[:192] + server_nonce +
                    server_share)
        transcript = hashlib.sha512(preamble).digest()
        prk = hmac.digest(b"", b"".join(agreed), "sha512")
        handshake = derive_secret(prk, b"HandshakeSecret", transcript)
        if not hmac.compare_digest(hmac.digest(derive_secret(handshake, b"ServerMAC", b""), transcript, "sha512"), server_mac):
            raise Refused("the target's proof does not match")
        confirmed = hashlib.sha512(preamble + server_mac).digest()
        ke3 = hmac.digest(derive_secret(handshake, b"ClientMAC", b""), confirmed, "sha512")
        return ke3, derive_secret(prk, b"SessionKey", transcript)
