//! From a count of items to a grid of workgroups.

use crate::error::PlanError;

/// Workgroups for `items` items, `per_group` to a workgroup, with at most `max_per_dim` in a dimension.
///
/// A count above `max_per_dim` is folded into two dimensions; the kernel's linear number is
/// `y * num_workgroups.x + x`. The grid may then be up to `y - 1` groups larger than asked for, so the kernel compares
/// that number with the count. No items give `[0, 1, 1]`, a dispatch that does nothing.
///
/// # Errors
/// [`PlanError::Zero`] if `per_group` or `max_per_dim` is 0, [`PlanError::TooLarge`] if two dimensions do not suffice.
pub fn workgroups(items: u64, per_group: u32, max_per_dim: u32) -> Result<[u32; 3], PlanError> {
    for (name, value) in [("per_group", per_group), ("max_per_dim", max_per_dim)] {
        if value == 0 {
            return Err(PlanError::Zero { name });
        }
    }
    let groups = items.div_ceil(per_group.into());
    let per_dim = u64::from(max_per_dim);
    let y = groups.div_ceil(per_dim).max(1);
    if y > per_dim {
        return Err(PlanError::TooLarge { what: "workgroups", value: groups, limit: per_dim * per_dim });
    }
    // Rows of equal length waste less than full rows and a remainder.
    let x = groups.div_ceil(y);
    Ok([x as u32, y as u32, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_the_items_divided_and_rounded_up() {
        let groups = |items| workgroups(items, 64, 65_535).unwrap();
        for (items, want) in [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (4095, 64), (4096, 64)] {
            assert_eq!(groups(items), [want, 1, 1], "{items}");
        }
        assert_eq!(groups(4_194_240), [65_535, 1, 1]);
        assert_eq!(groups(4_194_241), [32_768, 2, 1]);
    }

    #[test]
    fn a_folded_grid_covers_its_items_with_little_waste() {
        for items in [65_535_u64, 65_536, 70_000, 131_070, 131_071, 131_073, 1 << 30] {
            let [x, y, z] = workgroups(items, 1, 65_535).unwrap().map(u64::from);
            assert!(x <= 65_535 && y <= 65_535 && z == 1);
            assert!(x * y >= items && x * y - items < y, "{items}: {x} x {y}");
        }
    }

    #[test]
    fn sizes_that_fit_no_grid_are_errors() {
        let most = 65_535 * 65_535;
        assert_eq!(workgroups(most, 1, 65_535), Ok([65_535, 65_535, 1]));
        assert_eq!(
            workgroups(most + 1, 1, 65_535),
            Err(PlanError::TooLarge { what: "workgroups", value: most + 1, limit: most })
        );
        assert_eq!(workgroups(u64::MAX, u32::MAX, u32::MAX).unwrap()[2], 1);
        assert_eq!(workgroups(1, 0, 1), Err(PlanError::Zero { name: "per_group" }));
        assert_eq!(workgroups(1, 1, 0), Err(PlanError::Zero { name: "max_per_dim" }));
    }
}
