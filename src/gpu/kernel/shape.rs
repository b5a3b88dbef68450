//! The numbers that a kernel is specialised for, prepended to its text as WGSL constants.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::formats::{KvDtype, ScaleScope};
use crate::gpu::error::SpecError;
use crate::gpu::kernel::displayed::{as_displayed, in_files_as_displayed};
use crate::layout::KvLayout;

/// Constants of a shader, in the order in which they are declared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constants {
    numbers: Vec<(&'static str, u32)>,
    flags: Vec<(&'static str, bool)>,
}

impl Constants {
    pub(crate) fn set(&mut self, name: &'static str, value: u32) {
        self.numbers.push((name, value));
    }

    pub(crate) fn set_flag(&mut self, name: &'static str, value: bool) {
        self.flags.push((name, value));
    }

    pub(crate) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The declarations.
    pub(crate) fn wgsl(&self) -> String {
        let numbers = self.numbers.iter().map(|(name, value)| format!("const {name}: u32 = {value}u;\n"));
        let flags = self.flags.iter().map(|(name, value)| format!("const {name}: bool = {value};\n"));
        numbers.chain(flags).collect()
    }
}

/// What every kernel that touches K or V must know of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KvShape {
    /// Storage of the elements.
    pub(crate) format: KvDtype,
    /// Elements of one head of K.
    pub(crate) head_dim: u32,
    /// Elements of one head of V.
    pub(crate) v_head_dim: u32,
    /// Tokens per block.
    pub(crate) block_size: u32,
}

impl KvShape {
    /// The shape of a cache.
    pub(crate) fn of(layout: &KvLayout) -> Self {
        Self {
            format: layout.kv_dtype(),
            head_dim: layout.head_dim(),
            v_head_dim: layout.v_head_dim(),
            block_size: layout.block_size(),
        }
    }

    /// Data units of a row of K.
    pub(crate) fn k_units(&self) -> u32 {
        self.format.data_units(self.head_dim)
    }

    /// Data units of a row of V.
    pub(crate) fn v_units(&self) -> u32 {
        self.format.data_units(self.v_head_dim)
    }

    /// `vec4<f32>` in a data unit.
    pub(crate) fn parts(&self) -> u32 {
        self.format.elements_per_unit() / 4
    }

    /// Invocations of `kv_append.wgsl` that share a row of K and one of V: one per data unit of the wider. Scales
    /// depend on many elements, and so one invocation does it all where there are any.
    pub(crate) fn row_lanes(&self) -> u32 {
        match self.format.scales() {
            ScaleScope::None => self.k_units().max(self.v_units()),
            ScaleScope::Row | ScaleScope::Unit => 1,
        }
    }

    /// What a kernel must know that treats blocks as a whole.
    pub(crate) fn add_block_units(&self, constants: &mut Constants) {
        constants.set("K_HEAD_UNITS", self.block_size * self.format.row_units(self.head_dim));
        constants.set("V_HEAD_UNITS", self.block_size * self.format.row_units(self.v_head_dim));
    }

    pub(crate) fn add_to(&self, constants: &mut Constants) {
        for (name, value) in [
            ("BLOCK_SIZE", self.block_size),                         // tokens
            ("HEAD_DIM", self.head_dim),                             // elements of one head of K
            ("V_HEAD_DIM", self.v_head_dim),                         // and of V
            ("CODE_BITS", self.format.code_bits()),                  // of one element
            ("LARGEST", self.format.largest()),                      // number that a code stands for
            ("PARTS", self.parts()),                                 // vec4<f32> of a data unit
            ("K_UNITS", self.k_units()),                             // data units of a row of K
            ("V_UNITS", self.v_units()),                             // and of V
            ("K_ROW_UNITS", self.format.row_units(self.head_dim)),   // these and the units of its scales
            ("V_ROW_UNITS", self.format.row_units(self.v_head_dim)), //
            ("ROW_LANES", self.row_lanes()),                         // invocations that store a row
        ] {
            constants.set(name, value);
        }
        constants.set_flag("SCALE_PER_ROW", self.format.scales() == ScaleScope::Row);
        constants.set_flag("SCALE_PER_UNIT", self.format.scales() == ScaleScope::Unit);
    }
}

/// How the lanes of a workgroup hand values to each other, and how many there are; in a file `subgroup32`, `workgroup64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LaneComm {
    /// Lanes are those of a subgroup of a size known beforehand; values go from register to register.
    Subgroup {
        /// Invocations in a subgroup: a power of two, at least 4.
        lanes: u32,
    },
    /// Values go through workgroup memory; needs nothing from the device.
    Workgroup {
        /// Invocations in a workgroup: a power of two.
        lanes: u32,
    },
}

impl LaneComm {
    /// Lanes that score and add up together: those of a subgroup, or of a workgroup.
    pub fn lanes(self) -> u32 {
        match self {
            Self::Subgroup { lanes } | Self::Workgroup { lanes } => lanes,
        }
    }

    /// Keys that a lane scores at a time. Two in flight hide latency where few lanes share the work.
    pub(crate) fn keys_per_lane(self) -> u32 {
        if self.lanes() <= 8 { 2 } else { 1 }
    }
}

/// How the attention kernel's lanes score keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scoring {
    /// A lane takes a key and reads its whole row of K. The queries go from lane to lane, or lie in workgroup memory where
    /// lanes meet there.
    KeyLanes,
    /// The same, with the queries in workgroup memory whatever the lanes: fewer shuffles.
    SharedQueries,
    /// The lanes lie across a row of K: whole lines of memory to a load, and no query is handed round. Needs subgroups.
    RowLanes,
}

impl Scoring {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::KeyLanes, Self::SharedQueries, Self::RowLanes];

    /// The name used in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::KeyLanes => "key-lanes",
            Self::SharedQueries => "shared-queries",
            Self::RowLanes => "row-lanes",
        }
    }
}

impl fmt::Display for KvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} d{}", self.format, self.head_dim)?;
        if self.v_head_dim != self.head_dim {
            write!(f, "v{}", self.v_head_dim)?;
        }
        write!(f, " b{}", self.block_size)
    }
}

impl fmt::Display for LaneComm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subgroup { lanes } => write!(f, "subgroup{lanes}"),
            Self::Workgroup { lanes } => write!(f, "workgroup{lanes}"),
        }
    }
}

impl FromStr for LaneComm {
    type Err = SpecError;

    /// Reads what is displayed.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let lanes = |kind: &str| text.strip_prefix(kind)?.parse().ok();
        let subgroup = lanes("subgroup").map(|lanes| Self::Subgroup { lanes });
        let read = subgroup.or_else(|| lanes("workgroup").map(|lanes| Self::Workgroup { lanes }));
        as_displayed("lane_comm", text, read, "like subgroup32 or workgroup64")
    }
}

in_files_as_displayed!(LaneComm);
