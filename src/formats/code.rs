//! One element and its code. Twin of `shaders/common/kv_*_store.wgsl`, function by function.

use half::f16;

use super::KvDtype;

/// Bits of an f32 without its sign; magnitudes are ordered as their bits are, and what is not finite comes last.
pub(super) const MAGNITUDE: u32 = 0x7fff_ffff;
/// Bits of +∞.
const INFINITY: u32 = 0x7f80_0000;
/// Bits of the NaN that stands for a scale where an element is not finite.
const NAN: u32 = 0x7fc0_0000;
/// Bits of 2⁻¹⁰⁰. With a scale from here on, every product that decides on a code is a normal number, so it is no
/// matter whether a device has others.
const SMALLEST: u32 = 27 << 23;

/// Bits of the scale for elements of which this is the largest magnitude, in bits.
pub(super) fn scale_bits(format: KvDtype, largest: u32) -> u32 {
    if largest >= INFINITY {
        return NAN;
    }
    if largest < SMALLEST {
        return 0;
    }
    (f32::from_bits(largest) * (1.0 / format.largest() as f32)).to_bits()
}

/// The code of an element, given as the bits of its f32 and of its scale.
pub(super) fn encode(format: KvDtype, x: u32, scale: u32) -> u32 {
    let negative = x > MAGNITUDE;
    match format {
        KvDtype::F32 => x,
        KvDtype::F16 => encode_f16(x),
        KvDtype::Bf16 => encode_bf16(x),
        KvDtype::Int8 => {
            let code = nearest_code::<Int8>(x, scale);
            if negative { code.wrapping_neg() & 0xff } else { code }
        }
        KvDtype::Fp8 => {
            let code = nearest_code::<Fp8>(x, scale);
            if negative && code > 0 { code | 0x80 } else { code }
        }
        KvDtype::Int4 => {
            let code = nearest_code::<Int4>(x, scale);
            if negative { 8 - code } else { 8 + code }
        }
    }
}

/// The number that a code stands for, before it is scaled.
pub(super) fn decode(format: KvDtype, code: u32) -> f32 {
    match format {
        KvDtype::F32 => f32::from_bits(code),
        KvDtype::F16 => f16::from_bits(code as u16).to_f32(),
        KvDtype::Bf16 => f32::from_bits(code << 16),
        KvDtype::Int8 => (code as u8 as i8).into(),
        KvDtype::Fp8 => decode_fp8(code),
        KvDtype::Int4 => code as f32 - 8.0,
    }
}

/// Rounds to nearest even. With integers, as on the device, where `pack2x16float` may round either way.
fn encode_f16(x: u32) -> u32 {
    let sign = (x >> 16) & 0x8000;
    let magnitude = x & MAGNITUDE;
    if magnitude > INFINITY {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x1ff);
    }
    // 65,520 lies halfway between the largest f16 and the next power of two.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    // From 2⁻¹⁴ on the exponent is only counted from another start; a carry into it is right.
    if magnitude >= 0x3880_0000 {
        let rebased = magnitude - (112 << 23);
        return sign | ((rebased + 0xfff + ((rebased >> 13) & 1)) >> 13);
    }
    // Below, a code counts steps of 2⁻²⁴; beyond a shift by 24 all becomes 0.
    let mantissa = (magnitude & 0x7f_ffff) | 0x80_0000;
    let shift = (126 - (magnitude >> 23)).min(31);
    sign | ((mantissa + (1 << (shift - 1)) - 1 + ((mantissa >> shift) & 1)) >> shift)
}

fn encode_bf16(x: u32) -> u32 {
    if x & MAGNITUDE > INFINITY {
        return (x >> 16) | 0x40;
    }
    (x + 0x7fff + ((x >> 16) & 1)) >> 16
}

fn decode_fp8(code: u32) -> f32 {
    let magnitude = code & 0x7f;
    let bits = match magnitude {
        0x7f => NAN,
        0..8 => (magnitude as f32 * 2.0_f32.powi(-9)).to_bits(),
        _ => (magnitude << 20) + (120 << 23),
    };
    f32::from_bits(bits | (code & 0x80) << 24)
}

/// Codes of magnitudes, in the order of the numbers they stand for.
trait Codes {
    /// The last one.
    const LAST: u32;
    /// The code at or below a number; a code of whole numbers is the number itself.
    fn at_or_below(number: f32) -> u32 {
        number as u32
    }
    /// The number halfway between a code and the next.
    fn midpoint(code: u32) -> f32 {
        code as f32 + 0.5
    }
}

struct Int8;
struct Fp8;
struct Int4;

impl Codes for Int8 {
    const LAST: u32 = 127;
}

impl Codes for Int4 {
    const LAST: u32 = 7;
}

impl Codes for Fp8 {
    const LAST: u32 = 0x7e;
    fn at_or_below(number: f32) -> u32 {
        let bits = number.to_bits();
        // Below 2⁻⁶ codes are multiples of 2⁻⁹.
        if bits < 121 << 23 { (number * 512.0) as u32 } else { (bits - (120 << 23)) >> 20 }
    }
    fn midpoint(code: u32) -> f32 {
        let twice = 2 * code + 1;
        if code < 8 { twice as f32 * 2.0_f32.powi(-10) } else { f32::from_bits((twice << 19) + (120 << 23)) }
    }
}

/// The code of the magnitude that is nearest to an element; of two, the even one.
///
/// A device's quotient is not exact, so it only finds a code at or next to the right one: at a number that a code
/// stands for, perhaps the one below. What decides is a comparison with a product, which all devices round alike.
fn nearest_code<C: Codes>(x: u32, scale: u32) -> u32 {
    if scale == 0 || scale >= INFINITY {
        return 0;
    }
    let (magnitude, scale) = (f32::from_bits(x & MAGNITUDE), f32::from_bits(scale));
    let code = C::at_or_below(magnitude / scale).min(C::LAST);
    let midpoint = C::midpoint(code) * scale;
    let up = magnitude > midpoint || (magnitude == midpoint && code % 2 == 1);
    if code < C::LAST && up { code + 1 } else { code }
}
