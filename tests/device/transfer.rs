//! Blocks from and to the pools of other engines: every storage format, element and order against the converters of the
//! host, bit by bit.

use crate::common::block_id;
use crate::common::{append, fill_pools, gpu, pool_model, pool_words};
use half::{bf16, f16};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::error::PlanError;
use wgpu_paged_attention::formats::decode_row;
use wgpu_paged_attention::gpu::{
    BlockPair, DeviceProfile, ExternalElement, ExternalLayout, ExternalOrder, ExternalPool, GpuError, KvCache, Transfer,
};
use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;
use wgpu_paged_attention::wgpu::BufferUsages as Usage;

const ELEMENTS: [ExternalElement; 3] = [ExternalElement::F32, ExternalElement::F16, ExternalElement::Bf16];
const ORDERS: [ExternalOrder; 2] = [ExternalOrder::TokenMajor, ExternalOrder::HeadMajor];
/// What stands in pools where nobody wrote.
const BLANK: u32 = 0xabcd_1234;

/// One side of another engine's pool on the host: K or V.
#[derive(Clone, Debug, PartialEq)]
struct Side {
    layout: ExternalLayout,
    block_size: usize,
    heads: usize,
    dim: usize,
    words: Vec<u32>,
}

impl Side {
    fn new(layout: ExternalLayout, ours: &KvLayout, dim: u32, num_blocks: usize) -> Self {
        let (block_size, heads, dim) = (ours.block_size() as usize, ours.num_kv_heads() as usize, dim as usize);
        let elements = num_blocks * block_size * heads * dim;
        let words = vec![BLANK; if layout.element == ExternalElement::F32 { elements } else { elements.div_ceil(2) }];
        Self { layout, block_size, heads, dim, words }
    }

    fn at(&self, block: usize, head: usize, within: usize, d: usize) -> usize {
        let row = match self.layout.order {
            ExternalOrder::TokenMajor => (block * self.block_size + within) * self.heads + head,
            ExternalOrder::HeadMajor => (block * self.heads + head) * self.block_size + within,
            other => panic!("an order without an address: {other:?}"),
        };
        row * self.dim + d
    }

    fn set(&mut self, at: usize, x: f32) {
        let half = match self.layout.element {
            ExternalElement::F32 => return self.words[at] = x.to_bits(),
            ExternalElement::F16 => f16::from_f32(x).to_bits(),
            ExternalElement::Bf16 => bf16::from_f32(x).to_bits(),
            other => panic!("an element without bits: {other:?}"),
        };
        let (word, shift) = (&mut self.words[at / 2], 16 * (at % 2));
        *word = *word & !(0xffff << shift) | u32::from(half) << shift;
    }

    fn get(&self, at: usize) -> f32 {
        let half = |at: usize| (self.words[at / 2] >> (16 * (at % 2))) as u16;
        match self.layout.element {
            ExternalElement::F32 => f32::from_bits(self.words[at]),
            ExternalElement::F16 => f16::from_bits(half(at)).to_f32(),
            ExternalElement::Bf16 => bf16::from_bits(half(at)).to_f32(),
            other => panic!("an element without bits: {other:?}"),
        }
    }

    /// Replaces every element of a block.
    fn fill_block(&mut self, block: usize, mut x: impl FnMut(usize, usize, usize) -> f32) {
        for within in 0..self.block_size {
            for head in 0..self.heads {
                for d in 0..self.dim {
                    let at = self.at(block, head, within, d);
                    self.set(at, x(within, head, d));
                }
            }
        }
    }

    /// A block's rows as an append takes them: token after token, head after head.
    fn block_rows(&self, block: usize) -> Vec<f32> {
        let mut rows = Vec::new();
        for within in 0..self.block_size {
            for head in 0..self.heads {
                rows.extend((0..self.dim).map(|d| self.get(self.at(block, head, within, d))));
            }
        }
        rows
    }
}

/// K and V with values that differ in sign and size from element to element.
fn random(layout: ExternalLayout, ours: &KvLayout, num_blocks: usize, seed: u64) -> [Side; 2] {
    let mut rng = StdRng::seed_from_u64(seed);
    [ours.head_dim(), ours.v_head_dim()].map(|dim| {
        let mut side = Side::new(layout, ours, dim, num_blocks);
        for block in 0..num_blocks {
            side.fill_block(block, |_, _, _| rng.random_range(-4.0_f32..4.0) * 2.0_f32.powi(rng.random_range(-6..3)));
        }
        side
    })
}

fn pairs(pairs: &[(u32, u32)]) -> Vec<BlockPair> {
    pairs.iter().map(|&(external, own)| BlockPair::new(external, block_id(own))).collect()
}

/// Records one transfer and submits it.
fn transfer(
    gpu: &Gpu,
    record: impl FnOnce(&mut wgpu::ComputePass<'_>) -> Result<(), GpuError>,
) -> Result<(), GpuError> {
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let recorded = record(&mut encoder.begin_compute_pass(&Default::default()));
    gpu.submit(encoder);
    recorded
}

fn import(gpu: &Gpu, cache: &KvCache, with: &Transfer, [k, v]: &[Side; 2], num_blocks: u32, list: &[(u32, u32)]) {
    let (k, v) = (gpu.storage("k", &k.words), gpu.storage("v", &v.words));
    let pool = ExternalPool::new(num_blocks, k.slice(..), v.slice(..));
    transfer(gpu, |pass| cache.import_pool(pass, with, 0, pool, &pairs(list))).unwrap();
}

/// Exports into pools that hold what `sides` hold, and returns what they hold then.
fn export(
    gpu: &Gpu,
    cache: &KvCache,
    with: &Transfer,
    sides: &[Side; 2],
    num_blocks: u32,
    list: &[(u32, u32)],
) -> [Side; 2] {
    let buffers = sides.each_ref().map(|side| gpu.storage("theirs", &side.words));
    let pool = ExternalPool::new(num_blocks, buffers[0].slice(..), buffers[1].slice(..));
    transfer(gpu, |pass| cache.export_pool(pass, with, 0, pool, &pairs(list))).unwrap();
    let [k, v] = buffers.each_ref().map(|buffer| gpu.read(buffer).unwrap());
    [Side { words: k, ..sides[0].clone() }, Side { words: v, ..sides[1].clone() }]
}

fn config(format: KvDtype, head_dim: u32, v_head_dim: u32) -> CacheConfig {
    CacheConfig::new(1, 3, head_dim).with_v_head_dim(v_head_dim).with_kv_dtype(format).with_block_size(5)
}

/// What the pools hold after an import, by way of the model of an append.
fn imported(ours: &KvLayout, [k, v]: &[Side; 2], list: &[(u32, u32)]) -> Vec<u32> {
    let slots: Vec<i64> =
        list.iter().flat_map(|&(_, own)| (0..ours.block_size()).map(move |at| (own * 5 + at).into())).collect();
    let rows = |side: &Side| -> Vec<f32> {
        list.iter().flat_map(|&(external, _)| side.block_rows(external as usize)).collect()
    };
    pool_model(ours, &slots, &rows(k), &rows(v), BLANK)
}

#[test]
fn a_small_block_lies_where_the_layouts_say() {
    let Some(gpu) = gpu() else { return };
    let config = CacheConfig::new(1, 2, 2).with_kv_dtype(KvDtype::F32).with_block_size(2).with_num_blocks(1);
    let ours = config.layout().unwrap();
    let cache = KvCache::new(&gpu.device, &ours).unwrap();
    // Element d of head h of token t is 4t + 2h + d.
    let by_order: [(ExternalOrder, [u8; 8]); 2] =
        [(ExternalOrder::TokenMajor, [0, 1, 2, 3, 4, 5, 6, 7]), (ExternalOrder::HeadMajor, [0, 1, 4, 5, 2, 3, 6, 7])];
    for (order, elements) in by_order {
        let external = ExternalLayout { order, element: ExternalElement::F32 };
        let with = cache.transfer(external).unwrap();
        let words = elements.map(|x| f32::from(x).to_bits()).to_vec();
        let sides = [2, 2].map(|dim| Side { words: words.clone(), ..Side::new(external, &ours, dim, 1) });
        import(&gpu, &cache, &with, &sides, 1, &[(0, 0)]);
        let own = gpu.read::<f32>(&cache.head_shards(0).unwrap()[0].k).unwrap();
        assert_eq!(own, [0., 1., 0., 0., 4., 5., 0., 0., 2., 3., 0., 0., 6., 7., 0., 0.]);
        let blank = [2, 2].map(|dim| Side::new(external, &ours, dim, 1));
        assert_eq!(export(&gpu, &cache, &with, &blank, 1, &[(0, 0)]), sides);
    }
}

#[test]
fn blocks_are_stored_as_an_append_would_store_them_from_either_order_and_every_element() {
    let Some(gpu) = gpu() else { return };
    let list = [(0, 6), (3, 0), (1, 3)];
    for format in KvDtype::ALL {
        // Rows that are no whole units or words, and for int4 more scales than a unit holds.
        let ours = config(format, 37, 130).with_num_blocks(7).layout().unwrap();
        let cache = KvCache::new(&gpu.device, &ours).unwrap();
        for element in ELEMENTS {
            // The same rows in both orders.
            let [token_major, head_major] = ORDERS.map(|order| {
                let external = ExternalLayout { order, element };
                let sides = random(external, &ours, 4, 11);
                fill_pools(&gpu, &cache, BLANK);
                import(&gpu, &cache, &cache.transfer(external).unwrap(), &sides, 4, &list);
                let got = pool_words(&gpu, &cache);
                assert!(got == imported(&ours, &sides, &list), "{format} from {external}");
                (sides, got)
            });
            assert!(token_major.0[0].words != head_major.0[0].words && token_major.1 == head_major.1);
        }
    }
}

#[test]
fn blocks_come_out_as_the_host_decodes_them_and_leave_their_neighbours_alone() {
    let Some(gpu) = gpu() else { return };
    // Blocks of 15 rows: with odd rows, a word belongs to two blocks.
    let list = [(3, 0), (1, 2)];
    for format in KvDtype::ALL {
        let ours = config(format, 37, 130).with_num_blocks(3).layout().unwrap();
        let cache = KvCache::new(&gpu.device, &ours).unwrap();
        let mut rng = StdRng::seed_from_u64(5);
        let mut rows = |dim: u32| -> Vec<f32> { (0..15 * 3 * dim).map(|_| rng.random_range(-3.0..3.0)).collect() };
        let (k, v) = (rows(37), rows(130));
        let slots: Vec<i64> = (0..15).collect();
        append(&gpu, &cache, &slots, &k, &v).unwrap();
        for element in ELEMENTS {
            for order in ORDERS {
                let external = ExternalLayout { order, element };
                let before = [37, 130].map(|dim| Side::new(external, &ours, dim, 5));
                let mut want = before.clone();
                for (side, rows) in want.iter_mut().zip([&k, &v]) {
                    for &(theirs, own) in &list {
                        let dim = side.dim;
                        side.fill_block(theirs as usize, |within, head, d| {
                            let row = ((own as usize * 5 + within) * 3 + head) * dim;
                            stored(format, &rows[row..row + dim])[d]
                        });
                    }
                }
                let with = cache.transfer(external).unwrap();
                let got = export(&gpu, &cache, &with, &before, 5, &list);
                assert!(got == want, "{format} to {external}");
            }
        }
    }
}

/// What a format makes of a row.
fn stored(format: KvDtype, row: &[f32]) -> Vec<f32> {
    let mut words = vec![0; 4 * format.row_units(row.len() as u32) as usize];
    let mut back = vec![0.0; row.len()];
    wgpu_paged_attention::formats::encode_row(format, row, &mut words).unwrap();
    decode_row(format, &words, &mut back).unwrap();
    back
}

#[test]
fn single_precision_comes_back_bit_by_bit_through_segments_and_folded_grids() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F32, 6, 3).with_block_size(40).with_num_blocks(4);
    let ours = config.with_max_seq_len(40).with_max_sequences(1).layout().unwrap();
    let mut profile = DeviceProfile::of(&gpu.device);
    // A head of K takes 4 · 40 · 32 bytes: three head shards. One block of theirs still fits.
    profile.max_binding_bytes = 5200;
    profile.max_workgroups_per_dim = 2;
    let cache = KvCache::with_profile(&gpu.device, &ours, profile).unwrap();
    assert_eq!(cache.head_shards(0).unwrap().len(), 3);
    for order in ORDERS {
        let external = ExternalLayout { order, element: ExternalElement::F32 };
        let mut sides = random(external, &ours, 1, 3);
        for (at, bits) in [0x8000_0000, 0x7f80_0000, 0xff7f_ffff, 1, 0x7fc0_0000].into_iter().enumerate() {
            sides[0].words[7 * at] = bits;
        }
        let with = cache.transfer(external).unwrap();
        import(&gpu, &cache, &with, &sides, 1, &[(0, 3), (0, 1)]);
        let blank = [6, 3].map(|dim| Side::new(external, &ours, dim, 1));
        for own in [1, 3] {
            assert_eq!(export(&gpu, &cache, &with, &blank, 1, &[(0, own)]), sides);
        }
        // No pairs, no words.
        assert_eq!(export(&gpu, &cache, &with, &blank, 1, &[]), blank);
    }
    let external = ExternalLayout { order: ExternalOrder::TokenMajor, element: ExternalElement::F32 };
    let sides = random(external, &ours, 1, 3);
    let [k, v] = sides.each_ref().map(|side| gpu.storage("theirs", &side.words));
    let pool = ExternalPool::new(1, k.slice(..), v.slice(..));
    let many = pairs(&[(0, 0), (0, 1), (0, 2), (0, 3)]);
    let with = cache.transfer(external).unwrap();
    let error = transfer(&gpu, |pass| cache.import_pool(pass, &with, 0, pool, &many)).unwrap_err();
    // 4 · 40 rows of 2 units, 64 to a workgroup
    let wanted = PlanError::TooLarge { what: "workgroups", value: 5, limit: 4 };
    assert!(matches!(&error, GpuError::Plan(plan) if *plan == wanted), "{error:?}");
}

#[test]
fn k_and_v_may_share_a_buffer_one_after_the_other_or_block_by_block() {
    let Some(gpu) = gpu() else { return };
    let config = CacheConfig::new(1, 2, 16).with_kv_dtype(KvDtype::F32).with_block_size(8).with_num_blocks(3);
    let ours = config.layout().unwrap();
    let cache = KvCache::new(&gpu.device, &ours).unwrap();
    let external = ExternalLayout { order: ExternalOrder::HeadMajor, element: ExternalElement::F32 };
    let [k, v] = random(external, &ours, 3, 9);
    let with = cache.transfer(external).unwrap();
    let block = 8 * 2 * 16;
    let stacked = [&k.words[..], &v.words[..]].concat();
    let mut interleaved = Vec::new();
    for (k, v) in k.words.chunks(block).zip(v.words.chunks(block)) {
        interleaved.extend([k, v].concat());
    }
    let block_bytes = 4 * block as u64;
    let list = [(0, 2), (1, 0), (2, 1)];
    let twice = list.map(|(theirs, own)| (2 * theirs, own));
    let mut pools = Vec::new();
    for (words, v_at, num_blocks, list) in [(&stacked, 3 * block_bytes, 3, list), (&interleaved, block_bytes, 5, twice)]
    {
        let buffer = gpu.storage("theirs", words);
        let theirs = ExternalPool::new(num_blocks, buffer.slice(..), buffer.slice(v_at..));
        fill_pools(&gpu, &cache, BLANK);
        transfer(&gpu, |pass| cache.import_pool(pass, &with, 0, theirs, &pairs(&list))).unwrap();
        pools.push(pool_words(&gpu, &cache));
        // And back, into one buffer as well.
        let back = gpu.storage("theirs", &vec![BLANK; words.len()]);
        let theirs = ExternalPool::new(num_blocks, back.slice(..), back.slice(v_at..));
        transfer(&gpu, |pass| cache.export_pool(pass, &with, 0, theirs, &pairs(&list))).unwrap();
        assert_eq!(&gpu.read::<u32>(&back).unwrap(), words);
    }
    assert_eq!(pools[0], pools[1]);
    assert!(!pools[0].contains(&BLANK));
}

#[test]
fn a_transfer_that_cannot_be_right_is_refused_and_leaves_no_trace() {
    let Some(gpu) = gpu() else { return };
    let ours = config(KvDtype::F16, 6, 3).with_num_blocks(2).layout().unwrap();
    let cache = KvCache::new(&gpu.device, &ours).unwrap();
    fill_pools(&gpu, &cache, BLANK);
    let external = ExternalLayout { order: ExternalOrder::TokenMajor, element: ExternalElement::F16 };
    let with = cache.transfer(external).unwrap();
    let buffer = |usage| {
        let descriptor = wgpu::BufferDescriptor { label: None, size: 4096, usage, mapped_at_creation: false };
        gpu.device.create_buffer(&descriptor)
    };
    let both = Usage::STORAGE | Usage::COPY_SRC;
    let (k, v) = (buffer(both), buffer(both));
    let good = ExternalPool::new(3, k.slice(..), v.slice(..));
    let one = pairs(&[(0, 0)]);
    let own = &cache.head_shards(0).unwrap()[0].k;
    let other = KvCache::new(&gpu.device, &ours).unwrap().transfer(external).unwrap();
    // 3 blocks of 15 rows: 135 elements of V
    let cases: [(&str, &Transfer, u32, ExternalPool<'_>, Vec<BlockPair>); 9] = [
        ("pairs[1].own is block 2, but that pool has 2", &with, 0, good, pairs(&[(0, 0), (1, 2)])),
        ("pairs[0].external is block 3, but that pool has 3", &with, 0, good, pairs(&[(3, 0)])),
        ("v has 268 bytes, but 272 are needed", &with, 0, ExternalPool::new(3, good.k, v.slice(..268)), one.clone()),
        ("k has 4096 bytes", &with, 0, ExternalPool::new(23, good.k, good.v), one.clone()),
        ("k would take", &with, 0, ExternalPool::new(u32::MAX, good.k, good.v), one.clone()),
        ("v starts at byte 4", &with, 0, ExternalPool::new(3, good.k, v.slice(4..)), one.clone()),
        ("layer 1 does not exist", &with, 1, good, one.clone()),
        ("transfer was made for another cache", &other, 0, good, one.clone()),
        ("share a buffer", &with, 0, ExternalPool::new(1, own.slice(..), good.v), one.clone()),
    ];
    for (words, with, layer, pool, list) in cases {
        let said = |error: GpuError| {
            let said = error.to_string();
            assert!(said.contains(words), "`{said}` does not say `{words}`");
        };
        said(transfer(&gpu, |pass| cache.import_pool(pass, with, layer, pool, &list)).unwrap_err());
        said(transfer(&gpu, |pass| cache.export_pool(pass, with, layer, pool, &list)).unwrap_err());
    }
    let uniform = buffer(Usage::UNIFORM);
    let pool = ExternalPool::new(3, uniform.slice(..), good.v);
    let error = transfer(&gpu, |pass| cache.export_pool(pass, &with, 0, pool, &one)).unwrap_err();
    assert!(error.to_string().starts_with("k lacks the usage BufferUsages(STORAGE)"), "{error}");

    assert!(pool_words(&gpu, &cache).iter().all(|&word| word == BLANK));
    for theirs in [&k, &v] {
        assert!(gpu.read::<u32>(theirs).unwrap().iter().all(|&word| word == 0));
    }
}
