//! How the subgroups of a workgroup share the work of their matrix units.

use crate::gpu::kernel::prefill_shape::LANES;

/// How the subgroups of a workgroup share the matrices of a result: of its query rows, and of as many columns as there are lanes
/// to a row, four times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Matrices {
    pub(super) size: u32,
    pub(super) members: u32,
    pub(super) member_rows: u32,
    pub(super) member_cols: u32,
    pub(super) cols: u32,
}

impl Matrices {
    /// For subgroups of `lanes` invocations or fewer; `None` where fewer rows are served than a matrix has.
    pub(super) fn new(size: u32, lanes: u32, rows: u32, col_groups: u32) -> Option<Self> {
        let (down, cols) = (rows / size.max(1), 4 * col_groups / size.max(1));
        let members = (LANES / lanes.max(1)).clamp(1, (down * cols).max(1));
        let share = down * cols / members;
        let member_cols = share.clamp(1, cols.max(1));
        let good = size.is_power_of_two() && lanes.is_power_of_two() && members > 1 && down > 0 && cols > 0;
        good.then_some(Self { size, members, member_rows: (share / member_cols).max(1), member_cols, cols })
    }
}
