//! Loops and loads of a kernel's machine code.

mod aco;
mod brw;
mod ir3;
mod nak;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::chips::Compiler;

/// The loop in which a kernel spends its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MainLoop {
    /// Without those of loops inside it.
    pub instructions: u64,
    /// Loads from buffers by lanes, those of loops inside included: bytes of a lane, and how many.
    pub loads: Vec<(u32, u64)>,
}

/// Machine code, as far as loops and loads go.
#[derive(Debug, Default)]
struct Code {
    /// Of each instruction, the bytes that a lane loads from a buffer.
    instructions: Vec<Option<u32>>,
    /// Jumps backwards: first and last instruction of what they repeat.
    repeats: Vec<(usize, usize)>,
}

/// The main loop of machine code; `None` if there is no loop.
pub fn main_loop(compiler: Compiler, listing: &str) -> Option<MainLoop> {
    match compiler {
        Compiler::Aco => aco::read(listing).main_loop(),
        Compiler::Nak => nak::read(listing).main_loop(),
        Compiler::Brw => brw::read(listing).main_loop(),
        Compiler::Ir3 => ir3::read(listing).main_loop(),
        // Honeykrisp shows no code.
        Compiler::Agx => None,
    }
}

impl Code {
    /// Of all loops the one with most instructions, without those of loops inside it.
    fn main_loop(&self) -> Option<MainLoop> {
        // Several jumps to one place repeat one loop.
        let mut loops: BTreeMap<usize, usize> = BTreeMap::new();
        for &(first, last) in &self.repeats {
            let end = loops.entry(first).or_default();
            *end = last.max(*end);
        }
        let own = |(&first, &last): (&usize, &usize)| {
            let inner: Vec<_> = loops.range(first + 1..=last).filter(|&(_, &end)| end <= last).collect();
            let is_own = |at: &usize| !inner.iter().any(|&(first, last)| (first..=last).contains(&at));
            ((first..=last).filter(is_own).count(), first..=last)
        };
        let (instructions, range) = loops.iter().map(own).max_by_key(|(instructions, _)| *instructions)?;
        let mut loads: BTreeMap<u32, u64> = BTreeMap::new();
        for bytes in self.instructions[range].iter().flatten() {
            *loads.entry(*bytes).or_default() += 1;
        }
        Some(MainLoop { instructions: instructions as u64, loads: loads.into_iter().rev().collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_loop_has_most_instructions_of_its_own() {
        // 0 to 9 repeats; in it 2 to 7, which has two jumps back to its start, and in that 3 and 4.
        let instructions = vec![None, Some(4), None, Some(16), Some(16), Some(8), Some(8), None, None, None];
        let code = Code { instructions, repeats: vec![(0, 9), (2, 5), (2, 7), (3, 4)] };
        assert_eq!(code.main_loop().unwrap(), MainLoop { instructions: 4, loads: vec![(16, 2), (8, 2)] });
    }

    #[test]
    fn code_without_a_loop_has_no_main_loop() {
        assert_eq!(Code { instructions: vec![None; 3], repeats: Vec::new() }.main_loop(), None);
    }
}
