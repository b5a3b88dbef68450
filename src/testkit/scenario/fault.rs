//! Deliberate errors, to show that a harness notices them.

use super::ScenarioSpec;

/// A deliberate error: the device computes something else than the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device gets one block of keys less than there is.
    SkipLastBlock,
    /// The first table entry of the first sequence points to an unwritten block.
    StrayBlock,
    /// Causal attention where it should not be, or the other way round.
    CausalFlipped,
    /// The window is one key wider.
    WindowOffByOne,
    /// The soft cap is left out.
    SoftCapDropped,
    /// Every query head takes the slope of the next one.
    NeighbourSlope,
    /// Sinks weigh double, as if every second split had brought them in.
    SinkTwice,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 7] = [
        Self::SkipLastBlock,
        Self::StrayBlock,
        Self::CausalFlipped,
        Self::WindowOffByOne,
        Self::SoftCapDropped,
        Self::NeighbourSlope,
        Self::SinkTwice,
    ];

    /// What went wrong, in a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SkipLastBlock => "last block skipped",
            Self::StrayBlock => "stray block read",
            Self::CausalFlipped => "causal mask flipped",
            Self::WindowOffByOne => "window one key too wide",
            Self::SoftCapDropped => "soft cap left out",
            Self::NeighbourSlope => "slope of the next head",
            Self::SinkTwice => "sink counted twice",
        }
    }

    /// Whether a scenario of this shape must show the fault; on others it changes nothing, or not for sure.
    pub fn shows_in(self, spec: &ScenarioSpec) -> bool {
        let variant = &spec.variant;
        let any =
            |test: &dyn Fn(i64, i64) -> bool| spec.rows().iter().any(|(_, row)| test(row.position, row.seq_len as i64));
        match self {
            Self::SkipLastBlock => spec.paged && any(&|position, _| position >= 0),
            // Some query of the first sequence has to look at its first key.
            Self::StrayBlock => {
                let window = variant.window.map_or(i64::MAX, i64::from);
                let sees_first = |position: i64| position < window && (position >= 0 || !variant.causal);
                spec.rows().iter().any(|&(seq, row)| seq == 0 && row.seq_len > 0 && sees_first(row.position))
            }
            Self::CausalFlipped => any(&|position, len| position < len - 1),
            Self::WindowOffByOne => {
                variant.window.is_some_and(|window| any(&|position, _| position >= i64::from(window)))
            }
            Self::SoftCapDropped => variant.soft_cap.is_some() && any(&|position, _| position >= 1),
            Self::NeighbourSlope => variant.alibi && spec.num_q_heads > 1 && any(&|position, _| position >= 1),
            Self::SinkTwice => variant.sinks && any(&|position, _| position >= 0),
        }
    }
}
