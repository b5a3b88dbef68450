//! The numbers that the text of the kernel for chunks is specialised for.

use super::{LANE_ROWS, LANES, PrefillShape, out_vec4s};
use crate::gpu::kernel::matrices::Matrices;
use crate::gpu::kernel::shape::Constants;

impl PrefillShape {
    fn add_matrices_to(&self, matrices: &Matrices, constants: &mut Constants) {
        let slice = self.rows * self.slice_stride();
        let weights = self.rows * self.weight_stride();
        for (name, value) in [
            ("MATRIX", matrices.size),                             // rows and columns of a matrix
            ("MEMBERS", matrices.members),                         // subgroups that multiply
            ("SUBGROUPS", matrices.members),                       // of a workgroup, or more
            ("MEMBER_ROWS", matrices.member_rows), // matrices of the result, one below the other, of a subgroup
            ("MEMBER_COLS", matrices.member_cols), // and beside each other
            ("RESULT_COLS", matrices.cols),        // beside each other, of all
            ("SLICE_STEPS", 4 * self.slice_vec4s / matrices.size), // matrices of a slice of a row
            ("VALUE_STEPS", self.v_keys / matrices.size), // matrices of the keys of a slice of V
            ("OPERANDS", self.operands()),         // vec4<f16> of all operands
            ("SLICE_STRIDE", self.slice_stride()), // of these, from row to row: of a slice,
            ("WEIGHT_STRIDE", self.weight_stride()), // of weights
            ("VALUE_STRIDE", self.value_stride()), // and of values
            ("LOWER_QUERIES", slice),              // where the lower halves of queries begin,
            ("KEYS", 2 * slice),                   // the keys,
            ("LOWER_WEIGHTS", weights),            // the lower halves of weights,
            ("VALUES", 2 * weights),               // and the values
            ("RESULT_STRIDE", self.col_groups() + 1), // vec4<f32> from one row of results to the next
        ] {
            constants.set(name, value);
        }
    }

    pub(crate) fn add_to(&self, constants: &mut Constants) {
        let slice_octets = self.slice_vec4s / 2;
        let row_octets = self.row_vec4s() / 2;
        let q_loads = (self.rows * self.slice_vec4s).div_ceil(LANES);
        let k_octets = (self.key_tile() * slice_octets).div_ceil(LANES);
        let v_octets = (self.v_keys * row_octets).div_ceil(LANES);
        let octet_units = (2 / self.parts).max(1);
        let out_vec4s = out_vec4s(self.v_vec4s, self.rows);
        for (name, value) in [
            ("TILE_CLASS", crate::plan::CHUNK_CLASS as u32), // of the query tiles
            ("TOKENS", self.tokens()),                       // tokens of a workgroup
            ("GROUP", self.group),                           // query heads per KV head
            ("GROUP_TILE", self.group_tile),                 // of these, served by one workgroup
            ("HEAD_TILES", self.head_tiles),                 // workgroups that share them
            ("PARTS_PER_ITEM", self.parts_per_item()),       // workgroups that share a work item
            ("Q_ROWS", self.rows),                           // query rows of a workgroup
            ("LANES", LANES),                                // invocations of a workgroup
            ("ROW_GROUPS", self.row_groups()),               // lanes from the first row to the last
            ("COL_GROUPS", self.col_groups()),               // lanes that share a row
            ("KEYS_PER_LANE", self.lane_keys),               // keys that a lane scores at a time
            ("KEY_TILE", self.key_tile()),                   // keys that a workgroup scores at a time
            ("SCORES", LANE_ROWS * self.lane_keys),          // scores in a lane
            ("OUT_VEC4S", out_vec4s),                        // vec4<f32> of the output per lane and row
            ("SUMS", LANE_ROWS * out_vec4s),                 // of these, in a lane
            ("SLICE_VEC4S", self.slice_vec4s),               // vec4<f32> of a slice of a row of K
            ("SLICE_OCTETS", slice_octets),                  // pairs of these
            ("K_SLICES", self.k_slices()),                   // slices of a row of K
            ("V_KEYS", self.v_keys),                         // keys of a slice of V
            ("V_SLICES", self.v_slices()),                   // of these, in a key tile
            ("ROW_OCTETS", row_octets),                      // pairs of vec4<f32> of a row of V
            ("Q_LOADS", q_loads),                            // vec4 of queries that a lane loads for a slice
            ("K_OCTETS", k_octets),                          // and octets of keys
            ("V_OCTETS", v_octets),                          // and octets of values
            ("OCTET_UNITS", octet_units),                    // units that hold an octet
            ("UNIT_OCTETS", (self.parts / 2).max(1)),        // octets of a unit
            ("K_LOADS", k_octets * octet_units),             // units of keys that a lane loads for a slice
            ("V_LOADS", v_octets * octet_units),             // and of values
            ("WIDTH", self.width()),                         // vec4<f32> of a line of workgroup memory
            ("BLOCK_LINES", self.block_lines()),             // lines of a block there
            ("BLOCKS", self.blocks()),                       //
            ("KEYS_LINE", self.keys_line()),                 // first line of the keys
            ("SLICE_LINES", self.slice_lines()),             // lines of queries and keys
            ("VALUES_LINE", self.values_line()),             // first line of the values
            ("ROW_LINES", self.row_lines()),                 // lines of a key's values
            ("PART_LANE_KEYS", self.part_lane_keys()),       // keys of a lane whose weights are there at a time
            ("WEIGHT_PARTS", self.lane_keys / self.part_lane_keys()), // parts of its keys
            ("KV_SCALES", self.scales()),                    // factors of K and V
        ] {
            constants.set(name, value);
        }
        if let Some(matrices) = &self.matrices {
            self.add_matrices_to(matrices, constants);
        }
        constants.set_flag("SERVES_AGAIN", self.serves_again());
        let fits = |items: u32| items.is_multiple_of(LANES);
        constants.set_flag("Q_ITEMS_FIT", fits(self.rows * self.slice_vec4s));
        constants.set_flag("Q_SLICES_FIT", self.head_dim.is_multiple_of(4 * self.slice_vec4s));
        constants.set_flag("K_ITEMS_FIT", fits(self.key_tile() * slice_octets));
        constants.set_flag("V_ITEMS_FIT", fits(self.v_keys * row_octets));
        constants.set_flag("K_SLICES_FIT", self.k_vec4s.is_multiple_of(self.slice_vec4s));
        constants.set_flag("V_ROW_FITS", self.v_vec4s == self.row_vec4s());
    }
}
