//! ANV's disassembly: a message to the memory stands in the line after its instruction.

use std::collections::HashMap;

use super::Code;

/// The number of workgroup memory among the surfaces of older generations.
const WORKGROUP_MEMORY: &str = "254";

pub(super) fn read(listing: &str) -> Code {
    let mut code = Code::default();
    let mut labels = HashMap::new();
    for line in listing.lines() {
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label, code.instructions.len());
        } else if line.starts_with(' ') {
            if let (Some(last), Some((unit, message))) = (code.instructions.last_mut(), line.split_once(" MsgDesc: ("))
            {
                *last = load(unit.trim(), message);
            }
        } else if let Some(at) = line.find("while(") {
            // The only jump backwards; its place is the next to be filled.
            let target = line[at..].split_whitespace().find(|word| word.starts_with("LABEL"));
            if let Some(&first) = target.and_then(|target| labels.get(target)) {
                code.repeats.push((first, code.instructions.len()));
            }
            code.instructions.push(None);
        } else if !line.is_empty() {
            code.instructions.push(None);
        }
    }
    code
}

/// Bytes that a message loads, if it loads from a buffer by lanes.
fn load(unit: &str, message: &str) -> Option<u32> {
    let mut parts = message.split(',').map(str::trim);
    match (unit, parts.next()?) {
        // Since Alchemist: `load, a32, d32, V4, …`. What is transposed serves all lanes.
        ("ugm", "load") if !message.contains("transpose") => {
            let bits: u32 = parts.find_map(|part| part.strip_prefix('d')?.parse().ok())?;
            let values: u32 = parts.next()?.strip_prefix('V')?.parse().ok()?;
            Some(bits / 8 * values)
        }
        // Before: `untyped surface read, Surface = 3, SIMD8, Mask = 0xe`; the mask names the words that are left out.
        ("hdc1", "untyped surface read") => {
            let surface = parts.next()?.strip_prefix("Surface = ")?;
            let mask = parts.next_back()?.split(')').next()?.strip_prefix("Mask = 0x")?;
            let left_out = u32::from_str_radix(mask, 16).ok()?.count_ones();
            (surface != WORKGROUP_MEMORY).then_some(4 * 4_u32.saturating_sub(left_out))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_repeats_from_its_label_and_messages_belong_to_the_instruction_above() {
        let alchemist = "\
mov(8)          g1<1>UD         0x00000000UD                    { align1 1Q };

LABEL4:
send(8)         g6UD            g3UD            nullUD          0x0210c580 0x00000000
                ugm MsgDesc: ( load, a32, d32, V4, L1STATE_L3MOCS dst_len = 4, src0_len = 1, src1_len = 0 bti )  BTI 3  { align1 1Q $0 };
send(1)         g7UD            g4UD            nullUD          0x0210c580 0x00000000
                ugm MsgDesc: ( load, a32, d32, V8, transpose, L1STATE_L3MOCS dst_len = 1, src0_len = 1 bti )  BTI 2  { align1 WE_all 1N $1 };
send(8)         g7UD            g4UD            nullUD          0x0210c580 0x00000000
                slm MsgDesc: ( load, a32, d32, V4, L1STATE_L3MOCS dst_len = 4, src0_len = 1, src1_len = 0 flat )  { align1 1Q $1 };
(+f0.0) break(8) JIP:  LABEL3         UIP:  LABEL3              { align1 1Q };

LABEL3:
(-f0.0) while(8) JIP:  LABEL4                                   { align1 1Q };
add(8)          g1<1>UD         g1<8,8,1>UD     g2<8,8,1>UD     { align1 1Q };
";
        let code = read(alchemist);
        assert_eq!(code.instructions, [None, Some(16), None, None, None, None, None]);
        assert_eq!(code.repeats, [(1, 5)]);
    }

    #[test]
    fn masks_name_the_words_that_are_left_out_and_workgroup_memory_is_no_buffer() {
        let width = |message| load("hdc1", message);
        assert_eq!(width("untyped surface read, Surface = 3, SIMD8, Mask = 0xe)  mlen 1 rlen 1"), Some(4));
        assert_eq!(width("untyped surface read, Surface = 3, SIMD8, Mask = 0x0)  mlen 1 rlen 4"), Some(16));
        assert_eq!(width("untyped surface read, Surface = 254, SIMD8, Mask = 0x0)"), None);
        assert_eq!(width("DC untyped surface write, Surface = 3, SIMD8, Mask = 0x0)"), None);
    }
}
