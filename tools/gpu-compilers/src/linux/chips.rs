//! The GPUs whose compilers are asked, and how Mesa is made to believe that they are there.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// A GPU whose compiler works without it.
#[derive(Debug)]
pub struct Chip {
    /// What the command line, the bounds and the page call it.
    pub name: &'static str,
    pub compiler: Compiler,
    /// Answers the driver's system calls; preloaded.
    shim: &'static str,
    /// What the shim reads, to know which device it stands for.
    variables: &'static [(&'static str, &'static str)],
}

/// A maker's compiler. Each has its own words for what it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compiler {
    /// AMD's, in RADV.
    Aco,
    /// NVIDIA's, in NVK.
    Nak,
    /// Intel's, in ANV.
    Brw,
    /// Apple's, in Honeykrisp.
    Agx,
    /// Qualcomm's, in Turnip.
    Ir3,
}

impl Compiler {
    /// The start of the name of the driver's manifest.
    fn driver(self) -> &'static str {
        match self {
            Self::Aco => "radeon",
            Self::Nak => "nouveau",
            Self::Brw => "intel",
            Self::Agx => "asahi",
            Self::Ir3 => "freedreno",
        }
    }

    /// The maker's hardware and the compiler's name in Mesa.
    pub fn title(self) -> &'static str {
        match self {
            Self::Aco => "AMD, ACO",
            Self::Nak => "NVIDIA, NAK",
            Self::Brw => "Intel, BRW",
            Self::Agx => "Apple, AGX",
            Self::Ir3 => "Qualcomm, IR3",
        }
    }
}

const AMD: &str = "libamdgpu_noop_drm_shim.so";
const NVIDIA: &str = "libnouveau_noop_drm_shim.so";
const APPLE: &str = "libasahi_noop_drm_shim.so";
const QUALCOMM: &str = "libfreedreno_noop_drm_shim.so";
/// Mesa has one for Intel too, but Debian does not package it; `setup.sh` builds this from `fake_i915.c`.
const INTEL: &str = "/usr/lib/fake_i915.so";

/// In the order of the page.
pub static CHIPS: &[Chip] = &[
    chip("navi31", Compiler::Aco, AMD, &[("AMDGPU_GPU_ID", "navi31")]),
    chip("navi21", Compiler::Aco, AMD, &[("AMDGPU_GPU_ID", "navi21")]),
    chip("vega10", Compiler::Aco, AMD, &[("AMDGPU_GPU_ID", "vega10")]),
    chip("ampere", Compiler::Nak, NVIDIA, &[("NOUVEAU_CHIPSET", "170")]),
    chip("turing", Compiler::Nak, NVIDIA, &[("NOUVEAU_CHIPSET", "160")]),
    chip("a770", Compiler::Brw, INTEL, &[("FAKE_I915", "56a0 8 32 local")]),
    chip("tigerlake", Compiler::Brw, INTEL, &[("FAKE_I915", "9a49 4 6 shared")]),
    chip("m1", Compiler::Agx, APPLE, &[]),
    chip("adreno-740", Compiler::Ir3, QUALCOMM, &[("FD_GPU_ID", "740")]),
];

const fn chip(
    name: &'static str,
    compiler: Compiler,
    shim: &'static str,
    variables: &'static [(&'static str, &'static str)],
) -> Chip {
    Chip { name, compiler, shim, variables }
}

impl Chip {
    pub fn named(name: &str) -> Option<&'static Self> {
        CHIPS.iter().find(|chip| chip.name == name)
    }

    /// A command of the folder `root` that finds this GPU and no other.
    pub fn command(&self, root: &Path, program: &str) -> Command {
        let mut command = Command::new("chroot");
        command.arg(root).arg("/usr/bin/env").arg("--ignore-environment");
        command.arg(format!("VK_DRIVER_FILES=/usr/share/vulkan/icd.d/{}_icd.json", self.compiler.driver()));
        command.arg(format!("LD_PRELOAD={}", self.shim));
        // Kernels are to be compiled, not found; and Mesa wants a folder for its sockets.
        command.args(["MESA_SHADER_CACHE_DISABLE=true", "XDG_RUNTIME_DIR=/tmp", "PATH=/usr/bin", "HOME=/tmp"]);
        command.args(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(program);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chip_has_a_name_of_its_own_and_is_found_by_it() {
        for chip in CHIPS {
            assert!(std::ptr::eq(Chip::named(chip.name).unwrap(), chip), "{}", chip.name);
        }
        assert!(Chip::named("navi").is_none());
    }

    #[test]
    fn a_command_runs_in_the_folder_with_the_chip_s_driver_and_nothing_of_the_caller_s() {
        let command = Chip::named("m1").unwrap().command(Path::new("/some/root"), "/bin/true");
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        assert_eq!(args[..3], ["/some/root", "/usr/bin/env", "--ignore-environment"]);
        assert!(args.iter().any(|arg| arg.ends_with("asahi_icd.json")), "{args:?}");
        assert_eq!(args.last().unwrap(), "/bin/true");
    }
}
