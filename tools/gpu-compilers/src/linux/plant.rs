//! Another value in a chip's profile: to plant a fault that the bounds must find, and to try forms out.

use std::fmt;
use std::str::FromStr;

use wgpu_paged_attention::gpu::{ChunkForm, DeviceProfile, LaneComm, Scoring};

/// A change, as `--plant` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    TileRows(u32),
    TileTokens(u32),
    /// Also a form that no device gets by itself, as matrix tiles.
    ChunkForm(ChunkForm),
    LaneComm(LaneComm),
    Scoring(Scoring),
    /// Whether marked loops are written out.
    Unrolled(bool),
    Loads(u32),
    WideLoads(bool),
    Subgroups(u32),
    /// Whether naga adds a counter that ends every loop.
    BoundLoops(bool),
}

impl Plant {
    pub fn change(self, profile: &mut DeviceProfile, bound_loops: &mut Option<bool>) {
        match self {
            Self::TileRows(rows) => profile.tile_rows = rows,
            Self::TileTokens(tokens) => profile.tile_tokens = tokens,
            Self::ChunkForm(form) => profile.chunk_form = form,
            Self::LaneComm(lane_comm) => {
                profile.lane_comm = lane_comm;
                // Lanes cannot lie across a row of K where they meet in workgroup memory.
                if matches!(lane_comm, LaneComm::Workgroup { .. }) {
                    (profile.scoring, profile.subgroups) = (Scoring::KeyLanes, 1);
                }
            }
            Self::Scoring(scoring) => profile.scoring = scoring,
            Self::Unrolled(unrolled) => profile.unrolled = unrolled,
            Self::Loads(loads) => profile.loads = loads,
            Self::WideLoads(wide) => profile.wide_loads = wide,
            Self::Subgroups(subgroups) => profile.subgroups = subgroups,
            Self::BoundLoops(bound) => *bound_loops = Some(bound),
        }
    }
}

impl fmt::Display for Plant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TileRows(rows) => write!(f, "tile_rows={rows}"),
            Self::TileTokens(tokens) => write!(f, "tile_tokens={tokens}"),
            Self::ChunkForm(form) => write!(f, "chunk_form={form}"),
            Self::LaneComm(lane_comm) => write!(f, "lane_comm={lane_comm}"),
            Self::Scoring(scoring) => write!(f, "scoring={}", scoring.name()),
            Self::Unrolled(unrolled) => write!(f, "unrolled={unrolled}"),
            Self::Loads(loads) => write!(f, "loads={loads}"),
            Self::WideLoads(wide) => write!(f, "wide_loads={wide}"),
            Self::Subgroups(subgroups) => write!(f, "subgroups={subgroups}"),
            Self::BoundLoops(bound) => write!(f, "bound_loops={bound}"),
        }
    }
}

impl FromStr for Plant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "`{text}` is none of tile_rows=N, tile_tokens=N, chunk_form=query-tiles, chunk_form=workgroup-tilesN, chunk_form=matrix-tilesN-NxN-subgroupN, loads=N, subgroups=N, wide_loads=true, wide_loads=false, unrolled=true, unrolled=false, lane_comm=subgroupN, lane_comm=workgroupN, \
                 scoring=key-lanes, scoring=shared-queries, scoring=row-lanes, bound_loops=true, bound_loops=false"
            )
        };
        let (name, value) = text.split_once('=').ok_or_else(refuse)?;
        let number = |value: &str| value.parse().map_err(|_| refuse());
        match name {
            "tile_rows" => Ok(Self::TileRows(number(value)?)),
            "subgroups" => Ok(Self::Subgroups(number(value)?)),
            "loads" => Ok(Self::Loads(number(value)?)),
            "scoring" => {
                let scoring = Scoring::ALL.into_iter().find(|scoring| scoring.name() == value);
                scoring.map(Self::Scoring).ok_or_else(refuse)
            }
            "wide_loads" => value.parse().map(Self::WideLoads).map_err(|_| refuse()),
            "unrolled" => value.parse().map(Self::Unrolled).map_err(|_| refuse()),
            "tile_tokens" => Ok(Self::TileTokens(number(value)?)),
            "chunk_form" => value.parse().map(Self::ChunkForm).map_err(|_| refuse()),
            "bound_loops" => value.parse().map(Self::BoundLoops).map_err(|_| refuse()),
            "lane_comm" => value.parse().map(Self::LaneComm).map_err(|_| refuse()),
            _ => Err(refuse()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_profile_that_can_be_planted_is_read_and_anything_else_is_refused() {
        for right in [
            "tile_rows=16",
            "tile_tokens=4",
            "chunk_form=workgroup-tiles32",
            "chunk_form=matrix-tiles64-16x16-subgroup32",
            "loads=4",
            "unrolled=true",
            "bound_loops=false",
            "lane_comm=subgroup32",
            "lane_comm=workgroup64",
        ] {
            assert_eq!(right.parse::<Plant>().unwrap().to_string(), right);
        }
        for wrong in ["tile_rows", "tile_rows=x", "rows=1", "lane_comm=32", "chunk_form=64", "bound_loops=1"] {
            assert!(wrong.parse::<Plant>().unwrap_err().contains(wrong));
        }
    }
}
