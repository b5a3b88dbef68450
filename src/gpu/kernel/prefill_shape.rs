//! How the kernel for chunks of prompts divides queries, keys and the elements of a head among the lanes of a workgroup.

mod constants;

use crate::formats::KvDtype;
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::matrices::Matrices;
use crate::gpu::kernel::shape::KvShape;
use crate::plan::MAX_CHUNK_TOKENS;

/// Invocations of a workgroup.
pub(super) const LANES: u32 = 128;
/// Query rows of a lane: the components of a vec4.
const LANE_ROWS: u32 = 4;
/// Keys that a lane scores at a time, where there is room for them.
const MAX_LANE_KEYS: u32 = 8;
/// Of these, keys whose weights stand in workgroup memory at a time.
const MAX_PART_LANE_KEYS: u32 = 4;
/// Keys that a workgroup scores at a time, at most.
const MAX_KEY_TILE: u32 = 64;
/// `vec4<f32>` of the output that a lane holds for each of its rows, at most.
const MAX_OUT_VEC4S: u32 = 4;
/// Keys that a lane scores at a time where matrix units multiply: the columns of a vec4.
const MATRIX_LANE_KEYS: u32 = 4;
/// Workgroup memory of WebGPU's default limits.
pub(super) const WORKGROUP_BYTES: u32 = 16_384;
/// The same where matrix units multiply, whose operands and results both lie there.
pub(crate) const MATRIX_WORKGROUP_BYTES: u32 = 32_768;

/// What one workgroup serves: `rows` query rows (tokens times query heads of one KV head) against one split of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PrefillShape {
    group: u32,
    group_tile: u32,
    pub(crate) head_tiles: u32,
    rows: u32,
    lane_keys: u32,
    slice_vec4s: u32,
    v_keys: u32,
    parts: u32,
    head_dim: u32,
    k_vec4s: u32,
    v_vec4s: u32,
    has_row_scales: bool,
    matrices: Option<Matrices>,
}

impl PrefillShape {
    /// The shape for `group` query heads to a KV head, with as many query rows as the form has or fewer.
    pub(crate) fn new(kv: &KvShape, group: u32, form: ChunkForm) -> Self {
        let (k_vec4s, v_vec4s) = (kv.k_units().max(1) * kv.parts(), kv.v_units().max(1) * kv.parts());
        let mut rows = 1 << form.rows().clamp(LANE_ROWS, 64).ilog2();
        while rows > LANE_ROWS && out_vec4s(v_vec4s, rows) > MAX_OUT_VEC4S {
            rows /= 2;
        }
        // A kernel that serves nothing has no text worth compiling, but asking for it is no reason to panic.
        let group = group.max(1);
        let head_tiles = group.div_ceil(rows);
        let has_row_scales = kv.format.scales() == crate::formats::ScaleScope::Row;
        let mut shape = Self {
            group,
            group_tile: group.div_ceil(head_tiles),
            head_tiles,
            rows,
            lane_keys: 1,
            slice_vec4s: 2,
            v_keys: 1,
            parts: kv.parts(),
            head_dim: kv.head_dim,
            k_vec4s,
            v_vec4s,
            has_row_scales,
            matrices: None,
        };
        // Only these are exact in what matrix units take.
        if let (ChunkForm::MatrixTiles { size, lanes, .. }, KvDtype::F16) = (form, kv.format) {
            shape.matrices = Matrices::new(size, lanes, rows, shape.col_groups());
        }
        shape.fit();
        shape
    }

    /// Whether matrix units multiply.
    pub(crate) fn has_matrices(&self) -> bool {
        self.matrices.is_some()
    }

    /// Takes as many keys as there is workgroup memory for.
    fn fit(&mut self) {
        if let Some(matrices) = self.matrices {
            let least = (matrices.size / 4).max(2);
            self.lane_keys = MATRIX_LANE_KEYS;
            self.slice_vec4s = self.k_vec4s.next_power_of_two().clamp(least, 8);
            self.v_keys = self.key_tile().min(32);
            while !self.fits() && self.v_keys > matrices.size {
                self.v_keys /= 2;
            }
            if self.fits() {
                return;
            }
            self.matrices = None;
        }
        self.lane_keys = (MAX_KEY_TILE / self.col_groups()).clamp(1, MAX_LANE_KEYS);
        loop {
            // As many products whatever the rows.
            self.slice_vec4s = (32 / self.lane_keys).clamp(2, 8).min(self.k_vec4s.next_power_of_two().max(2));
            // An octet for each lane.
            let wanted = (2 * LANES / self.row_vec4s()).clamp(1, self.part_keys());
            self.v_keys = 1 << wanted.ilog2();
            while !self.fits() && self.v_keys > 1 {
                self.v_keys /= 2;
            }
            if self.fits() || self.lane_keys == 1 {
                return;
            }
            self.lane_keys /= 2;
        }
    }

    fn fits(&self) -> bool {
        self.workgroup_bytes() <= if self.has_matrices() { MATRIX_WORKGROUP_BYTES } else { WORKGROUP_BYTES }
    }

    /// Workgroup memory.
    pub(crate) fn workgroup_bytes(&self) -> u32 {
        let staged = if self.has_matrices() {
            let (results, largest) = (self.rows * (self.col_groups() + 1), (4 * self.rows).next_multiple_of(16));
            (8 * self.operands()).next_multiple_of(16) + 16 * results + largest
        } else {
            16 * self.blocks() * self.block_lines() * (self.width() + 1)
        };
        let (kv_rows, kv_scales) = (2 * 4 * self.key_tile(), 8 * self.scales());
        // Two flags besides.
        staged + kv_rows.next_multiple_of(16) + kv_scales.next_multiple_of(16) + 2 * 16
    }

    /// Query rows that a workgroup serves.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// Query tokens that a workgroup serves.
    pub(crate) fn tokens(&self) -> u32 {
        (self.rows / self.group_tile).clamp(1, MAX_CHUNK_TOKENS)
    }

    /// Workgroups that share a work item.
    pub(crate) fn parts_per_item(&self) -> u32 {
        self.head_tiles * MAX_CHUNK_TOKENS.div_ceil(self.tokens())
    }

    fn row_groups(&self) -> u32 {
        self.rows / LANE_ROWS
    }

    fn col_groups(&self) -> u32 {
        LANES / self.row_groups()
    }

    /// Keys that a workgroup scores at a time.
    fn key_tile(&self) -> u32 {
        self.col_groups() * self.lane_keys
    }

    /// `vec4<f32>` of a row of V in workgroup memory.
    fn row_vec4s(&self) -> u32 {
        out_vec4s(self.v_vec4s, self.rows) * self.col_groups()
    }

    /// `vec4<f32>` of a line of workgroup memory.
    fn width(&self) -> u32 {
        self.row_groups().max(self.col_groups())
    }

    fn part_lane_keys(&self) -> u32 {
        self.lane_keys.min(MAX_PART_LANE_KEYS)
    }

    /// Keys whose weights stand in workgroup memory at a time.
    fn part_keys(&self) -> u32 {
        self.col_groups() * self.part_lane_keys()
    }

    /// Lines of the queries of a slice, and where its keys begin.
    fn keys_line(&self) -> u32 {
        self.rows.div_ceil(self.width()) * self.slice_vec4s
    }

    fn slice_lines(&self) -> u32 {
        self.keys_line() + self.key_tile().div_ceil(self.width()) * self.slice_vec4s
    }

    /// Lines of the weights for a slice of values.
    fn block_lines(&self) -> u32 {
        (self.v_keys * self.row_groups()).div_ceil(self.width())
    }

    /// Lines of all weights, and where the values begin.
    fn values_line(&self) -> u32 {
        self.v_slices() * self.block_lines()
    }

    /// Lines of a key's values.
    fn row_lines(&self) -> u32 {
        self.row_vec4s().div_ceil(self.width())
    }

    fn blocks(&self) -> u32 {
        let values = (self.v_keys * self.row_lines()).max(LANES.div_ceil(self.width()));
        self.slice_lines().max(self.values_line() + values).div_ceil(self.block_lines())
    }

    fn scales(&self) -> u32 {
        if self.has_row_scales { 2 * self.key_tile() } else { 1 }
    }

    /// `vec4<f16>` from one row of a slice in workgroup memory to the next: an even number, as matrices are loaded.
    fn slice_stride(&self) -> u32 {
        self.slice_vec4s + 2
    }

    /// The same of weights.
    fn weight_stride(&self) -> u32 {
        self.col_groups() + 2
    }

    /// And of values.
    fn value_stride(&self) -> u32 {
        self.row_vec4s() + 2
    }

    /// `vec4<f16>` of the matrices that are multiplied: queries in two halves with keys, or weights in two with values.
    fn operands(&self) -> u32 {
        let slice = (2 * self.rows + self.key_tile()) * self.slice_stride();
        let values = 2 * self.rows * self.weight_stride() + self.v_keys * self.value_stride();
        slice.max(values)
    }

    /// Whether tokens are served again where a sum is not finite.
    fn serves_again(&self) -> bool {
        self.tokens() > 1 || self.has_matrices()
    }

    fn k_slices(&self) -> u32 {
        self.k_vec4s.div_ceil(self.slice_vec4s)
    }

    fn v_slices(&self) -> u32 {
        self.part_keys() / self.v_keys
    }

    /// Loop rounds of one invocation for `keys` keys and `num_tiles` query tiles, or a few more; see
    /// [`DeviceProfile::max_loop_rounds`](crate::gpu::DeviceProfile::max_loop_rounds).
    pub(crate) fn loop_rounds(&self, keys: u32, num_tiles: u32) -> u64 {
        let wide = u64::from;
        // A loop of n rounds counts n, and one more to end it.
        let parts = wide(self.lane_keys / self.part_lane_keys());
        let mut per_tile = 1 + wide(self.k_slices()) + 1 + parts * (wide(self.v_slices()) + 1);
        if self.has_matrices() {
            // Where the lanes multiply what the units could not.
            let chunks = wide(out_vec4s(self.v_vec4s, self.rows) * (LANE_ROWS * (self.v_keys + 2) + 1));
            per_tile += wide(self.k_slices() * (self.slice_vec4s + 1)) + wide(self.v_slices()) * chunks;
        }
        let tiles = wide(keys.div_ceil(self.key_tile())) + 2;
        // Tokens whose sums are not finite are served again, one by one.
        let passes = if self.serves_again() { 1 + wide(self.tokens()) } else { 1 };
        // Queries are measured, an element in four at a time.
        let measured = if self.has_matrices() { wide(self.head_dim / 4 + 2) } else { 0 };
        measured + passes * (tiles * per_tile + 4) + wide(num_tiles.max(1).ilog2()) + wide(MAX_CHUNK_TOKENS) + 4
    }
}

/// `vec4<f32>` of the output that a lane holds for each of its rows.
fn out_vec4s(v_vec4s: u32, rows: u32) -> u32 {
    v_vec4s.div_ceil(LANES * LANE_ROWS / rows)
}
