#!/usr/bin/env python3
"""Writes attention.json: golden vectors of paged attention, from the definitions, in numpy and float64.

Nothing here is shared with the library, neither code nor data: run it again only to add cases, with any numpy from 1.20
on: `python3 tests/golden/make_vectors.py`. The inputs come from a generator whose stream is frozen, so old cases stay.

Numbers of the inputs are multiples of 1/1024 and stand in the file as integers n, meaning n/1024: f32 holds them
exactly, f16 and bf16 do not.
"""

import json
import pathlib

import numpy as np

GRID = 1024


# Storage. A row (one token of one KV head) becomes codes and scales, and numbers again.

def nearest_even(value, candidates):
    """Index of the candidate that is nearest; of two equally near ones the one with the even index."""
    distance = np.abs(candidates - value)
    best = np.flatnonzero(distance == distance.min())
    return int(best[best % 2 == 0][0]) if len(best) > 1 else int(best[0])


def float_values(exponent_bits, mantissa_bits, codes):
    """What the non-negative codes of a small floating-point format stand for."""
    bias = 2 ** (exponent_bits - 1) - 1
    exponent, mantissa = codes >> mantissa_bits, (codes % 2**mantissa_bits).astype(float) / 2**mantissa_bits
    return np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent.astype(float) - bias))


F16 = float_values(5, 10, np.arange(0x7C00))
BF16_CODES = np.arange(0x3A00, 0x4200)  # 2^-11 to 32: all that the inputs can reach
BF16 = float_values(8, 7, BF16_CODES)
FP8 = float_values(4, 3, np.arange(0x7F))  # 0x7f is NaN
assert F16[-1] == 65504 and FP8[-1] == 448 and FP8[1] == 2.0**-9

# Elements that share a scale (0: none), the greatest code's number, bits of a code.
FORMATS = {
    "f32": (0, None, 32),
    "f16": (0, None, 16),
    "bf16": (0, None, 16),
    "int8": (10**9, 127, 8),
    "fp8": (10**9, 448, 8),
    "int4": (32, 7, 4),
}


def code_of(fmt, x):
    """Code and number of a value that has been divided by its scale; None where a rule for ties would matter."""
    sign = 1.0 if x >= 0 else -1.0
    if fmt in ("f16", "bf16"):
        table, first, top = (F16, 0, 15) if fmt == "f16" else (BF16, int(BF16_CODES[0]), 15)
        if x == 0:
            return 0, 0.0
        at = nearest_even(abs(x), table)
        return at + first | (sign < 0) << top, sign * table[at]
    if fmt == "fp8":
        order = np.sort(np.abs(FP8 - abs(x)))
        at = nearest_even(abs(x), FP8)
        if order[1] - order[0] < 1e-3 * max(abs(x), 2.0**-9) or (at == 0 and x != 0):
            return None
        return at | (sign < 0) << 7, sign * FP8[at]
    code = int(np.round(x))
    if abs(abs(x - code) - 0.5) < 1e-3:
        return None
    return (code + 8, code) if fmt == "int4" else (code % 256, code)


def pack(codes, bits):
    """Codes to words, from the low bits on, and to whole units of four words."""
    per_word = 32 // bits
    words = [0] * (-(-len(codes) // (4 * per_word)) * 4)
    for e, code in enumerate(codes):
        words[e // per_word] |= code << bits * (e % per_word)
    return words


def store(fmt, row):
    """(words, what is read back) of a row; None if an element is too near a tie."""
    row = np.asarray(row, np.float32)
    group, largest, bits = FORMATS[fmt]
    if fmt == "f32":
        return pack([int(b) for b in row.view(np.uint32)], 32), row.copy()
    codes, scales, back = [], [], np.zeros(len(row), np.float32)
    for start in range(0, len(row), group or len(row)):
        part = row[start : start + (group or len(row))]
        scale = np.float32(1)
        if group:
            scale = np.float32(np.abs(part).max()) * (np.float32(1) / np.float32(largest))
            scales.append(int(scale.view(np.uint32)))
        for e, x in enumerate(part):
            found = code_of(fmt, float(x) / float(scale) if scale else 0.0)
            if found is None:
                return None
            codes.append(found[0])
            back[start + e] = np.float32(found[1]) * scale
    # What is behind the last element counts as a code for 0, which int4 writes as 8.
    unit = 128 // bits
    codes += [8 if fmt == "int4" else 0] * (-len(codes) % unit)
    return pack(codes, bits) + pack(scales, 32), back


def draw(random, fmt, dim, reach):
    """A row that the format stores in one certain way, as integers on the grid."""
    while True:
        row = random.randint(-reach, reach + 1, dim)
        for _ in range(1000):
            stored = store(fmt, row / GRID)
            if stored is not None:
                return row, stored[1].astype(float)
            row[random.randint(dim)] = random.randint(-reach, reach + 1)


# Attention.

def attend(q, k, v, position, scale, causal, window, soft_cap, slope, sink):
    """(output, log-sum-exp) of one query head; k and v: [seq_len, dim]."""
    keys = np.arange(len(k))
    visible = np.ones(len(k), bool)
    if causal:
        visible &= keys <= position
    if window is not None:
        visible &= position - keys < window
    if not visible.any():
        return np.zeros(v.shape[1]), -np.inf
    score = k @ q * scale
    if soft_cap is not None:
        score = soft_cap * np.tanh(score / soft_cap)
    score = np.where(visible, score, -np.inf) + slope * (keys - position)
    logits = np.append(score, -np.inf if sink is None else sink)
    lse = logits.max() + np.log(np.exp(logits - logits.max()).sum())
    return np.exp(score - lse) @ v, lse


def case(name, heads, dims, seqs, block_size=4, kv_format="f32", reach=2048, scale=None, causal=True, window=None,
         soft_cap=None, alibi=False, sinks=False):
    """heads: (query, KV). dims: (K, V). seqs: [(seq_len, queries)]."""
    random = np.random.RandomState(sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**32)
    (num_q, num_kv), (dim, v_dim) = heads, dims
    slopes = [2 ** -(h + 1.0) for h in range(num_q)] if alibi else None
    logits = [float(s) / 16 for s in random.randint(-40, 41, num_q)] if sinks else None
    needed = [-(-length // block_size) for length, _ in seqs]
    num_blocks = sum(needed) + 3
    ids = random.permutation(num_blocks).tolist()
    sequences, queries, out, lse = [], [], [], []
    for (length, count), blocks in zip(seqs, needed):
        given, stored = {}, {}
        for what, width in (("k", dim), ("v", v_dim)):
            rows = [draw(random, kv_format, width, reach) for _ in range(length * num_kv)]
            given[what] = [int(n) for row, _ in rows for n in row]
            stored[what] = np.array([back for _, back in rows]).reshape(length, num_kv, width)
        table, ids = ids[:blocks], ids[blocks:]
        sequences.append({"seq_len": length, "queries": count, "blocks": table, **given})
        for i in range(count):
            for head in range(num_q):
                q = random.randint(-2048, 2049, dim)
                queries += q.tolist()
                kv = head // (num_q // num_kv)
                row_out, row_lse = attend(
                    q / GRID, stored["k"][:, kv], stored["v"][:, kv], length - count + i,
                    dim**-0.5 if scale is None else scale, causal, window, soft_cap,
                    slopes[head] if slopes else 0.0, logits[head] if logits else None)
                out += [float(f"{x:.13g}") for x in row_out]
                lse.append(None if row_lse == -np.inf else float(f"{row_lse:.13g}"))
    return {
        "name": name, "num_q_heads": num_q, "num_kv_heads": num_kv, "head_dim": dim, "v_head_dim": v_dim,
        "kv_format": kv_format, "block_size": block_size, "num_blocks": num_blocks, "scale": scale, "causal": causal,
        "window": window, "soft_cap": soft_cap, "alibi_slopes": slopes, "sinks": logits, "sequences": sequences,
        "q": queries, "out": out, "lse": lse,
    }


def rows(fmt, dims):
    """Rows with the words that store them; the second of each pair is all zeros."""
    random = np.random.RandomState(7)
    found = []
    for dim in dims:
        for row in (draw(random, fmt, dim, 4096)[0], np.zeros(dim, int)):
            words, back = store(fmt, row / GRID)
            found.append({"format": fmt, "values": row.tolist(), "words": words,
                          "read_back_bits": [int(b) for b in back.view(np.uint32)]})
    return found


RAGGED = [(1, 1), (0, 1), (5, 1), (8, 1), (9, 1)]
CHUNKS = [(7, 7), (9, 3), (0, 0), (6, 1), (2, 4)]
EVERYTHING = dict(window=5, soft_cap=1.5, alibi=True, sinks=True)

CASES = [
    case("decode of one key", (1, 1), (4, 4), [(1, 1)]),
    case("decode of ragged lengths", (4, 2), (8, 8), RAGGED),
    case("nothing but empty rows", (2, 1), (4, 4), [(0, 1), (0, 2), (3, 0)], sinks=True),
    case("prefill, a chunk, a decode row, nothing, and more queries than tokens", (2, 1), (4, 4), CHUNKS),
    case("all keys for all queries", (2, 1), (4, 4), CHUNKS, causal=False),
    case("decode in a window", (2, 2), (4, 4), [(1, 1), (3, 1), (4, 1), (11, 1)], window=3),
    case("prefill in a window", (2, 1), (4, 4), CHUNKS, window=2),
    case("a window bounds the past only, if not causal", (2, 1), (4, 4), CHUNKS, causal=False, window=3),
    case("decode under a soft cap", (2, 1), (8, 8), RAGGED, soft_cap=0.75),
    case("prefill under a soft cap", (2, 1), (8, 8), CHUNKS, soft_cap=2.0, scale=1.0),
    case("decode with ALiBi", (6, 2), (4, 4), RAGGED, alibi=True),
    case("prefill with ALiBi", (4, 4), (4, 4), CHUNKS, alibi=True),
    case("ALiBi that is not causal", (3, 1), (4, 4), CHUNKS, causal=False, alibi=True),
    case("decode with sinks", (4, 2), (4, 4), RAGGED, sinks=True),
    case("prefill with sinks", (2, 1), (4, 4), CHUNKS, sinks=True),
    case("V narrower than K", (2, 1), (12, 5), [(6, 1), (9, 2)], alibi=True),
    case("V wider than K", (2, 1), (5, 12), [(6, 1), (9, 2)], sinks=True),
    case("odd widths and groups", (9, 3), (5, 3), [(7, 1), (6, 2)], block_size=3),
    case("one KV head for seven query heads", (7, 1), (8, 8), [(10, 1), (3, 2)], block_size=1),
    case("a scale of its own", (2, 1), (8, 8), RAGGED, scale=0.0625),
    case("everything in decode", (4, 2), (8, 4), [(1, 1), (0, 1), (5, 1), (6, 1), (17, 1)], **EVERYTHING),
    case("everything in prefill", (4, 2), (4, 8), CHUNKS, **EVERYTHING),
    case("everything without the causal mask", (2, 1), (4, 4), CHUNKS, causal=False, **EVERYTHING),
    case("f16", (2, 1), (12, 12), [(5, 1), (7, 2)], kv_format="f16", reach=4096),
    case("bf16", (2, 1), (12, 12), [(5, 1), (7, 2)], kv_format="bf16", reach=4096),
    case("int8", (2, 1), (20, 12), [(5, 1), (7, 2)], kv_format="int8"),
    case("fp8", (2, 1), (20, 12), [(5, 1), (7, 2)], kv_format="fp8"),
    case("int4 with several scales to a row", (2, 1), (40, 33), [(5, 1), (6, 2)], kv_format="int4"),
    case("everything in int8", (4, 2), (8, 8), [(9, 1), (7, 3)], kv_format="int8", **EVERYTHING),
]

ROWS = [row for fmt in FORMATS for row in rows(fmt, {"int4": [5, 32, 40, 140], "f32": [5]}.get(fmt, [5, 16, 20]))]


def lines(item):
    return "{\n" + ",\n".join(f'  "{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in item.items()) + "\n}"


about = "Made by make_vectors.py; k, v, q and values are integers n that mean n/1024, an lse of null is minus infinity."
text = "{\n" + f'"about": {json.dumps(about)},\n'
text += '"rows": [\n' + ",\n".join(map(lines, ROWS)) + "\n],\n"
text += '"cases": [\n' + ",\n".join(map(lines, CASES)) + "\n]\n}\n"
json.loads(text)
pathlib.Path(__file__).with_name("attention.json").write_text(text)
print(f"{len(ROWS)} rows, {len(CASES)} cases, {len(text)} bytes")
