//! Deliberate errors of a norm or a rotation.

use super::{Inputs, RotationScenario};
use crate::gpu::RotaryStyle;

/// A deliberate error: the device is told something else than the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationFault {
    /// Every position is one further on.
    NextPosition,
    /// Pairs of the other style.
    OtherStyle,
    /// One pair more is turned.
    WiderTurn,
    /// A slightly larger base.
    OtherBase,
    /// The attention factor is left out.
    FactorDropped,
    /// Height and width change places.
    AxesSwapped,
    /// One pair goes to another section.
    SectionMoved,
    /// Every element takes the weight of the next.
    NeighbourWeight,
    /// The mean square gets almost nothing added.
    EpsDropped,
}

impl RotationFault {
    /// Every fault.
    pub const ALL: [Self; 9] = [
        Self::NextPosition,
        Self::OtherStyle,
        Self::WiderTurn,
        Self::OtherBase,
        Self::FactorDropped,
        Self::AxesSwapped,
        Self::SectionMoved,
        Self::NeighbourWeight,
        Self::EpsDropped,
    ];

    /// What went wrong, in a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NextPosition => "rotated for the next position",
            Self::OtherStyle => "pairs of the other style",
            Self::WiderTurn => "one pair too many rotated",
            Self::OtherBase => "frequencies of another base",
            Self::FactorDropped => "attention factor left out",
            Self::AxesSwapped => "height and width swapped",
            Self::SectionMoved => "a pair in the wrong section",
            Self::NeighbourWeight => "norm weight of the next element",
            Self::EpsDropped => "eps of the norm left out",
        }
    }

    /// Whether a scenario must show the fault; on others it changes nothing, or cannot be planted.
    pub fn shows_in(self, scenario: &RotationScenario) -> bool {
        let turn = &scenario.turn;
        let (rotates, by_base) = (turn.dims > 0, turn.dims > 2 && turn.inv_freq.is_none());
        match self {
            Self::NextPosition => rotates,
            Self::OtherStyle => turn.dims > 2,
            Self::WiderTurn => by_base && turn.sections.is_none() && turn.dims + 2 <= scenario.head_dim,
            Self::OtherBase => by_base,
            Self::FactorDropped => rotates && turn.attention_factor != 1.0,
            Self::AxesSwapped => turn.sections.is_some_and(|sections| sections.pairs()[1..].iter().any(|&it| it > 0)),
            Self::SectionMoved => turn.sections.is_some_and(|it| !it.is_interleaved() && it.pairs()[1] > 0),
            Self::NeighbourWeight => turn.norm_eps.is_some() && scenario.head_dim > 1,
            Self::EpsDropped => turn.norm_eps.is_some_and(|eps| eps > 0.01),
        }
    }

    /// What the device is told.
    pub(super) fn plant(self, scenario: &RotationScenario, inputs: &Inputs) -> (RotationScenario, Inputs) {
        let mut planted = scenario.clone();
        let mut told = Inputs {
            rows: inputs.rows.clone(),
            norms: inputs.norms.clone(),
            mrope_positions: inputs.mrope_positions.clone(),
        };
        let turn = &mut planted.turn;
        match self {
            Self::NextPosition => turn.offset += 1,
            Self::OtherStyle => {
                turn.style = match turn.style {
                    RotaryStyle::Interleaved => RotaryStyle::HalfSplit,
                    RotaryStyle::HalfSplit => RotaryStyle::Interleaved,
                }
            }
            Self::WiderTurn => turn.dims += 2,
            Self::OtherBase => turn.base *= 1.01,
            Self::FactorDropped => turn.attention_factor = 1.0,
            Self::AxesSwapped => told.mrope_positions.iter_mut().for_each(|position| position.swap(1, 2)),
            Self::SectionMoved => {
                turn.sections = turn.sections.map(|sections| {
                    let [time, height, width] = sections.pairs();
                    crate::gpu::MropeSections::new([time + 1, height.saturating_sub(1), width])
                });
            }
            Self::NeighbourWeight => told.norms.iter_mut().for_each(|weights| weights.rotate_left(1)),
            Self::EpsDropped => turn.norm_eps = Some(1e-12),
        }
        (planted, told)
    }
}
