//! Queries, keys, values and outputs anywhere: one buffer for all, odd places, token strides, and NaN in the gaps, which
//! stay as they are. Whatever the layout, results are those of compact buffers to the bit, and the oracle's.

use crate::common::{gpu, pool_words, profiles, with_splits};
use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, AttentionIo, AttentionSpec, DeviceProfile, IoFormat, IoSlice, KvCache, RotarySpec,
    RotaryStyle, State, StateMerger, StateShape,
};
use wgpu_paged_attention::plan::{Append, RawTables, Tables};
use wgpu_paged_attention::testkit::{Gpu, Outcome, SENTINEL, Scenario, ScenarioSpec, ScenarioVariant};
use wgpu_paged_attention::wgpu;

/// NaN in f32, and two of them in f16.
const GAP: u32 = u32::MAX;

/// What is told to the device wrongly.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    QueryStride,
    OutPlace,
}

/// Rows of whole words in a buffer.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: usize,
    row: usize,
    stride: usize,
    rows: usize,
}

impl Place {
    fn end(&self) -> usize {
        self.start + (self.rows - 1) * self.stride + self.row
    }

    fn words(&self) -> impl Iterator<Item = usize> + use<> {
        let Self { start, row, stride, rows } = *self;
        (0..rows).flat_map(move |at| (0..row).map(move |word| start + at * stride + word))
    }

    /// The slice from the first row to the end of the last.
    fn slice<'a>(&self, buffer: &'a wgpu::Buffer, format: IoFormat) -> IoSlice<'a> {
        let slice = buffer.slice(4 * self.start as u64..4 * self.end() as u64);
        IoSlice::new(slice).with_token_stride(self.stride as u32 * format.per_word())
    }

    fn bytes<'a>(&self, buffer: &'a wgpu::Buffer) -> wgpu::BufferSlice<'a> {
        buffer.slice(4 * self.start as u64..4 * self.end() as u64)
    }
}

/// The words of a buffer that several tensors share.
struct Arena {
    words: Vec<u32>,
    owned: Vec<bool>,
}

impl Arena {
    /// Deals out places for tensors of `rows × row` words, at multiples of `unit` words: those with as many rows as the
    /// first as columns of one wide tensor, or all one behind the other with strides of their own.
    fn deal(rng: &mut StdRng, tensors: &[(usize, usize)], unit: usize) -> (Self, Vec<Place>) {
        let rows = tensors[0].0;
        let is_column = |tensor: &(usize, usize)| tensor.0 == rows;
        let columns = rng.random::<bool>();
        let mut gap = |most: usize| unit * rng.random_range(0..most);
        let gaps: Vec<usize> = tensors.iter().map(|_| gap(20)).collect();
        let width = tensors.iter().zip(&gaps).filter(|(tensor, _)| is_column(tensor));
        let width: usize = width.map(|(tensor, gap)| tensor.1.next_multiple_of(unit) + gap).sum();
        let (mut at, mut end) = (0, if columns { rows * width } else { 0 });
        let mut places = Vec::new();
        for (&(rows, row), before) in tensors.iter().zip(gaps) {
            let place = if columns && is_column(&(rows, row)) {
                let place = Place { start: at + before, row, stride: width, rows };
                at = (place.start + row).next_multiple_of(unit);
                place
            } else {
                let stride = (row + gap(2) * gap(5)).next_multiple_of(unit);
                let place = Place { start: end + before, row, stride, rows };
                end = place.end().next_multiple_of(unit);
                place
            };
            places.push(place);
        }
        let len = places.iter().map(Place::end).max().unwrap_or(0) + 64;
        let mut owned = vec![false; len];
        for word in places.iter().flat_map(Place::words) {
            assert!(!std::mem::replace(&mut owned[word], true), "{places:?}");
        }
        (Self { words: vec![GAP; len], owned }, places)
    }

    fn put(&mut self, place: &Place, words: &[u32]) {
        assert_eq!(words.len(), place.rows * place.row);
        place.words().zip(words).for_each(|(at, &word)| self.words[at] = word);
    }

    /// The words of a place in what was read back, in which the gaps are still what they were.
    fn take(&self, place: &Place, after: &[u32]) -> Result<Vec<u32>, String> {
        match (0..after.len()).find(|&at| !self.owned[at] && after[at] != GAP) {
            Some(at) => Err(format!("word {at} of a gap became {:#x}", after[at])),
            None => Ok(place.words().map(|at| after[at]).collect()),
        }
    }
}

fn encode(values: &[f32], format: IoFormat) -> Vec<u32> {
    match format {
        IoFormat::F32 => values.iter().map(|value| value.to_bits()).collect(),
        IoFormat::F16 => {
            let bits = |value: f32| u32::from(f16::from_f32(value).to_bits());
            values.chunks(2).map(|pair| bits(pair[0]) | bits(pair[1]) << 16).collect()
        }
    }
}

fn decode(words: &[u32], format: IoFormat) -> Vec<f32> {
    match format {
        IoFormat::F32 => words.iter().map(|&word| f32::from_bits(word)).collect(),
        IoFormat::F16 => {
            words.iter().flat_map(|word| [*word, word >> 16].map(|half| f16::from_bits(half as u16).to_f32())).collect()
        }
    }
}

/// How the queries and outputs of an attention lie.
#[derive(Clone, Copy, Debug)]
struct Layout {
    shared: bool,
    word: bool,
}

/// Attends with queries and results in arenas; what comes out has passed the look at the gaps.
fn attend(
    gpu: &Gpu,
    cache: &KvCache,
    scenario: &Scenario,
    layout: Layout,
    rng: &mut StdRng,
    fault: Option<Fault>,
) -> Result<Outcome, String> {
    let spec = &scenario.spec;
    let format = spec.variant.io_format;
    let with = |on: bool, with: fn(AttentionSpec) -> AttentionSpec, spec| if on { with(spec) } else { spec };
    let attention = scenario.attention_spec(None);
    let attention = with(layout.shared, AttentionSpec::with_shared_buffers, attention);
    let attention = cache.attention(with(layout.word, AttentionSpec::with_word_alignment, attention)).unwrap();
    let (rows, heads, per_word) = (spec.rows().len(), spec.num_q_heads as usize, format.per_word() as usize);
    let by_fours = (spec.head_dim.is_multiple_of(4) || spec.v_dim().is_multiple_of(4)) && !layout.word;
    let unit = if by_fours { 4 / per_word } else { 1 };
    let q_row = heads * spec.head_dim as usize / per_word;
    let out_row = heads * spec.v_dim() as usize / per_word;
    let lse = (1, rows * heads);
    let (mut arenas, places) = if layout.shared {
        let (arena, places) = Arena::deal(rng, &[(rows, q_row), (rows, out_row), lse], unit);
        (vec![arena], places)
    } else {
        let (of_q, q) = Arena::deal(rng, &[(rows, q_row)], unit);
        let (of_out, out) = Arena::deal(rng, &[(rows, out_row), lse], unit);
        (vec![of_q, of_out], [q, out].concat())
    };
    let last = arenas.len() - 1;
    arenas[0].put(&places[0], &encode(&scenario.q, format));
    arenas[last].put(&places[1], &encode(&vec![SENTINEL; rows * out_row * per_word], format));
    let buffers: Vec<_> = arenas.iter().map(|arena| gpu.storage("arena", &arena.words)).collect();

    let (mut q, mut out) = (places[0].slice(&buffers[0], format), places[1].slice(&buffers[last], format));
    match fault {
        Some(Fault::QueryStride) => {
            let wrong = Place { stride: places[0].stride + unit, row: 0, ..places[0] };
            let slice = buffers[0].slice(4 * wrong.start as u64..);
            q = IoSlice::new(slice).with_token_stride((wrong.stride * per_word) as u32);
        }
        Some(Fault::OutPlace) => {
            out = Place { start: places[1].start + unit, ..places[1] }.slice(&buffers[last], format)
        }
        None => {}
    }
    let io = AttentionIo::new(q, out);
    let io = if spec.lse { io.with_lse(places[2].bytes(&buffers[last])) } else { io };
    let plan = scenario.plan(cache.schedule(), None).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, &plan).unwrap();
    cache.attend(&mut encoder.begin_compute_pass(&Default::default()), &attention, &step, 0, io).unwrap();
    gpu.submit(encoder);

    let after: Vec<Vec<u32>> = buffers.iter().map(|buffer| gpu.read(buffer).unwrap()).collect();
    let queries = arenas[0].take(&places[0], &after[0])?;
    assert_eq!(queries, encode(&scenario.q, format), "queries are not written");
    let out = decode(&arenas[last].take(&places[1], &after[last])?, format);
    let lse = arenas[last].take(&places[2], &after[last])?;
    Ok(Outcome { out, lse: if spec.lse { decode(&lse, IoFormat::F32) } else { Vec::new() } })
}

/// Decoding and chunks, merged and whole, of heads that are multiples of four wide and of others.
fn specs() -> Vec<ScenarioSpec> {
    let decode = ScenarioSpec::decode(4, 2, 16, &[70, 3, 0, 33]);
    let mixed = ScenarioSpec {
        query_lens: Some(vec![1, 20, 0, 5]),
        lse: true,
        ..ScenarioSpec::decode(6, 2, 8, &[90, 40, 7, 5])
    };
    let f16 = ScenarioVariant { io_format: IoFormat::F16, sinks: true, ..ScenarioVariant::PLAIN };
    vec![
        ScenarioSpec { lse: true, v_head_dim: Some(24), ..decode.clone() },
        ScenarioSpec { variant: f16, ..decode.clone() },
        ScenarioSpec { head_dim: 6, v_head_dim: Some(12), variant: f16, ..mixed.clone() },
        ScenarioSpec { v_head_dim: Some(5), ..mixed.clone() },
        mixed,
    ]
}

#[test]
fn attention_is_the_same_wherever_queries_and_outputs_lie() {
    let Some(gpu) = gpu() else { return };
    let mut rng = StdRng::seed_from_u64(13);
    // Kernels take long to compile: each form has every second pair of a shape and a layout, and together they have all.
    for (turn, profile) in profiles(&gpu).into_iter().enumerate() {
        let profile = with_splits(&profile, 16);
        for (at, spec) in specs().into_iter().enumerate() {
            let scenario = Scenario::random(&spec, at as u64).unwrap();
            let compact = scenario.run(&gpu, &profile, None).unwrap();
            let cache = scenario.upload(&gpu, &profile).unwrap();
            for shared_and_word in
                [[true, false], [false, true], [true, true], [false, false]].iter().skip((at + turn) % 2).step_by(2)
            {
                let [shared, word] = *shared_and_word;
                let layout = Layout { shared, word };
                let outcome = attend(&gpu, &cache, &scenario, layout, &mut rng, None).unwrap();
                scenario.judge(&outcome).unwrap_or_else(|verdict| panic!("{layout:?} {spec:?}: {verdict}"));
                assert_eq!(outcome, compact, "{layout:?} {spec:?}");
            }
        }
    }
}

#[test]
fn a_wrong_stride_and_a_wrong_place_are_noticed() {
    let Some(gpu) = gpu() else { return };
    let mut rng = StdRng::seed_from_u64(14);
    let scenario = Scenario::random(&specs()[0], 5).unwrap();
    let cache = scenario.upload(&gpu, &DeviceProfile::of(&gpu.device)).unwrap();
    for fault in [Fault::QueryStride, Fault::OutPlace] {
        let layout = Layout { shared: true, word: false };
        let outcome = attend(&gpu, &cache, &scenario, layout, &mut rng, Some(fault));
        let judged = outcome.map(|outcome| scenario.judge(&outcome).map_err(|verdict| verdict.to_string()));
        assert!(!matches!(judged, Ok(Ok(_))), "{fault:?}");
    }
}

fn random(rng: &mut StdRng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.random_range(-2.0..2.0)).collect()
}

#[test]
fn an_append_stores_and_rotates_the_same_wherever_its_rows_lie() {
    let Some(gpu) = gpu() else { return };
    let mut rng = StdRng::seed_from_u64(15);
    for (at, format) in [IoFormat::F32, IoFormat::F16, IoFormat::F32, IoFormat::F16].into_iter().enumerate() {
        let (dim, v_dim) = [(16, 16), (8, 6), (7, 5), (10, 12)][at];
        let kv_dtype = [KvDtype::F16, KvDtype::Int8, KvDtype::F32, KvDtype::Int4][at];
        let config = CacheConfig::new(1, 2, dim).with_v_head_dim(v_dim).with_kv_dtype(kv_dtype);
        let config = config.with_block_size(4).with_num_blocks(8).with_max_seq_len(32);
        let style = [RotaryStyle::HalfSplit, RotaryStyle::Interleaved][at % 2];
        let spec = AttentionSpec::new(4).with_io_format(format);
        let spec = AppendSpec::for_attention(&spec).with_rotary(RotarySpec::new(style, dim / 2 * 2));
        let cache = KvCache::new(&gpu.device, &config.layout().unwrap()).unwrap();
        let appender = cache.appender(spec).unwrap();
        let per_word = format.per_word() as usize;
        let rows = 9;
        let widths = [4 * dim, 2 * dim, 2 * v_dim, 4 * dim].map(|width| width as usize / per_word);
        let values = widths.map(|width| encode(&random(&mut rng, rows * width * per_word), format));
        let slots: Vec<i64> = (0..rows as i64).map(|row| 3 * row + 1).collect();
        let mut results = Vec::new();
        for strided in [false, true, true, true] {
            let tensors = widths.map(|width| (rows, width));
            let (mut arena, places) = Arena::deal(&mut rng, &tensors, 1);
            // q, k and v; the fourth is written.
            (0..3).for_each(|tensor| arena.put(&places[tensor], &values[tensor]));
            let buffer = gpu.storage("arena", &arena.words);
            let compact: Vec<_> = values.iter().map(|values| gpu.storage("compact", values)).collect();
            let io = |tensor: usize| match strided {
                true => places[tensor].slice(&buffer, format),
                false => compact[tensor].slice(..).into(),
            };
            let mut plan = cache.new_plan();
            let tables = Tables::Dense { block_table: &[0; 8], max_blocks: 8, seq_lens: &[20] };
            let tables = RawTables { tables, cu_seqlens_q: Some(&[0, rows as u32]), append: Append::Slots(&slots) };
            plan.plan_tables(cache.layout(), &tables).unwrap();
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let step = cache.begin_step(&mut encoder, &plan).unwrap();
            let append = AppendIo::new(io(1), io(2)).with_queries(io(0), io(3));
            let mut pass = encoder.begin_compute_pass(&Default::default());
            cache.append(&mut pass, &appender, &step, 0, append).unwrap();
            drop(pass);
            gpu.submit(encoder);
            let after = gpu.read::<u32>(&buffer).unwrap();
            let rotated = match strided {
                true => arena.take(&places[3], &after).unwrap(),
                false => gpu.read(&compact[3]).unwrap(),
            };
            results.push((pool_words(&gpu, &cache), rotated));
        }
        assert!(results[1..].iter().all(|result| *result == results[0]), "{format:?} {dim} {v_dim}");
        assert_ne!(results[0].1, values[3], "the queries were not rotated");
    }
}

#[test]
fn states_merge_the_same_wherever_they_lie() {
    let Some(gpu) = gpu() else { return };
    let mut rng = StdRng::seed_from_u64(16);
    for format in [IoFormat::F32, IoFormat::F16] {
        let merger = StateMerger::new(&gpu.device, format).unwrap();
        let (rows, heads, dim, per_word) = (7, 3, 10, format.per_word() as usize);
        let shape = StateShape::new(rows as u32, heads as u32, dim as u32);
        let tensors = [(rows, heads * dim / per_word), (1, rows * heads)].repeat(2);
        let values: Vec<Vec<u32>> = (0..4)
            .map(|at| if at % 2 == 0 { (rows * heads * dim, format) } else { (rows * heads, IoFormat::F32) })
            .map(|(len, format)| encode(&random(&mut rng, len), format))
            .collect();
        let merge = |a: State<'_>, b: State<'_>| {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            merger.merge(&mut encoder.begin_compute_pass(&Default::default()), shape, a, b).unwrap();
            gpu.submit(encoder);
        };
        let compact: Vec<_> = values.iter().map(|values| gpu.storage("compact", values)).collect();
        let state = |at: usize| State::new(compact[at].slice(..), compact[at + 1].slice(..));
        merge(state(0), state(2));
        let expected = [0, 1].map(|at| gpu.read::<u32>(&compact[at]).unwrap());
        for _ in 0..4 {
            let (mut arena, places) = Arena::deal(&mut rng, &tensors, 1);
            (0..4).for_each(|at| arena.put(&places[at], &values[at]));
            let buffer = gpu.storage("arena", &arena.words);
            let state = |at: usize| State::new(places[at].slice(&buffer, format), places[at + 1].bytes(&buffer));
            merge(state(0), state(2));
            let after = gpu.read::<u32>(&buffer).unwrap();
            assert_eq!([0, 1].map(|at| arena.take(&places[at], &after).unwrap()), expected);
        }
    }
}
