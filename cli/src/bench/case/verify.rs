//! The check of a case against the oracle, before it is timed.

use rand::RngExt;
use wgpu_paged_attention::formats::{decode_row, round_rows};
use wgpu_paged_attention::plan::slot_at;
use wgpu_paged_attention::reference::{Heads, QueryRow, attend_rows, compare, max_error};
use wgpu_paged_attention::testkit::{Tolerances, Verdict, round_io};

use crate::bench::{Case, CaseError, Kind, Op, PassTimer, Sample, Work};
use crate::seed::rng_for;

/// Queries of a sequence that are compared: the first, the last, and some drawn from all.
const CHECKED_QUERIES: usize = 6;

impl Case {
    /// Runs an operation once and compares what it wrote with the oracle; returns the time and the largest error. Of
    /// the sequences, the first, the last and the longest are looked at.
    pub fn check(&self, work: &Work, timer: &mut PassTimer) -> Result<(Sample, f64), CaseError> {
        match work.op {
            Op::Append => self.check_append(work, timer),
            Op::Decode | Op::Prefill | Op::Mixed => self.check_attention(work, timer),
        }
    }

    fn check_attention(&self, work: &Work, timer: &mut PassTimer) -> Result<(Sample, f64), CaseError> {
        let sample = self.time(work, timer)?;
        let (inputs, shape) = (&self.inputs, &self.inputs.shape);
        let heads = Heads::new(shape.num_q_heads as usize, shape.num_kv_heads as usize, shape.head_dim as usize);
        let queries = inputs.queries(work.op);
        let rows: usize = queries.iter().map(|&queries| queries as usize).sum();
        let mut q = inputs.query_values(rows);
        round_io(&mut q, inputs.variant.io_format);
        let out = work.operands[1].read(&self.gpu).ok_or(Verdict::Lost)?;
        let lse: Option<Vec<f32>> = match &work.lse {
            Some(lse) => Some(self.gpu.read(lse).ok_or(Verdict::Lost)?),
            None => None,
        };

        let (slopes, sinks) = (inputs.slopes(), inputs.sinks());
        let scoring = inputs.variant.scoring(1.0 / f64::from(shape.head_dim).sqrt(), (&slopes, &sinks));
        // Values are at most 1, the steepest slope is the first.
        let allowed = Tolerances::new(&inputs.variant, 1.0, inputs.longest(), slopes[0]);
        let mut worst = 0.0_f64;
        for sequence in self.checked_sequences() {
            let (k, v) = (inputs.stored(Kind::K, sequence), inputs.stored(Kind::V, sequence));
            let at = |position: usize, head: usize| (position * heads.num_kv_heads + head) * heads.head_dim;
            let first_row: u32 = queries[..sequence].iter().sum();
            let (len, queries) = (inputs.lens[sequence], queries[sequence]);
            for query in self.checked_queries(sequence, queries) {
                let row = (first_row + query) as usize;
                let position = len - queries + query;
                let place = QueryRow { position: position.into(), seq_len: len as usize };
                let elements = row * heads.query_len()..(row + 1) * heads.query_len();
                let want = attend_rows(
                    &heads,
                    &scoring,
                    &q[elements.clone()],
                    &[place],
                    |_, position, head| &k[at(position, head)..][..heads.head_dim],
                    |_, position, head| &v[at(position, head)..][..heads.head_dim],
                );
                let wrong = |verdict| CaseError::Wrong { sequence, position, verdict };
                let (atol, rtol) = allowed.output;
                let error = compare(&out[elements], &want.output, atol, rtol);
                worst = worst.max(error.map_err(|mismatch| wrong(Verdict::Output(mismatch)))?);
                if let Some(lse) = &lse {
                    let lse = &lse[row * heads.num_q_heads..][..heads.num_q_heads];
                    let (atol, rtol) = allowed.lse;
                    compare(lse, &want.lse, atol, rtol).map_err(|mismatch| wrong(Verdict::Lse(mismatch)))?;
                }
            }
        }
        Ok((sample, worst))
    }

    fn check_append(&self, work: &Work, timer: &mut PassTimer) -> Result<(Sample, f64), CaseError> {
        let layout = self.cache.layout();
        let sequences = self.checked_sequences();
        let last = |sequence: usize| self.inputs.lens[sequence] - 1;
        // K and V are of the same width here.
        let row_bytes = layout.k_row_bytes();
        let offset = |sequence: usize, heads: u32, head: u32| {
            let slot = slot_at(layout, &self.tables[sequence], last(sequence));
            layout.row_index(heads, slot, head) * row_bytes
        };
        let ruin = vec![0xff_u8; row_bytes as usize];
        for layer in 0..self.inputs.layers {
            for head_shard in self.cache.head_shards(layer).map_err(Verdict::from)? {
                for &sequence in &sequences {
                    for head in 0..head_shard.num_heads {
                        let at = offset(sequence, head_shard.num_heads, head);
                        self.gpu.queue.write_buffer(&head_shard.k, at, &ruin);
                        self.gpu.queue.write_buffer(&head_shard.v, at, &ruin);
                    }
                }
            }
        }
        let sample = self.time(work, timer)?;

        let mut worst = 0.0_f64;
        for layer in 0..self.inputs.layers {
            for head_shard in self.cache.head_shards(layer).map_err(Verdict::from)? {
                for (kind, pool) in [(Kind::K, &head_shard.k), (Kind::V, &head_shard.v)] {
                    for &sequence in &sequences {
                        let dim = self.inputs.shape.head_dim as usize;
                        let given = self.inputs.token(kind, sequence, last(sequence));
                        let mut stored = given.clone();
                        round_rows(self.inputs.kv_dtype, dim, &mut stored);
                        let wide = |row: &[f32]| -> Vec<f64> { row.iter().copied().map(f64::from).collect() };
                        for head in 0..head_shard.num_heads {
                            let at = offset(sequence, head_shard.num_heads, head);
                            let row = self.read_row(pool, at, row_bytes).ok_or(Verdict::Lost)?;
                            let elements = (head_shard.first_head + head) as usize * dim..;
                            // The conversion is exact to the bit; what it rounded off is the error to report.
                            compare(&row, &wide(&stored[elements.clone()][..dim]), 0.0, 0.0).map_err(|mismatch| {
                                let verdict = Verdict::Output(mismatch);
                                CaseError::Wrong { sequence, position: last(sequence), verdict }
                            })?;
                            worst = worst.max(max_error(&row, &wide(&given[elements][..dim])));
                        }
                    }
                }
            }
        }
        Ok((sample, worst))
    }

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
        let mut row = vec![0.0; self.inputs.shape.head_dim as usize];
        decode_row(self.inputs.kv_dtype, &self.gpu.read::<u32>(&copy)?, &mut row).ok()?;
        Some(row)
    }

    fn checked_sequences(&self) -> Vec<usize> {
        let lens = &self.inputs.lens;
        let longest = (0..lens.len()).max_by_key(|&seq| lens[seq]);
        let mut checked: Vec<usize> = [Some(0), lens.len().checked_sub(1), longest].into_iter().flatten().collect();
        checked.retain(|&seq| lens.get(seq).is_some_and(|&len| len > 0));
        checked.sort_unstable();
        checked.dedup();
        checked
    }

    fn checked_queries(&self, sequence: usize, queries: u32) -> Vec<u32> {
        if queries as usize <= CHECKED_QUERIES {
            return (0..queries).collect();
        }
        let mut rng = rng_for(&format!("checked {sequence}"), self.inputs.seed);
        let mut checked = vec![0, queries - 1];
        checked.extend((2..CHECKED_QUERIES).map(|_| rng.random_range(0..queries)));
        checked
    }
}
