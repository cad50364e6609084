"""OPAQUE-3DH (RFC 9807) with ristretto255, SHA-512 and Argon2id, as §6.3 fixes it: registration, and the server's side."""

import hashlib
import hmac
import secrets

from argon2.low_level import Type, hash_secret_raw

from . import ristretto as group

CONTEXT_STRING = b"OPRFV1-\0-ristretto255-SHA512"
STRETCH_USUAL = (65536, 3, 1)


def mac(key, data):
    return hmac.new(key, data, hashlib.sha512).digest()


def extract(salt, material):
    return mac(salt or bytes(64), material)


def expand(secret, info, length):
    """RFC 5869 §2.3 with SHA-512."""
    out, block = b"", b""
    while len(out) < length:
        block = mac(secret, block + info + bytes([len(out) // 64 + 1]))
        out += block
    return out[:length]


def prefixed(data):
    return len(data).to_bytes(2, "big") + data


def xor(one, other):
    return bytes(x ^ y for x, y in zip(one, other))


def scalar(data):
    return int.from_bytes(data, "little")


def derive_key_pair(seed, info):
    """RFC 9497 §3.2.1."""
    for counter in range(256):
        secret = group.hash_to_scalar(seed + prefixed(info) + bytes([counter]), b"DeriveKeyPair" + CONTEXT_STRING)
        if secret:
            return secret, group.encode(group.multiply(secret, group.GENERATOR))
    raise ValueError("no key pair")


def oprf_input(password):
    return group.hash_to_group(password, b"HashToGroup-" + CONTEXT_STRING)


def oprf_finalize(password, element):
    """RFC 9497 §3.3.1, behind the unblinding."""
    return hashlib.sha512(prefixed(password) + prefixed(group.encode(element)) + b"Finalize").digest()


def stretch(data, cost):
    """Argon2id without salt: 16 zero bytes; 64 bytes of output (RFC 9807 §7 names Nh)."""
    memory, passes, lanes = cost
    return hash_secret_raw(data, bytes(16), time_cost=passes, memory_cost=memory, parallelism=lanes, hash_len=64, type=Type.ID)


def dh(secret, public):
    return group.encode(group.multiply(secret, group.decode(public)))


def expand_label(secret, label, context):
    name = b"OPAQUE-" + label
    return expand(secret, (64).to_bytes(2, "big") + bytes([len(name)]) + name + bytes([len(context)]) + context, 64)


class Record:
    """What the target keeps of a group's password: made of the password by the target alone (§6.3)."""

    def __init__(self, password, identity, cost=STRETCH_USUAL):
        self.identity, self.cost = identity, cost
        self.private, self.public = derive_key_pair(secrets.token_bytes(32), b"OPAQUE-DeriveDiffieHellmanKeyPair")
        seed = expand(secrets.token_bytes(64), identity + b"OprfKey", 32)
        self.oprf_key, _ = derive_key_pair(seed, b"OPAQUE-DeriveKeyPair")
        output = oprf_finalize(password, group.multiply(self.oprf_key, oprf_input(password)))
        randomized = extract(b"", output + stretch(output, cost))
        self.masking_key = expand(randomized, b"MaskingKey", 64)
        nonce = secrets.token_bytes(32)
        client_seed = expand(randomized, nonce + b"PrivateKey", 32)
        _, self.client_public = derive_key_pair(client_seed, b"OPAQUE-DeriveDiffieHellmanKeyPair")
        auth_key = expand(randomized, nonce + b"AuthKey", 64)
        self.envelope = nonce + mac(auth_key, nonce + self.public + prefixed(self.public) + prefixed(identity))


class Login:
    """The server's half of one key exchange: `ke2` to send, `fits` for KE3, then `session_key`."""

    def __init__(self, record, ke1, context):
        blinded, client_nonce, client_share = ke1[:32], ke1[32:64], ke1[64:96]
        evaluated = dh(record.oprf_key, blinded)
        masking_nonce = secrets.token_bytes(32)
        pad = expand(record.masking_key, masking_nonce + b"CredentialResponsePad", 128)
        response = evaluated + masking_nonce + xor(pad, record.public + record.envelope)
        private, public = derive_key_pair(secrets.token_bytes(32), b"OPAQUE-DeriveDiffieHellmanKeyPair")
        fresh = response + secrets.token_bytes(32) + public
        preamble = b"OPAQUEv1-" + prefixed(context) + prefixed(record.identity) + ke1 + prefixed(record.public) + fresh
        material = dh(private, client_share) + dh(record.private, client_share) + dh(private, record.client_public)
        self.derive(fresh, material, preamble)

    def derive(self, fresh, material, preamble):
        """RFC 9807 §6.4.2.2 and §6.4.4."""
        transcript = hashlib.sha512(preamble)
        secret = extract(b"", material)
        handshake = expand_label(secret, b"HandshakeSecret", transcript.digest())
        self.session_key = expand_label(secret, b"SessionKey", transcript.digest())
        server_mac = mac(expand_label(handshake, b"ServerMAC", b""), transcript.digest())
        transcript.update(server_mac)
        self.expected = mac(expand_label(handshake, b"ClientMAC", b""), transcript.digest())
        self.ke2 = fresh + server_mac

    def fits(self, ke3):
        return hmac.compare_digest(self.expected, ke3)
