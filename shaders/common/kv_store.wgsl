// kv_store.wgsl — turns elements into a row of K or V in the storage format: codes packed into units, and scales.
// Needs     source_bits(is_v, at), the f32 bits of an element, and put_unit(is_v, at, unit), from the kernel;
//           kv_code(x, scale), a code of CODE_BITS bits, from kv_<format>_store.wgsl
// Twin      src/formats/row.rs: encode_row, src/formats/code.rs: scale_bits
// const     CODE_BITS, HEAD_DIM, K_ROW_UNITS, K_UNITS, LARGEST, PARTS, ROW_LANES, SCALE_PER_ROW, SCALE_PER_UNIT,
//           V_HEAD_DIM, V_ROW_UNITS, V_UNITS, prepended by the host
//
// Elements and scales are handled as bits wherever numbers could differ: a device may take denormal numbers for 0, or
// assume that there is no infinity and no NaN.

const CODES_PER_WORD: u32 = 32u / CODE_BITS;
const UNIT_ELEMENTS: u32 = 4u * PARTS;
const SCALE_PER_LARGEST: f32 = 1.0 / f32(LARGEST);
const INFINITY_BITS: u32 = 0x7f800000u;
const NAN_BITS: u32 = 0x7fc00000u;
const SMALLEST_BITS: u32 = 0x0d800000u; // of 2⁻¹⁰⁰: below, all is 0

// The scale of the elements begin .. end, in bits. Magnitudes are ordered as their bits are; what is not finite comes last.
fn scale_bits(is_v: bool, begin: u32, end: u32) -> u32 {
    var largest = 0u;
    for (var at = begin; at < end; at++) {
        largest = max(largest, source_bits(is_v, at) & 0x7fffffffu);
    }
    if (largest >= INFINITY_BITS) { return NAN_BITS; }
    if (largest < SMALLEST_BITS) { return 0u; }
    return bitcast<u32>(bitcast<f32>(largest) * SCALE_PER_LARGEST);
}

// One word of codes, from element `begin` on; codes of 0 from `end` on.
fn code_word(is_v: bool, begin: u32, end: u32, scale: u32) -> u32 {
    var word = 0u;
    for (var place = 0u; place < CODES_PER_WORD; place++) {
        let at = begin + place;
        let x = select(0u, source_bits(is_v, min(at, end - 1u)), at < end);
        word |= kv_code(x, scale) << (CODE_BITS * place);
    }
    return word;
}

// Writes a row whose elements begin at `begin`: of its units every ROW_LANES-th, from `lane` on. Where there are scales,
// ROW_LANES is 1.
fn store_row(is_v: bool, row: u32, begin: u32, lane: u32) {
    let end = begin + select(HEAD_DIM, V_HEAD_DIM, is_v);
    let units = select(K_UNITS, V_UNITS, is_v);
    let row_base = row * select(K_ROW_UNITS, V_ROW_UNITS, is_v);
    var scale = 0u;
    if (SCALE_PER_ROW) {
        scale = scale_bits(is_v, begin, end);
        put_unit(is_v, row_base + units, vec4<u32>(scale, 0u, 0u, 0u));
    }
    var scales = vec4<u32>(0u);
    for (var unit = lane; unit < units; unit += ROW_LANES) {
        let at = begin + unit * UNIT_ELEMENTS;
        if (SCALE_PER_UNIT) {
            scale = scale_bits(is_v, at, min(at + UNIT_ELEMENTS, end));
            scales = select(scales, vec4<u32>(scale), vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(unit % 4u));
            if (unit % 4u == 3u || unit + 1u == units) {
                put_unit(is_v, row_base + units + unit / 4u, scales);
                scales = vec4<u32>(0u);
            }
        }
        put_unit(is_v, row_base + unit, vec4<u32>(
            code_word(is_v, at, end, scale),
            code_word(is_v, at + CODES_PER_WORD, end, scale),
            code_word(is_v, at + 2u * CODES_PER_WORD, end, scale),
            code_word(is_v, at + 3u * CODES_PER_WORD, end, scale),
        ));
    }
}
