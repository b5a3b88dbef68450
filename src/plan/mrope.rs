//! Positions in time, height and width, for models that see images and videos.

use super::StepPlan;
use crate::error::{PlanError, TableError};

impl StepPlan {
    /// Sets three positions for every row, in time, height and width: what rotates K and the queries where the rotation has
    /// [sections](crate::gpu::RotarySpec::with_sections); a rotation without them does not look at these. Call it once the step is planned and before it is begun; the next
    /// step has none until they are set again.
    ///
    /// `positions`: `[num_rows]`, in the order of [`positions`](Self::positions); Hugging Face's `position_ids` are the same
    /// numbers axis by axis, `[3, num_rows]`. A token of text has the same number thrice. They count from 0 to below
    /// `max_seq_len` of the cache, whose rotations are computed that far. What a query sees is not their affair: causality and
    /// windows count tokens.
    ///
    /// # Errors
    /// [`TableError::Length`] or [`TableError::MropePosition`], which name the row and the limit; [`TableError::Plan`] if the
    /// words of the step cannot be numbered, or the host has no memory. The plan is then as it was.
    pub fn set_mrope_positions(&mut self, positions: &[[u32; 3]]) -> Result<(), TableError> {
        super::raw::check_len("mrope_positions", positions.len(), self.num_rows().into())?;
        let limit = self.layout.as_ref().map_or(0, |layout| layout.max_seq_len());
        for (row, of_row) in positions.iter().enumerate() {
            if let Some(axis) = of_row.iter().position(|&position| position >= limit) {
                return Err(TableError::MropePosition { row, axis, position: of_row[axis], limit });
            }
        }
        let longest = (0..self.num_groups).map(|group| self.group_bytes(group) / 4).max().unwrap_or(0);
        let before = longest - self.mrope_positions.as_flattened().len() as u64;
        let (value, limit) = (before + positions.as_flattened().len() as u64, u64::from(u32::MAX));
        if value > limit {
            return Err(PlanError::TooLarge { what: "words", value, limit }.into());
        }
        let more = positions.len().saturating_sub(self.mrope_positions.len());
        let rows = positions.len() as u64;
        self.mrope_positions.try_reserve(more).map_err(|_| PlanError::HostMemory { rows })?;
        self.mrope_positions.clear();
        self.mrope_positions.extend_from_slice(positions);
        Ok(())
    }

    /// `[num_rows]` positions in time, height and width; empty unless they were [set](Self::set_mrope_positions).
    pub fn mrope_positions(&self) -> &[[u32; 3]] {
        &self.mrope_positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CacheConfig;
    use crate::plan::{RawTables, Schedule, Tables};

    fn planned() -> StepPlan {
        let layout = CacheConfig::new(1, 1, 8).with_num_blocks(4).with_max_seq_len(40).layout().unwrap();
        let tables = Tables::Dense { block_table: &[2, 0, 1, 3], max_blocks: 2, seq_lens: &[20, 7] };
        let raw = RawTables { cu_seqlens_q: Some(&[0, 2, 3]), ..RawTables::new(tables) };
        let mut plan = StepPlan::new(Schedule::default());
        plan.plan_tables(&layout, &raw).unwrap();
        plan
    }

    #[test]
    fn the_positions_are_the_last_words_of_the_step() {
        let mut plan = planned();
        let (mut without, mut with) = (Vec::new(), Vec::new());
        plan.encode(0, &mut without);
        assert_eq!(plan.upload_bytes(), 4 * without.len() as u64);
        for positions in [[[0; 3]; 3], [[9, 1, 2], [9, 1, 39], [4, 4, 4]]] {
            plan.set_mrope_positions(&positions).unwrap();
            with.clear();
            plan.encode(0, &mut with);
            let header = plan.header(0);
            assert_eq!((header.last_rows_base + header.num_last_rows) as usize, without.len());
            assert_eq!(with, [&without[..], positions.as_flattened()].concat());
            assert_eq!(plan.upload_bytes(), 4 * with.len() as u64);
        }
    }

    #[test]
    fn positions_that_cannot_be_leave_the_plan_as_it_was_and_the_next_step_has_none() {
        let mut plan = planned();
        let right = [[1, 2, 3], [4, 5, 6], [7, 8, 9]];
        plan.set_mrope_positions(&right).unwrap();
        let wrong = plan.set_mrope_positions(&right[..2]).unwrap_err();
        assert_eq!(wrong, TableError::Length { name: "mrope_positions", expected: 3, actual: 2 });
        let wrong = plan.set_mrope_positions(&[[1; 3], [1, 1, 40], [1; 3]]).unwrap_err();
        assert_eq!(wrong, TableError::MropePosition { row: 1, axis: 2, position: 40, limit: 40 });
        assert!(wrong.to_string().starts_with("mrope_positions[1][2] is 40, "), "{wrong}");
        assert_eq!(plan.mrope_positions(), right);
        plan.clear();
        assert!(plan.mrope_positions().is_empty());
        plan.set_mrope_positions(&[]).unwrap();
    }
}
