//! What a search finds, and says meanwhile.

use wgpu_paged_attention::gpu::DeviceProfile;

use super::entrant::Times;
use crate::bench::{Op, TimerError};

/// What became of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took the lead.
    Led,
    Slower,
    /// Not by more than the noise.
    NoFaster,
    Refused(String),
    Wrong(String),
    NoTime,
}

/// A profile that was tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    pub axis: &'static str,
    /// Its settings that differ from those of the device's own profile.
    pub differences: String,
    pub times: Vec<(Op, Times)>,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub profile: DeviceProfile,
    /// Its settings that differ from those of the device's own profile.
    pub differences: String,
    pub times: Vec<(Op, Times)>,
    pub tried: Vec<Tried>,
    /// Why the search ended before its end.
    pub ended: Option<Ended>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Cancelled,
    Failed(String),
}

impl From<TimerError> for Ended {
    fn from(error: TimerError) -> Self {
        Self::Failed(error.to_string())
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    At { done: usize, label: &'a str },
    Found(&'a Found),
}
