//! Public bug reports about tables, slots, sizes and whole devices, as small inputs with a written answer. The comment
//! above each test names the cases that it stands for.

use crate::common::{
    append, bits, fill_pools, gpu, gpu_default_limits, gpu_featureless, pool_model, pool_words, profiles,
};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::error::{ConfigError, LayoutError, TableError};
use wgpu_paged_attention::gpu::{AttentionSpec, DeviceError, DeviceProfile, GpuError, KvCache};
use wgpu_paged_attention::plan::{RawTables, Tables};
use wgpu_paged_attention::testkit::{Scenario, ScenarioSpec, changed};
use wgpu_paged_attention::wgpu;

// R03, I19: the whole pool is compared, so a slot of −1 that lands anywhere shows.
#[test]
fn only_the_named_slots_are_written() {
    let Some(gpu) = gpu() else { return };
    for head_dim in [2, 5] {
        let config = CacheConfig::new(1, 2, head_dim).with_kv_dtype(KvDtype::F32).with_block_size(4);
        let layout = config.with_num_blocks(3).with_max_seq_len(12).layout().unwrap();
        for slots in [&[3, -1, 7, -1][..], &[5, 9, 2, 11], &[-1, -1], &[-1; 70], &[11], &[0, -1]] {
            let cache = KvCache::new(&gpu.device, &layout).unwrap();
            fill_pools(&gpu, &cache, 0x1234_5678);
            let elements = slots.len() as u32 * 2 * head_dim;
            let k: Vec<f32> = (0..elements).map(|at| at as f32 + 0.5).collect();
            let v: Vec<f32> = k.iter().map(|x| -x).collect();
            append(&gpu, &cache, slots, &k, &v).unwrap();
            assert_eq!(pool_words(&gpu, &cache), pool_model(&layout, slots, &k, &v, 0x1234_5678), "{slots:?}");
        }
    }
}

// R05: fewer rows than slots is an error; more are left over.
#[test]
fn rows_and_slots_that_do_not_match_are_refused_or_left_over() {
    let Some(gpu) = gpu() else { return };
    let config = CacheConfig::new(1, 1, 4).with_kv_dtype(KvDtype::F32).with_block_size(4);
    let layout = config.with_num_blocks(4).layout().unwrap();
    let cache = KvCache::new(&gpu.device, &layout).unwrap();
    fill_pools(&gpu, &cache, 77);
    let rows = [1.5_f32; 8 * 4];
    let error = append(&gpu, &cache, &[0, 1, 2, 3, 4, 5, 6, 7], &rows[..20], &rows[..20]).unwrap_err();
    assert!(error.contains("k has 80 bytes, but 128 are needed"), "{error}");
    assert!(pool_words(&gpu, &cache).iter().all(|&word| word == 77));
    let slots = [9, 1, 2, 3, 4];
    append(&gpu, &cache, &slots, &rows, &rows).unwrap();
    assert_eq!(pool_words(&gpu, &cache), pool_model(&layout, &slots, &rows[..20], &rows[..20], 77));
}

// R01, I08: a block outside the pool is found by the host; 2^26 blocks of 16 words wrap at 2^32 bytes.
#[test]
fn a_block_outside_the_pool_is_an_error_where_it_is_used_and_nothing_where_it_is_not() {
    let Some(gpu) = gpu() else { return };
    let config = CacheConfig::new(1, 1, 4).with_kv_dtype(KvDtype::F32).with_block_size(4);
    let layout = config.with_num_blocks(8).with_max_seq_len(32).layout().unwrap();
    let cache = KvCache::new(&gpu.device, &layout).unwrap();
    fill_pools(&gpu, &cache, 99);
    let mut plan = cache.new_plan();
    for id in [8, 1000, 1 << 26, 1 << 31, u32::MAX] {
        for (col, len) in [(0, 1), (1, 8), (1, 5), (1, 4)] {
            let mut block_table = [2, 3, 4, 5];
            block_table[2 + col] = id;
            let seq_lens = [8, len];
            let tables =
                RawTables::new(Tables::Dense { block_table: &block_table, max_blocks: 2, seq_lens: &seq_lens });
            let planned = plan.plan_tables(&layout, &tables);
            if col as u32 * 4 < len {
                assert_eq!(planned, Err(TableError::InvalidBlock { row: 1, col, id, num_blocks: 8 }));
                assert_eq!((plan.num_rows(), plan.num_tokens()), (0, 0), "the plan is empty");
            } else {
                assert_eq!(planned, Ok(()));
                assert!(!plan.inline_tables().contains(&id), "an unused column travels to the device");
            }
        }
    }
    for slot in [-2, 32, 1 << 32, i64::MAX, i64::MIN, (1 << 32) - 1] {
        let error = append(&gpu, &cache, &[slot], &[1.0; 4], &[1.0; 4]).unwrap_err();
        assert!(error.contains(&slot.to_string()), "{error}");
    }
    assert!(pool_words(&gpu, &cache).iter().all(|&word| word == 99));
}

// R11, I08: every size is answered with a cache or an error, and none with a panic or a wrapped product.
#[test]
fn configurations_that_nobody_tried_work_or_are_refused() {
    let Some(gpu) = gpu() else { return };
    let plain = || CacheConfig::new(1, 1, 8).with_num_blocks(2).with_max_seq_len(8).with_max_sequences(2);
    let out_of_range = |config: CacheConfig| matches!(config.layout(), Err(ConfigError::OutOfRange { .. }));
    assert!(out_of_range(plain().with_block_size(0)) && out_of_range(plain().with_num_blocks(0)));
    assert!(out_of_range(CacheConfig::new(1, 1, 0).with_num_blocks(1)));
    assert!(out_of_range(CacheConfig::new(1, 0, 8).with_num_blocks(1)));
    assert!(out_of_range(CacheConfig::new(0, 1, 8).with_num_blocks(1)));
    assert!(plain().with_num_blocks(u32::MAX).layout().is_err());
    for config in [plain().with_block_size(1), plain().with_block_size(3), plain().with_block_size(24)] {
        assert!(KvCache::new(&gpu.device, &config.layout().unwrap()).is_ok(), "{config:?}");
    }
    assert!(KvCache::new(&gpu.device, &plain().with_block_size(4096).with_num_blocks(1).layout().unwrap()).is_ok());
    assert!(KvCache::new(&gpu.device, &CacheConfig::new(1, 1, 1).with_num_blocks(1).layout().unwrap()).is_ok());
    // Blocks of 16 tokens and 8 heads of 128: 2^31 and 2^32 elements or bytes lie at blocks 131,072 and 262,144.
    for (head_dim, wraps) in [(128, [131_072, 262_144]), (256, [65_536, 131_072])] {
        for num_blocks in wraps.into_iter().flat_map(|wrap| [wrap - 1, wrap, wrap + 1]) {
            let layout = CacheConfig::new(1, 8, head_dim).with_num_blocks(num_blocks).layout().unwrap();
            let whole = u64::from(num_blocks) * 16 * 8 * u64::from(head_dim) * 2;
            assert_eq!(layout.k_shard_bytes(8), whole);
            match layout.head_shards(u64::MAX) {
                Ok(head_shards) => {
                    assert!(head_shards.bytes < 1 << 32);
                    assert_eq!(head_shards.iter().map(|(_, heads)| heads).sum::<u32>(), 8);
                }
                Err(LayoutError::HeadTooLarge { head_bytes, .. }) => assert!(head_bytes >= 1 << 32),
                Err(error) => panic!("{error}"),
            }
            let last = num_blocks * 16 - 1;
            assert_eq!((layout.row_index(8, last, 7) + 1) * layout.k_row_bytes(), whole);
        }
    }
}

// W01, W02: a layer's pool at a binding's limit, and one block beyond it.
#[test]
fn a_pool_beyond_one_binding_is_cut_and_its_last_block_still_holds_what_was_written() {
    let Some(gpu) = gpu_default_limits() else { return };
    assert_eq!(gpu.device.limits().max_storage_buffer_binding_size, 1 << 27);
    for (num_blocks, head_shards) in [(4096, 1), (4097, 2)] {
        let layout = CacheConfig::new(1, 8, 128).with_num_blocks(num_blocks).with_max_seq_len(64).layout().unwrap();
        let cache = KvCache::new(&gpu.device, &layout).unwrap();
        assert_eq!(cache.head_shards(0).unwrap().len(), head_shards);
        let slot = i64::from(num_blocks) * 16 - 1;
        let k: Vec<f32> = (0..1024).map(|at| at as f32 / 8.0).collect();
        let v: Vec<f32> = k.iter().map(|x| -x).collect();
        append(&gpu, &cache, &[slot], &k, &v).unwrap();
        for head_shard in cache.head_shards(0).unwrap() {
            for (pool, source) in [(&head_shard.k, &k), (&head_shard.v, &v)] {
                let words = gpu.read::<u16>(pool).unwrap();
                for head in 0..head_shard.num_heads {
                    let at = 128 * layout.row_index(head_shard.num_heads, slot as u32, head) as usize;
                    let from = 128 * (head_shard.first_head + head) as usize;
                    let want: Vec<u16> =
                        source[from..][..128].iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
                    assert_eq!(words[at..][..128], want, "head {head} of {} in all", head_shard.num_heads);
                }
            }
        }
    }
}

// W13: far too much is refused with the limit, before anything is made.
#[test]
fn a_pool_that_no_device_holds_is_an_error() {
    let Some(gpu) = gpu() else { return };
    let huge = CacheConfig::new(1, 1, 256).with_block_size(65_536).with_num_blocks(60_000).layout().unwrap();
    let error = KvCache::new(&gpu.device, &huge).unwrap_err();
    assert!(matches!(error, GpuError::Layout(LayoutError::HeadTooLarge { .. })), "{error:?}");
    let tables = CacheConfig::new(1, 1, 8).with_num_blocks(4).with_max_sequences(1 << 20).with_max_seq_len(16_384);
    let profile = changed(&DeviceProfile::of(&gpu.device), |it| it.max_binding_bytes = 1 << 27);
    let error = KvCache::with_profile(&gpu.device, &tables.layout().unwrap(), profile).unwrap_err();
    assert!(
        matches!(error, GpuError::Device(DeviceError::Limit { needed, limit, .. }) if needed == 1 << 32 && limit == 1 << 27),
        "{error:?}"
    );
}

// W13: a lost device answers with an error at once, not with old data.
#[test]
fn a_lost_device_is_an_error() {
    let Some(gpu) = gpu() else { return };
    let layout = CacheConfig::new(1, 1, 8).with_num_blocks(4).layout().unwrap();
    let cache = KvCache::new(&gpu.device, &layout).unwrap();
    let plan = cache.new_plan();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    assert!(cache.begin_step(&mut encoder, &plan).is_ok());
    drop(encoder);
    gpu.device.destroy();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let error = cache.begin_step(&mut encoder, &plan).unwrap_err();
    assert!(matches!(error, GpuError::Device(DeviceError::Lost)), "{error:?}");
    let error = KvCache::new(&gpu.device, &layout).unwrap_err();
    assert!(matches!(error, GpuError::Device(DeviceError::Lost)), "{error:?}");
}

// I05, W04: every pipeline is made on a device of default limits, with nothing said in any error scope.
#[test]
fn every_pipeline_is_made_within_the_default_limits() {
    let Some(gpu) = gpu_default_limits() else { return };
    let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
    for profile in profiles(&gpu) {
        for (kv_dtype, head_dim, group) in [
            (KvDtype::F16, 64, 8),
            (KvDtype::F32, 128, 2),
            (KvDtype::F32, 192, 1),
            (KvDtype::F32, 256, 1),
            (KvDtype::F16, 256, 2),
        ] {
            let config = CacheConfig::new(1, 1, head_dim).with_kv_dtype(kv_dtype).with_num_blocks(2);
            let cache = KvCache::with_profile(&gpu.device, &config.layout().unwrap(), profile.clone()).unwrap();
            let spec = AttentionSpec::new(group).with_lse();
            assert!(cache.attention(spec).is_ok(), "{} {kv_dtype} {head_dim} {group}", profile.lane_comm);
        }
    }
    assert!(pollster::block_on(scope.pop()).is_none());
}

// W09: no feature is needed for any storage format.
#[test]
fn a_device_without_features_gives_the_same_answers() {
    let (Some(bare), Some(rich)) = (gpu_featureless(), gpu()) else { return };
    assert_eq!(bare.device.features(), wgpu::Features::empty());
    let profile = DeviceProfile::of(&bare.device);
    assert_eq!(profile.lane_comm, profile.clone().without_subgroups().lane_comm);
    for kv_dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Fp8] {
        let spec = ScenarioSpec { kv_dtype, lse: true, ..ScenarioSpec::decode(4, 2, 40, &[1, 0, 17, 90]) };
        let scenario = Scenario::random(&spec, 4).unwrap();
        let got = scenario.run(&bare, &profile, None).unwrap();
        assert!(scenario.judge(&got).is_ok());
        let same = scenario.run(&rich, &profile, None).unwrap();
        assert_eq!((bits(&got.out), bits(&got.lse)), (bits(&same.out), bits(&same.lse)));
    }
}
