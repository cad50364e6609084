"""The group ristretto255 (RFC 9496), with elements as extended coordinates of edwards25519. Slow, and not in constant time: for tests."""

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
SQRT_M1 = pow(2, (P - 1) // 4, P)


def is_negative(value):
    return value % P & 1


def absolute(value):
    value %= P
    return P - value if is_negative(value) else value


def sqrt_ratio(u, v):
    """RFC 9496 §4.2: (whether u/v is a square, the root of it or of SQRT_M1 times it)."""
    r = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    check, u = v * r * r % P, u % P
    correct, flipped, flipped_i = check == u, check == -u % P, check == -u * SQRT_M1 % P
    if flipped or flipped_i:
        r = r * SQRT_M1
    return correct or flipped, absolute(r)


# RFC 9496 §4.1 prints them; these are their definitions.
INVSQRT_A_MINUS_D = sqrt_ratio(1, -1 - D)[1]
SQRT_AD_MINUS_ONE = P - sqrt_ratio(-D - 1, 1)[1]
ONE_MINUS_D_SQ = (1 - D * D) % P
D_MINUS_ONE_SQ = (D - 1) ** 2 % P


class Element:
    def __init__(self, x, y, z, t):
        self.x, self.y, self.z, self.t = x % P, y % P, z % P, t % P

    def __add__(self, other):
        a, b = (self.y - self.x) * (other.y - other.x), (self.y + self.x) * (other.y + other.x)
        c, d = self.t * 2 * D * other.t, self.z * 2 * other.z
        e, f, g, h = b - a, d - c, d + c, b + a
        return Element(e * f, g * h, f * g, e * h)

    def __rmul__(self, scalar):
        product, power = IDENTITY, self
        while scalar:
            if scalar & 1:
                product += power
            power += power
            scalar >>= 1
        return product

    def encode(self):
        u1, u2 = (self.z + self.y) * (self.z - self.y), self.x * self.y
        _, root = sqrt_ratio(1, u1 * u2 * u2 % P)
        den1, den2 = root * u1 % P, root * u2 % P
        z_inv = den1 * den2 * self.t
        if is_negative(self.t * z_inv):
            x, y, den = self.y * SQRT_M1, self.x * SQRT_M1, den1 * INVSQRT_A_MINUS_D
        else:
            x, y, den = self.x, self.y, den2
        if is_negative(x * z_inv):
            y = -y
        return absolute(den * (self.z - y)).to_bytes(32, "little")


IDENTITY = Element(0, 1, 1, 0)


def decode(encoded):
    s = int.from_bytes(encoded, "little")
    if len(encoded) != 32 or s >= P or is_negative(s):
        raise ValueError("not a canonical element")
    u1, u2 = (1 - s * s) % P, (1 + s * s) % P
    v = (-(D * u1 * u1) - u2 * u2) % P
    square, root = sqrt_ratio(1, v * u2 * u2 % P)
    den_x = root * u2 % P
    x, y = absolute(2 * s * den_x), u1 * root * den_x * v % P
    if not square or is_negative(x * y) or y == 0:
        raise ValueError("not an element")
    return Element(x, y, 1, x * y)


# RFC 9496 §4: the encoding of the generator.
BASE = decode(bytes.fromhex("e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76"))


def one_way_map(uniform):
    """RFC 9496 §4.3.4: from 64 uniform bytes."""
    return elligator(uniform[:32]) + elligator(uniform[32:])


def elligator(half):
    t = (int.from_bytes(half, "little") & (2**255 - 1)) % P
    r = SQRT_M1 * t * t % P
    u, v = (r + 1) * ONE_MINUS_D_SQ % P, (-1 - r * D) * (r + D) % P
    square, s = sqrt_ratio(u, v)
    if not square:
        s = -absolute(s * t)
    c = -1 if square else r
    n = c * (r - 1) * D_MINUS_ONE_SQ - v
    w0, w1, w2, w3 = 2 * s * v, n * SQRT_AD_MINUS_ONE, 1 - s * s, 1 + s * s
    return Element(w0 * w3, w2 * w1, w1 * w3, w0 * w2)
