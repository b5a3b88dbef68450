//! The beginning of a step: its words, and what comes before the first append.

use crate::config::MAX_GROUPS;
use crate::gpu::arena::ArenaPart;
use crate::gpu::binding::{element_bytes, grid};
use crate::gpu::cache::KvCache;
use crate::gpu::error::{ArgumentError, DeviceError, GpuError};
use crate::gpu::kernel::ITEM_LANES;
use crate::gpu::make::{Dispatch, record};
use crate::gpu::step::Step;
use crate::plan::StepPlan;

const WORDS: &str = "the step's words";

impl KvCache {
    /// Sends a plan to the device, once for all layers, and records what comes before the first append: changes of the
    /// block tables, [clears](StepPlan::clears) and [copies](StepPlan::copies) of blocks in all layers.
    ///
    /// Record the step into `encoder`, or into encoders submitted after it. Steps must be submitted in the order in
    /// which they were begun. The upload is as long as the batch, whatever the context. Kernels for clears and copies that
    /// were not [warmed up](Self::warm_up) are compiled here.
    ///
    /// A plan may be begun several times before its manager commits it, as several [caches of one manager](KvCache) do. What is
    /// recorded into an encoder or a pass of another device, wgpu refuses when that encoder is finished, and tells it to
    /// that device.
    ///
    /// # Errors
    /// [`GpuError::Argument`] for a plan of another layout, one that was not made by [`new_plan`](Self::new_plan), or one
    /// whose step its manager has closed; [`GpuError::Plan`] or [`GpuError::Device`].
    pub fn begin_step(&self, encoder: &mut wgpu::CommandEncoder, plan: &StepPlan) -> Result<Step, GpuError> {
        self.check()?;
        if let Some(difference) = plan.difference(self.layout()) {
            return Err(ArgumentError::other_shape("plan", difference).into());
        }
        if plan.is_step_open() == Some(false) {
            let problem = "is of a step that was committed or rolled back, so its blocks may be others' by now; \
                           begin it before its manager closes it, or reserve a new one";
            return Err(ArgumentError::new("plan", problem).into());
        }
        let (given, expected) = (plan.schedule(), self.schedule());
        if given != expected {
            let problem = format!("was made with {given:?}, but the cache uses {expected:?}; use KvCache::new_plan");
            return Err(ArgumentError::new("plan", problem).into());
        }
        let num_groups = self.groups().len();
        // An empty plan is of no layout, and has the same words for every group: none of its requests has rows.
        let part = |group: usize| group.min(plan.groups().len() - 1);
        let (mut bytes, mut updates) = ([0; MAX_GROUPS], [[0; 3]; MAX_GROUPS]);
        for group in 0..num_groups {
            bytes[group] = element_bytes(WORDS, plan.group_bytes(part(group)) / 4, self.profile())?;
            updates[group] = grid(plan.groups()[part(group)].updates().len() as u64, ITEM_LANES, self.profile())?;
        }
        let (bytes, updates) = (&bytes[..num_groups], &updates[..num_groups]);
        let (needed, limit) = (bytes.iter().sum::<u64>(), self.profile().max_buffer_bytes);
        if needed > limit {
            return Err(DeviceError::Limit { what: WORDS, needed, limit }.into());
        }
        let clears = self.clears(self.clear_value(), plan.clears().len())?;
        let copies = self.copies(plan.copies().len())?;
        let has_updates = updates.iter().any(|grid| grid[0] > 0);
        let table_update = if has_updates { Some(self.table_update()?) } else { None };
        let fill = |parts: &mut [ArenaPart]| {
            parts.iter_mut().enumerate().for_each(|(group, it)| it.work.fill(plan, part(group)));
        };
        let arena = self.send(encoder, bytes, fill, |group, words| plan.encode(part(group), words))?;
        if table_update.is_some() || clears.is_some() || copies.is_some() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some("paged.begin_step"),
                timestamp_writes: None,
            });
            if let Some(pipeline) = table_update {
                for (part, &grid) in arena.parts.iter().zip(updates).filter(|(_, grid)| grid[0] > 0) {
                    record(&mut pass, &[Dispatch::new(&pipeline, [&part.update], grid)]);
                }
            }
            for work in [clears, copies].into_iter().flatten() {
                work.record(&mut pass, &arena);
            }
        }
        Ok(Step::new(arena, self, self.next_step()))
    }
}
