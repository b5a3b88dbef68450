//! The numbers that a kernel is specialised for, put in front of its text as WGSL constants.

use crate::config::KvFormat;
use crate::layout::{KvLayout, UNIT_BYTES};

/// Query heads that one workgroup serves at most: their sums live in registers.
const MAX_GROUP_TILE: u32 = 8;

/// Constants of a shader, in the order in which they are declared.
#[derive(Clone, Debug, Default)]
pub(super) struct Constants {
    numbers: Vec<(&'static str, u32)>,
    flags: Vec<(&'static str, bool)>,
}

impl Constants {
    pub(super) fn set(&mut self, name: &'static str, value: u32) {
        self.numbers.push((name, value));
    }

    pub(super) fn set_flag(&mut self, name: &'static str, value: bool) {
        self.flags.push((name, value));
    }

    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The declarations.
    pub(super) fn wgsl(&self) -> String {
        let numbers = self.numbers.iter().map(|(name, value)| format!("const {name}: u32 = {value}u;\n"));
        let flags = self.flags.iter().map(|(name, value)| format!("const {name}: bool = {value};\n"));
        numbers.chain(flags).collect()
    }
}

/// What every kernel that touches K or V must know of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Storage of the elements.
    pub format: KvFormat,
    /// Elements of one head.
    pub head_dim: u32,
    /// Tokens per block.
    pub block_size: u32,
}

impl KvShape {
    /// The shape of a cache.
    pub fn of(layout: &KvLayout) -> Self {
        Self { format: layout.kv_format(), head_dim: layout.head_dim(), block_size: layout.block_size() }
    }

    /// Units of 16 bytes in a row.
    pub fn units(&self) -> u32 {
        (u64::from(self.head_dim) * u64::from(self.format.element_bytes())).div_ceil(UNIT_BYTES) as u32
    }

    /// `vec4<f32>` in a unit.
    fn parts(&self) -> u32 {
        UNIT_BYTES as u32 / (4 * self.format.element_bytes())
    }

    pub(super) fn constants(&self) -> Constants {
        let mut constants = Constants::default();
        constants.set("BLOCK_SIZE", self.block_size);
        constants.set("HEAD_DIM", self.head_dim);
        constants.set("PARTS", self.parts());
        constants.set("UNITS", self.units());
        constants
    }
}

/// How the lanes of a workgroup hand values to each other, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// A workgroup is one subgroup of a size known beforehand; values go from register to register.
    Subgroup {
        /// Invocations in a subgroup, and in a workgroup: a power of two, at least 4.
        lanes: u32,
    },
    /// Values go through workgroup memory; needs nothing from the device.
    Workgroup {
        /// Invocations in a workgroup: a power of two.
        lanes: u32,
    },
}

impl Exchange {
    /// Invocations in a workgroup.
    pub fn lanes(self) -> u32 {
        match self {
            Self::Subgroup { lanes } | Self::Workgroup { lanes } => lanes,
        }
    }

    /// Keys that a lane scores at a time. Two in flight hide latency where few lanes share the work.
    pub(super) fn keys_per_lane(self) -> u32 {
        if self.lanes() <= 8 { 2 } else { 1 }
    }
}

/// How a decode kernel divides heads, keys and the elements of a head among the lanes.
///
/// With `lanes` across the keys when scoring, and across a row of V when adding up values: where a row has fewer units
/// than there are lanes, several key groups share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct DecodeShape {
    pub(super) group: u32,
    pub(super) group_tile: u32,
    pub(super) group_tiles: u32,
    lanes: u32,
    keys_per_lane: u32,
    key_groups: u32,
    units: u32,
    parts: u32,
    /// Whether the marked loops are written out.
    unrolled: bool,
}

impl DecodeShape {
    pub(super) fn new(kv: &KvShape, group: u32, exchange: Exchange) -> Self {
        // A kernel that serves nothing has no text worth compiling, but asking for it is no reason to panic.
        let (group, lanes, units) = (group.max(1), exchange.lanes().max(1), kv.units().max(1));
        let group_tiles = group.div_ceil(MAX_GROUP_TILE);
        let fitting = (lanes / units).max(1);
        Self {
            group,
            group_tile: group.div_ceil(group_tiles),
            group_tiles,
            lanes,
            keys_per_lane: exchange.keys_per_lane(),
            // the largest power of two, so that it divides the lanes
            key_groups: 1 << fitting.ilog2(),
            units,
            parts: kv.parts(),
            // Shuffles want constants; without them nothing does. And Mesa turns a kernel with barriers into a
            // coroutine, at a cost that explodes with the length of its text: minutes instead of seconds.
            unrolled: matches!(exchange, Exchange::Subgroup { .. }),
        }
    }

    /// Keys that a workgroup scores at a time.
    pub(super) fn tile(&self) -> u32 {
        self.lanes * self.keys_per_lane
    }

    pub(super) fn add_to(&self, constants: &mut Constants) {
        let lanes_per_row = self.lanes / self.key_groups;
        let slices = self.units.div_ceil(lanes_per_row);
        let query_vec4s = self.units * self.parts;
        for (name, value) in [
            ("GROUP", self.group),                            // query heads per KV head
            ("GROUP_TILE", self.group_tile),                  // of these, served by one workgroup
            ("GROUP_TILES", self.group_tiles),                // workgroups that share them
            ("LANES", self.lanes),                            // invocations of a workgroup
            ("LOG2_LANES", self.lanes.ilog2()),               //
            ("KEYS_PER_LANE", self.keys_per_lane),            // keys that a lane scores at a time
            ("TILE", self.tile()),                            // keys that a workgroup scores at a time
            ("SCORES", self.keys_per_lane * self.group_tile), // scores in a lane
            ("QUERY_VEC4S", query_vec4s),                     // vec4<f32> of a query head
            ("QUERY_REGS", query_vec4s.div_ceil(self.lanes)), // of these, in one lane
            ("KEY_GROUPS", self.key_groups),                  // groups of lanes that add up different keys of V
            ("LANES_PER_ROW", lanes_per_row),                 // lanes across one row of V
            ("KEY_STEPS", self.lanes / self.key_groups),      // keys that a key group adds up, of LANES
            ("SLICES", slices),                               // units of a row of V per lane
            ("HEAD_VEC4S", slices * self.parts),              // vec4<f32> of the output per lane and query head
        ] {
            constants.set(name, value);
        }
    }

    /// Loop rounds of one invocation for `keys` keys and `num_rows` rows, or a few more; see
    /// [`DeviceProfile::max_loop_rounds`](super::DeviceProfile::max_loop_rounds).
    pub(super) fn loop_rounds(&self, keys: u32, num_rows: u32) -> u64 {
        let wide = u64::from;
        let (group, keys_per_lane, parts) = (wide(self.group_tile), wide(self.keys_per_lane), wide(self.parts));
        let lanes_per_row = self.lanes / self.key_groups;
        let slices = wide(self.units.div_ceil(lanes_per_row));
        let outputs = group * slices * parts;
        let reductions = (wide(self.lanes.ilog2()) + 2) * (group + 1);
        // A loop of n rounds counts n, and one more to end it; inner loops count in every round.
        let score = wide(self.units) * (3 + keys_per_lane + parts * (2 + group * (2 + keys_per_lane)));
        let softmax = group * (4 + 3 * keys_per_lane) + outputs + reductions;
        let add = slices * (2 + keys_per_lane * (2 + wide(lanes_per_row) * (2 + parts * (2 + group))));
        let once = 2 * reductions + outputs * (8 + wide(self.key_groups)) + group * wide(self.units) * parts;
        let tiles = wide(keys.div_ceil(self.tile())) + 1;
        let per_tile = if self.unrolled {
            // The loop over keys of V is left, where it is long.
            slices * keys_per_lane * (wide(lanes_per_row) + 1) + 1
        } else {
            3 + 2 * keys_per_lane + score + softmax + add
        };
        tiles * per_tile + once + wide(num_rows.max(1).ilog2()) + 2
    }
}
