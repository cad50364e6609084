"""ristretto255 (RFC 9496) and hashing to it (RFC 9380 §5.3.1, RFC 9497 §4.1), in plain integers.

Not constant in time: it judges, it does not guard."""

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
SQRT_M1 = pow(2, (P - 1) // 4, P)


def is_negative(x):
    """RFC 9496 §3.1: the sign of a field element."""
    return x % P & 1


def absolute(x):
    return P - x if is_negative(x) else x


def sqrt_ratio(u, v):
    """RFC 9496 §4.2: whether u/v is a square, and its root, or that of SQRT_M1 * u/v."""
    root = u * v**3 * pow(u * v**7 % P, (P - 5) // 8, P) % P
    check = v * root * root % P
    correct, flipped, flipped_i = check == u % P, check == -u % P, check == -u * SQRT_M1 % P
    if flipped or flipped_i:
        root = root * SQRT_M1 % P
    return correct or flipped, absolute(root)


INVSQRT_A_MINUS_D = sqrt_ratio(1, (-1 - D) % P)[1]
ONE_MINUS_D_SQ = (1 - D * D) % P
D_MINUS_ONE_SQ = (D - 1) ** 2 % P


def constant_sqrt_ad_minus_one():
    """RFC 9496 §4.1: SQRT_AD_MINUS_ONE, the odd root in that table."""
    root = sqrt_ratio((-D - 1) % P, 1)[1]
    return root if root == 25063068953384623474111414158702152701244531502492656460079210482610430750235 else P - root


SQRT_AD_MINUS_ONE = constant_sqrt_ad_minus_one()
IDENTITY = (0, 1, 1, 0)


def add(a, b):
    """Extended coordinates on the twisted Edwards curve with a = -1 (RFC 8032 §5.1.4)."""
    x1, y1, z1, t1 = a
    x2, y2, z2, t2 = b
    e, f = (y1 - x1) * (y2 - x2) % P, (y1 + x1) * (y2 + x2) % P
    g, h = 2 * t1 * t2 * D % P, 2 * z1 * z2 % P
    left, up, down, right = f - e, h - g, h + g, f + e
    return left * up % P, down * right % P, up * down % P, left * right % P


def multiply(scalar, point):
    result = IDENTITY
    for bit in bin(scalar % ORDER)[2:]:
        result = add(result, result)
        if bit == "1":
            result = add(result, point)
    return result


def decode(data):
    """RFC 9496 §4.3.1; ValueError for what is no element."""
    s = int.from_bytes(data, "little")
    if len(data) != 32 or s >= P or is_negative(s):
        raise ValueError("not canonical")
    ss = s * s % P
    u1, u2 = (1 - ss) % P, (1 + ss) % P
    v = (-(D * u1 * u1) - u2 * u2) % P
    square, inverse = sqrt_ratio(1, v * u2 * u2 % P)
    den_x = inverse * u2 % P
    den_y = inverse * den_x * v % P
    x = absolute(2 * s * den_x % P)
    y = u1 * den_y % P
    t = x * y % P
    if not square or is_negative(t) or y == 0:
        raise ValueError("not an element")
    return x, y, 1, t


def encode(point):
    """RFC 9496 §4.3.2."""
    x0, y0, z0, t0 = point
    u1, u2 = (z0 + y0) * (z0 - y0) % P, x0 * y0 % P
    inverse = sqrt_ratio(1, u1 * u2 * u2 % P)[1]
    den1, den2 = inverse * u1 % P, inverse * u2 % P
    z_inverse = den1 * den2 * t0 % P
    rotate = is_negative(t0 * z_inverse)
    x, y = (y0 * SQRT_M1 % P, x0 * SQRT_M1 % P) if rotate else (x0, y0)
    den = den1 * INVSQRT_A_MINUS_D % P if rotate else den2
    if is_negative(x * z_inverse):
        y = -y
    return absolute(den * (z0 - y) % P).to_bytes(32, "little")


def map_element(data):
    """RFC 9496 §4.3.4: MAP, of 32 bytes."""
    t = (int.from_bytes(data, "little") & (2**255 - 1)) % P
    r = SQRT_M1 * t * t % P
    u = (r + 1) * ONE_MINUS_D_SQ % P
    v = (-1 - r * D) * (r + D) % P
    square, s = sqrt_ratio(u, v)
    c = -1
    if not square:
        s = -absolute(s * t % P) % P
        c = r
    n = (c * (r - 1) * D_MINUS_ONE_SQ - v) % P
    w0, w1 = 2 * s * v % P, n * SQRT_AD_MINUS_ONE % P
    w2, w3 = (1 - s * s) % P, (1 + s * s) % P
    return w0 * w3 % P, w2 * w1 % P, w1 * w3 % P, w0 * w2 % P


def from_uniform(data):
    """RFC 9496 §4.3.4: element derivation from 64 bytes."""
    return add(map_element(data[:32]), map_element(data[32:]))


GENERATOR = decode(bytes.fromhex("e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76"))


def expand_message(message, tag, length):
    """RFC 9380 §5.3.1: expand_message_xmd with SHA-512."""
    tag = tag + bytes([len(tag)])
    first = hashlib.sha512(bytes(128) + message + length.to_bytes(2, "big") + b"\0" + tag).digest()
    block = hashlib.sha512(first + b"\1" + tag).digest()
    result, number = block, 1
    while len(result) < length:
        number += 1
        mixed = bytes(a ^ b for a, b in zip(first, block))
        block = hashlib.sha512(mixed + bytes([number]) + tag).digest()
        result += block
    return result[:length]


def hash_to_group(message, tag):
    return from_uniform(expand_message(message, tag, 64))


def hash_to_scalar(message, tag):
    return int.from_bytes(expand_message(message, tag, 64), "little") % ORDER
