//! The scenes of a check: few, for every one costs the compilation of its kernels, so each has many lengths.

use std::fmt::Write;

use crate::bench::models::ModelShape;
use crate::harness::SceneSpec;

/// No token, one, the edges of blocks of 16, and ragged lengths of several splits of [`SHORT_SPLIT`] tokens.
const LENGTHS: [u32; 12] = [1, 15, 16, 17, 0, 33, 64, 65, 5, 129, 0, 300];
/// Splits so short that a merge needs no long sequences.
const SHORT_SPLIT: u32 = 64;
/// Groups of 7 and of 9, of which the latter leaves a tile unfilled, and rows that fill no unit or no power of two.
const ODD: [(u32, u32, u32); 3] = [(7, 1, 80), (6, 2, 100), (9, 1, 5)];
/// Where heads do not matter: kernels for few of them compile soonest.
const SMALL: (u32, u32, u32) = (4, 2, 8);

/// A scene, but for the form of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckScene {
    /// Heads and lengths; its storage format and `paged` are set by the form of the kernel.
    pub spec: SceneSpec,
    /// Keys in one split; `None` leaves what the device uses.
    pub split_tokens: Option<u32>,
}

impl CheckScene {
    /// Splits, blocks that sequences share, and the log-sum-exp.
    fn ragged((num_q_heads, num_kv_heads, head_dim): (u32, u32, u32)) -> Self {
        let mut spec = SceneSpec::decode(num_q_heads, num_kv_heads, head_dim, &LENGTHS);
        (spec.shared_blocks, spec.lse) = (3, true);
        Self { spec, split_tokens: Some(SHORT_SPLIT) }
    }

    /// Other edges, without the log-sum-exp.
    fn block_size(block_size: u32) -> Self {
        let lens = [1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1, 0, 70];
        let mut spec = SceneSpec::decode(SMALL.0, SMALL.1, SMALL.2, &lens);
        (spec.block_size, spec.shared_blocks) = (block_size, 1);
        Self { spec, split_tokens: Some(SHORT_SPLIT) }
    }

    /// So long that rows are split by the device's own measure.
    fn long() -> Self {
        Self { spec: SceneSpec::decode(2, 1, 64, &[3, 2085, 1024, 4100]), split_tokens: None }
    }

    /// Several queries per sequence: a whole prompt, a chunk of one, a decode step and a sequence that brings none.
    fn prefill() -> Self {
        let mut scene = Self::ragged(SMALL);
        scene.spec.seq_lens = vec![40, 90, 1, 33];
        scene.spec.query_lens = Some(vec![40, 7, 1, 0]);
        scene
    }

    /// What faults are planted in: several blocks, so that one can be missed.
    pub fn for_faults() -> Self {
        let mut scene = Self::ragged(SMALL);
        scene.spec.seq_lens = vec![40, 17, 100];
        scene
    }

    /// What tells the scene apart: `32/8x128 b16, longest 300, splits of 64, shared, lse`.
    pub fn label(&self) -> String {
        let spec = &self.spec;
        let longest = spec.seq_lens.iter().max().unwrap_or(&0);
        let mut text = format!(
            "{}/{}x{} b{}, longest {longest}",
            spec.num_q_heads, spec.num_kv_heads, spec.head_dim, spec.block_size
        );
        if let Some(split_tokens) = self.split_tokens {
            // Writing to a string cannot fail.
            let _ = write!(text, ", splits of {split_tokens}");
        }
        for (on, word) in
            [(spec.shared_blocks > 0, ", shared"), (spec.lse, ", lse"), (spec.query_lens.is_some(), ", prefill")]
        {
            text.push_str(if on { word } else { "" });
        }
        text
    }
}

/// The scenes of a check; `quick` takes two of those whose kernels compile soon.
pub fn scenes(quick: bool) -> Vec<CheckScene> {
    if quick {
        return vec![CheckScene::long(), CheckScene::ragged(SMALL)];
    }
    let models = ModelShape::BUILT_IN.map(|model| (model.num_q_heads, model.num_kv_heads, model.head_dim));
    let mut scenes: Vec<_> = models.into_iter().chain(ODD).map(CheckScene::ragged).collect();
    scenes.extend([1, 5, 32, 128].map(CheckScene::block_size));
    scenes.extend([CheckScene::long(), CheckScene::prefill()]);
    scenes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_scenes_apart() {
        let mut labels: Vec<_> = scenes(false).iter().map(CheckScene::label).collect();
        let all = labels.len();
        labels.sort();
        labels.dedup();
        assert_eq!(labels.len(), all);
    }

    #[test]
    fn the_scenes_hold_what_the_check_promises() {
        let scenes = scenes(false);
        let any = |test: &dyn Fn(&CheckScene) -> bool| scenes.iter().any(test);
        for model in ModelShape::BUILT_IN {
            assert!(any(&|s| (s.spec.num_q_heads, s.spec.num_kv_heads) == (model.num_q_heads, model.num_kv_heads)));
        }
        for head_dim in [5, 8, 80, 100, 128, 256] {
            assert!(any(&|s| s.spec.head_dim == head_dim), "{head_dim}");
        }
        assert!(any(&|s| s.spec.num_q_heads == 7 * s.spec.num_kv_heads));
        assert!(any(&|s| s.spec.num_q_heads == 9 * s.spec.num_kv_heads));
        assert!(any(&|s| s.spec.lse && s.spec.shared_blocks > 0));
        assert!(any(&|s| s.spec.seq_lens.contains(&0)) && any(&|s| s.spec.seq_lens.contains(&1)));
        // Longer than two splits of any profile.
        assert!(any(&|s| s.split_tokens.is_none() && s.spec.seq_lens.iter().any(|&len| len > 2048)));
    }
}
