//! Loop rounds that an invocation of the attention kernel takes.

use super::AttentionShape;
use crate::gpu::kernel::shape::Scoring;

impl AttentionShape {
    /// Loop rounds of one invocation for `keys` keys and `num_tiles` query tiles, or a few more; see
    /// [`DeviceProfile::max_loop_rounds`](crate::gpu::DeviceProfile::max_loop_rounds).
    pub(crate) fn loop_rounds(&self, keys: u32, num_tiles: u32) -> u64 {
        let wide = u64::from;
        let (rows, keys_per_lane, parts) = (wide(self.rows()), wide(self.keys_per_lane), wide(self.parts));
        let slices = wide(self.slices());
        let outputs = rows * slices * parts;
        let reductions = (wide(self.lanes.ilog2()) + 2) * (rows + 1);
        let k_batches = wide((self.k_units / self.k_batch()) + self.k_units.div_ceil(self.k_group()));
        let v_batches = slices * keys_per_lane * (wide(self.lanes_per_row() / self.v_batch()) + 1);
        let tiles = wide(keys.div_ceil(self.key_tile())) + 2;
        let shared = if self.shared_queries() { rows * (2 + wide(self.k_units) * parts / wide(self.lanes)) } else { 0 };
        // A loop of n rounds counts n, and one more to end it; inner loops count in every round.
        let (per_tile, once) = if self.unrolled {
            let k_loads = if self.scoring == Scoring::RowLanes { self.row_rounds(0) } else { k_batches };
            let loads = if self.whole { 0 } else { k_loads + v_batches };
            (1 + loads, wide(self.key_groups) * outputs + shared + 8)
        } else {
            let k_batch = wide(self.k_batch());
            let score = if self.scoring == Scoring::RowLanes {
                self.row_rounds(rows)
            } else {
                k_batches
                    * (3 + k_batch * (3 + keys_per_lane + parts * (2 + keys_per_lane + rows * (2 + keys_per_lane))))
            };
            let softmax = rows * (8 + 6 * keys_per_lane) + 6 * keys_per_lane + outputs + reductions;
            let add = v_batches * (2 + wide(self.v_batch()) * (4 + parts * (2 + rows)));
            let once =
                2 * reductions + outputs * (10 + wide(self.key_groups)) + rows * (4 + wide(self.k_units) * parts);
            (3 + 2 * keys_per_lane + score + softmax + add, once)
        };
        let join = if self.subgroups > 1 { rows * (4 + 2 * wide(self.subgroups) * (2 + slices * parts)) } else { 0 };
        // Tokens whose sums are not finite are served again, one by one.
        let passes = if self.class == 0 { 1 } else { 1 + wide(self.tokens()) };
        passes * (tiles * per_tile + once + join) + wide(num_tiles.max(1).ilog2()) + wide(self.tokens()) + 4
    }

    /// Whether the queries lie in workgroup memory, from where a loop that is not marked fetches them.
    fn shared_queries(&self) -> bool {
        self.scoring == Scoring::SharedQueries
    }

    /// Loop rounds of scoring a key tile with the lanes across a row of K, for `rows` query rows in loops; 0 if only the loop
    /// over batches is left.
    fn row_rounds(&self, rows: u64) -> u64 {
        let wide = u64::from;
        let (steps, slices, parts) = (wide(self.k_steps()), wide(self.k_slices()), wide(self.parts));
        let batches = wide(self.keys_per_lane) * (2 + wide(self.k_lanes_per_row) / steps);
        if rows == 0 {
            return batches;
        }
        let sums = steps * (4 + rows + slices * (3 + parts * (2 + rows)));
        // A level's exchanges are half of those before; what is left over goes through all rows.
        let halves = rows * steps + 2 * wide(self.lanes.ilog2()) * (2 + rows);
        batches * (4 + rows + sums + halves)
    }
}
