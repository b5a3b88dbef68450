//! NAK's listing: blocks with the numbers of those before and after them.

use std::collections::HashMap;

use super::Code;

pub(super) fn read(listing: &str) -> Code {
    let mut code = Code::default();
    let mut starts = HashMap::new();
    for line in listing.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if let Some(number) = block(line) {
            starts.insert(number, code.instructions.len());
        } else if let Some(after) = line.strip_prefix("} -> [") {
            let last = code.instructions.len().saturating_sub(1);
            for next in after.trim_end_matches(']').split([' ', ',']).filter_map(|next| next.parse().ok()) {
                // A block that was not met lies ahead.
                if let Some(&first) = starts.get(&next) {
                    code.repeats.push((first, last));
                }
            }
        } else if !line.is_empty() && !starts.is_empty() {
            let operation = line.split_once(" = ").map_or(line, |(_, operation)| operation);
            code.instructions.push(load(operation));
        }
    }
    code
}

/// The number of a block whose first line this is.
fn block(line: &str) -> Option<u32> {
    let rest = line.strip_suffix("-> {")?;
    let rest = rest.strip_prefix("block.u ").or_else(|| rest.strip_prefix("block "))?;
    rest.split(' ').next()?.parse().ok()
}

/// Bytes that an instruction loads, if it loads from a buffer by lanes.
fn load(operation: &str) -> Option<u32> {
    let kind = operation.split(' ').find_map(|word| word.strip_prefix("ld.global."))?;
    let bits = kind.split('.').find_map(|part| part.strip_prefix('b').or_else(|| part.strip_prefix('u')))?;
    bits.parse::<u32>().ok().map(|bits| bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_followed_by_one_above_repeat_and_global_loads_are_loads() {
        let listing = "\
block.u 0 L1 [] -> {
      ur0      = s2r sr[0x25]                               // delay=1 wr:0
      r4       = ldc.b32 c[0x0][+0x0]                       // delay=2 wr:3
} -> [1]
block 1 L0 [0, 2] -> {
      r2..4    = ld.global.a64.constant.b64 [r4..6+0x8]     // delay=1 wr:1
@p0   r3       = ld.global.a64.weak.b32 [r4..6]             // delay=1 wr:1
      r5       = ld.shared.b128 [r4]                        // delay=1
} -> [2, 3]
block 2 L4 [1] -> {
      r3       = fadd.ftz r2 r3                             // delay=5
} -> [1]
block 3 L5 [1] -> {
      exit
} -> []
";
        let code = read(listing);
        assert_eq!(code.instructions, [None, None, Some(8), Some(4), None, None, None]);
        assert_eq!(code.repeats, [(2, 5)]);
    }
}
