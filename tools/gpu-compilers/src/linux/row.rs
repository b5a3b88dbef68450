//! One kernel on one GPU: what its compiler tells, in the same words for all of them.

use anyhow::bail;
use serde::{Deserialize, Serialize};

use super::chips::Compiler;
use super::listing::{self, MainLoop};
use super::vulkan::Compiled;

/// What all kernels of a chip have in common, and the kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChipReport {
    pub chip: String,
    pub compiler: Compiler,
    /// As the adapter names itself.
    pub device: String,
    /// Driver and version.
    pub driver: String,
    /// Lanes of a subgroup, least and most.
    pub subgroups: (u32, u32),
    /// The form of the attention kernels that the library chose.
    pub form: String,
    /// Rows that a workgroup may hold in registers.
    pub tile_rows: u32,
    pub rows: Vec<Row>,
}

/// A kernel; a figure that a compiler does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub kernel: String,
    /// Whether every run compiles it and all its figures have bounds.
    pub is_watched: bool,
    /// Lanes of a subgroup.
    pub subgroup: u32,
    /// Of a lane, in words of 4 bytes.
    pub registers: Option<u64>,
    /// Values of a lane that did not fit into registers, written to memory: instructions or registers, as the compiler counts.
    pub spills: Option<u64>,
    /// Values of a whole subgroup that did not fit into their registers; they go to registers of lanes, which costs little.
    pub scalar_spills: Option<u64>,
    /// Bytes of memory for what is private to a lane: spills, and arrays that the compiler did not put into registers.
    pub scratch: Option<u64>,
    /// How many subgroups stay on a core at a time; Apple: threads.
    pub waves: Option<u64>,
    /// Of the whole text.
    pub instructions: Option<u64>,
    /// The compiler's own estimate; only ratios mean something.
    pub cycles: Option<u64>,
    pub main_loop: Option<MainLoop>,
    pub compile_ms: f64,
}

impl Row {
    /// # Errors
    /// A statistic that this compiler is known to tell is missing: then a check would pass that can no longer fail.
    pub fn new(kernel: String, compiler: Compiler, compiled: &Compiled) -> anyhow::Result<Self> {
        let told = |name: Option<&str>| match name {
            None => Ok(None),
            Some(name) => match compiled.statistics.get(name) {
                Some(&value) => Ok(Some(value as u64)),
                None => {
                    let known: Vec<_> = compiled.statistics.keys().map(String::as_str).collect();
                    bail!("the compiler tells no `{name}`; it tells {}", known.join(", "))
                }
            },
        };
        let names = Names::of(compiler);
        Ok(Self {
            kernel,
            is_watched: false,
            subgroup: compiled.subgroup,
            registers: told(names.registers)?,
            spills: told(names.spills)?,
            scalar_spills: told(names.scalar_spills)?,
            scratch: told(names.scratch)?,
            waves: told(names.waves)?,
            instructions: told(names.instructions)?,
            cycles: told(names.cycles)?,
            main_loop: compiled.listings.last().and_then(|(_, text)| listing::main_loop(compiler, text)),
            compile_ms: compiled.millis,
        })
    }
}

/// What a compiler calls the figures of a row.
struct Names {
    registers: Option<&'static str>,
    spills: Option<&'static str>,
    scalar_spills: Option<&'static str>,
    scratch: Option<&'static str>,
    waves: Option<&'static str>,
    instructions: Option<&'static str>,
    cycles: Option<&'static str>,
}

impl Names {
    fn of(compiler: Compiler) -> Self {
        match compiler {
            Compiler::Aco => Self {
                registers: Some("VGPRs"),
                spills: Some("Spilled VGPRs"),
                scalar_spills: Some("Spilled SGPRs"),
                scratch: Some("Scratch size"),
                waves: Some("Subgroups per SIMD"),
                instructions: Some("Instructions"),
                cycles: Some("Latency"),
            },
            Compiler::Nak => Self {
                registers: Some("Number of GPRs"),
                spills: Some("Spills to memory"),
                scalar_spills: None,
                scratch: Some("SLM size"),
                waves: Some("Max warps/SM"),
                instructions: Some("Instruction count"),
                cycles: Some("Static cycle count"),
            },
            Compiler::Brw => Self {
                registers: Some("Max live registers"),
                spills: Some("Spills"),
                scalar_spills: None,
                scratch: Some("Scratch Memory Size"),
                waves: None,
                instructions: Some("Instructions"),
                cycles: Some("Cycles"),
            },
            Compiler::Agx => Self {
                registers: Some("GPRs"),
                spills: Some("Spills"),
                scalar_spills: None,
                scratch: Some("Scratch"),
                waves: Some("Threads"),
                instructions: Some("Instructions"),
                cycles: None,
            },
            // Stores to private memory are all that it tells of spills.
            Compiler::Ir3 => Self {
                registers: Some("Registers used"),
                spills: Some("STP Count"),
                scalar_spills: None,
                scratch: None,
                waves: Some("Max Waves Per Core"),
                instructions: Some("Instruction Count"),
                cycles: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(statistics: &[(&str, f64)]) -> Compiled {
        let statistics = statistics.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Compiled { millis: 12.0, subgroup: 64, statistics, listings: Vec::new() }
    }

    #[test]
    fn figures_are_found_under_the_compiler_s_names_and_a_missing_one_is_an_error() {
        let told =
            [("Registers used", 19.0), ("STP Count", 3.0), ("Max Waves Per Core", 10.0), ("Instruction Count", 3397.0)];
        let row = Row::new("copy".to_owned(), Compiler::Ir3, &compiled(&told)).unwrap();
        assert_eq!((row.registers, row.spills, row.scratch, row.waves), (Some(19), Some(3), None, Some(10)));
        let error = Row::new("copy".to_owned(), Compiler::Ir3, &compiled(&told[..3])).unwrap_err().to_string();
        assert!(error.contains("tells no `Instruction Count`; it tells Max Waves Per Core, "), "{error}");
    }
}
