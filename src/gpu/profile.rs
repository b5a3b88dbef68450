//! What the kernels need to know of a device: the one place that chooses a kernel's form.

mod check;
#[cfg(feature = "profiles")]
pub(super) mod file;

use super::compat;
use super::makers::{WITHOUT_SUBGROUPS, is_software, maker_chunk_form, maker_form, max_loop_rounds};
use crate::gpu::kernel::attention_shape::{AttentionForm, AttentionShape};
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::shape::{KvShape, LaneComm, Scoring};
use crate::plan::{MAX_CHUNK_TOKENS, MAX_TILE_TOKENS, Schedule};

/// The form of the kernels on a device, and the limits that they keep; set the fields of what [`of`](Self::of) gives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProfile {
    /// How the lanes of a decode workgroup hand values to each other.
    pub lane_comm: LaneComm,
    /// How they score keys.
    pub scoring: Scoring,
    /// Whether the attention kernel's loops over values in registers are written out, for compilers that would keep the
    /// values in memory otherwise.
    pub unrolled: bool,
    /// 16-byte loads of K, and of V, that the attention kernel keeps in flight: from 1 to 16. Each takes registers, so that
    /// fewer workgroups fit.
    pub loads: u32,
    /// Whether K and V are loaded in words of 64 bits, for drivers that pay for each word; the device must have
    /// [`wgpu::Features::SHADER_INT64`]. The kernel for chunks loads words of 32 bits all the same.
    pub wide_loads: bool,
    /// Subgroups of a workgroup, each of which serves its own keys of a split: from 1 to 8, a power of two. More than one needs
    /// subgroups of one size. Fewer serve wide heads, whose sums would not fit into the memory of a workgroup.
    pub subgroups: u32,
    /// Keys in one split of a row: few enough that a long row keeps the whole device busy, many enough that merging
    /// costs little. It is a constant, so a row's result does not depend on the batch.
    pub split_tokens: u32,
    /// Query rows (tokens times heads of one KV head) that a workgroup may hold in registers, for heads of 128.
    pub tile_rows: u32,
    /// Tokens of the widest query tile: a power of two, up to [`MAX_TILE_TOKENS`]. Wide heads may get less.
    pub tile_tokens: u32,
    /// Queries of a sequence that make a chunk; see [`Schedule::chunk_queries`].
    pub chunk_queries: u32,
    /// Keys in one split of a chunk's rows.
    pub chunk_split_tokens: u32,
    /// How chunks are served.
    pub chunk_form: ChunkForm,
    /// Whether shared prefixes are served once; see [`Schedule::share_prefixes`].
    pub share_prefixes: bool,
    /// Work of one dispatch, in query rows times keys: more is dealt out to several, for systems end a dispatch that
    /// takes too long. A workgroup's own work is never divided.
    pub max_dispatch_work: u64,
    /// Loop rounds that one invocation may take, over all its loops. Mesa's lavapipe up to version 22 ends every loop,
    /// without a word, once an invocation has taken 65,535.
    pub max_loop_rounds: u32,
    /// Bytes of a storage binding.
    pub max_binding_bytes: u64,
    /// Bytes of a buffer.
    pub max_buffer_bytes: u64,
    /// Workgroups in one dimension of a dispatch.
    pub max_workgroups_per_dim: u32,
    /// Alignment of a storage binding's offset, in bytes.
    pub offset_alignment: u32,
    /// Whether the adapter computes on a CPU.
    pub software: bool,
}

impl DeviceProfile {
    /// The profile of a device, from the features and limits it was *created* with.
    pub fn of(device: &wgpu::Device) -> Self {
        Self::new(&compat::adapter_info(device), device.features(), &device.limits())
    }

    /// The profile of a device with these features and limits.
    pub fn new(info: &wgpu::AdapterInfo, features: wgpu::Features, limits: &wgpu::Limits) -> Self {
        let software = is_software(info);
        let form = maker_form(info, features);
        // Where a software driver's loops are not unrolled, they would soon have too many rounds: every token is served alone.
        let one_by_one = software && !form.unrolled;
        Self {
            lane_comm: form.lane_comm,
            scoring: form.scoring,
            unrolled: form.unrolled,
            loads: form.loads,
            wide_loads: form.wide_loads,
            subgroups: form.subgroups,
            tile_rows: form.tile_rows,
            tile_tokens: if one_by_one {
                1
            } else if software {
                MAX_TILE_TOKENS
            } else {
                // What is known of each token takes registers too; two heads of each fill the rows.
                form.tile_rows / 2
            },
            chunk_queries: if one_by_one { u32::MAX } else { Schedule::default().chunk_queries },
            chunk_split_tokens: Schedule::default().chunk_split_tokens,
            chunk_form: maker_chunk_form(info).within(limits),
            share_prefixes: true,
            split_tokens: if software { 1024 } else { 256 },
            // For heads of 128 that is 17 GFLOP on a CPU, and 550 on a GPU: well below a second on slow ones of either kind.
            max_dispatch_work: match info.device_type {
                _ if software => 1 << 25,
                // Shares its power with a CPU; systems end a dispatch after 2 seconds.
                wgpu::DeviceType::IntegratedGpu => 1 << 27,
                _ => 1 << 30,
            },
            max_loop_rounds: max_loop_rounds(info),
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            max_buffer_bytes: limits.max_buffer_size,
            max_workgroups_per_dim: limits.max_compute_workgroups_per_dimension,
            offset_alignment: limits.min_storage_buffer_offset_alignment,
            software,
        }
    }

    /// How plans for a cache of this shape cut their work.
    pub(crate) fn schedule(&self, kv: &KvShape) -> Schedule {
        Schedule {
            split_tokens: self.split_tokens,
            tile_tokens: self.tile_tokens.min(AttentionShape::max_tile_tokens(kv, self.attention_form())),
            chunk_queries: self.chunk_queries,
            chunk_split_tokens: self.chunk_split_tokens,
            chunk_tokens: match self.chunk_form {
                ChunkForm::QueryTiles => 0,
                ChunkForm::WorkgroupTiles { .. } | ChunkForm::MatrixTiles { .. } => MAX_CHUNK_TOKENS,
            },
            share_prefixes: self.share_prefixes,
        }
        .sane()
    }

    /// How the attention kernel is written for this device.
    pub(crate) fn attention_form(&self) -> AttentionForm {
        AttentionForm {
            lane_comm: self.lane_comm,
            scoring: self.scoring,
            tile_rows: self.tile_rows,
            unrolled: self.unrolled,
            loads: self.loads,
            whole: self.max_loop_rounds != u32::MAX,
            wide_loads: self.wide_loads,
            subgroups: self.subgroups,
        }
    }

    /// Bytes for a buffer that grows: a power of two, or all that the device allows.
    pub(super) fn roomy_bytes(&self, bytes: u64) -> u64 {
        // A limit need not be a multiple of anything; a binding's size is.
        let most = self.max_binding_bytes.min(self.max_buffer_bytes) & !15;
        bytes.next_power_of_two().max(4096).min(most).max(bytes)
    }

    /// The form of the attention kernels, as it stands in labels and reports: `subgroup32 row-lanes chunks64`.
    pub fn form_name(&self) -> String {
        let form = self.attention_form();
        match self.chunk_form {
            ChunkForm::QueryTiles => form.to_string(),
            ChunkForm::WorkgroupTiles { rows } => format!("{form} chunks{rows}"),
            ChunkForm::MatrixTiles { rows, .. } => format!("{form} matrices{rows}"),
        }
    }

    /// Forms that the device can run: this one, each that differs from it in one choice, and the one that needs nothing.
    pub fn forms(&self, device: &wgpu::Device) -> Vec<Self> {
        let with_scoring = |scoring| Self { scoring, ..self.clone() };
        let other_loads = Self { wide_loads: !self.wide_loads, ..self.clone() };
        let other_subgroups = Self { subgroups: if self.subgroups > 1 { 1 } else { 4 }, ..self.clone() };
        // A form for chunks is of no use where nothing is one.
        let chunk_queries = self.chunk_queries.min(Schedule::default().chunk_queries);
        let chunks = [ChunkForm::QueryTiles, ChunkForm::WorkgroupTiles { rows: 64 }];
        let chunks = chunks.into_iter().chain(ChunkForm::matrix_tiles(device));
        let chunks = chunks.map(|chunk_form| Self { chunk_form, chunk_queries, ..self.clone() });
        let others = [other_loads, other_subgroups].into_iter().chain(chunks).chain([self.clone().without_subgroups()]);
        let others = Scoring::ALL.map(with_scoring).into_iter().chain(others);
        let mut forms = vec![self.clone()];
        for form in others {
            // Where lanes meet in workgroup memory, the queries lie there anyway.
            let texts = |form: &Self| (form.attention_form().text_form(), form.chunk_form);
            let is_same = |known: &Self| texts(known) == texts(&form);
            if form.check(device).is_ok() && !forms.iter().any(is_same) {
                forms.push(form);
            }
        }
        forms
    }

    /// The same device without subgroup operations: what every kernel must also run on.
    pub fn without_subgroups(mut self) -> Self {
        AttentionForm {
            lane_comm: self.lane_comm,
            scoring: self.scoring,
            loads: self.loads,
            subgroups: self.subgroups,
            ..
        } = WITHOUT_SUBGROUPS;
        if let ChunkForm::MatrixTiles { rows, .. } = self.chunk_form {
            self.chunk_form = ChunkForm::WorkgroupTiles { rows };
        }
        if self.software {
            self.unrolled = false;
            (self.tile_tokens, self.chunk_queries) = (1, u32::MAX);
        } else {
            self.tile_rows = self.tile_rows.min(WITHOUT_SUBGROUPS.tile_rows);
            self.tile_tokens = self.tile_tokens.min(WITHOUT_SUBGROUPS.tile_rows / 2);
        }
        self
    }
}

/// Features worth asking for when creating a device; all of them are optional.
pub fn recommended_features(adapter: &wgpu::Adapter) -> wgpu::Features {
    let mut wanted = wgpu::Features::SUBGROUP | wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::PIPELINE_CACHE;
    // GPUs load 16 bytes at a time whatever their type.
    wanted.set(wgpu::Features::SHADER_INT64, is_software(&adapter.get_info()));
    adapter.features() & wanted
}

/// Limits worth asking for when creating a device: WebGPU's defaults, with buffers and bindings as large as the adapter
/// allows, and the adapter's workgroup memory. The kernels also run within the defaults, with more and smaller head shards.
pub fn recommended_limits(adapter: &wgpu::Adapter) -> wgpu::Limits {
    let offered = adapter.limits();
    wgpu::Limits {
        max_buffer_size: offered.max_buffer_size,
        max_storage_buffer_binding_size: offered.max_storage_buffer_binding_size,
        // Matrix units take more than the default.
        max_compute_workgroup_storage_size: offered.max_compute_workgroup_storage_size.max(16_384),
        ..wgpu::Limits::default()
    }
}
