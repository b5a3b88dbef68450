//! One case on a device, in one mode: a filled cache, the step to time, and its check against the oracle.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::models::ModelShape;
use super::options::Op;
use super::report::Mode;
use super::seed::{CaseRng, InputHash, rng_for};
use super::timer::{Sample, Timer, TimerError};
use crate::config::{CacheConfig, KvFormat};
use crate::error::{ConfigError, TableError};
use crate::gpu::{Attention, AttentionIo, AttentionSpec, GpuError, KvCache, Step};
use crate::harness::Gpu;
use crate::layout::KvLayout;
use crate::plan::{RawTables, slot_at};
use crate::reference::{Heads, Mismatch, attend, compare, max_error, round_to_f16};

/// Bytes of K that one append writes at most: what an engine sends at a time, and within every device's binding.
const MAX_APPEND_BYTES: u64 = 64 << 20;
/// Tokens of a sequence that the append operation writes at most: a chunk of a prefill.
const MAX_APPEND_TOKENS: u32 = 512;
/// Sequences whose output is compared with the oracle: the first, the last and the longest.
const CHECKED_SEQUENCES: usize = 3;
/// What outputs hold before the check, so that a row that is not written shows.
const SENTINEL: f32 = 123.0;

/// What a case computes on; the same in both modes.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseInputs {
    /// Heads and their width.
    pub shape: ModelShape,
    /// Storage of K and V.
    pub kv_format: KvFormat,
    /// Tokens per block of the paged mode.
    pub block_size: u32,
    /// Tokens of every sequence.
    pub lens: Vec<u32>,
    /// Layers, all with the same data: so many that a device's caches do not hold what one layer reads next.
    pub layers: u32,
    /// Seed of K, V and q.
    pub seed: u64,
}

/// Why a case has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// The case describes no possible cache.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its tables were refused.
    #[error(transparent)]
    Tables(#[from] TableError),
    /// The device, or the library on it, refused.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// It could not be timed.
    #[error(transparent)]
    Timer(#[from] TimerError),
    /// Nothing could be read back.
    #[error("the device was lost")]
    Lost,
    /// The device computed something else than the oracle.
    #[error("sequence {sequence} differs from the oracle: {mismatch}")]
    Wrong {
        /// The sequence.
        sequence: usize,
        /// The first element out of tolerance.
        mismatch: Mismatch,
    },
}

impl CaseInputs {
    /// A name that tells the case's inputs apart.
    pub fn label(&self) -> String {
        let Self { shape, kv_format, lens, .. } = self;
        let longest = lens.iter().max().unwrap_or(&0);
        format!("{shape} {kv_format} {}x{longest}", lens.len())
    }

    /// Hash of the lengths, the shape and the first and last K, V and q of every sequence.
    pub fn hash(&self) -> String {
        let mut hash = InputHash::new();
        let ModelShape { num_q_heads, num_kv_heads, head_dim, .. } = self.shape;
        hash.update(&[num_q_heads, num_kv_heads, head_dim]).update(self.kv_format.name().as_bytes());
        hash.update(&self.lens).update(&self.queries());
        for (seq, &len) in self.lens.iter().enumerate() {
            for position in [0, len.saturating_sub(1)] {
                hash.update(&self.token(Kind::K, seq, position)).update(&self.token(Kind::V, seq, position));
            }
        }
        hash.finish()
    }

    fn row_len(&self) -> usize {
        (self.shape.num_kv_heads * self.shape.head_dim) as usize
    }

    /// The K or V of one token, `[num_kv_heads, head_dim]`: a function of its place alone, so it need not be kept.
    fn token(&self, kind: Kind, seq: usize, position: u32) -> Vec<f32> {
        let place = (seq as u64) << 33 | u64::from(position) << 1 | kind as u64;
        let mut rng = CaseRng::seed_from_u64(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place);
        (0..self.row_len()).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    /// `[sequences, num_q_heads, head_dim]`
    fn queries(&self) -> Vec<f32> {
        let len = self.lens.len() * (self.shape.num_q_heads * self.shape.head_dim) as usize;
        let mut rng = rng_for(&format!("q {}", self.label()), self.seed);
        (0..len).map(|_| rng.random_range(-2.0..2.0)).collect()
    }

    /// K or V of a sequence as the cache keeps it, `[len, num_kv_heads, head_dim]`.
    fn stored(&self, kind: Kind, seq: usize) -> Vec<f32> {
        let mut all: Vec<f32> = (0..self.lens[seq]).flat_map(|position| self.token(kind, seq, position)).collect();
        if self.kv_format == KvFormat::F16 {
            round_to_f16(&mut all);
        }
        all
    }

    /// Tokens that one append can write.
    fn append_limit(&self) -> u32 {
        (MAX_APPEND_BYTES / (4 * self.row_len() as u64)).clamp(1, 1 << 16) as u32
    }

    /// The tokens that the append operation writes: the last ones of every sequence.
    fn appended(&self) -> Vec<(usize, u32)> {
        let share = (self.append_limit() / self.lens.len().max(1) as u32).clamp(1, MAX_APPEND_TOKENS);
        let tail = |len: u32| len.saturating_sub(share)..len;
        self.lens.iter().enumerate().flat_map(|(seq, &len)| tail(len).map(move |position| (seq, position))).collect()
    }

    /// Tokens that an operation is about: appended, or attended to.
    pub fn tokens(&self, op: Op) -> u64 {
        match op {
            Op::Append => self.appended().len() as u64,
            Op::Decode => self.lens.iter().map(|&len| u64::from(len)).sum(),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    K = 0,
    V = 1,
}

/// A case whose cache is filled, ready to be timed.
#[derive(Debug)]
pub struct Case {
    gpu: Gpu,
    inputs: CaseInputs,
    cache: KvCache,
    attention: Attention,
    /// `[sequences][blocks]`
    tables: Vec<Vec<u32>>,
    decode: Step,
    q: wgpu::Buffer,
    out: wgpu::Buffer,
    append: Step,
    k: wgpu::Buffer,
    v: wgpu::Buffer,
}

impl Case {
    /// Makes the cache, with shuffled tables, and writes every token's K and V through the append kernel.
    ///
    /// # Errors
    /// [`CaseError`].
    pub fn new(gpu: &Gpu, inputs: &CaseInputs, mode: Mode) -> Result<Self, CaseError> {
        let layout = layout(inputs, mode)?;
        let q_bytes = 4 * inputs.lens.len() as u64 * u64::from(inputs.shape.num_q_heads * inputs.shape.head_dim);
        let limit = gpu.device.limits().max_storage_buffer_binding_size;
        if q_bytes > limit {
            return Err(GpuError::Limit { what: "q", needed: q_bytes, limit }.into());
        }
        let cache = KvCache::new(&gpu.device, &layout)?;
        let attention = cache.attention(AttentionSpec::new(inputs.shape.num_q_heads))?;
        let tables = shuffled_tables(inputs, &layout);

        let all: Vec<_> = inputs
            .lens
            .iter()
            .enumerate()
            .flat_map(|(seq, &len)| (0..len).map(move |position| (seq, position)))
            .collect();
        for tokens in all.chunks(inputs.append_limit() as usize) {
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let step = begin_append(gpu, &cache, &mut encoder, &tables, tokens)?;
            let (k, v) = token_buffers(gpu, inputs, tokens);
            {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                for layer in 0..inputs.layers {
                    cache.append(&mut pass, &step, layer, k.slice(..), v.slice(..))?;
                }
            }
            gpu.submit(encoder);
        }

        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let appended = inputs.appended();
        let append = begin_append(gpu, &cache, &mut encoder, &tables, &appended)?;
        let (k, v) = token_buffers(gpu, inputs, &appended);
        let max_blocks = layout.max_blocks_per_seq();
        let mut block_table = vec![u32::MAX; tables.len() * max_blocks as usize];
        for (row, table) in block_table.chunks_mut(max_blocks as usize).zip(&tables) {
            row[..table.len()].copy_from_slice(table);
        }
        let mut plan = cache.new_plan();
        plan.plan_tables(
            &layout,
            &RawTables {
                block_table: &block_table,
                max_blocks,
                seq_lens: &inputs.lens,
                cu_seqlens_q: None,
                slot_mapping: None,
            },
        )?;
        let decode = cache.begin_step(&gpu.queue, &mut encoder, &plan)?;
        gpu.submit(encoder);

        let queries = inputs.queries();
        let q = gpu.storage("q", &queries);
        let out = gpu.storage("out", &vec![SENTINEL; queries.len()]);
        Ok(Self { gpu: gpu.clone(), inputs: inputs.clone(), cache, attention, tables, decode, q, out, append, k, v })
    }

    /// Runs an operation over all layers and times it.
    ///
    /// # Errors
    /// [`TimerError`].
    pub fn time(&self, op: Op, timer: &mut Timer) -> Result<Sample, TimerError> {
        timer.measure(|pass| {
            for layer in 0..self.inputs.layers {
                match op {
                    Op::Append => {
                        self.cache.append(pass, &self.append, layer, self.k.slice(..), self.v.slice(..))?;
                    }
                    Op::Decode => {
                        let io = AttentionIo { q: self.q.slice(..), out: self.out.slice(..), lse: None };
                        self.cache.attend(pass, &self.attention, &self.decode, layer, io)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Runs an operation once and compares what it wrote with the oracle; returns the time and the largest error.
    ///
    /// # Errors
    /// [`CaseError::Wrong`], or whatever kept the operation from running.
    pub fn check(&self, op: Op, timer: &mut Timer) -> Result<(Sample, f64), CaseError> {
        match op {
            Op::Append => self.check_append(timer),
            Op::Decode => self.check_decode(timer),
        }
    }

    fn check_decode(&self, timer: &mut Timer) -> Result<(Sample, f64), CaseError> {
        let sample = self.time(Op::Decode, timer)?;
        let out: Vec<f32> = self.gpu.read(&self.out).ok_or(CaseError::Lost)?;
        let queries = self.inputs.queries();
        let ModelShape { num_q_heads, num_kv_heads, head_dim, .. } = self.inputs.shape;
        let heads = Heads {
            num_q_heads: num_q_heads as usize,
            num_kv_heads: num_kv_heads as usize,
            head_dim: head_dim as usize,
        };
        let mut worst = 0.0_f64;
        for sequence in self.checked_sequences() {
            let row = sequence * heads.query_len()..(sequence + 1) * heads.query_len();
            let (k, v) = (self.inputs.stored(Kind::K, sequence), self.inputs.stored(Kind::V, sequence));
            let at = |position: usize, head: usize| (position * heads.num_kv_heads + head) * heads.head_dim;
            let want = attend(
                &heads,
                1.0 / f64::from(head_dim).sqrt(),
                &queries[row.clone()],
                self.inputs.lens[sequence] as usize,
                |position, head| &k[at(position, head)..][..heads.head_dim],
                |position, head| &v[at(position, head)..][..heads.head_dim],
            );
            let error = compare(&out[row], &want.output, 4e-6, 2e-6)
                .map_err(|mismatch| CaseError::Wrong { sequence, mismatch })?;
            worst = worst.max(error);
        }
        Ok((sample, worst))
    }

    /// Ruins the rows of the last token of the checked sequences in every layer, appends, and reads them back.
    fn check_append(&self, timer: &mut Timer) -> Result<(Sample, f64), CaseError> {
        let layout = self.cache.layout();
        let sequences = self.checked_sequences();
        let last = |sequence: usize| self.inputs.lens[sequence] - 1;
        let row_bytes = layout.row_bytes();
        let offset = |sequence: usize, heads: u32, head: u32| {
            let slot = slot_at(layout, &self.tables[sequence], last(sequence));
            layout.row_unit_offset(heads, slot, head) * crate::layout::UNIT_BYTES
        };
        let ruin = vec![0xff_u8; row_bytes as usize];
        for layer in 0..self.inputs.layers {
            for segment in self.cache.segments(layer)? {
                for &sequence in &sequences {
                    for head in 0..segment.num_heads {
                        let at = offset(sequence, segment.num_heads, head);
                        self.gpu.queue.write_buffer(&segment.k, at, &ruin);
                        self.gpu.queue.write_buffer(&segment.v, at, &ruin);
                    }
                }
            }
        }
        let sample = self.time(Op::Append, timer)?;

        let mut worst = 0.0_f64;
        for layer in 0..self.inputs.layers {
            for segment in self.cache.segments(layer)? {
                for (kind, pool) in [(Kind::K, &segment.k), (Kind::V, &segment.v)] {
                    for &sequence in &sequences {
                        let want = self.inputs.token(kind, sequence, last(sequence));
                        let dim = self.inputs.shape.head_dim as usize;
                        for head in 0..segment.num_heads {
                            let at = offset(sequence, segment.num_heads, head);
                            let row = self.read_row(pool, at, row_bytes).ok_or(CaseError::Lost)?;
                            let want = &want[(segment.first_head + head) as usize * dim..][..dim];
                            let want: Vec<f64> = want.iter().copied().map(f64::from).collect();
                            // Rounding to nearest: half a unit in the last place of 11 bits, or none.
                            let rtol = if self.inputs.kv_format == KvFormat::F16 { 0.5 / 1024.0 } else { 0.0 };
                            compare(&row[..dim], &want, 6e-8, rtol)
                                .map_err(|mismatch| CaseError::Wrong { sequence, mismatch })?;
                            worst = worst.max(max_error(&row[..dim], &want));
                        }
                    }
                }
            }
        }
        Ok((sample, worst))
    }

    /// One stored row, as f32.
    fn read_row(&self, pool: &wgpu::Buffer, offset: u64, bytes: u64) -> Option<Vec<f32>> {
        let copy = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("row"),
            size: bytes,
            usage: wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(pool, offset, &copy, 0, bytes);
        self.gpu.submit(encoder);
        Some(match self.inputs.kv_format {
            KvFormat::F32 => self.gpu.read(&copy)?,
            KvFormat::F16 => self.gpu.read::<half::f16>(&copy)?.into_iter().map(half::f16::to_f32).collect(),
        })
    }

    fn checked_sequences(&self) -> Vec<usize> {
        let lens = &self.inputs.lens;
        let longest = (0..lens.len()).max_by_key(|&seq| lens[seq]);
        let mut checked: Vec<usize> = [Some(0), lens.len().checked_sub(1), longest].into_iter().flatten().collect();
        checked.retain(|&seq| lens.get(seq).is_some_and(|&len| len > 0));
        checked.sort_unstable();
        checked.dedup();
        checked.truncate(CHECKED_SEQUENCES);
        checked
    }
}

fn layout(inputs: &CaseInputs, mode: Mode) -> Result<KvLayout, ConfigError> {
    let longest = inputs.lens.iter().copied().max().unwrap_or(1).max(1);
    let block_size = match mode {
        Mode::Paged => inputs.block_size,
        Mode::Contiguous => longest,
    };
    // A contiguous sequence has its whole region, however short it is.
    let blocks = |len: u32| if mode == Mode::Paged { len.div_ceil(block_size) } else { 1 };
    let num_blocks: u64 = inputs.lens.iter().map(|&len| u64::from(blocks(len))).sum();
    // Too many for 32 bits are too many for the configuration, which says so.
    let num_blocks = u32::try_from(num_blocks).unwrap_or(u32::MAX);
    CacheConfig::new(inputs.layers, inputs.shape.num_kv_heads, inputs.shape.head_dim)
        .with_kv_format(inputs.kv_format)
        .with_paged(mode == Mode::Paged)
        .with_block_size(block_size)
        .with_num_blocks(num_blocks.max(1))
        .with_max_seq_len(longest)
        .with_max_sequences((inputs.lens.len() as u32).max(1))
        .layout()
}

fn shuffled_tables(inputs: &CaseInputs, layout: &KvLayout) -> Vec<Vec<u32>> {
    let mut ids: Vec<u32> = (0..layout.num_blocks()).collect();
    ids.shuffle(&mut rng_for(&format!("table {}", inputs.label()), inputs.seed));
    let mut ids = ids.into_iter();
    inputs.lens.iter().map(|&len| ids.by_ref().take(layout.blocks_for(len) as usize).collect()).collect()
}

/// A step that appends these tokens of these sequences, wherever their tables put them.
fn begin_append(
    gpu: &Gpu,
    cache: &KvCache,
    encoder: &mut wgpu::CommandEncoder,
    tables: &[Vec<u32>],
    tokens: &[(usize, u32)],
) -> Result<Step, CaseError> {
    let slots: Vec<i64> =
        tokens.iter().map(|&(seq, position)| slot_at(cache.layout(), &tables[seq], position).into()).collect();
    let mut plan = cache.new_plan();
    plan.plan_tables(
        cache.layout(),
        &RawTables {
            block_table: &[0],
            max_blocks: 1,
            seq_lens: &[0],
            cu_seqlens_q: Some(&[0, tokens.len() as u32]),
            slot_mapping: Some(&slots),
        },
    )?;
    Ok(cache.begin_step(&gpu.queue, encoder, &plan)?)
}

fn token_buffers(gpu: &Gpu, inputs: &CaseInputs, tokens: &[(usize, u32)]) -> (wgpu::Buffer, wgpu::Buffer) {
    let gather =
        |kind| -> Vec<f32> { tokens.iter().flat_map(|&(seq, position)| inputs.token(kind, seq, position)).collect() };
    (gpu.storage("k", &gather(Kind::K)), gpu.storage("v", &gather(Kind::V)))
}
