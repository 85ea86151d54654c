#!/usr/bin/env python3
"""Decodes a Gosset container of format 1 as docs/FORMAT.md describes it, and nothing else. Standard library only.

    python3 tests/golden/decode_golden.py tests/golden/format-1.1.gosset

Checks every checksum, decodes every tensor, and compares with the .json file of the same name, if there is one: integer points and
the bits of every f32 value. Exits with 1 at the first difference. It shares no code with the Rust crates; tables that are part of
the format are read from the files that the page names.
"""

import ast
import functools
import json
import pathlib
import re
import struct
import sys

M64 = (1 << 64) - 1
M32 = (1 << 32) - 1


# ---- f32 arithmetic: a double holds sums and products of two f32 well enough that one more rounding gives the f32 result ----


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


# ---- XXH3-64 with seed 0 ----

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
P64 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def u32(b, i):
    return int.from_bytes(b[i : i + 4], "little")


def u64(b, i):
    return int.from_bytes(b[i : i + 8], "little")


def fold(a, b):
    p = a * b
    return (p & M64) ^ (p >> 64)


def avalanche(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & M64
    return h ^ (h >> 32)


def avalanche64(h):
    h = (h ^ (h >> 33)) * P64[1] & M64
    h = (h ^ (h >> 29)) * P64[2] & M64
    return h ^ (h >> 32)


def mix16(b, i, s):
    return fold(u64(b, i) ^ u64(SECRET, s), u64(b, i + 8) ^ u64(SECRET, s + 8))


def xxh3(b):
    n = len(b)
    if n == 0:
        return avalanche64(u64(SECRET, 56) ^ u64(SECRET, 64))
    if n < 4:
        combined = b[n - 1] | n << 8 | b[0] << 16 | b[n >> 1] << 24
        return avalanche64(combined ^ u32(SECRET, 0) ^ u32(SECRET, 4))
    if n <= 8:
        h = (u32(b, n - 4) + (u32(b, 0) << 32)) ^ u64(SECRET, 8) ^ u64(SECRET, 16)
        rotated = [(h << r | h >> (64 - r)) & M64 for r in (49, 24)]
        h = (h ^ rotated[0] ^ rotated[1]) * 0x9FB21C651E98DF25 & M64
        h = (h ^ ((h >> 35) + n)) * 0x9FB21C651E98DF25 & M64
        return h ^ (h >> 28)
    if n <= 16:
        lo = u64(b, 0) ^ u64(SECRET, 24) ^ u64(SECRET, 32)
        hi = u64(b, n - 8) ^ u64(SECRET, 40) ^ u64(SECRET, 48)
        swapped = int.from_bytes(lo.to_bytes(8, "little"), "big")
        return avalanche((n + swapped + hi + fold(lo, hi)) & M64)
    if n <= 128:
        h = n * P64[0]
        for i in range((n - 1) // 32, -1, -1):
            h += mix16(b, 16 * i, 32 * i) + mix16(b, n - 16 * (i + 1), 32 * i + 16)
        return avalanche(h & M64)
    if n <= 240:
        h = n * P64[0] + sum(mix16(b, 16 * i, 16 * i) for i in range(8))
        h = avalanche(h & M64)
        h += sum(mix16(b, 16 * i, 16 * (i - 8) + 3) for i in range(8, n // 16))
        return avalanche((h + mix16(b, n - 16, 136 - 17)) & M64)
    acc = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]]

    def accumulate(i, s):
        for lane in range(8):
            value = u64(b, i + 8 * lane)
            keyed = value ^ u64(SECRET, s + 8 * lane)
            acc[lane ^ 1] = (acc[lane ^ 1] + value) & M64
            acc[lane] = (acc[lane] + (keyed & M32) * (keyed >> 32)) & M64

    n_stripes = (n - 1) // 64
    for stripe in range(n_stripes):
        accumulate(64 * stripe, 8 * (stripe % 16))
        if stripe % 16 == 15:
            for lane in range(8):
                a = acc[lane]
                acc[lane] = (a ^ (a >> 47) ^ u64(SECRET, 128 + 8 * lane)) * P32[0] & M64
    accumulate(n - 64, 192 - 64 - 7)
    h = n * P64[0]
    for i in range(4):
        h += fold(acc[2 * i] ^ u64(SECRET, 11 + 16 * i), acc[2 * i + 1] ^ u64(SECRET, 19 + 16 * i))
    return avalanche(h & M64)


# ---- file ----

OPENING = b'{"__metadata__":{"gosset_header_xxh3":"'
SIZES = {"U8": 1, "I8": 1, "BOOL": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
SIZES.update({"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8})


def check(condition, message):
    if not condition:
        sys.exit("FAILED: " + message)


def no_duplicates(pairs):
    out = dict(pairs)
    check(len(out) == len(pairs), "a JSON key appears twice")
    return out


def escape(name):
    if name == "__metadata__":
        return "%5F_metadata__"
    return name.replace("%", "%25").replace("#", "%23").replace("@", "%40")


def open_container(path):
    data = open(path, "rb").read()
    length = u64(data, 0)
    check(2 <= length <= min(len(data) - 8, 100_000_000), "header length")
    head = data[: 8 + length]
    check(head[8:].startswith(OPENING), "opening")
    at = 8 + len(OPENING)
    digits = head[at : at + 16].decode()
    check(re.fullmatch("[0-9a-f]{16}", digits), "checksum digits")
    check(xxh3(head[:at] + b"0" * 16 + head[at + 16 :]) == int(digits, 16), "header checksum")
    header = json.loads(head[8:], object_pairs_hook=no_duplicates)
    manifest = json.loads(header.pop("__metadata__")["gosset"], object_pairs_hook=no_duplicates)
    check(manifest["format"]["major"] == 1, "major version")
    for section in manifest["sections"]:
        check(not section["required"] or section["name"] in ("tensors", "blobs"), "unknown required section")

    planes, end = {}, 0
    for name, t in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        start, stop = t["data_offsets"]
        size = SIZES[t["dtype"]]
        for d in t["shape"]:
            size *= d
        check(start == end and stop - start == size, f"range of {name}")
        end = stop
        planes[name] = (t["dtype"], t["shape"], data[8 + length + start : 8 + length + stop])
    check(8 + length + end == len(data), "file length")
    return manifest, planes


def take(planes, name, digest):
    dtype, shape, raw = planes.pop(name)
    check(re.fullmatch("[0-9a-f]{16}", digest) and xxh3(raw) == int(digest, 16), f"checksum of {name}")
    return dtype, shape, raw


CODES = {"U8": "B", "U16": "H", "F16": "e", "BF16": "H", "U32": "I", "U64": "Q", "F32": "f"}


def numbers(plane):
    dtype, shape, raw = plane
    return struct.unpack(f"<{shape[0]}{CODES[dtype]}", raw)


# ---- bits and Rice codes ----


class Bits:
    """The bits of u32 words, most significant bit first."""

    def __init__(self, words):
        self.value = 0
        self.total = 32 * len(words)
        raw = struct.pack(f">{len(words)}I", *words)
        self.text = bin(int.from_bytes(b"\x01" + raw, "big"))[3:]

    def read(self, at, n):
        check(at + n <= self.total, "bits beyond the words")
        return int(self.text[at : at + n] or "0", 2)


def unzigzag(z):
    return (z >> 1) ^ -(z & 1)


def unstrip(lattice, s):
    if lattice == "z":
        return [unzigzag(s[0])]
    if lattice == "a2":
        n_x = unzigzag(s[1])
        return [2 * unzigzag(s[0]) + (n_x & 1), n_x]
    if lattice == "d4":
        v = [unzigzag(z) for z in s]
        parity = (v[0] + v[1] + v[2]) & 1
        return [2 * v[0], 2 * v[1], 2 * v[2], 2 * (2 * v[3] + parity)]
    coset = s[7] & 1
    v = [unzigzag(z) for z in s[:7]]
    v.append(2 * unzigzag(s[7] >> 1) + (sum(v) & 1))
    return [2 * x + coset for x in v]


DIMENSION = {"z": 1, "a2": 2, "d4": 4, "e8": 8}
CLASSES = {"z": [0], "a2": [0, 1], "d4": [0, 0, 0, 1], "e8": [0] * 8}
AXIS = {"z": [1.0], "a2": [f32(3**0.5), 1.0], "d4": [1.0] * 4, "e8": [1.0] * 8}

n_escapes = 0


def rice(bits, at, k):
    global n_escapes
    q = 0
    while q < 24 and bits.read(at + q, 1) == 0:
        q += 1
    if q == 24:
        n_escapes += 1
        return bits.read(at + 24, 32), at + 56
    return (q << k) | bits.read(at + q + 1, k), at + q + 1 + k


def decode_rice(lattice, ks, n, words, lengths, bases):
    dim = DIMENSION[lattice]
    n_symbols = -(-n // dim) * dim
    n_streams = -(-n_symbols // 512)
    check(len(lengths) == n_streams and len(bases) == -(-n_streams // 64), "table lengths")
    bits, points, at = Bits(words), [], 0
    for stream, length in enumerate(lengths):
        if stream % 64 == 0:
            base = bases[stream // 64]
            check(base % 32 == 0 and base >= at, "page base")
            at = base
        end, symbols = at + length, []
        while len(symbols) < min(512, n_symbols - 512 * stream):
            k = ks[CLASSES[lattice][len(symbols) % dim]]
            z, at = rice(bits, at, k)
            check(z < 1 << 26, "symbol")
            symbols.append(z)
        check(at == end, "stream length")
        for i in range(0, len(symbols), dim):
            points += unstrip(lattice, symbols[i : i + dim])
    return points[:n]


# ---- the ANS coder ----


class Table:
    """What the 1024 states mean: symbol value (None for the escape), bits to read, base."""

    def __init__(self, freq_of, step, order, escape):
        values = sorted(freq_of)
        self.first, self.last, self.step, self.order = values[0], values[-1], step, order
        check(values == list(range(self.first, self.last + 1, step)), "run of a table")
        freqs = [freq_of[v] for v in values] + [escape]
        check(sum(freqs) == 1024 and all(1 <= f <= 1002 for f in freqs), "frequencies of a table")
        self.entries = []
        for _, symbol, j in sorted(((2 * j + 1 << 24) // f, s, j) for s, f in enumerate(freqs) for j in range(f)):
            x = freqs[symbol] + j
            n = 11 - x.bit_length()
            self.entries.append((None if symbol == len(values) else values[symbol], n, (x << n) - 1024))


class AnsStream:
    """A stream of n values in its words: values of lanes, and raw bits."""

    def __init__(self, words, n):
        check(64 * 32 * len(words) >= n, "words too few for the values of a stream")
        self.text, self.at = Bits(words).text, 0
        self.lanes = [self.raw(10) for _ in range(4)]

    def raw(self, n):
        start, self.at = self.at, self.at + n
        check(self.at <= len(self.text), "bits beyond the stream")
        return int(self.text[start : self.at] or "0", 2)

    def value(self, lane, table):
        value, n, base = table.entries[self.lanes[lane]]
        self.lanes[lane] = base + self.raw(n)
        return self.escaped(table) if value is None else value

    def escaped(self, table):
        global n_escapes
        n_escapes += 1
        below, m = self.raw(1), 0
        while self.raw(1) == 0:
            m += 1
        check(m + table.order <= 31, "escape")
        e = (1 << m + table.order) + self.raw(m + table.order) - (1 << table.order)
        value = table.first - (e + 1) * table.step if below else table.last + (e + 1) * table.step
        check(-(1 << 31) <= value < 1 << 31, "escaped value")
        return value

    def finish(self):
        check(self.lanes == [0] * 4, "final state of a lane")
        rest = self.text[self.at :]
        check(len(rest) < 32 and "1" not in rest, "end of a stream")


def streams(words, lengths, n, stream_len):
    """Each stream, with the number of its values."""
    check(len(lengths) == -(-n // stream_len) and sum(lengths) == len(words), "lengths of streams")
    at = 0
    for i, length in enumerate(lengths):
        n_values = min(stream_len, n - stream_len * i)
        yield AnsStream(words[at : at + length], n_values), n_values
        at += length


def wrapped(x):
    """x modulo 2^32 as a signed number."""
    return (x + (1 << 31) & M32) - (1 << 31)


ROOT = pathlib.Path(__file__).resolve().parents[2]


def part_of_the_format(path):
    return (ROOT / path).read_text()


# ---- lattices under ANS ----

# Per table: step of the run, and the values that the i-th frequency stands for.
RUNS = {
    "any": (1, lambda i: {i, -i}),
    "even": (2, lambda i: {2 * i, -2 * i}),
    "odd": (2, lambda i: {2 * i + 1, -2 * i - 1}),
    "mod4-0": (4, lambda i: {4 * i, -4 * i}),
    "mod4-1": (4, lambda i: {(-1) ** i * (2 * i + 1)}),
    "mod4-2": (4, lambda i: {4 * i + 2, -4 * i - 2}),
    "floor": (1, lambda i: {i, -1 - i}),
}
CONTEXTS = {
    "z": ["any"],
    "a2": ["any", "even", "odd"],
    "d4": ["even", "mod4-0", "mod4-2"],
    "e8": ["any", "even", "odd", "mod4-0", "mod4-1", "mod4-2"],
}


@functools.cache
def lattice_lines():
    lines = {}
    for line in part_of_the_format("crates/gosset-codec/tables/lattice-ans.txt").splitlines():
        family, member, table, *rest = line.split(" ")
        lines[family, int(member), table] = [int(x) for x in rest]
    return lines


def line_table(family, member, table, sign=1):
    check((family, member, table) in lattice_lines(), f"no table {member} in the family {family}")
    order, escape, *freqs = lattice_lines()[family, member, table]
    step, values = RUNS[table]
    return Table({sign * v: f for i, f in enumerate(freqs) for v in values(i)}, step, order, escape)


def residue(lattice, i, y):
    """Residue, number of its bits and context of coordinate i, from those decoded before."""
    if lattice == "a2" and i == 0:
        return y[1] % 2, 1, 1 + y[1] % 2
    if lattice == "d4":
        r = -sum(y[:3]) % 4 if i == 3 else 0
        return (r, 2, 1 + r // 2) if i == 3 else (r, 1, 0)
    if lattice == "e8" and i > 0:
        r = -sum(y[:7]) % 4 if i == 7 else y[0] % 2
        return (r, 2, 3 + r) if i == 7 else (r, 1, 1 + r)
    return 0, 0, 0


class LatticeCoder:
    """Decodes blocks of a lattice under the tables of one member of the family."""

    def __init__(self, lattice, member, raw_bits):
        self.lattice, self.raw_bits, self.dim = lattice, raw_bits, DIMENSION[lattice]
        self.order = [1, 0] if lattice == "a2" else range(self.dim)
        if raw_bits == 0:
            self.tables = [line_table(lattice, member, table) for table in CONTEXTS[lattice]]
            if lattice == "e8":
                self.tables.append(line_table(lattice, member, "mod4-1", sign=-1))
        else:
            check((2 if self.dim >= 4 else 1) <= raw_bits <= 20, "raw bits")
            self.wide = line_table("wide", member, "floor")
            self.smaller = line_table("wide", max(member - 13, 0), "floor")

    def coordinates(self, stream, n_values):
        w = self.raw_bits
        blocks = [[0] * self.dim for _ in range(n_values // self.dim)]
        for start in range(0, len(blocks), 4):
            for i in self.order:
                for lane, y in enumerate(blocks[start : start + 4]):
                    rho, n_known, context = residue(self.lattice, i, y)
                    if w == 0:
                        y[i] = stream.value(lane, self.tables[context])
                    else:
                        v = stream.value(lane, self.smaller if self.lattice == "a2" and i == 0 else self.wide)
                        y[i] = wrapped((v << w) + (stream.raw(w - n_known) << n_known) + rho)
        return [coordinate for y in blocks for coordinate in y]


def decode_ans(lattice, code, n, words, lengths):
    coder = LatticeCoder(lattice, code["table"], code["raw_bits"])
    points = []
    for stream, n_values in streams(words, lengths, -(-n // coder.dim) * coder.dim, 32768):
        points += coder.coordinates(stream, n_values)
        stream.finish()
    return points[:n]


# ---- the entropy-coded trellis ----

PARITY_CHECKS = {8: (0o17, 0o2), 64: (0o127, 0o42), 256: (0o467, 0o242)}


class TrellisCoder:
    """Decodes values of an entropy-coded trellis under one of its tables."""

    def __init__(self, states, t):
        family = json.loads(part_of_the_format("crates/gosset-codec/tables/trellis-family.json"))
        check(0 <= t <= 121 and states in PARITY_CHECKS, "table or states of a trellis")
        member, self.r = (t, 0) if t < 62 else (50 + (t - 62) % 12, 1 + (t - 62) // 12)
        member = family["members"][member]
        self.tables = []
        for u, name in enumerate(("even", "odd")):
            *freqs, escape = member[name]
            run = {sign * (2 * i + u): f for i, f in enumerate(freqs) for sign in (1, -1)}
            self.tables.append(Table(run, 2, member["escape_orders"][u], escape))
        self.transitions = [h // 2 for h in PARITY_CHECKS[states]]
        self.offsets = [0] + (member["offsets"] if self.r == 0 else [])

    def values(self, stream, n_values, paths):
        t0, t1 = self.transitions
        points = []
        for i in range(n_values):
            s = paths[i % 8]
            u = s % 2
            v = stream.value(i % 4, self.tables[u])
            b = 2 ** (self.r - 1) if u == 0 and self.r > 0 else 0
            j = v // 2 * 2**self.r + stream.raw(self.r) - b
            points.append(wrapped(2 * j + u))
            paths[i % 8] = s // 2 ^ u * t0 ^ j % 2 * t1
        return points

    def unit(self, y):
        offset = self.offsets[abs(y)] / 256 if abs(y) < len(self.offsets) else 0.0
        return f32(y + offset if y < 0 else y - offset)


def decode_trellis(scheme, n, words, lengths):
    coder = TrellisCoder(scheme["states"], scheme["table"])
    points = []
    for stream, n_values in streams(words, lengths, n, 16384):
        points += coder.values(stream, n_values, [0] * 8)
        stream.finish()
    return points, [coder.unit(y) for y in points]


# ---- the bit-shift trellis ----

SHIFT_BITS = [2, 3, 4, 5, 6]


@functools.cache
def shift_constants():
    """The arrays of the file: their literals read the same in Rust and in Python."""
    text = part_of_the_format("crates/gosset-trellis/src/shift/constants_table.rs")
    text = re.sub("//.*", "", text)
    return {name: ast.literal_eval(array) for name, array in re.findall(r"const (\w+): [^=]* = (\[[^;=]*\]);", text)}


def halves(numbers):
    return struct.unpack(f"<{len(numbers)}e", struct.pack(f"<{len(numbers)}H", *numbers))


def shift_code(code, k, length):
    """Multipliers, and the tables that the products of each look their weight up in."""
    constants = shift_constants()
    if code == "quantiles":
        multipliers, *_ = constants["QUANTILES"][SHIFT_BITS.index(k)][length - 12]
        upper = constants["UPPER_QUANTILES"]
        table = halves([h + 0x8000 for h in reversed(upper)] + upper)
        return multipliers, [table, table]
    check(code == "pairs" and k <= 4, "code of a bit-shift trellis")
    (multiplier, _), *_ = constants["PAIRS"][k - 2][length - 12]
    pairs = constants["PAIR_TABLES"][k - 2]
    return [multiplier] * 2, [halves([p & 0xFFFF for p in pairs]), halves([p >> 16 for p in pairs])]


def decode_shift(scheme, rows, cols, words):
    k, length, order = scheme["bits"], scheme["state_bits"], scheme["order"]
    check(k in SHIFT_BITS and 12 <= length <= 18 and order in ("rows", "tiles"), "bits or order of a bit-shift trellis")
    multipliers, tables = shift_code(scheme["code"], k, length)
    v = 2 if k <= 4 else 1
    if order == "rows":
        unit = {3: 96, 6: 96, 5: 160}.get(k, 32)
        n_bits = -(-(-(-cols // v) * v * k) // unit) * unit
        n_strings = rows
    else:
        tiles_across = -(-cols // 16)
        n_bits = 256 * k
        n_strings = -(-rows // 16) * tiles_across
    per_string = n_bits // 32
    check(len(words) == per_string * n_strings, "words of a bit-shift trellis")
    points, units = [0] * (rows * cols), [0.0] * (rows * cols)
    for string in range(n_strings):
        text = Bits(words[per_string * string : per_string * (string + 1)]).text
        ring = text[n_bits - length :] + text
        for step in range(n_bits // (k * v)):
            end = k * v * (step + 1)
            state = int(ring[end : end + length], 2)
            for i in range(v):
                p = v * step + i
                if order == "rows":
                    row, col = string, p
                else:
                    lane, register = p // 8, p // 2 % 4
                    row = 16 * (string // tiles_across) + lane // 4 + 8 * (register % 2)
                    col = 16 * (string % tiles_across) + 2 * (lane % 4) + 8 * (register // 2) + p % 2
                if row < rows and col < cols:
                    points[row * cols + col] = state
                    units[row * cols + col] = tables[i][state * multipliers[i] % 2**length >> length - 10]
    return points, units


# ---- schemes ----

SCALING = {"scales", "exact_rows", "exact_values"}


def decode_units(header, plane):
    """Points and units of all scalars, and the step of the scheme."""
    n = header["rows"] * header["cols"]
    ((kind, scheme),) = header["scheme"].items()
    names = {"lattice": {"words", "lengths"}, "trellis": {"words", "lengths"}, "shift": {"words"}}[kind]
    if kind == "lattice":
        lattice = scheme["lattice"]
        ((code_kind, code),) = scheme["code"].items()
        if code_kind == "rice":
            names = names | {"bases"}
            points = decode_rice(lattice, code["ks"], n, plane["words"], plane["lengths"], plane["bases"])
        else:
            check(code_kind == "ans", "code")
            points = decode_ans(lattice, code, n, plane["words"], plane["lengths"])
        axis = AXIS[lattice]
        units = [f32(f32(y) * axis[i % len(axis)]) for i, y in enumerate(points)]
    elif kind == "trellis":
        points, units = decode_trellis(scheme, n, plane["words"], plane["lengths"])
    else:
        points, units = decode_shift(scheme, header["rows"], header["cols"], plane["words"])
    check(names <= set(plane) <= names | SCALING, "planes of a tensor")
    return points, units, f32(scheme["step"])


# ---- rotation ----


def philox(counter, key):
    c, (k0, k1) = list(counter), key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & M32, (p0 >> 32) ^ c[3] ^ k1, p0 & M32]
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return c


def signs(seed, width):
    words = []
    for block in range(-(-width // 128)):
        words += philox([block, 0, 0, 0], [seed & M32, seed >> 32])
    return [-1.0 if words[j // 32] >> (j % 32) & 1 else 1.0 for j in range(width)]


def inverse_rht(row, runs, sign):
    at = 0
    for tile, count in runs:
        log2 = tile.bit_length() - 1
        scale = 0.5 ** (log2 // 2)
        if log2 % 2 == 1:
            scale *= f32(0.5**0.5)
        for _ in range(count):
            x = row[at : at + tile]
            stride = 1
            while stride < tile:
                for start in range(0, tile, 2 * stride):
                    for i in range(start, start + stride):
                        a, b = x[i], x[i + stride]
                        x[i], x[i + stride] = f32(a + b), f32(a - b)
                stride *= 2
            row[at : at + tile] = [f32(v * scale) * sign[at + i] for i, v in enumerate(x)]
            at += tile
    check(at == len(row), "tile runs")


def decode_values(header, units, step, plane):
    rows, cols = header["rows"], header["cols"]
    scales = [bf16(b) for b in plane["scales"]]
    check(len(scales) == rows, "scales")
    rotation = header["rotation"]
    rotated = rotation != "none"
    if rotated:
        runs, sign = rotation["rht"]["runs"], signs(rotation["rht"]["seed"], cols)
    exact = dict(zip(plane.get("exact_rows", ()), range(rows)))
    out = []
    for r in range(rows):
        if r in exact:
            row = list(plane["exact_values"][exact[r] * cols : (exact[r] + 1) * cols])
        elif scales[r] == 0.0:
            row = [0.0] * cols
        else:
            factor = f32(scales[r] * step)
            row = [f32(factor * unit) for unit in units[r * cols : (r + 1) * cols]]
            if rotated:
                inverse_rht(row, runs, sign)
        out += row
    return out


# ---- matrices stored by columns ----


SIXTEENTHS = [
    struct.unpack(">f", bytes.fromhex(bits))[0]
    for bits in "3f800000 3f85aac4 3f8b95c2 3f91c3d3 3f9837f0 3f9ef532 3fa5fed7 3fad583f "
    "3fb504f3 3fbd08a3 3fc5672a 3fce248c 3fd744fd 3fe0ccdf 3feac0c6 3ff5257d".split()
]


def decode_columns(header, plane):
    """The values of a matrix whose columns follow each other, the last one first."""
    rows, cols, columns = header["rows"], header["cols"], header["columns"]
    ((kind, scheme),) = header["scheme"].items()
    factors = columns.get("row_exponents", False)
    names = {"words", "columns"} | ({"lengths"} if kind != "shift" else set()) | ({"row_exponents"} if factors else set())
    check(names == set(plane), "planes of a matrix stored by columns")
    check(len(plane["columns"]) == cols, "bytes of columns")
    lines = [col for col in reversed(range(cols)) if plane["columns"][col] != 255]
    read = {"lattice": lattice_columns, "trellis": trellis_columns, "shift": shift_columns}[kind]
    units = read(scheme, rows, [plane["columns"][col] & 15 for col in lines], plane)
    step = f32(scheme["step"])
    powers = SIXTEENTHS if kind == "shift" else [f32(2 ** (i / 4)) for i in range(4)]
    matrix = [[0.0] * cols for _ in range(rows)]
    for col, line in zip(lines, units):
        byte = plane["columns"][col]
        e = byte if kind == "shift" else byte >> 4
        factor = f32(f32(step * powers[e % len(powers)]) * 2.0 ** (e // len(powers)))
        if kind != "shift":
            gains = columns.get("gains", [])
            factor = f32(factor * (gains[byte & 15] / 256 if byte & 15 < len(gains) else 1.0))
        line = [f32(factor * unit) for unit in line]
        if columns["outputs"] != "none":
            rotation = columns["outputs"]["rht"]
            inverse_rht(line, rotation["runs"], signs(rotation["seed"], rows))
        for row, value in zip(matrix, line):
            row[col] = value
    if factors:
        halves_of = [half for byte in plane["row_exponents"] for half in (byte & 15, byte >> 4)]
        check(len(halves_of) == rows + rows % 2 and not any(halves_of[rows:]), "exponents of rows")
        for row, e in zip(matrix, halves_of):
            factor = f32(f32(2 ** (e % 4 / 4)) * 2.0 ** (e // 4))
            row[:] = [f32(value * factor) for value in row]
    if header["rotation"] != "none":
        rotation = header["rotation"]["rht"]
        sign = signs(rotation["seed"], cols)
        for row in matrix:
            inverse_rht(row, rotation["runs"], sign)
    return [value for row in matrix for value in row]


def column_streams(line_len, n_lines, limit, plane):
    """Each stream, with the lines or parts of a line in it: pairs of line and number of values."""
    if line_len <= limit:
        per = limit // line_len
        parts = [[(line, line_len) for line in range(at, min(at + per, n_lines))] for at in range(0, n_lines, per)]
    else:
        ends = range(0, line_len, limit)
        parts = [[(line, min(limit, line_len - at))] for line in range(n_lines) for at in ends]
    words, lengths, at = plane["words"], plane["lengths"], 0
    check(len(lengths) == len(parts) and sum(lengths) == len(words), "lengths of streams")
    for length, part in zip(lengths, parts):
        stream = AnsStream(words[at : at + length], sum(n for _, n in part))
        at += length
        yield stream, part
        stream.finish()


def lattice_columns(scheme, rows, classes, plane):
    lattice, code = scheme["lattice"], scheme["code"]["ans"]
    dim, axis = DIMENSION[lattice], AXIS[lattice]
    coders = {c: LatticeCoder(lattice, code["table"] + 4 * c, code["raw_bits"]) for c in set(classes)}
    points = [[] for _ in classes]
    for stream, part in column_streams(-(-rows // dim) * dim, len(classes), 32768, plane):
        for line, n in part:
            points[line] += coders[classes[line]].coordinates(stream, n)
    return [[f32(f32(y) * axis[i % len(axis)]) for i, y in enumerate(line[:rows])] for line in points]


def trellis_columns(scheme, rows, classes, plane):
    coders = {c: TrellisCoder(scheme["states"], scheme["table"] + 3 * c) for c in set(classes)}
    units = [[] for _ in classes]
    for stream, part in column_streams(rows, len(classes), 16384, plane):
        paths = [0] * 8
        for line, n in part:
            coder = coders[classes[line]]
            units[line] += [coder.unit(y) for y in coder.values(stream, n, paths)]
    return units


def shift_columns(scheme, rows, classes, plane):
    check(scheme["order"] == "rows", "order of a bit-shift trellis")
    n_strings = -(-rows // 256)
    length = -(-(-(-rows // n_strings)) // 32) * 32
    _, units = decode_shift(scheme, len(classes) * n_strings, length, plane["words"])
    line_len = n_strings * length
    return [units[line_len * line :][:rows] for line in range(len(classes))]


# ---- matrices of grid codes ----


def butterflies(x, stride):
    """Walsh-Hadamard along the outer axis of x, whose inner elements are stride apart."""
    half = stride
    while half < len(x):
        for start in range(0, len(x), 2 * half):
            for i in range(start, start + half):
                a, b = x[i], x[i + half]
                x[i], x[i + half] = f32(a + b), f32(a - b)
        half *= 2


def is_prime(n):
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def paley(order):
    """The Hadamard matrix of an order that is no power of two, row by row."""
    check(order <= 1024 and order % 4 == 0, f"order {order}")
    q1, q2 = order - 1, order // 2 - 1
    if q1 % 4 == 3 and is_prime(q1):
        q, squares = q1, {i * i % q1 for i in range(1, q1)}
        chi = lambda i, j: 1 if i == j or (i - j) % q in squares else -1
        return [[1] * order] + [[-1] + [chi(i, j) for j in range(q)] for i in range(q)]
    check(q2 % 4 == 1 and is_prime(q2), f"order {order}")
    q, squares = q2, {i * i % q2 for i in range(1, q2)}
    out = [[0] * order for _ in range(order)]
    for i in range(q + 1):
        for j in range(q + 1):
            if i == j:
                block = ((1, -1), (-1, -1))
            else:
                c = 1 if i == 0 or j == 0 or (i - j) % q in squares else -1
                block = ((c, c), (c, -c))
            for a in range(2):
                out[2 * i + a][2 * j : 2 * j + 2] = block[a]
    return out


class Frame:
    def __init__(self, header, width):
        self.width, self.kind = width, header
        if header == "none":
            self.signs = [1.0] * width
            return
        ((self.kind, frame),) = header.items()
        self.signs = signs(frame["seed"], width)
        if self.kind == "rht":
            self.runs = frame["runs"]
            check(sum(tile * count for tile, count in self.runs) == width, "tile runs")
        else:
            check(self.kind == "hadamard", "frame")
            self.orders = frame["orders"]
            product = 1
            for order in self.orders:
                product *= order
            check(product == width, "orders")
            self.matrices = {k: None if k & (k - 1) == 0 else paley(k) for k in self.orders}

    def unrotate(self, x):
        """U x."""
        if self.kind == "rht":
            inverse_rht(x, self.runs, [1.0] * self.width)
        elif self.kind == "hadamard":
            stride = 1
            for order in reversed(self.orders):
                block, matrix = order * stride, self.matrices[order]
                for start in range(0, self.width, block):
                    part = x[start : start + block]
                    if matrix is None:
                        butterflies(part, stride)
                    else:
                        mixed = []
                        for row in matrix:
                            for k in range(stride):
                                total = row[0] * part[k]
                                for j in range(1, order):
                                    total = f32(total + row[j] * part[j * stride + k])
                                mixed.append(total)
                        part = mixed
                    x[start : start + block] = part
                stride = block
            scale = f32(1 / self.width**0.5)
            x[:] = [f32(v * scale) for v in x]


def decode_unisvq(header, plane):
    rows, cols, bits, dim = (header[k] for k in ("rows", "cols", "bits", "dim"))
    check(bits in (2, 3, 4) and dim in (1, 2, 4, 8), "bits and group")
    per, group = {2: (4, 1), 3: (8, 3), 4: (2, 1)}[bits]
    row_bytes = -(-cols // per) * group
    check(len(plane["codes"]) == rows * row_bytes, "codes")
    codes = []
    for r in range(rows):
        row = []
        for at in range(r * row_bytes, (r + 1) * row_bytes, group):
            word = int.from_bytes(bytes(plane["codes"][at : at + group]), "big")
            row += [word >> (bits * (per - 1 - i)) & (2**bits - 1) for i in range(per)]
        codes += row[:cols]
    scale, affine = f32(header["scale"]), header.get("affine")
    values = []
    if affine is None:
        values = [f32(scale * (q - (2**bits - 1) / 2)) for q in codes]
    else:
        a, b = [f32(v) for v in affine["a"]], [f32(v) for v in affine["b"]]
        for r in range(rows):
            for at in range(0, cols, dim):
                q = codes[r * cols + at : r * cols + min(at + dim, cols)]
                for i in range(len(q)):
                    total = b[i]
                    for j in range(len(q)):
                        total = f32(total + f32(a[i * dim + j] * q[j]))
                    values.append(f32(scale * total))
    inputs, outputs = Frame(header["input"], cols), Frame(header["output"], rows)
    for j in range(cols):
        column = values[j::cols]
        outputs.unrotate(column)
        values[j::cols] = column
    su, sv = plane.get("input_scales", inputs.signs), plane.get("output_scales", outputs.signs)
    check(len(su) == cols and len(sv) == rows, "tuned scales")
    for r in range(rows):
        row = values[r * cols : (r + 1) * cols]
        inputs.unrotate(row)
        values[r * cols : (r + 1) * cols] = [f32(v * f32(u * sv[r])) for v, u in zip(row, su)]
    return codes, values


def main(path):
    manifest, planes = open_container(path)
    found = {}
    for t in manifest["tensors"]:
        name = escape(t["name"])
        if "raw" in t["storage"]:
            raw = t["storage"]["raw"]
            _, _, content = take(planes, name, raw["xxh3"])
            found[t["name"]] = {"shape": raw["shape"], "dtype": raw["dtype"], "bytes_xxh3": f"{xxh3(content):016x}"}
            continue
        if "unisvq" in t["storage"]:
            stored = t["storage"]["unisvq"]
            header = stored["header"]
            plane = {
                p["name"]: numbers(take(planes, f"{name}#{escape(p['name'])}", p["xxh3"])) for p in stored["planes"]
            }
            check({"codes"} <= set(plane) <= {"codes", "input_scales", "output_scales"}, "planes of grid codes")
            codes, values = decode_unisvq(header, plane)
            found[t["name"]] = {
                "shape": [header["rows"], header["cols"]],
                "codes_xxh3": f"{xxh3(bytes(codes)):016x}",
                "values_xxh3": f"{xxh3(struct.pack(f'<{len(values)}f', *values)):016x}",
                "first_codes": codes[:8],
                "first_value_bits": [f"{f32_bits(v):08x}" for v in values[:8]],
            }
            continue
        coded = t["storage"]["coded"]
        header = coded["header"]
        plane = {p["name"]: numbers(take(planes, f"{name}#{escape(p['name'])}", p["xxh3"])) for p in coded["planes"]}
        if "columns" in header:
            values = decode_columns(header, plane)
            found[t["name"]] = {
                "shape": [header["rows"], header["cols"]],
                "values_xxh3": f"{xxh3(struct.pack(f'<{len(values)}f', *values)):016x}",
                "first_value_bits": [f"{f32_bits(v):08x}" for v in values[:8]],
            }
            continue
        n = header["rows"] * header["cols"]
        points, units, step = decode_units(header, plane)
        values = decode_values(header, units, step, plane)
        found[t["name"]] = {
            "shape": [header["rows"], header["cols"]],
            "points_xxh3": f"{xxh3(struct.pack(f'<{n}i', *points)):016x}",
            "values_xxh3": f"{xxh3(struct.pack(f'<{n}f', *values)):016x}",
            "first_points": points[:8],
            "first_value_bits": [f"{f32_bits(v):08x}" for v in values[:8]],
        }
    for b in manifest["blobs"]:
        _, _, content = take(planes, "@blob/" + escape(b["name"]), b["xxh3"])
        found["@blob/" + b["name"]] = {"bytes_xxh3": f"{xxh3(content):016x}"}
    for section in manifest["sections"]:
        for p in section.get("planes", []):
            take(planes, f"@section/{escape(section['name'])}#{escape(p['name'])}", p["xxh3"])
    check(not planes, f"planes that belong to nothing: {sorted(planes)}")

    print(f"{path}: {len(found)} parts, {n_escapes} escapes, every checksum holds")
    try:
        recorded = json.load(open(re.sub("\\.gosset$", ".json", path)))
    except FileNotFoundError:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for name in sorted(set(found) | set(recorded)):
        check(found.get(name) == recorded.get(name), f"{name}: found {found.get(name)}, recorded {recorded.get(name)}")
    print("every point and every value is as recorded")


if __name__ == "__main__":
    main(sys.argv[1])
