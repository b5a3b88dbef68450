//! Layers of unlike kinds in one cache: which share a table, and how all tables share one pool.
//!
//! Layers of one kind are cut into **groups** of as many *places* each. The pools of a place serve a layer of every group:
//! a block belongs to one group at a time, and there it holds K and V of as many tokens as make the bytes of a block.

use std::cmp::Reverse;
use std::sync::Arc;

use super::{HeadShards, KvLayout, MAX_SHARD_BYTES};
use crate::config::{LayerKind, MAX_GROUPS};
use crate::error::LayoutError;

/// Where a layer of the model is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerPlace {
    /// Its group: whose table it reads.
    pub group: usize,
    /// Its pools, which it shares with the layers that have this place in other groups.
    pub place: u32,
}

/// All groups of a cache, which are several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// Each as if it were alone.
    pub(super) layouts: Vec<KvLayout>,
    /// Of every layer.
    places: Vec<LayerPlace>,
}

/// Layers of one kind.
pub(super) struct Kind {
    pub(super) kind: LayerKind,
    pub(super) num_layers: u32,
}

/// The kinds of a model's layers, in the order in which groups come: those without a window, then by falling window. Of more
/// kinds than there may be groups, one more than these: they are refused.
pub(super) fn kinds_of(layers: &[LayerKind]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    for layer in layers {
        let kind = layer.plain();
        match kinds.iter_mut().find(|known| known.kind == kind) {
            Some(known) => known.num_layers += 1,
            None => kinds.push(Kind { kind, num_layers: 1 }),
        }
        if kinds.len() > MAX_GROUPS {
            break;
        }
    }
    kinds.sort_by_key(|kind| Reverse(kind.kind.window.map_or(u64::MAX, u64::from)));
    kinds
}

/// How many layers share a table, or `None` where there are too many kinds.
///
/// Empty places cost memory: in groups without a window for every token, in others for the last ones only. So the former
/// decide, then the most places that leave no more than a fifth of the latter empty, for every group costs time.
pub(super) fn layers_per_group(kinds: &[Kind]) -> Option<u32> {
    let most = kinds.iter().map(|kind| kind.num_layers).max()?;
    let empty = |places: u32, windowed: bool| -> u32 {
        let kinds = kinds.iter().filter(|kind| kind.kind.window.is_some() == windowed);
        kinds.map(|kind| kind.num_layers.next_multiple_of(places) - kind.num_layers).sum()
    };
    let windowed: u32 = kinds.iter().filter(|kind| kind.kind.window.is_some()).map(|kind| kind.num_layers).sum();
    let too_many = |places| if 5 * empty(places, true) > windowed { empty(places, true) } else { 0 };
    let allowed = (1..=most).filter(|&places| num_groups(kinds, places) <= MAX_GROUPS as u64);
    allowed.min_by_key(|&places| (empty(places, false), too_many(places), Reverse(places)))
}

pub(super) fn num_groups(kinds: &[Kind], places: u32) -> u64 {
    kinds.iter().map(|kind| u64::from(kind.num_layers.div_ceil(places))).sum()
}

impl Groups {
    /// Deals out the layers of the model, `layouts` being those of the kinds, in groups of `places`.
    pub(super) fn new(layers: &[LayerKind], layouts: &[(LayerKind, KvLayout)], places: u32) -> Self {
        let (mut groups, mut dealt) = (Vec::new(), Vec::new());
        for (kind, layout) in layouts {
            let first = groups.len();
            let own = layers.iter().enumerate().filter(|(_, layer)| layer.plain() == *kind);
            for (number, (layer, _)) in (0_u32..).zip(own) {
                let place = LayerPlace { group: first + (number / places) as usize, place: number % places };
                if place.place == 0 {
                    groups.push(KvLayout { num_layers: 0, ..layout.clone() });
                }
                groups[place.group].num_layers += 1;
                dealt.push((layer, place));
            }
        }
        dealt.sort_unstable_by_key(|&(layer, _)| layer);
        Self { layouts: groups, places: dealt.into_iter().map(|(_, place)| place).collect() }
    }

    fn with_pool(&self, num_blocks: u32, max_num_blocks: u32) -> Self {
        let layouts = self.layouts.iter().map(|layout| layout.with_pool(num_blocks, max_num_blocks)).collect();
        Self { layouts, places: self.places.clone() }
    }
}

impl KvLayout {
    /// Groups of layers, each with a table of its own; 1 where all layers are alike.
    pub fn num_groups(&self) -> usize {
        self.groups().len()
    }

    /// Every group as a cache of its own: its KV heads, its tokens per block, its layers. Those without a window come first,
    /// then those with the widest; the first is the *reference group*, by whose blocks prefixes are found. A cache whose
    /// layers are all alike is its only group.
    pub fn groups(&self) -> &[Self] {
        self.groups.as_ref().map_or(std::slice::from_ref(self), |groups| &groups.layouts)
    }

    /// Where a layer of the model is served; `None` if there is no such layer.
    pub fn place(&self, layer: u32) -> Option<LayerPlace> {
        match &self.groups {
            Some(groups) => groups.places.get(layer as usize).copied(),
            None => (layer < self.num_layers).then_some(LayerPlace { group: 0, place: layer }),
        }
    }

    /// The layers of a group, in the order of their places.
    pub fn layers_of(&self, group: usize) -> impl Iterator<Item = u32> + '_ {
        (0..self.num_layers).filter(move |&layer| self.place(layer).is_some_and(|place| place.group == group))
    }

    /// As [`head_shards`](Self::head_shards), of every group: all are cut into as many head shards of as many bytes.
    ///
    /// # Errors
    /// [`LayoutError::HeadTooLarge`], or [`LayoutError::UnlikeHeads`] if the KV heads of the groups cannot be cut alike.
    pub fn group_head_shards(&self, max_binding_bytes: u64) -> Result<Vec<HeadShards>, LayoutError> {
        let groups = self.groups();
        if groups.iter().all(|group| group.num_kv_heads == self.num_kv_heads) {
            return groups.iter().map(|group| group.shards_within(max_binding_bytes)).collect();
        }
        let limit = max_binding_bytes.min(MAX_SHARD_BYTES);
        let mut needed = 1;
        for group in groups {
            needed = needed.max(group.shards_within(max_binding_bytes)?.count);
        }
        let fewest = groups.iter().map(|group| group.num_kv_heads).min().unwrap_or(1);
        let divides = |&count: &u32| groups.iter().all(|group| group.num_kv_heads.is_multiple_of(count));
        let Some(count) = (needed..=fewest).find(divides) else {
            let other = groups.iter().map(|group| group.num_kv_heads).max().unwrap_or(1);
            return Err(LayoutError::UnlikeHeads { heads: fewest, other, needed, limit });
        };
        Ok(groups.iter().map(|group| group.shards(count)).collect())
    }

    /// The same cache with a pool of another size, in all groups.
    pub(super) fn with_pool(&self, num_blocks: u32, max_num_blocks: u32) -> Self {
        let groups = self.groups.as_ref().map(|groups| Arc::new(groups.with_pool(num_blocks, max_num_blocks)));
        Self { num_blocks, max_num_blocks, groups, ..self.clone() }
    }

    /// Whether every layer is served in the group and place that it has in another cache.
    pub(super) fn has_layers_of(&self, other: &Self) -> bool {
        let [ours, theirs] = [self, other].map(|layout| layout.groups.as_ref().map(|groups| &groups.places));
        self.num_layers == other.num_layers && ours == theirs
    }
}

#[cfg(test)]
mod tests;
