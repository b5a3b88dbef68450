//! Layers of unlike kinds in one cache: each layer as the oracle has it, and as a cache of its kind alone.

use crate::common::engine::narrow;
use crate::common::{bits, gpu, profiles};
use wgpu_paged_attention::blocks::{BlockId, RELEASED};
use wgpu_paged_attention::config::{CacheConfig, KvDtype, LayerKind};
use wgpu_paged_attention::gpu::{
    AppendSpec, AttentionSpec, BlockPair, DeviceProfile, ExternalElement, ExternalLayout, ExternalOrder, ExternalPool,
    GpuError, KvCache, SpecError,
};
use wgpu_paged_attention::host::distinct_blocks;
use wgpu_paged_attention::host::snapshot::{Snapshot, SnapshotError};
use wgpu_paged_attention::plan::{Append, RawTables, Tables};
use wgpu_paged_attention::testkit::{
    Gpu, LayerEngine, LayerFault, StepOutcome, Verdict, changed, layer_config, layer_kinds, layer_story,
};
use wgpu_paged_attention::wgpu;

const ALL: [u32; 6] = [0, 1, 2, 3, 4, 5];

/// Splits so short that rows are merged.
fn short(profile: &DeviceProfile) -> DeviceProfile {
    changed(profile, |it| it.split_tokens = 32)
}

fn engine(gpu: &Gpu, profile: &DeviceProfile, kv_dtype: KvDtype) -> LayerEngine {
    LayerEngine::new(gpu, profile, &layer_config(kv_dtype), &ALL).unwrap()
}

/// A cache for the layers of one kind, as blocks of the grouped cache have tokens.
fn alone(gpu: &Gpu, profile: &DeviceProfile, kv_dtype: KvDtype, kind: LayerKind, layers: &[u32]) -> LayerEngine {
    let layout = layer_config(kv_dtype).layout().unwrap();
    let group = layout.groups()[layout.place(layers[0]).unwrap().group].clone();
    let config = CacheConfig::new(layers.len() as u32, kind.num_kv_heads(), kind.head_dim())
        .with_v_head_dim(group.v_head_dim())
        .with_block_size(group.block_size())
        .with_kv_dtype(kv_dtype)
        .with_num_blocks(60)
        .with_max_seq_len(128)
        .with_max_sequences(8);
    let config = kind.window().map_or(config.clone(), |window| config.with_window(window));
    LayerEngine::new(gpu, profile, &config, layers).unwrap()
}

/// Bits of the outputs of some layers in every step.
fn outputs(story: &[StepOutcome], layers: impl Iterator<Item = usize> + Clone) -> Vec<Vec<u32>> {
    story.iter().flat_map(|step| layers.clone().map(|layer| bits(&step.outputs[layer]))).collect()
}

#[test]
fn layers_of_unlike_kinds_are_right_and_to_the_bit_what_caches_of_one_kind_give() {
    let Some(gpu) = gpu() else { return };
    for (at, profile) in profiles(&gpu).iter().map(short).enumerate() {
        let kv_dtype = KvDtype::F16;
        let mut engine = engine(&gpu, &profile, kv_dtype);
        assert_eq!(engine.cache.layout().num_groups(), 4);
        let together = layer_story(&mut engine, None).unwrap();
        // Kernels take long to compile, and the oracle has seen the other forms.
        let kinds = if at == 0 { layer_kinds(kv_dtype) } else { continue };
        for layers in [&[0, 1, 4][..], &[2, 5], &[3]] {
            let mut alone = alone(&gpu, &profile, kv_dtype, kinds[layers[0] as usize], layers);
            assert_eq!(alone.cache.layout().num_groups(), 1);
            let own = layer_story(&mut alone, None).unwrap();
            let of_kind = layers.iter().map(|&layer| layer as usize);
            assert_eq!(outputs(&together, of_kind), outputs(&own, 0..layers.len()), "{layers:?}");
        }
    }
}

#[test]
fn layers_of_unlike_kinds_are_right_in_a_format_with_scales_and_cut_by_heads() {
    let Some(gpu) = gpu() else { return };
    let narrow = short(&narrow(&gpu));
    layer_story(&mut engine(&gpu, &narrow, KvDtype::Int8), None).unwrap();
    let pool = layer_config(KvDtype::F16).layout().unwrap().k_shard_bytes(2);
    let mut cut = engine(&gpu, &changed(&narrow, |it| it.max_binding_bytes = pool - 1), KvDtype::F16);
    for (layer, heads) in [(0, [2, 2]), (2, [1, 1]), (3, [1, 1])] {
        assert_eq!(cut.cache.head_shards(layer).unwrap().iter().map(|it| it.num_heads).collect::<Vec<_>>(), heads);
    }
    layer_story(&mut cut, None).unwrap();
}

#[test]
fn faults_between_groups_are_noticed() {
    let Some(gpu) = gpu() else { return };
    for fault in LayerFault::ALL {
        let mut engine = engine(&gpu, &narrow(&gpu), KvDtype::F16);
        let answer = layer_story(&mut engine, Some(fault));
        assert!(matches!(answer, Err(Verdict::Output(_))), "{fault:?}: {answer:?}");
    }
}

#[test]
fn a_prefix_that_all_groups_have_is_found_and_read_rightly() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu, &narrow(&gpu), KvDtype::F16);
    let text: Vec<u32> = (100..190).collect();
    let a = engine.seq();
    for piece in text.chunks(32) {
        engine.step(&[(a, piece)]).unwrap();
    }
    let (b, cached) = engine.seq_of(&text);
    assert_eq!(cached, 64);
    let windowed = engine.manager.group_block_table(b, 3).unwrap();
    assert_eq!(windowed[0], RELEASED, "only the last window is shared");
    engine.step(&[(b, &text[64..]), (a, &[1])]).unwrap();
    engine.manager.release(a).unwrap();
    engine.poison_freed().unwrap();
    // Out of a cache of which nothing is left but what is kept for hits.
    let (c, cached) = engine.seq_of(&text);
    assert!(cached >= 64, "{cached}");
    engine.step(&[(c, &text[cached as usize..]), (b, &[2])]).unwrap();
    engine.manager.check_invariants().unwrap();
}

#[test]
fn sequences_over_groups_go_out_and_come_back_also_into_a_pool_of_another_size() {
    let Some(gpu) = gpu() else { return };
    let (profile, kv_dtype) = (narrow(&gpu), KvDtype::F16);
    let config = layer_config(kv_dtype).with_max_num_blocks(200);
    let mut engine = LayerEngine::new(&gpu, &profile, &config, &ALL).unwrap();
    let (a, b) = (engine.seq(), engine.seq());
    let text: Vec<u32> = (100..170).collect();
    engine.step(&[(a, &text), (b, &text[..5])]).unwrap();
    let record = engine.manager.export_sequence(a).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let out = engine.cache.swap_out(&mut encoder, &distinct_blocks([&record])).unwrap();
    gpu.submit(encoder);
    let host = out.read().unwrap();
    engine.manager.release(a).unwrap();
    engine.poison(host.ids()).unwrap();
    let error = Snapshot::new(std::slice::from_ref(&record), &host).unwrap_err();
    assert_eq!(error, SnapshotError::Groups { groups: 4 });

    // Every place grows once, whichever of its layers is named first.
    for layer in 0..engine.cache.layout().num_layers() {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        engine.cache.resize_layer(&mut encoder, layer, 200).unwrap();
        gpu.submit(encoder);
        let grown = engine.cache.layout().num_blocks() == 200;
        assert_eq!(grown, layer >= 1, "layers 0 and 1 have the two places");
    }
    engine.manager.resize(200).unwrap();
    engine.poison_freed().unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let back = engine.cache.swap_in_sequences(&mut encoder, &mut engine.manager, &[record], &host).unwrap();
    gpu.submit(encoder);
    engine.rename(a, back[0]);
    engine.step(&[(back[0], &[1, 2]), (b, &[3])]).unwrap();

    // Blocks of groups go into caches of the same groups alone.
    let kinds = layer_kinds(kv_dtype);
    let other = CacheConfig::of_layers(&kinds[1..]).with_layers_per_group(2).with_kv_dtype(kv_dtype);
    for (config, field) in [
        (alone(&gpu, &profile, kv_dtype, kinds[2], &[2, 5]).cache.layout().clone(), "num_groups"),
        (other.with_num_blocks(120).with_max_seq_len(128).with_max_sequences(8).layout().unwrap(), "num_groups"),
    ] {
        let cache = KvCache::with_profile(&gpu.device, &config, profile.clone()).unwrap();
        let pair = (host.ids()[0], host.ids()[0]);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let error = cache.swap_in(&mut encoder, &host, &[pair]).unwrap_err();
        assert!(error.to_string().contains(&format!("blocks of {field} ")), "{error}");
    }
}

#[test]
fn tables_of_an_engines_own_serve_groups_as_those_of_the_manager_do() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu, &narrow(&gpu), KvDtype::F16);
    let a = engine.seq();
    let text: Vec<u32> = (100..170).collect();
    engine.step(&[(a, &text)]).unwrap();
    let io = ALL.map(|layer| engine.io(layer, &[(a, &[7])]));
    let want = engine.step(&[(a, &[7])]).unwrap().outputs;
    let layout = engine.cache.layout().clone();
    // Columns that left the window may name any block.
    let column = |&block: &BlockId| if block == RELEASED { 5 } else { block.get() };
    let of_group = |group| engine.manager.group_block_table(a, group).unwrap().iter().map(column).collect();
    let tables: Vec<Vec<u32>> = (0..layout.num_groups()).map(of_group).collect();
    let raw = tables.iter().map(|table| RawTables {
        tables: Tables::Dense { block_table: table, max_blocks: table.len() as u32, seq_lens: &[71] },
        cu_seqlens_q: Some(&[0, 1]),
        append: Append::Slots(&[-1]),
    });
    let mut plan = engine.cache.new_plan();
    plan.plan_group_tables(&layout, &raw.collect::<Vec<_>>()).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = engine.cache.begin_step(&mut encoder, &plan).unwrap();
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for (layer, io) in (0..).zip(&io) {
            let attention = &engine.kernels(layer).1;
            engine.cache.attend(&mut pass, attention, &step, layer, io.attend()).unwrap();
        }
    }
    gpu.submit(encoder);
    for (layer, io) in io.iter().enumerate() {
        assert_eq!(bits(&gpu.read::<f32>(&io.out).unwrap()), bits(&want[layer]), "layer {layer}");
    }
}

#[test]
fn a_layer_of_a_group_goes_to_another_engine_and_back() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu, &narrow(&gpu), KvDtype::F16);
    let a = engine.seq();
    let text: Vec<u32> = (100..150).collect();
    engine.step(&[(a, &text)]).unwrap();
    let external = ExternalLayout { order: ExternalOrder::TokenMajor, element: ExternalElement::F32 };
    let transfer = engine.cache.layer_transfer(3, external).unwrap();
    let table = engine.manager.group_block_table(a, 1).unwrap().to_vec();
    let pairs: Vec<_> = (0..).zip(&table).map(|(theirs, &own)| BlockPair::new(theirs, own)).collect();
    let group = engine.cache.layout().groups()[1].clone();
    let rows = (table.len() as u32 * group.block_size() * group.num_kv_heads()) as usize;
    let pool = |dim: u32| gpu.storage("theirs", &vec![0.0_f32; rows * dim as usize]);
    let (k, v) = (pool(group.head_dim()), pool(group.v_head_dim()));
    let theirs = || ExternalPool::new(table.len() as u32, k.slice(..), v.slice(..));
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        engine.cache.export_pool(&mut pass, &transfer, 3, theirs(), &pairs).unwrap();
        let error = engine.cache.export_pool(&mut pass, &transfer, 2, theirs(), &pairs).unwrap_err();
        assert!(error.to_string().contains("the transfer was made for 2 KV heads of 32 and 16"), "{error}");
    }
    gpu.submit(encoder);
    engine.poison(&table).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        engine.cache.import_pool(&mut pass, &transfer, 3, theirs(), &pairs).unwrap();
    }
    gpu.submit(encoder);
    engine.step(&[(a, &[1])]).unwrap();
}

#[test]
fn a_layer_of_another_shape_or_a_wider_window_is_refused_by_name() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu, &narrow(&gpu), KvDtype::F16);
    let a = engine.seq();
    engine.step(&[(a, &[1, 2, 3])]).unwrap();
    let request: [(_, &[u32]); 1] = [(a, &[4])];
    let io = [0, 1, 2, 3].map(|layer| engine.io(layer, &request));
    engine.manager.reserve_tokens(&request, &mut engine.plan).unwrap();
    let cache = &engine.cache;
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, &engine.plan).unwrap();
    for (layer, group) in [(0, 2), (1, 2), (2, 0), (3, 1), (4, 3)] {
        let bytes = step.words_of(layer).unwrap();
        let same = |other| step.words_of(other).unwrap().buffer == bytes.buffer;
        assert_eq!(cache.layout().place(layer).unwrap().group, group);
        assert_eq!([same(0), same(2), same(3), same(4)], [group == 2, group == 0, group == 1, group == 3]);
    }
    assert!(step.words_of(6).is_none() && step.words().buffer == step.words_of(2).unwrap().buffer);
    let mut pass = encoder.begin_compute_pass(&Default::default());
    let (narrow, full) = (engine.kernels(0), engine.kernels(2));
    let error = cache.append(&mut pass, &full.0, &step, 0, io[0].append()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "layer 0 has 4 KV heads of 32 and 16 elements in blocks of 16 tokens, but the appender was made for 2 KV heads of \
         64 and 32 elements in blocks of 16 tokens; make another for this layer"
    );
    let error = cache.attend(&mut pass, &narrow.1, &step, 2, io[2].attend()).unwrap_err();
    assert!(
        error.to_string().contains("layer 2 has 2 KV heads of 64") && matches!(error, GpuError::Argument(_)),
        "{error}"
    );
    let error = cache.attend(&mut pass, &narrow.1, &step, 6, io[0].attend()).unwrap_err();
    assert_eq!(error.to_string(), "layer 6 does not exist; the cache has 6");

    // Specs: a window that no layer of the shape keeps, none where all have one, a layer that is not there.
    let spec = AttentionSpec::new(4);
    let refused = |spec: AttentionSpec| cache.attention(spec).unwrap_err();
    let error = refused(spec.clone().with_layer(1).with_window(21));
    assert!(matches!(error, GpuError::Spec(SpecError { option: "window", .. })), "{error}");
    assert!(error.to_string().starts_with("window is 21, but layer 1 keeps 20 keys"), "{error}");
    let error = refused(spec.clone().with_layer(3));
    assert!(error.to_string().starts_with("window is not set, but layer 3 keeps 40 keys"), "{error}");
    assert_eq!(refused(spec.with_layer(6)).to_string(), "layer 6 does not exist; the cache has 6");
    assert!(cache.appender(AppendSpec::new().with_layer(9)).is_err());
    assert!(
        cache
            .layer_transfer(6, ExternalLayout { order: ExternalOrder::HeadMajor, element: ExternalElement::F32 })
            .is_err()
    );
}

#[test]
fn one_attention_serves_layers_of_one_shape_as_far_as_their_windows_go() {
    let Some(gpu) = gpu() else { return };
    let (full, windowed) = (LayerKind::new(2, 32), LayerKind::new(2, 32).with_window(16));
    let config = CacheConfig::of_layers(&[windowed, full]).with_num_blocks(20).with_max_seq_len(128);
    let mut engine = LayerEngine::new(&gpu, &narrow(&gpu), &config, &[0, 1]).unwrap();
    let a = engine.seq();
    engine.step(&[(a, &[1, 2, 3])]).unwrap();
    let request: [(_, &[u32]); 1] = [(a, &[4])];
    let io = engine.io(0, &request);
    engine.manager.reserve_tokens(&request, &mut engine.plan).unwrap();
    let cache = &engine.cache;
    // Layer 0 has a window, but another layer of its shape has none.
    let attention = cache.attention(AttentionSpec::new(4)).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let step = cache.begin_step(&mut encoder, &engine.plan).unwrap();
    let mut pass = encoder.begin_compute_pass(&Default::default());
    cache.attend(&mut pass, &attention, &step, 1, io.attend()).unwrap();
    cache.attend(&mut pass, &engine.kernels(0).1, &step, 1, io.attend()).unwrap();
    let error = cache.attend(&mut pass, &attention, &step, 0, io.attend()).unwrap_err();
    assert!(error.to_string().starts_with("window is not set, but layer 0 keeps 16 keys"), "{error}");
}

#[test]
fn an_empty_plan_begins_in_a_cache_with_groups() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu, &narrow(&gpu), KvDtype::F16);
    let a = engine.seq();
    let io = engine.io(3, &[(a, &[1])]);
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = engine.cache.begin_step(&mut encoder, &engine.cache.new_plan()).unwrap();
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        engine.cache.append(&mut pass, &engine.kernels(3).0, &step, 3, io.append()).unwrap();
    }
    gpu.submit(encoder);
    assert_eq!((step.num_rows(), step.num_tokens()), (0, 0));
}
