//! How the attention kernel divides queries, keys and the elements of a head among the lanes of a workgroup.

mod rounds;

use std::fmt;

use crate::formats::KvDtype;
use crate::gpu::kernel::shape::{Constants, KvShape, LaneComm, Scoring};
use crate::plan::MAX_TILE_TOKENS;

/// Query heads of one token that a workgroup serves at most.
const MAX_GROUP_TILE: u32 = 8;
/// The head width for which `tile_rows` of a profile are meant; wider heads get fewer rows.
const USUAL_DIM: u32 = 128;
/// Workgroup memory of WebGPU's default limits.
const WORKGROUP_BYTES: u32 = 16_384;

/// How the attention kernel is written for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionForm {
    pub(crate) lane_comm: LaneComm,
    pub(crate) scoring: Scoring,
    /// Query rows (tokens times heads) that a workgroup may hold in registers, for heads of 128.
    pub(crate) tile_rows: u32,
    /// Whether the marked loops are written out.
    pub(crate) unrolled: bool,
    /// Units of K, and of V, that a lane loads at a time.
    pub(crate) loads: u32,
    /// Whether the loops over units of K and keys of V are written out too, for drivers that end a kernel after a number of
    /// loop rounds.
    pub(crate) whole: bool,
    /// Whether the pool is read in words of 64 bits.
    pub(crate) wide_loads: bool,
    /// Subgroups of a workgroup, each of which serves its own keys of a split.
    pub(crate) subgroups: u32,
}

impl AttentionForm {
    /// The same form under one name: where lanes meet in workgroup memory, the queries lie there too.
    pub(crate) fn text_form(self) -> Self {
        match self.lane_comm {
            LaneComm::Workgroup { .. } => Self { scoring: Scoring::KeyLanes, subgroups: 1, ..self },
            LaneComm::Subgroup { .. } => self,
        }
    }
}

impl fmt::Display for AttentionForm {
    /// As it stands in labels and reports; what is usual is left out: `subgroup32 row-lanes`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.lane_comm)?;
        if self.scoring != Scoring::KeyLanes {
            write!(f, " {}", self.scoring.name())?;
        }
        if self.subgroups > 1 {
            write!(f, " x{}", self.subgroups)?;
        }
        if self.wide_loads { write!(f, " wide-loads") } else { Ok(()) }
    }
}

/// What one workgroup serves: `rows` query rows (tokens times query heads of one KV head) against one split of keys.
///
/// The lanes lie across the keys when scoring, and across a row of V when adding up values: where a row has fewer units
/// than there are lanes, several key groups share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionShape {
    group: u32,
    class: u32,
    group_tile: u32,
    pub(crate) head_tiles: u32,
    lanes: u32,
    pub(crate) subgroups: u32,
    keys_per_lane: u32,
    key_groups: u32,
    scoring: Scoring,
    k_lanes_per_row: u32,
    k_units: u32,
    v_units: u32,
    parts: u32,
    /// Whether hardly a loop is left. What goes through workgroup memory does so in loops that are not marked.
    unrolled: bool,
    whole: bool,
    loads: u32,
}

impl AttentionShape {
    /// The shape for query tiles of `2^class` tokens, with `group` query heads to a KV head.
    pub(crate) fn new(kv: &KvShape, group: u32, class: u32, form: AttentionForm) -> Self {
        let lane_comm = form.lane_comm;
        // A kernel that serves nothing has no text worth compiling, but asking for it is no reason to panic.
        let (group, lanes, v_units) = (group.max(1), lane_comm.lanes().max(1), kv.v_units().max(1));
        let class = class.min(MAX_TILE_TOKENS.ilog2());
        let rows = most_rows(kv, form);
        let most_heads = (rows >> class).clamp(1, MAX_GROUP_TILE);
        let head_tiles = group.div_ceil(most_heads);
        Self {
            group,
            class,
            group_tile: group.div_ceil(head_tiles),
            head_tiles,
            lanes,
            subgroups: subgroups(kv, form),
            keys_per_lane: lane_comm.keys_per_lane(),
            key_groups: key_groups(v_units, lanes),
            scoring: form.scoring,
            k_lanes_per_row: lanes / key_groups(kv.k_units(), lanes),
            k_units: kv.k_units().max(1),
            v_units,
            parts: kv.parts(),
            unrolled: form.unrolled && matches!(lane_comm, LaneComm::Subgroup { .. }),
            whole: form.unrolled && form.whole,
            loads: if form.unrolled && form.whole { 1 } else { form.loads.max(1) },
        }
    }

    /// Tokens of the widest query tile that a kernel can serve.
    pub(crate) fn max_tile_tokens(kv: &KvShape, form: AttentionForm) -> u32 {
        1 << most_rows(kv, form).clamp(1, MAX_TILE_TOKENS).ilog2()
    }

    /// The most workgroup memory that kernels take for query tiles of any class, and any number of heads.
    pub(crate) fn most_workgroup_bytes(kv: &KvShape, form: AttentionForm) -> u32 {
        workgroup_bytes(kv, AttentionForm { subgroups: subgroups(kv, form), ..form }, most_rows(kv, form))
    }

    /// Tokens of a query tile.
    pub(crate) fn tokens(&self) -> u32 {
        1 << self.class
    }

    /// Rows that a workgroup serves.
    pub(crate) fn rows(&self) -> u32 {
        self.group_tile << self.class
    }

    /// Keys that a workgroup scores at a time.
    pub(crate) fn key_tile(&self) -> u32 {
        self.lanes * self.keys_per_lane
    }

    pub(crate) fn add_to(&self, constants: &mut Constants) {
        let (lanes_per_row, slices, k_steps) = (self.lanes_per_row(), self.slices(), self.k_steps());
        let query_vec4s = self.k_units * self.parts;
        for (name, value) in [
            ("TILE_CLASS", self.class),                               // query tiles of 2^TILE_CLASS tokens
            ("TOKENS", self.tokens()),                                // tokens of a query tile
            ("GROUP", self.group),                                    // query heads per KV head
            ("GROUP_TILE", self.group_tile),                          // of these, served by one workgroup
            ("PARTS_PER_ITEM", self.head_tiles),                      // workgroups that share them, and a work item
            ("Q_ROWS", self.rows()),                                  // query rows of a workgroup
            ("LANES", self.lanes),                                    // invocations of a workgroup
            ("LOG2_LANES", self.lanes.ilog2()),                       //
            ("SUBGROUPS", self.subgroups), // subgroups of a workgroup, if lanes meet in these
            ("KEYS_PER_LANE", self.keys_per_lane), // keys that a lane scores at a time
            ("KEY_TILE", self.key_tile()), // keys that a workgroup scores at a time
            ("SCORES", self.keys_per_lane * self.rows()), // scores in a lane
            ("QUERY_VEC4S", query_vec4s),  // vec4<f32> of a query row
            ("QUERY_REGS", query_vec4s.div_ceil(self.lanes)), // of these, in one lane
            ("KEY_GROUPS", self.key_groups), // groups of lanes that add up different keys of V
            ("LANES_PER_ROW", lanes_per_row), // lanes across one row of V
            ("V_GROUP", self.v_group()),   // keys that a key group adds up in one loop
            ("V_GROUPS", lanes_per_row / self.v_group()), // of these loops, for all LANES keys
            ("V_BATCH", self.v_batch()),   // of these, at a time
            ("K_GROUP", self.k_group()),   // units of K whose query parts share a register
            ("K_GROUPS", self.k_units.div_ceil(self.k_group())), //
            ("K_BATCH", self.k_batch()),   // units of K that a lane loads at a time
            ("K_LANES_PER_ROW", self.k_lanes_per_row), // lanes across one row of K, if they lie so
            ("K_SLICES", self.k_slices()), // units of a row of K per lane
            ("K_STEPS", k_steps),          // keys that such lanes sum up at a time
            ("LOG2_K_STEPS", k_steps.ilog2()), //
            ("HALF_SUMS", k_steps / 2 * self.rows()), // sums that a lane gives away first
            ("SPARE_BITS", (self.k_lanes_per_row / k_steps).ilog2()), // of a lane's number, once each has one key
            ("SLICES", slices),            // units of a row of V per lane
            ("OUT_VEC4S", slices * self.parts), // vec4<f32> of the output per lane and row
        ] {
            constants.set(name, value);
        }
    }

    fn lanes_per_row(&self) -> u32 {
        self.lanes / self.key_groups
    }

    fn slices(&self) -> u32 {
        self.v_units.div_ceil(self.lanes_per_row())
    }

    fn k_group(&self) -> u32 {
        if self.whole { 1 } else { (self.lanes / self.parts).max(1) }
    }

    fn v_group(&self) -> u32 {
        if self.whole { 1 } else { self.lanes_per_row() }
    }

    fn k_batch(&self) -> u32 {
        let divides = |batch: &u32| self.k_group().is_multiple_of(*batch) && self.k_units.is_multiple_of(*batch);
        (1..=self.loads).rev().find(divides).unwrap_or(1)
    }

    fn k_slices(&self) -> u32 {
        self.k_units.div_ceil(self.k_lanes_per_row)
    }

    /// A power of two, so that halves remain whole.
    fn k_steps(&self) -> u32 {
        if self.whole { self.k_lanes_per_row } else { self.k_lanes_per_row.min(1 << self.loads.ilog2()) }
    }

    fn v_batch(&self) -> u32 {
        self.lanes_per_row().min(1 << self.loads.ilog2())
    }
}

/// Rows for which there is room, at least one: `tile_rows` in registers, less where a row takes more of them than one of
/// f16 and the usual width, and what fits into the workgroup's memory where values go through it.
fn most_rows(kv: &KvShape, form: AttentionForm) -> u32 {
    let AttentionForm { lane_comm, tile_rows, .. } = form;
    let lanes = lane_comm.lanes().max(1);
    let usual = KvShape { format: KvDtype::F16, head_dim: USUAL_DIM, v_head_dim: USUAL_DIM, ..*kv };
    let in_registers = tile_rows
        .min(tile_rows.saturating_mul(USUAL_DIM) / kv.head_dim.max(1))
        .min(tile_rows.saturating_mul(out_vec4s(&usual, lanes)) / out_vec4s(kv, lanes))
        .max(1);
    let alone = AttentionForm { subgroups: 1, ..form };
    (1..=in_registers).rev().find(|rows| workgroup_bytes(kv, alone, *rows) <= WORKGROUP_BYTES).unwrap_or(1)
}

/// Subgroups of a workgroup: fewer where what they found does not fit into its memory.
fn subgroups(kv: &KvShape, form: AttentionForm) -> u32 {
    let LaneComm::Subgroup { .. } = form.lane_comm else { return 1 };
    let rows = most_rows(kv, form);
    let fits =
        |subgroups: &u32| workgroup_bytes(kv, AttentionForm { subgroups: *subgroups, ..form }, rows) <= WORKGROUP_BYTES;
    let most = form.subgroups.max(1).ilog2();
    (0..=most).rev().map(|log2| 1 << log2).find(fits).unwrap_or(1)
}

/// Workgroup memory for `rows` query rows.
fn workgroup_bytes(kv: &KvShape, form: AttentionForm, rows: u32) -> u32 {
    let lanes = form.lane_comm.lanes().max(1);
    let keys = lanes * form.lane_comm.keys_per_lane();
    let queries = rows.saturating_mul(16 * kv.k_units() * kv.parts());
    // A flag besides, wherever lanes agree there.
    match form.lane_comm {
        // Weights are held per row; rows of keys, and one vec4 a lane.
        LaneComm::Workgroup { .. } => queries + 4 * keys * rows + 4 * keys + 16 * lanes + 16,
        LaneComm::Subgroup { .. } => {
            let queries = if form.scoring == Scoring::SharedQueries { queries } else { 0 };
            let subgroups = form.subgroups;
            // A row's values and its state.
            let team = 16 * subgroups * lanes * out_vec4s(kv, lanes) + (8 * subgroups).next_multiple_of(16) + 16;
            queries + if subgroups > 1 { team } else { 0 }
        }
    }
}

/// Groups of lanes across rows of so many units: the largest power of two, so that it divides the lanes.
fn key_groups(units: u32, lanes: u32) -> u32 {
    1 << (lanes / units.max(1)).max(1).ilog2()
}

/// `vec4<f32>` of the output that a lane holds per row.
fn out_vec4s(kv: &KvShape, lanes: u32) -> u32 {
    kv.v_units().max(1).div_ceil(lanes / key_groups(kv.v_units(), lanes)) * kv.parts()
}
