//! A device that keeps a value per slot and does what a plan says, in its order: clears, copies, appends.

use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::plan::StepPlan;

/// What a cleared slot holds.
pub const CLEAR: u64 = 0;

/// What the device gets wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    NoCopies,
    LateCopies,
    NoClears,
    NoUpdates,
    /// A pool of another size is a new one.
    EmptyGrowth,
    /// Not the device, but who reads from it: ids of other tokens than those that were appended.
    OtherIds,
}

pub struct Device {
    pub tables: Vec<u32>,
    /// The slots of block after block.
    pub memory: Vec<u64>,
    block_size: usize,
    fault: Fault,
}

impl Device {
    pub fn new(layout: &KvLayout, fault: Fault) -> Self {
        Self {
            tables: vec![u32::MAX; (layout.max_sequences() * layout.max_blocks_per_seq()) as usize],
            // Not clear: the memory had another use before.
            memory: vec![77; layout.num_slots() as usize],
            block_size: layout.block_size() as usize,
            fault,
        }
    }

    pub fn block(&self, block: u32) -> &[u64] {
        &self.memory[block as usize * self.block_size..][..self.block_size]
    }

    pub fn block_mut(&mut self, block: u32) -> &mut [u64] {
        &mut self.memory[block as usize * self.block_size..][..self.block_size]
    }

    /// Gives the pool another size.
    pub fn resize(&mut self, num_blocks: u32) {
        if self.fault == Fault::EmptyGrowth {
            self.memory.clear();
        }
        self.memory.resize(num_blocks as usize * self.block_size, 77);
    }

    /// Runs a step up to its appends. `fresh` blocks must be clear then.
    pub fn prepare(&mut self, plan: &StepPlan, fresh: &[u32]) {
        if self.fault != Fault::NoUpdates {
            for update in plan.updates() {
                self.tables[update.index as usize] = update.block.get();
            }
        }
        if self.fault != Fault::NoClears {
            plan.clears().iter().for_each(|&block| self.block_mut(block.get()).fill(CLEAR));
        }
        for &block in fresh {
            assert!(self.block(block).iter().all(|&value| value == CLEAR), "block {block} has somebody's old data");
        }
        if !matches!(self.fault, Fault::NoCopies | Fault::LateCopies) {
            self.copy(plan);
        }
    }

    /// Runs the appends: the value of every slot of the plan.
    pub fn append(&mut self, plan: &StepPlan, values: &[u64]) {
        assert_eq!(plan.slots().len(), values.len());
        for (&slot, &value) in plan.slots().iter().zip(values) {
            self.memory[slot as usize] = value;
        }
        if self.fault == Fault::LateCopies {
            self.copy(plan);
        }
    }

    fn copy(&mut self, plan: &StepPlan) {
        for copy in plan.copies() {
            let source = self.block(copy.source.get()).to_vec();
            self.block_mut(copy.target.get()).copy_from_slice(&source);
        }
    }
}
