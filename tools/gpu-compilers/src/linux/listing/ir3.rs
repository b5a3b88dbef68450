//! Turnip's disassembly.

use std::collections::HashMap;

use super::Code;

pub(super) fn read(listing: &str) -> Code {
    let mut code = Code::default();
    let mut labels = HashMap::new();
    for line in listing.lines() {
        if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with('l')) {
            labels.insert(label, code.instructions.len());
            continue;
        }
        // Directives to the assembler, comments and the title are not instructions.
        if line.is_empty() || line.starts_with(['@', ';']) || line.starts_with("Native code") {
            continue;
        }
        let at = code.instructions.len();
        let operation = operation(line);
        code.instructions.push(load(operation));
        if operation.starts_with("br") || operation.starts_with("jump") {
            let target = operation.rsplit_once('#').map(|(_, label)| label.trim());
            // A label that was not met lies ahead.
            if let Some(&first) = target.and_then(|target| labels.get(target)) {
                code.repeats.push((first, at));
            }
        }
    }
    code
}

/// The instruction without the flags before it: `(sy)(rpt2)add.f`.
fn operation(line: &str) -> &str {
    let mut rest = line.trim();
    while let Some((_, behind)) = rest.strip_prefix('(').and_then(|flag| flag.split_once(')')) {
        rest = behind;
    }
    rest
}

/// Bytes that an instruction loads, if it loads from a buffer by lanes. Buffers are read as textures: `isam.v (u32)(xyzw)r1.x`.
fn load(operation: &str) -> Option<u32> {
    let rest = operation.strip_prefix("isam")?;
    let words = rest.split('(').filter_map(|part| part.split_once(')')).map(|(inside, _)| inside);
    let words = words.filter(|inside| inside.chars().all(|c| "xyzw".contains(c))).map(str::len).next()?;
    Some(4 * words as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_to_labels_above_repeat_and_texture_reads_are_loads() {
        let listing = "\
Native code for unnamed CL shader (null) with blake3 00:
; num_ubos:           0
@in(r48.x)\tin0 (wrmask=0x7)
mov.u32u32 r0.w, 0
l130:
(sy)(ss)isam.v.base0 (u32)(xyzw)r1.x, r0.w+4, s#0, t#0
isam.v.base1 (u32)(x)r2.x, r0.w, s#0, t#0
(rpt3)nop
br p0.y, #l152
(jp)jump #l130
l152:
end
";
        let code = read(listing);
        assert_eq!(code.instructions, [None, Some(16), Some(4), None, None, None, None]);
        assert_eq!(code.repeats, [(1, 5)]);
    }
}
