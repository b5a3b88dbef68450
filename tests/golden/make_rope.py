#!/usr/bin/env python3
"""Writes rope.json: golden vectors of rotary embedding, from the definitions that Hugging Face's configs refer to, in numpy
and float64.

Nothing here is shared with the library, neither code nor data: run it again only to add cases, with any numpy from 1.20
on: `python3 tests/golden/make_rope.py`.

A case has the rope object as it stands in a `config.json`, and what stands beside it; the inverse frequencies and the factor
of cosines and sines that come of it; and the cosines and sines of a few positions, times that factor, pair by pair.
"""

import json
import pathlib

import numpy as np

POSITIONS = [0, 1, 4097, 131071]


def plain(theta, dims):
    return theta ** (-np.arange(0, dims, 2, dtype=np.float64) / dims)


def linear(case, rope, theta, dims):
    return plain(theta, dims) / rope["factor"], 1.0


def dynamic(case, rope, theta, dims):
    original = case["max_position_embeddings"]
    longest = max(case["seq_len"], original)
    growth = rope["factor"] * longest / original - (rope["factor"] - 1)
    return plain(theta * growth ** (dims / (dims - 2)), dims), 1.0


def llama3(case, rope, theta, dims):
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    result = []
    for freq in plain(theta, dims):
        wavelength = 2 * np.pi / freq
        if wavelength < original / rope["high_freq_factor"]:
            result.append(freq)
        elif wavelength > original / rope["low_freq_factor"]:
            result.append(freq / factor)
        else:
            smooth = original / wavelength - rope["low_freq_factor"]
            smooth /= rope["high_freq_factor"] - rope["low_freq_factor"]
            result.append((1 - smooth) * freq / factor + smooth * freq)
    return np.array(result), 1.0


def yarn(case, rope, theta, dims):
    original = rope.get("original_max_position_embeddings", case.get("max_position_embeddings"))
    factor = rope.get("factor") or case["max_position_embeddings"] / original

    def correction(rotations):
        return dims * np.log(original / (rotations * 2 * np.pi)) / (2 * np.log(theta))

    low, high = correction(rope.get("beta_fast", 32)), correction(rope.get("beta_slow", 1))
    if rope.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dims // 2) - low) / (high - low), 0, 1)
    extrapolated = plain(theta, dims)
    freqs = extrapolated / factor * ramp + extrapolated * (1 - ramp)

    def mscale(scale):
        return 1.0 if factor <= 1 else 0.1 * scale * np.log(factor) + 1.0

    if rope.get("attention_factor") is not None:
        return freqs, rope["attention_factor"]
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return freqs, mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"])
    return freqs, mscale(1.0)


def longrope(case, rope, theta, dims):
    original = rope.get("original_max_position_embeddings") or case["original_max_position_embeddings"]
    is_long = case["seq_len"] > original
    factors = np.array(rope["long_factor" if is_long else "short_factor"], dtype=np.float64)
    attention = rope.get("attention_factor") or rope.get("long_mscale" if is_long else "short_mscale")
    if attention is None:
        factor = rope.get("factor") or case["max_position_embeddings"] / original
        attention = np.sqrt(1 + np.log(factor) / np.log(original)) if factor > 1 else 1.0
    return plain(theta, dims) / factors, attention


def proportional(case, rope, theta, dims):
    head_dim = case["head_dim"]
    rotated = int(rope.get("partial_rotary_factor", 1.0) * head_dim // 2)
    freqs = np.zeros(head_dim // 2)
    freqs[:rotated] = theta ** (-np.arange(0, 2 * rotated, 2, dtype=np.float64) / head_dim)
    return freqs / rope.get("factor", 1.0), 1.0


KINDS = {
    "default": lambda case, rope, theta, dims: (plain(theta, dims), 1.0),
    "mrope": lambda case, rope, theta, dims: (plain(theta, dims), 1.0),
    "linear": linear,
    "dynamic": dynamic,
    "llama3": llama3,
    "yarn": yarn,
    "longrope": longrope,
    "su": longrope,
    "proportional": proportional,
}

SHORT = [1.0 + 0.05 * i for i in range(16)]
LONG = [1.0 + 0.25 * i * i for i in range(16)]

CASES = [
    dict(name="plain", head_dim=32, rope={"rope_type": "default"}),
    dict(name="qwen3", head_dim=32, rope={"rope_type": "default", "rope_theta": 1000000}),
    dict(name="gemma-3 local", head_dim=64, rope={"rope_type": "default"}, rope_theta=10000.0),
    dict(name="gemma-3 global", head_dim=64, rope={"factor": 8.0, "rope_type": "linear"}, rope_theta=1000000.0),
    dict(name="gpt-neox, a quarter", head_dim=64, rope={"type": "default"}, partial_rotary_factor=0.25),
    dict(name="phi-2, 0.4 of 80", head_dim=80, rope={"rope_type": "default", "partial_rotary_factor": 0.4}),
    dict(name="internlm-2, within its length", head_dim=32, rope={"type": "dynamic", "factor": 2.0},
         rope_theta=1000000.0, max_position_embeddings=32768, seq_len=8192),
    dict(name="internlm-2, beyond it", head_dim=32, rope={"type": "dynamic", "factor": 2.0},
         rope_theta=1000000.0, max_position_embeddings=32768),
    dict(name="llama-3.1", head_dim=64, rope_theta=500000.0, max_position_embeddings=131072,
         rope={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192, "rope_type": "llama3"}),
    dict(name="llama-4 scout", head_dim=32, rope_theta=500000.0,
         rope={"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.5,
               "original_max_position_embeddings": 8192, "rope_type": "llama3"}),
    dict(name="qwen-2.5 by yarn", head_dim=64, rope_theta=1000000.0, max_position_embeddings=32768,
         rope={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}),
    dict(name="gpt-oss", head_dim=64, rope_theta=150000.0, max_position_embeddings=131072,
         rope={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
               "rope_type": "yarn", "truncate": False}),
    dict(name="deepseek-v2-lite", head_dim=64, rope_theta=10000.0, max_position_embeddings=163840,
         rope={"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.707,
               "original_max_position_embeddings": 4096, "type": "yarn", "rope_type": "yarn"}),
    dict(name="yarn by lengths, with a factor of its own", head_dim=32, max_position_embeddings=65536,
         rope={"rope_type": "yarn", "attention_factor": 1.25, "beta_fast": 16.0, "beta_slow": 2.0,
               "original_max_position_embeddings": 8192}),
    dict(name="yarn, a ramp without width", head_dim=32, rope_theta=1e9, max_position_embeddings=64,
         rope={"rope_type": "yarn", "factor": 3.0, "beta_fast": 33.0, "beta_slow": 32.0}),
    dict(name="phi-3, long", head_dim=32, rope_theta=10000.0, max_position_embeddings=131072,
         original_max_position_embeddings=4096, rope={"long_factor": LONG, "short_factor": SHORT, "type": "longrope"}),
    dict(name="phi-3, short", head_dim=32, rope_theta=10000.0, max_position_embeddings=131072, seq_len=4096,
         original_max_position_embeddings=4096, rope={"long_factor": LONG, "short_factor": SHORT, "type": "su"}),
    dict(name="phi-3.5-moe", head_dim=32, max_position_embeddings=131072,
         rope={"long_factor": LONG, "short_factor": SHORT, "long_mscale": 1.243, "short_mscale": 1.1,
               "original_max_position_embeddings": 4096, "type": "longrope"}),
    dict(name="minicpm, half of a head", head_dim=64, partial_rotary_factor=0.5, max_position_embeddings=32768,
         rope={"long_factor": LONG, "short_factor": SHORT, "factor": 4.0, "rope_type": "longrope",
               "original_max_position_embeddings": 8192}),
    dict(name="qwen-2-vl", head_dim=64, rope_theta=1000000.0,
         rope={"type": "mrope", "rope_type": "default", "mrope_section": [8, 12, 12]}),
    dict(name="qwen-3-vl", head_dim=64, rope_theta=5000000.0,
         rope={"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True}),
    dict(name="gemma-4 global", head_dim=64,
         rope={"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}),
]


def finished(case):
    case = {"seq_len": 131072, **case}
    rope = case["rope"]
    theta = float(rope.get("rope_theta", case.get("rope_theta", 10000.0)))
    part = rope.get("partial_rotary_factor", case.get("partial_rotary_factor", 1.0))
    kind = rope.get("rope_type", rope.get("type"))
    freqs, factor = KINDS[kind](case, rope, theta, int(case["head_dim"] * part))
    case["inv_freq"] = [float(f"{freq:.13g}") for freq in freqs]
    case["attention_factor"] = float(factor)
    angles = np.outer(POSITIONS, freqs)
    rotations = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * factor
    case["rotations"] = [[round(float(x), 9) for x in at.ravel()] for at in rotations]
    return case


lines = ",\n".join(json.dumps(finished(case)) for case in CASES)
text = f'{{"positions": {json.dumps(POSITIONS)}, "cases": [\n{lines}\n]}}\n'
pathlib.Path(__file__).with_name("rope.json").write_text(text)
