//! Joining attention over two sets of keys on the device.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::MAX_HEAD_DIM;
use crate::gpu::binding::{element_bytes, grid};
use crate::gpu::error::{ArgumentError, GpuError};
use crate::gpu::io::{BoundRows, IoSlice, RowShape};
use crate::gpu::kept::{GroupParts, KeptGroups};
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::params::StateParams;
use crate::gpu::kernel::variant::IoFormat;
use crate::gpu::make::{BindingKind, Dispatch, Maker, record};
use crate::gpu::profile::DeviceProfile;

/// Merges after which a bind group over buffers that none of them named is let go, or twice as many.
const KEPT_CALLS: u64 = 1024;

/// The compiled kernel that merges two attention states; any cache, or none, may have made them.
#[derive(Debug)]
pub struct StateMerger {
    maker: Maker,
    profile: DeviceProfile,
    io_format: IoFormat,
    merge: wgpu::ComputePipeline,
    io: wgpu::BindGroupLayout,
    kept: KeptGroups,
    calls: AtomicU64,
}

/// The shape of two states that are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateShape {
    /// Query tokens.
    pub num_rows: u32,
    /// Query heads.
    pub num_q_heads: u32,
    /// Elements of one head of V.
    pub v_head_dim: u32,
}

/// Attention over some keys, as [`attend`](crate::gpu::KvCache::attend) writes it with the log-sum-exp.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct State<'a> {
    /// `[num_rows, num_q_heads, v_head_dim]`, row-major, f32 or f16 as the merger was made for.
    pub out: IoSlice<'a>,
    /// `[num_rows, num_q_heads]` f32, natural logarithm; infinite, of either sign, for a row without a key.
    pub lse: wgpu::BufferSlice<'a>,
}

impl StateShape {
    /// Of `[num_rows, num_q_heads, v_head_dim]`.
    pub fn new(num_rows: u32, num_q_heads: u32, v_head_dim: u32) -> Self {
        Self { num_rows, num_q_heads, v_head_dim }
    }
}

impl<'a> State<'a> {
    /// An output and its log-sum-exp.
    pub fn new(out: impl Into<IoSlice<'a>>, lse: wgpu::BufferSlice<'a>) -> Self {
        Self { out: out.into(), lse }
    }
}

impl StateMerger {
    /// Compiles the kernel for outputs of a type.
    pub fn new(device: &wgpu::Device, io_format: IoFormat) -> Result<Self, GpuError> {
        Self::with_profile(device, io_format, DeviceProfile::of(device))
    }

    /// Like [`new`](Self::new), with the limits of a profile of the caller's.
    pub fn with_profile(device: &wgpu::Device, io_format: IoFormat, profile: DeviceProfile) -> Result<Self, GpuError> {
        use BindingKind::{Uniform, Write};
        let maker = Maker::new(device)?;
        let io = maker.layout("paged.states", &[Uniform, Write, Write, Write, Write])?;
        let merge = maker.pipeline(&Kernel::MergeStates { io_format }, &[&io])?;
        Ok(Self { maker, profile, io_format, merge, io, kept: KeptGroups::new(KEPT_CALLS), calls: AtomicU64::new(0) })
    }

    /// Records that `a` becomes attention over the keys of both: what it would be had all keys been seen at once.
    ///
    /// No key may belong to both, and a sink to one of them only. A row without a key in one of them is that of the other,
    /// bit for bit, whatever its output holds; without a key in either, it is 0 with a log-sum-exp of −∞. All may lie in one
    /// buffer, but nothing may have a byte in common with what is written: output and log-sum-exp of `a`.
    ///
    /// # Errors
    /// [`GpuError::Argument`], also for a `v_head_dim` that is odd in f16 or too large; [`GpuError::Plan`] or
    /// [`GpuError::Device`].
    pub fn merge(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        shape: StateShape,
        a: State<'_>,
        b: State<'_>,
    ) -> Result<(), GpuError> {
        self.maker.check()?;
        let (maker, profile) = (&self.maker, &self.profile);
        let StateShape { num_rows, num_q_heads, v_head_dim } = shape;
        if !v_head_dim.is_multiple_of(self.io_format.per_word()) {
            let problem = format!("is {v_head_dim}; f16 needs an even number, for two elements share a word");
            return Err(ArgumentError::new("v_head_dim", problem).into());
        }
        if v_head_dim > MAX_HEAD_DIM {
            return Err(
                ArgumentError::new("v_head_dim", format!("is {v_head_dim}; the limit is {MAX_HEAD_DIM}")).into()
            );
        }
        let head_words = v_head_dim / self.io_format.per_word();
        let states = u64::from(num_rows) * u64::from(num_q_heads);
        if states == 0 {
            return Ok(());
        }
        // So they are fewer than 2^32.
        element_bytes("the log-sum-exp", states, profile)?;
        let per_word = self.io_format.per_word();
        let row = u64::from(num_q_heads) * u64::from(v_head_dim);
        let out = RowShape { rows: num_rows.into(), row, per_word, unit: per_word };
        let lse = RowShape { rows: 1, row: states, per_word: 1, unit: 1 };
        let a_out = BoundRows::new("a.out", a.out, out, profile)?;
        let a_lse = BoundRows::new("a.lse", a.lse.into(), lse, profile)?;
        let b_out = BoundRows::new("b.out", b.out, out, profile)?;
        let b_lse = BoundRows::new("b.lse", b.lse.into(), lse, profile)?;
        for read in [&b_out, &b_lse] {
            read.check_apart(&a_out)?;
            read.check_apart(&a_lse)?;
        }
        a_out.check_apart(&a_lse)?;
        let grid = grid(states, 1, profile)?;
        let params = StateParams {
            num_states: states as u32,
            num_heads: num_q_heads,
            head_words,
            a_base: a_out.base,
            a_stride: a_out.stride,
            b_base: b_out.base,
            b_stride: b_out.stride,
            a_lse_base: a_lse.base,
            b_lse_base: b_lse.base,
            ..Default::default()
        };
        let parts = GroupParts {
            label: "paged.states",
            layout: &self.io,
            params: bytemuck::bytes_of(&params),
            ranges: &[a_out.binding, a_lse.binding, b_out.binding, b_lse.binding],
        };
        let now = self.calls.fetch_add(1, Ordering::Relaxed);
        self.kept.sweep(now);
        let io = self.kept.get(maker, now, &parts)?;
        record(pass, &[Dispatch::new(&self.merge, [&io], grid)]);
        Ok(())
    }
}
