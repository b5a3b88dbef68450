//! From a configuration to its layout: every size is checked here, once.

use std::sync::Arc;

use super::KvLayout;
use super::groups::{Groups, Kind, kinds_of, layers_per_group, num_groups};
use crate::config::{
    CacheConfig, LayerKind, MAX_BLOCK_SIZE, MAX_GROUPS, MAX_HEAD_DIM, MAX_LAYERS_OR_HEADS, MAX_SEQ_LEN, MAX_SLOTS,
    MAX_TABLE_ENTRIES,
};
use crate::error::ConfigError;
use crate::ids::BlockId;

impl CacheConfig {
    /// Checks the configuration and works out sizes and strides.
    ///
    /// A contiguous cache goes through the same machinery: its blocks are `max_seq_len` tokens long and every
    /// sequence owns exactly one. Its pool has as many of them as fit into the configured tokens or bytes.
    pub fn layout(&self) -> Result<KvLayout, ConfigError> {
        check("block_size", self.block_size, MAX_BLOCK_SIZE.into())?;
        check("max_seq_len", self.max_seq_len, MAX_SEQ_LEN.into())?;
        check("max_sequences", self.max_sequences, u32::MAX.into())?;
        let kinds = self.kinds()?;
        let places = self.places(&kinds)?;
        let mut layouts = Vec::with_capacity(kinds.len());
        for kind in &kinds {
            layouts.push((kind.kind, self.kind_layout(kind, places, self.block_size)));
        }
        self.level_blocks(&mut layouts)?;
        check_tables(layouts.iter().map(|(_, layout)| layout))?;
        // Blocks are counted by the layers with the widest rows, whose block size is the configured one.
        let (_, widest) = layouts.iter().min_by_key(|(_, layout)| layout.block_size).expect("a kind of layers");
        let num_blocks = self.pool_blocks(widest)?;
        let sized = widest.clone().sized(num_blocks, num_blocks);
        let max_num_blocks = match self.max_num_blocks {
            None => num_blocks,
            Some(most) => self.most_blocks(&sized, most)?,
        };
        for (_, layout) in &mut layouts {
            check_slots(num_blocks.max(max_num_blocks).into(), layout.block_size)?;
            *layout = layout.clone().sized(num_blocks, max_num_blocks);
        }
        let num_layers: u32 = kinds.iter().map(|kind| kind.num_layers).sum();
        let first = layouts[0].1.clone();
        if num_groups(&kinds, places) == 1 {
            return Ok(first);
        }
        let uniform = vec![kinds[0].kind; if self.layers.is_empty() { num_layers as usize } else { 0 }];
        let layers = if self.layers.is_empty() { &uniform } else { &self.layers };
        Ok(KvLayout { num_layers, groups: Some(Arc::new(Groups::new(layers, &layouts, places))), ..first })
    }

    /// The kinds of the layers, each checked, in the order of their groups.
    fn kinds(&self) -> Result<Vec<Kind>, ConfigError> {
        let kinds = if self.layers.is_empty() {
            check("num_layers", self.num_layers, MAX_LAYERS_OR_HEADS.into())?;
            let Self { num_kv_heads, head_dim, v_head_dim, window, .. } = *self;
            let kind = LayerKind { num_kv_heads, head_dim, v_head_dim, window }.plain();
            vec![Kind { kind, num_layers: self.num_layers }]
        } else {
            let given = self.layers.len() as u64;
            if given > MAX_LAYERS_OR_HEADS.into() {
                return Err(ConfigError::OutOfRange {
                    name: "layers",
                    value: given,
                    min: 1,
                    max: MAX_LAYERS_OR_HEADS.into(),
                });
            }
            self.check_layers()?;
            // No window is `None`, never 0.
            self.window.map_or(Ok(()), |window| check("window", window, u32::MAX.into()))?;
            self.v_head_dim.map_or(Ok(()), |dim| check("v_head_dim", dim, MAX_HEAD_DIM.into()))?;
            kinds_of(&self.layers)
        };
        for Kind { kind, .. } in &kinds {
            check("num_kv_heads", kind.num_kv_heads, MAX_LAYERS_OR_HEADS.into())?;
            check("head_dim", kind.head_dim, MAX_HEAD_DIM.into())?;
            check("v_head_dim", kind.v_head_dim.unwrap_or(kind.head_dim), MAX_HEAD_DIM.into())?;
            kind.window.map_or(Ok(()), |window| check("window", window, u32::MAX.into()))?;
        }
        Ok(kinds)
    }

    /// Whether what is said of all layers is so in each.
    fn check_layers(&self) -> Result<(), ConfigError> {
        let agree = |name, all: u32, of: &dyn Fn(&LayerKind) -> u32| {
            let differs = self.layers.iter().position(|layer| all != 0 && of(layer) != all);
            differs.map_or(Ok(()), |layer| {
                let (value, given) = (all.into(), of(&self.layers[layer]).into());
                Err(ConfigError::LayersDisagree { name, value, layer: layer as u32, given })
            })
        };
        let (num_layers, given) = (self.num_layers.into(), self.layers.len() as u64);
        if num_layers != 0 && num_layers != given {
            return Err(ConfigError::LayerCount { num_layers, given });
        }
        agree("num_kv_heads", self.num_kv_heads, &|layer| layer.num_kv_heads)?;
        agree("head_dim", self.head_dim, &|layer| layer.head_dim)?;
        agree("v_head_dim", self.v_head_dim.unwrap_or(0), &|layer| layer.v_head_dim.unwrap_or(layer.head_dim))?;
        agree("window", self.window.unwrap_or(0), &|layer| layer.window.unwrap_or(0))
    }

    /// Places of every group.
    fn places(&self, kinds: &[Kind]) -> Result<u32, ConfigError> {
        let most = kinds.iter().map(|kind| kind.num_layers).max().unwrap_or(1);
        let places = self.layers_per_group.or_else(|| layers_per_group(kinds));
        let too_many = |groups| ConfigError::TooManyGroups { groups, kinds: kinds.len(), limit: MAX_GROUPS };
        let places = places.ok_or_else(|| too_many(num_groups(kinds, most)))?;
        check("layers_per_group", places, most.into())?;
        match num_groups(kinds, places) {
            groups if groups > MAX_GROUPS as u64 => Err(too_many(groups)),
            groups if groups > 1 && !self.paged => Err(ConfigError::GroupsNotPaged { groups }),
            _ => Ok(places),
        }
    }

    fn kind_layout(&self, kind: &Kind, layers_per_group: u32, block_size: u32) -> KvLayout {
        let Kind { kind, num_layers } = *kind;
        KvLayout {
            num_layers,
            num_kv_heads: kind.num_kv_heads,
            head_dim: kind.head_dim,
            v_head_dim: kind.v_head_dim.unwrap_or(kind.head_dim),
            kv_dtype: self.kv_dtype,
            paged: self.paged,
            block_size: if self.paged { block_size } else { self.max_seq_len },
            num_blocks: 0,
            max_num_blocks: 0,
            max_seq_len: self.max_seq_len,
            max_sequences: self.max_sequences,
            window: kind.window,
            layers_per_group,
            groups: None,
        }
    }

    /// Gives narrower kinds more tokens in a block, so that K and V of a block have as many bytes in all of them.
    fn level_blocks(&self, layouts: &mut [(LayerKind, KvLayout)]) -> Result<(), ConfigError> {
        let bytes = |layout: &KvLayout| {
            let heads = u64::from(layout.num_kv_heads);
            (heads * layout.k_row_bytes(), heads * layout.v_row_bytes())
        };
        let Some((widest, wide)) = layouts.iter().max_by_key(|(_, layout)| bytes(layout)).cloned() else {
            return Ok(());
        };
        let (wide_k, wide_v) = bytes(&wide);
        for (kind, layout) in layouts.iter_mut() {
            let (k, v) = bytes(layout);
            let times = wide_k / k;
            if wide_k != times * k || wide_v != times * v {
                return Err(ConfigError::UnlikeRows { kind: *kind, k, v, widest, wide_k, wide_v });
            }
            if times > 1 {
                let value = times * u64::from(self.block_size);
                let limit = MAX_BLOCK_SIZE.into();
                if value > limit {
                    return Err(ConfigError::OutOfRange {
                        name: "block_size of a kind of layers",
                        value,
                        min: 1,
                        max: limit,
                    });
                }
                layout.block_size = value as u32;
            }
        }
        // Prefixes are found by blocks of the first kind: each of its blocks, or several, are whole blocks of the others.
        let (first, reference) = (layouts[0].0, layouts[0].1.block_size);
        let cuts = |size: u32| size.is_multiple_of(reference) || reference.is_multiple_of(size);
        match layouts.iter().find(|(_, layout)| !cuts(layout.block_size)) {
            None => Ok(()),
            Some(&(kind, ref layout)) => {
                let (block_size, other) = (layout.block_size, reference);
                Err(ConfigError::UnlikeBlocks { kind, block_size, first, other })
            }
        }
    }

    /// Blocks to which the pool may grow, in units of the layout's own block size; `most` and its limits count the
    /// configured blocks.
    fn most_blocks(&self, layout: &KvLayout, most: u32) -> Result<u32, ConfigError> {
        let min = layout.num_slots().div_ceil(self.block_size.into());
        let (value, max) = (most.into(), u64::from(BlockId::MAX.get()) + 1);
        if value < min || value > max {
            return Err(ConfigError::OutOfRange { name: "max_num_blocks", value, min, max });
        }
        self.clone().with_num_blocks(most).pool_blocks(layout)
    }

    /// Blocks of the pool, in units of the layout's own block size.
    fn pool_blocks(&self, layout: &KvLayout) -> Result<u32, ConfigError> {
        let block_size = layout.block_size();
        let block_bytes = layout.block_bytes();
        let too_large = |num_blocks| ConfigError::CacheTooLarge { num_blocks, block_bytes, limit: u64::MAX - 1 };
        // A contiguous block of 2^32 tokens can be that large, and then the size is saturated.
        if block_bytes == u64::MAX {
            return Err(too_large(1));
        }
        let blocks = match (self.num_blocks, self.memory_budget_bytes) {
            (None, None) => return Err(ConfigError::NoPoolSize),
            (Some(num_blocks), Some(memory_budget_bytes)) => {
                return Err(ConfigError::TwoPoolSizes { num_blocks, memory_budget_bytes });
            }
            (Some(num_blocks), None) => {
                check("num_blocks", num_blocks, u64::from(BlockId::MAX.get()) + 1)?;
                let tokens = u64::from(num_blocks) * u64::from(self.block_size);
                let blocks = tokens / u64::from(block_size);
                if blocks == 0 {
                    return Err(ConfigError::PoolTooSmall {
                        num_blocks,
                        block_size: self.block_size,
                        tokens,
                        max_seq_len: self.max_seq_len,
                    });
                }
                blocks
            }
            (None, Some(budget)) => {
                let blocks = budget / block_bytes;
                if blocks == 0 {
                    return Err(ConfigError::BudgetTooSmall { budget, block_bytes, block_size });
                }
                blocks
            }
        };
        check_slots(blocks, block_size)?;
        let max_blocks = u64::from(BlockId::MAX.get()) + 1;
        let num_blocks = u32::try_from(blocks)
            .ok()
            .filter(|_| blocks <= max_blocks)
            .ok_or(ConfigError::OutOfRange { name: "num_blocks", value: blocks, min: 1, max: max_blocks })?;
        match u64::from(num_blocks).checked_mul(block_bytes) {
            Some(_) => Ok(num_blocks),
            None => Err(too_large(num_blocks)),
        }
    }
}

impl KvLayout {
    fn sized(self, num_blocks: u32, max_num_blocks: u32) -> Self {
        Self { num_blocks, max_num_blocks, ..self }
    }
}

/// Refuses tables that have too many entries together; every kind of layers has one for each of its groups.
fn check_tables<'a>(kinds: impl Iterator<Item = &'a KvLayout>) -> Result<(), ConfigError> {
    let mut entries = 0;
    for layout in kinds {
        let (max_sequences, max_blocks_per_seq) = (layout.max_sequences, layout.max_blocks_per_seq());
        // At most 16 groups of 2^32 sequences of 2^30 blocks.
        let groups = u128::from(layout.num_layers.div_ceil(layout.layers_per_group));
        entries += groups * u128::from(max_sequences) * u128::from(max_blocks_per_seq);
        if entries > MAX_TABLE_ENTRIES.into() {
            let (entries, limit) = (u64::try_from(entries).unwrap_or(u64::MAX), MAX_TABLE_ENTRIES);
            return Err(ConfigError::TableTooLarge { max_sequences, max_blocks_per_seq, entries, limit });
        }
    }
    Ok(())
}

fn check_slots(num_blocks: u64, block_size: u32) -> Result<(), ConfigError> {
    let slots = num_blocks.saturating_mul(block_size.into());
    if slots > MAX_SLOTS {
        return Err(ConfigError::TooManySlots { num_blocks, block_size, slots, limit: MAX_SLOTS });
    }
    Ok(())
}

fn check(name: &'static str, value: u32, max: u64) -> Result<(), ConfigError> {
    let value = u64::from(value);
    if value == 0 || value > max {
        return Err(ConfigError::OutOfRange { name, value, min: 1, max });
    }
    Ok(())
}
