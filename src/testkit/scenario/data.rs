//! What the memory of a scenario holds.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::{Scenario, ScenarioSpec, Verdict};
use crate::plan::slot_at;

/// Blocks beyond those that the sequences own, so that there is something to stray into.
const SPARE_BLOCKS: u32 = 3;

impl Scenario {
    /// A scenario over these tables, in a pool of `num_blocks` blocks: K and V are NaN, q, slopes and sinks 0.
    ///
    /// # Errors
    /// [`Verdict::Config`] if the spec describes no possible cache.
    ///
    /// # Panics
    /// When it is filled, if a table is shorter than its sequence or names a block that does not exist.
    pub fn blank(spec: &ScenarioSpec, tables: Vec<Vec<u32>>, num_blocks: u32) -> Result<Self, Verdict> {
        let layout = spec.layout(num_blocks)?;
        let slots = layout.num_slots() as usize;
        let heads = spec.num_q_heads as usize;
        Ok(Self {
            spec: spec.clone(),
            tables,
            k: vec![f32::NAN; slots * spec.k_row()],
            v: vec![f32::NAN; slots * spec.v_row()],
            q: vec![0.0; spec.rows().len() * heads * spec.head_dim as usize],
            scale: None,
            alibi_slopes: vec![0.0; heads],
            sinks: vec![0.0; heads],
            layout,
        })
    }

    /// A scenario with data drawn from N(0, 1)-like values, tables shuffled over a pool with a few blocks to spare.
    ///
    /// # Errors
    /// [`Verdict::Config`] if the spec describes no possible cache.
    pub fn random(spec: &ScenarioSpec, seed: u64) -> Result<Self, Verdict> {
        let mut rng = StdRng::seed_from_u64(seed);
        let blocks = spec.blocks();
        let num_blocks = blocks.iter().sum::<u32>() + SPARE_BLOCKS;
        let mut ids: Vec<u32> = (0..num_blocks).collect();
        ids.shuffle(&mut rng);
        let mut tables: Vec<Vec<u32>> = Vec::new();
        for &blocks in &blocks {
            let mut table: Vec<u32> = ids.split_off(ids.len() - blocks as usize);
            if let Some(first) = tables.iter().max_by_key(|table| table.len()) {
                let shared = (spec.shared_blocks as usize).min(table.len()).min(first.len());
                table[..shared].copy_from_slice(&first[..shared]);
            }
            tables.push(table);
        }

        let mut scenario = Self::blank(spec, tables, num_blocks)?;
        let slots = scenario.owned_slots();
        for (values, row) in [(&mut scenario.k, spec.k_row()), (&mut scenario.v, spec.v_row())] {
            for &slot in &slots {
                values[slot as usize * row..][..row].fill_with(|| normal(&mut rng));
            }
        }
        scenario.q.fill_with(|| normal(&mut rng));
        // From steep to nearly flat, as models have them, and no two heads alike.
        scenario.alibi_slopes.fill_with(|| rng.random_range(0.01..0.3));
        scenario.sinks.fill_with(|| 2.0 * normal(&mut rng));
        Ok(scenario)
    }

    /// Sets every K element to `key(sequence, position, head, d)` and V alike, where a sequence has a token.
    pub fn fill(&mut self, key: impl Fn(usize, u32, u32, u32) -> f32, value: impl Fn(usize, u32, u32, u32) -> f32) {
        for (seq, (table, &len)) in self.tables.iter().zip(&self.spec.seq_lens).enumerate() {
            for position in 0..len {
                let slot = slot_at(&self.layout, table, position) as usize;
                for head in 0..self.spec.num_kv_heads {
                    let row = slot * self.spec.num_kv_heads as usize + head as usize;
                    for d in 0..self.spec.head_dim {
                        self.k[row * self.spec.head_dim as usize + d as usize] = key(seq, position, head, d);
                    }
                    for d in 0..self.spec.v_dim() {
                        self.v[row * self.spec.v_dim() as usize + d as usize] = value(seq, position, head, d);
                    }
                }
            }
        }
    }

    /// The slots that hold a token, in ascending order, each once.
    pub(super) fn owned_slots(&self) -> Vec<u32> {
        let mut slots: Vec<u32> = Vec::new();
        for (table, &len) in self.tables.iter().zip(&self.spec.seq_lens) {
            slots.extend((0..len).map(|position| slot_at(&self.layout, table, position)));
        }
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

/// Nearly normal: twelve uniform values less their mean (Irwin–Hall), which is bounded and so reproducible anywhere.
fn normal(rng: &mut StdRng) -> f32 {
    (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0
}
