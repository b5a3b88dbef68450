//! What a step asks of the kernels.

use crate::plan::reach::Reach;
use crate::plan::{StepPlan, TILE_CLASSES, TableSource};

/// What a step asks of the kernels. It lies with the step's words and is overwritten by a later step, so that lists keep
/// their capacity.
#[derive(Debug, Default)]
pub(super) struct StepWork {
    pub(super) source: TableSource,
    /// Of its words that an engine may read.
    pub(super) bytes: u64,
    pub(super) num_rows: u32,
    pub(super) num_tokens: u32,
    /// Whether its queries have positions in time, height and width.
    pub(super) has_mrope: bool,
    pub(super) classes: [ClassWork; TILE_CLASSES],
    pub(super) num_merges: u32,
    merge_reaches: Vec<Reach>,
    pub(super) num_partials: u32,
    pub(super) max_splits_per_row: u32,
}

/// What a step asks of the kernel for one class of query tiles.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassWork {
    pub(super) num_items: u32,
    pub(super) max_item_keys: u32,
    /// Of every tile.
    pub(super) reaches: Vec<Reach>,
}

impl ClassWork {
    pub(super) fn num_tiles(&self) -> u32 {
        self.reaches.len() as u32
    }

    /// The splits of the tile that sees most of them, and the keys of the one that sees most of those. A tile that sees
    /// none has one split all the same, which writes zeros.
    pub(super) fn seen(&self, causal: bool, window: u32) -> (u32, u32) {
        let most = |of: &dyn Fn(&Reach) -> u32| self.reaches.iter().map(of).max().unwrap_or(0);
        let splits = most(&|reach| reach.splits(causal, Some(window)));
        let keys = most(&|reach| reach.seen(causal, Some(window)).len() as u32);
        (splits.max(1), keys.max(1))
    }
}

impl StepWork {
    /// Takes over what a plan asks for in a group.
    pub(super) fn fill(&mut self, plan: &StepPlan, group: usize) {
        self.source = plan.table_source();
        self.bytes = plan.group_bytes(group);
        let group = &plan.groups()[group];
        self.num_rows = plan.num_rows();
        self.num_tokens = plan.num_tokens();
        self.has_mrope = !plan.mrope_positions().is_empty();
        for (class, work) in self.classes.iter_mut().enumerate() {
            work.num_items = group.num_items(class);
            work.max_item_keys = group.max_item_keys(class);
            work.reaches.clear();
            work.reaches.extend_from_slice(group.reaches(class));
        }
        self.num_merges = group.num_merges();
        self.merge_reaches.clear();
        self.merge_reaches.extend_from_slice(group.merge_reaches());
        self.num_partials = group.num_partials();
        self.max_splits_per_row = group.max_splits_per_row();
    }

    /// Whether a query sees more than one split: then there are partials to merge.
    pub(super) fn has_merges(&self, causal: bool, window: Option<u32>) -> bool {
        self.merge_reaches.iter().any(|reach| !reach.is_one_split(causal, window))
    }
}
