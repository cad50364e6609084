"""ristretto255 (RFC 9496) in plain integers, and hashing to it (RFC 9380 expand_message_xmd, RFC 9497 §4.1)."""

import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
SQRT_M1 = pow(2, (P - 1) // 4, P)
IDENTITY = (0, 1, 1, 0)


def negative(x):
    return x % P & 1


def absolute(x):
    x %= P
    return P - x if x & 1 else x


def sqrt_ratio(u, v):
    """RFC 9496 §4.2 SQRT_RATIO_M1: (was it a square, the non-negative root of u/v, or of i·u/v)."""
    r = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    check = v * r * r % P
    u %= P
    right, flipped, flipped_i = check == u, check == -u % P, check == -u * SQRT_M1 % P
    if flipped or flipped_i:
        r = r * SQRT_M1 % P
    return right or flipped, absolute(r)


INVSQRT_A_MINUS_D = sqrt_ratio(1, -1 - D)[1]
SQRT_AD_MINUS_ONE = next(x for x in (sqrt_ratio(-D - 1, 1)[1],) if x * x % P == (-D - 1) % P)
# RFC 9496 §4.1 fixes the sign of this root: the odd one.
SQRT_AD_MINUS_ONE = P - SQRT_AD_MINUS_ONE if SQRT_AD_MINUS_ONE % 2 == 0 else SQRT_AD_MINUS_ONE
ONE_MINUS_D_SQ = (1 - D * D) % P
D_MINUS_ONE_SQ = (D - 1) * (D - 1) % P


def add(p, q):
    """Extended coordinates, a = -1 (RFC 8032 §5.1.4)."""
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(k, point):
    k %= L
    result = IDENTITY
    while k:
        if k & 1:
            result = add(result, point)
        point = add(point, point)
        k >>= 1
    return result


def decode(data):
    """RFC 9496 §4.3.1; ValueError for what is no encoding."""
    s = int.from_bytes(data, "little")
    if len(data) != 32 or s >= P or s & 1:
        raise ValueError("not canonical")
    ss = s * s % P
    u1, u2 = (1 - ss) % P, (1 + ss) % P
    v = (-D * u1 * u1 - u2 * u2) % P
    square, root = sqrt_ratio(1, v * u2 * u2)
    x_den = root * u2 % P
    x = absolute(2 * s * x_den)
    y = u1 * root * x_den * v % P
    t = x * y % P
    if not square or negative(t) or y == 0:
        raise ValueError("not an element")
    return x, y, 1, t


def encode(point):
    """RFC 9496 §4.3.2."""
    x0, y0, z0, t0 = point
    u1, u2 = (z0 + y0) * (z0 - y0) % P, x0 * y0 % P
    root = sqrt_ratio(1, u1 * u2 * u2)[1]
    den1, den2 = root * u1 % P, root * u2 % P
    z_inv = den1 * den2 * t0 % P
    x, y, den = x0, y0, den2
    if negative(t0 * z_inv):
        x, y, den = y0 * SQRT_M1 % P, x0 * SQRT_M1 % P, den1 * INVSQRT_A_MINUS_D % P
    if negative(x * z_inv):
        y = -y
    return absolute(den * (z0 - y)).to_bytes(32, "little")


def elligator(data):
    """RFC 9496 §4.3.4 MAP."""
    t = int.from_bytes(data, "little") % 2**255 % P
    r = SQRT_M1 * t * t % P
    u = (r + 1) * ONE_MINUS_D_SQ % P
    v = (-1 - r * D) * (r + D) % P
    square, s = sqrt_ratio(u, v)
    c = P - 1
    if not square:
        s, c = -absolute(s * t) % P, r
    n = (c * (r - 1) * D_MINUS_ONE_SQ - v) % P
    w0, w1, w2, w3 = 2 * s * v % P, n * SQRT_AD_MINUS_ONE % P, (1 - s * s) % P, (1 + s * s) % P
    return w0 * w3 % P, w2 * w1 % P, w1 * w3 % P, w0 * w2 % P


def expand_message(message, dst, length):
    """expand_message_xmd with SHA-512 (RFC 9380 §5.3.1)."""
    tail = dst + bytes([len(dst)])
    b0 = hashlib.sha512(bytes(128) + message + length.to_bytes(2, "big") + b"\0" + tail).digest()
    block = hashlib.sha512(b0 + b"\1" + tail).digest()
    out = block
    while len(out) < length:
        block = hashlib.sha512(bytes(x ^ y for x, y in zip(b0, block)) + bytes([len(out) // 64 + 1]) + tail).digest()
        out += block
    return out[:length]


def hash_to_group(message, dst):
    uniform = expand_message(message, dst, 64)
    return add(elligator(uniform[:32]), elligator(uniform[32:]))


def hash_to_scalar(message, dst):
    return int.from_bytes(expand_message(message, dst, 64), "little") % L


GENERATOR = decode(bytes.fromhex("e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76"))
