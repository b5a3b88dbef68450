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
    /// The tables of the first group alone are brought up to date.
    NoOtherUpdates,
    /// A pool of another size is a new one.
    EmptyGrowth,
    /// Not the device, but who reads from it: ids of other tokens than those that were appended.
    OtherIds,
}

pub struct Device {
    /// Of every group.
    pub tables: Vec<Vec<u32>>,
    /// The slots of block after block, as many as the group with the most has in one.
    pub memory: Vec<u64>,
    room: usize,
    /// Tokens per block, of every group.
    sizes: Vec<u32>,
    fault: Fault,
}

impl Device {
    pub fn new(layout: &KvLayout, fault: Fault) -> Self {
        let table = |group: &KvLayout| vec![u32::MAX; (group.max_sequences() * group.max_blocks_per_seq()) as usize];
        let sizes: Vec<u32> = layout.groups().iter().map(KvLayout::block_size).collect();
        let room = sizes.iter().copied().max().unwrap() as usize;
        Self {
            tables: layout.groups().iter().map(table).collect(),
            // Not clear: the memory had another use before.
            memory: vec![77; layout.num_blocks() as usize * room],
            room,
            sizes,
            fault,
        }
    }

    pub fn block(&self, block: u32) -> &[u64] {
        &self.memory[block as usize * self.room..][..self.room]
    }

    pub fn block_mut(&mut self, block: u32) -> &mut [u64] {
        &mut self.memory[block as usize * self.room..][..self.room]
    }

    /// Gives the pool another size.
    pub fn resize(&mut self, num_blocks: u32) {
        if self.fault == Fault::EmptyGrowth {
            self.memory.clear();
        }
        self.memory.resize(num_blocks as usize * self.room, 77);
    }

    /// Runs a step up to its appends. `fresh` blocks must be clear then.
    pub fn prepare(&mut self, plan: &StepPlan, fresh: &[u32]) {
        if self.fault != Fault::NoUpdates {
            let groups = if self.fault == Fault::NoOtherUpdates { 1 } else { plan.groups().len() };
            for (table, group) in self.tables.iter_mut().zip(plan.groups()).take(groups) {
                group.updates().iter().for_each(|update| table[update.index as usize] = update.block.get());
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
        for (group, &size) in plan.groups().iter().zip(&self.sizes) {
            assert_eq!(group.slots().len(), values.len());
            for (&slot, &value) in group.slots().iter().zip(values) {
                self.memory[(slot / size) as usize * self.room + (slot % size) as usize] = value;
            }
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
