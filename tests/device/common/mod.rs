//! What the test binaries share: a device or a reason to skip, the forms of the kernels, and closed-form scenarios.
#![allow(dead_code, reason = "every test binary uses a part of it")]

pub mod batches;
pub mod engine;

use wgpu_paged_attention::blocks::BlockId;
use wgpu_paged_attention::formats::encode_row;
use wgpu_paged_attention::gpu::{AppendIo, AppendSpec, ChunkForm, DeviceProfile, KvCache, LaneComm};
use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::plan::{Append, RawTables, Tables};
use wgpu_paged_attention::testkit::changed;
use wgpu_paged_attention::testkit::{
    Fault, Gpu, GpuOptions, Outcome, Scenario, ScenarioSpec, test_device, test_device_with,
};
use wgpu_paged_attention::wgpu;

/// A device with the recommended features and limits, or `None` after the reason has been printed.
pub fn gpu() -> Option<Gpu> {
    test_device()
}

/// A device within WebGPU's default limits.
pub fn gpu_default_limits() -> Option<Gpu> {
    test_device_with(&GpuOptions { default_limits: true, ..Default::default() })
}

/// A device without any optional feature.
pub fn gpu_featureless() -> Option<Gpu> {
    test_device_with(&GpuOptions { features: Some(wgpu::Features::empty()), ..Default::default() })
}

/// The forms in which the kernels run on a device: the one chosen for it, and the one that needs nothing, which serves chunks
/// by a kernel of their own.
///
/// A software driver takes long to compile wide query tiles. There these have four rows; `tests/device/tiles.rs` has the
/// widest.
pub fn profiles(gpu: &Gpu) -> Vec<DeviceProfile> {
    let mut own = DeviceProfile::of(&gpu.device);
    if own.software {
        own.tile_tokens = own.tile_tokens.min(4);
        own.tile_rows = 4;
    }
    let plain = changed(&own.clone().without_subgroups(), |it| {
        (it.chunk_form, it.chunk_queries) = (ChunkForm::WorkgroupTiles { rows: 64 }, 9);
    });
    let matrices = matrix_form(gpu, 64).map(|chunk_form| changed(&plain, |it| it.chunk_form = chunk_form));
    let others = [Some(plain), matrices].into_iter().flatten().filter(|form| *form != own).collect();
    [vec![own.clone()], others].concat()
}

/// Chunks in tiles of so many rows that the device's matrix units multiply, if it has any.
pub fn matrix_form(gpu: &Gpu, rows: u32) -> Option<ChunkForm> {
    match ChunkForm::matrix_tiles(&gpu.device) {
        Some(ChunkForm::MatrixTiles { size, lanes, .. }) => Some(ChunkForm::MatrixTiles { rows, size, lanes }),
        _ => {
            eprintln!("skipped: matrix tiles; the device has no matrix units");
            None
        }
    }
}

/// The same profile with another split length.
pub fn with_splits(profile: &DeviceProfile, split_tokens: u32) -> DeviceProfile {
    changed(profile, |it| it.split_tokens = split_tokens)
}

/// Runs a scenario and panics with everything that is needed to run it again.
#[track_caller]
pub fn run(gpu: &Gpu, profile: &DeviceProfile, scenario: &Scenario) -> Outcome {
    scenario.run(gpu, profile, None).unwrap_or_else(|error| panic!("{}: {error}", describe(profile, &scenario.spec)))
}

/// Runs a scenario of random data and compares it with the oracle.
#[track_caller]
pub fn check(gpu: &Gpu, profile: &DeviceProfile, spec: &ScenarioSpec, seed: u64) {
    let at = || format!("{}, seed {seed}", describe(profile, spec));
    let scenario = Scenario::random(spec, seed).unwrap_or_else(|error| panic!("{}: {error}", at()));
    let outcome = run(gpu, profile, &scenario);
    if let Err(verdict) = scenario.judge(&outcome) {
        panic!("{}: {verdict}", at());
    }
}

/// Runs a scenario with planted faults; the oracle must notice each, and have had nothing to say without them.
#[track_caller]
pub fn check_faults(gpu: &Gpu, profile: &DeviceProfile, scenario: &Scenario, faults: &[Fault]) {
    let at = || describe(profile, &scenario.spec);
    if let Err(verdict) = scenario.judge(&run(gpu, profile, scenario)) {
        panic!("{}: {verdict}", at());
    }
    for &fault in faults {
        let outcome = scenario.run(gpu, profile, Some(fault)).unwrap_or_else(|error| panic!("{}: {error}", at()));
        assert!(scenario.judge(&outcome).is_err(), "{}: the oracle noticed nothing of {fault:?}", at());
    }
}

fn describe(profile: &DeviceProfile, spec: &ScenarioSpec) -> String {
    format!("{} with splits of {}: {spec:?}", profile.lane_comm, profile.split_tokens)
}

/// A scenario whose keys are all zero, so that a row's output is the mean of the values it sees.
pub fn mean_scene(spec: &ScenarioSpec, value: impl Fn(usize, u32, u32, u32) -> f32) -> Scenario {
    let mut scenario = Scenario::random(spec, 7).unwrap();
    scenario.fill(|_, _, _, _| 0.0, value);
    scenario
}

/// Asserts that every element is near its closed form.
#[track_caller]
pub fn assert_near(got: &[f32], want: impl Fn(usize) -> f32, tolerance: f32) {
    for (at, &got) in got.iter().enumerate() {
        let want = want(at);
        assert!((got - want).abs() <= tolerance, "element {at}: {got} instead of {want}");
    }
}

/// The bits of a slice: equal NaNs are equal, and −0 is not 0.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Every word of every pool, layer by layer, K before V.
pub fn pool_words(gpu: &Gpu, cache: &KvCache) -> Vec<u32> {
    let mut words = Vec::new();
    for layer in 0..cache.layout().num_layers() {
        for head_shard in cache.head_shards(layer).unwrap() {
            words.extend(gpu.read::<u32>(&head_shard.k).unwrap());
            words.extend(gpu.read::<u32>(&head_shard.v).unwrap());
        }
    }
    words
}

/// Writes one word all over the pools.
pub fn fill_pools(gpu: &Gpu, cache: &KvCache, word: u32) {
    for layer in 0..cache.layout().num_layers() {
        for head_shard in cache.head_shards(layer).unwrap() {
            for pool in [&head_shard.k, &head_shard.v] {
                let words = vec![word; (pool.size() / 4) as usize];
                gpu.queue.write_buffer(pool, 0, bytemuck::cast_slice(&words));
            }
        }
    }
}

/// Appends rows to layer 0 through a slot mapping.
pub fn append(gpu: &Gpu, cache: &KvCache, slots: &[i64], k: &[f32], v: &[f32]) -> Result<(), String> {
    let cu = [0, slots.len() as u32];
    let mut plan = cache.new_plan();
    let tables = RawTables {
        tables: Tables::Dense { block_table: &[0], max_blocks: 1, seq_lens: &[0] },
        cu_seqlens_q: Some(&cu),
        append: Append::Slots(slots),
    };
    plan.plan_tables(cache.layout(), &tables).map_err(|error| error.to_string())?;
    let (k, v) = (gpu.storage("k", k), gpu.storage("v", v));
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, &plan).map_err(|error| error.to_string())?;
    let appended = {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let appender = cache.appender(AppendSpec::new()).map_err(|error| error.to_string())?;
        let io = AppendIo::new(k.slice(..), v.slice(..));
        cache.append(&mut pass, &appender, &step, 0, io).map_err(|error| error.to_string())
    };
    gpu.submit(encoder);
    appended
}

/// What the pools of a layer of one head shard hold after `k` and `v` were written to `slots`, by the written layout.
pub fn pool_model(layout: &KvLayout, slots: &[i64], k: &[f32], v: &[f32], blank: u32) -> Vec<u32> {
    let heads = layout.num_kv_heads();
    let mut pools = Vec::new();
    for (source, dim, bytes, units) in [
        (k, layout.head_dim(), layout.k_shard_bytes(heads), layout.k_row_units()),
        (v, layout.v_head_dim(), layout.v_shard_bytes(heads), layout.v_row_units()),
    ] {
        let (dim, row_words) = (dim as usize, 4 * units as usize);
        let mut pool = vec![blank; (bytes / 4) as usize];
        for (row, &slot) in source.chunks(heads as usize * dim).zip(slots).filter(|(_, slot)| **slot >= 0) {
            for (head, row) in (0..heads).zip(row.chunks(dim)) {
                let at = layout.row_index(heads, slot as u32, head) as usize * row_words;
                encode_row(layout.kv_dtype(), row, &mut pool[at..][..row_words]).unwrap();
            }
        }
        pools.extend(pool);
    }
    pools
}

/// Whether the device is Mesa's software one.
pub fn is_lavapipe(gpu: &Gpu) -> bool {
    gpu.is_software() && gpu.info.name.to_lowercase().contains("llvmpipe")
}

/// Subgroups of a profile, if it uses them.
pub fn subgroup_lanes(profile: &DeviceProfile) -> Option<u32> {
    match profile.lane_comm {
        LaneComm::Subgroup { lanes } => Some(lanes),
        LaneComm::Workgroup { .. } => None,
    }
}

/// A block by its number.
pub fn block_id(number: u32) -> BlockId {
    BlockId::new(number).unwrap()
}
