//! How chunks of prompts are served: a choice of the device's profile.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::gpu::error::SpecError;
use crate::gpu::kernel::displayed::{as_displayed, in_files_as_displayed};
use crate::gpu::kernel::prefill_shape::{LANES, WORKGROUP_BYTES};

/// How chunks of prompts are served; in a file `query-tiles`, `workgroup-tiles64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum ChunkForm {
    /// As all other queries are: in query tiles of [`tile_tokens`](crate::gpu::DeviceProfile::tile_tokens).
    QueryTiles,
    /// In tiles that meet in workgroup memory, by a kernel of their own.
    WorkgroupTiles {
        /// Query rows (tokens times heads of one KV head) of a workgroup: 16, 32 or 64. Values wider than 128 elements get
        /// 32 at most, and those wider than 256 get 16.
        rows: u32,
    },
    /// The same, multiplied by the matrix units of subgroups, in f16 with sums in f32: for caches in f16 whose values have up to
    /// 256 elements, and wider ones as far as workgroup memory suffices. Other caches get
    /// [`WorkgroupTiles`](Self::WorkgroupTiles) of as many rows. The device must have
    /// [`matrix_features`](crate::gpu::matrix_features); that the adapter has matrices of this size cannot be checked.
    ///
    /// Queries in f32 are as exact as 21 bits of their head's largest element. No device gets this form by default, because it was
    /// timed on none but software; `paged-attention tune` tries it.
    MatrixTiles {
        /// Query rows of a workgroup: 16, 32 or 64.
        rows: u32,
        /// Rows and columns of a matrix: 8 or 16, one of the adapter's
        /// [`cooperative_matrix_properties`](wgpu::Adapter::cooperative_matrix_properties).
        size: u32,
        /// Invocations of the device's largest subgroups.
        lanes: u32,
    },
}

impl ChunkForm {
    /// What the kernel for chunks needs of any device and one of these limits lacks.
    pub(crate) fn lacks(self, limits: &wgpu::Limits) -> Option<String> {
        if self == Self::QueryTiles {
            return None;
        }
        let invocations = limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x);
        if invocations < LANES {
            return Some(format!("its workgroups have {LANES} invocations, and this device allows {invocations}"));
        }
        let bytes = limits.max_compute_workgroup_storage_size;
        (bytes < WORKGROUP_BYTES)
            .then(|| format!("its workgroups take {WORKGROUP_BYTES} bytes of memory, and this device has {bytes}"))
    }

    /// The same form where a device of these limits can run it.
    pub(crate) fn within(self, limits: &wgpu::Limits) -> Self {
        if self.lacks(limits).is_some() { Self::QueryTiles } else { self }
    }

    /// Query rows of a workgroup of the kernel for chunks, which is never needed where they are served like all others.
    pub(crate) fn rows(self) -> u32 {
        match self {
            Self::QueryTiles => 64,
            Self::WorkgroupTiles { rows } | Self::MatrixTiles { rows, .. } => rows,
        }
    }
}

impl fmt::Display for ChunkForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueryTiles => f.write_str("query-tiles"),
            Self::WorkgroupTiles { rows } => write!(f, "workgroup-tiles{rows}"),
            Self::MatrixTiles { rows, size, lanes } => write!(f, "matrix-tiles{rows}-{size}x{size}-subgroup{lanes}"),
        }
    }
}

impl FromStr for ChunkForm {
    type Err = SpecError;

    /// Reads what is displayed.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let tiles = || Some(Self::WorkgroupTiles { rows: text.strip_prefix("workgroup-tiles")?.parse().ok()? });
        let matrices = || {
            let (rows, rest) = text.strip_prefix("matrix-tiles")?.split_once('-')?;
            let (size, lanes) = rest.split_once("-subgroup")?;
            let size = size.split_once('x')?.0.parse().ok()?;
            Some(Self::MatrixTiles { rows: rows.parse().ok()?, size, lanes: lanes.parse().ok()? })
        };
        let read = if text == "query-tiles" { Some(Self::QueryTiles) } else { tiles().or_else(matrices) };
        let rule = "query-tiles, or like workgroup-tiles64 or matrix-tiles64-16x16-subgroup32";
        as_displayed("chunk_form", text, read, rule)
    }
}

in_files_as_displayed!(ChunkForm);
