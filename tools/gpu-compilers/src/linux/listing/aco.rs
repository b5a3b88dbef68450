//! RADV's disassembly.

use std::collections::HashMap;

use super::Code;

pub(super) fn read(listing: &str) -> Code {
    let mut code = Code::default();
    let mut labels = HashMap::new();
    for line in listing.lines() {
        let line = line.split(';').next().unwrap_or_default().trim_end();
        if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with("BB")) {
            labels.insert(label, code.instructions.len());
            continue;
        }
        // Instructions are indented; what is not are headings.
        let Some((operation, operands)) =
            line.strip_prefix('\t').map(|line| line.split_once(' ').unwrap_or((line, "")))
        else {
            continue;
        };
        let at = code.instructions.len();
        code.instructions.push(load(operation));
        if operation.starts_with("s_branch") || operation.starts_with("s_cbranch") {
            // A label that was not met lies ahead.
            if let Some(&first) = labels.get(operands.trim()) {
                code.repeats.push((first, at));
            }
        }
    }
    code
}

/// Bytes that an instruction loads, if it loads from a buffer by lanes.
fn load(operation: &str) -> Option<u32> {
    let kind = ["buffer_load_", "global_load_", "flat_load_"].iter().find_map(|kind| operation.strip_prefix(kind))?;
    let bytes = match kind.split('_').next()? {
        "b128" | "dwordx4" => 16,
        "b96" | "dwordx3" => 12,
        "b64" | "dwordx2" => 8,
        "b32" | "dword" => 4,
        "u16" | "i16" | "ushort" | "sshort" | "short" | "d16" => 2,
        "u8" | "i8" | "ubyte" | "sbyte" => 1,
        _ => return None,
    };
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_to_blocks_above_repeat_and_vector_loads_are_loads() {
        let listing = "\
BB0:
\ts_load_b128 s[12:15], s[4:5], null                          ; f4080302 f8000000
\ts_buffer_load_b32 s1, s[12:15], 0x18                        ; f4200046 f8000018
BB1:
\tbuffer_load_b128 v[4:7], v1, s[12:15], 0 offen              ; e05c1000 80430401
\tbuffer_load_ushort v8, v1, s[12:15], 0 offen
\ts_waitcnt vmcnt(0)                                          ; bf8903f7
\ts_cbranch_scc1 BB3                                          ; bfa20002
\ts_branch BB1                                                ; bfa0fffb
BB3:
\ts_endpgm
";
        let code = read(listing);
        assert_eq!(code.instructions, [None, None, Some(16), Some(2), None, None, None, None]);
        assert_eq!(code.repeats, [(2, 6)]);
    }

    #[test]
    fn loads_have_a_width_in_the_words_of_every_generation() {
        assert_eq!(load("buffer_load_dwordx4"), Some(16));
        assert_eq!(load("global_load_b64"), Some(8));
        assert_eq!(load("buffer_load_dword"), Some(4));
        assert_eq!(load("buffer_load_u8"), Some(1));
        assert_eq!(load("buffer_store_b32"), None);
        assert_eq!(load("ds_load_b128"), None);
    }
}
