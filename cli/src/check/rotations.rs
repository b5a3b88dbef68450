//! The appends of a check that norm and rotate: their kernels know nothing of lanes or blocks, so one form of each format has
//! them.

use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{IoFormat, MropeSections, RotaryStyle};
use wgpu_paged_attention::testkit::{RotationFault, RotationScenario, Turn};

use super::CheckOptions;

/// A part of a head with an attention factor, sections in both orders, and norms with and without a rotation.
fn all(format: KvDtype, seed: u64) -> [RotationScenario; 5] {
    let half_split = |dims| Turn::new(RotaryStyle::HalfSplit, dims);
    let interleaved = |dims| Turn::new(RotaryStyle::Interleaved, dims);
    let offset = (seed % 1000) as i32;
    let dealt = MropeSections::new([4, 2, 2]).with_interleaved(true);
    let of = |head_dim, io_format, turn| RotationScenario::new(format, head_dim, 8, io_format, turn);
    [
        of(42, IoFormat::F32, Turn { offset, base: 500.0, attention_factor: 1.25, ..half_split(10) }),
        of(16, IoFormat::F16, Turn { sections: Some(MropeSections::new([2, 3, 3])), ..interleaved(16) }),
        of(64, IoFormat::F16, Turn { offset, norm_eps: Some(1e-6), ..half_split(64) }),
        of(16, IoFormat::F32, Turn { sections: Some(dealt), norm_eps: Some(1e-5), ..half_split(16) }),
        of(6, IoFormat::F32, Turn { norm_eps: Some(1e-6), ..half_split(0) }),
    ]
}

/// Those of one storage format; a quick check has one of them, and another with the next format.
pub fn rotations(options: &CheckOptions, format: KvDtype) -> Vec<RotationScenario> {
    let place = KvDtype::ALL.iter().position(|&other| other == format).unwrap_or(0);
    let all = all(format, options.seed);
    if options.quick { vec![all[place % all.len()].clone()] } else { all.into() }
}

/// Every fault of a rotation, and where it shows.
pub fn planted_rotations() -> impl Iterator<Item = (RotationFault, RotationScenario)> {
    let turn = Turn { norm_eps: Some(0.05), attention_factor: 1.25, ..Turn::new(RotaryStyle::HalfSplit, 10) };
    let sections = Turn { sections: Some(MropeSections::new([1, 2, 2])), ..turn.clone() };
    let of = |turn| RotationScenario::new(KvDtype::F16, 42, 8, IoFormat::F32, turn);
    let scenarios = [of(turn), of(sections)];
    let shown = move |fault: RotationFault| {
        let found = scenarios.iter().find(|scenario| fault.shows_in(scenario));
        found.map(|scenario| (fault, scenario.clone()))
    };
    RotationFault::ALL.into_iter().filter_map(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenarios(quick: bool) -> Vec<RotationScenario> {
        let options = CheckOptions { quick, every_form: false, seed: 1 };
        KvDtype::ALL.into_iter().flat_map(|format| rotations(&options, format)).collect()
    }

    #[test]
    fn every_format_rotates_and_even_a_quick_check_has_every_option() {
        assert_eq!((scenarios(true).len(), scenarios(false).len()), (6, 30));
        let quick = scenarios(true);
        let any = |test: fn(&RotationScenario) -> bool| quick.iter().any(test);
        assert!(any(|it| it.turn.norm_eps.is_some() && it.turn.dims == 0) && any(|it| it.turn.dims < it.head_dim));
        assert!(any(|it| it.turn.sections.is_some_and(|sections| sections.is_interleaved())));
        assert!(any(|it| it.turn.sections.is_some_and(|sections| !sections.is_interleaved())));
        assert!(any(|it| it.io_format == IoFormat::F16) && any(|it| it.turn.attention_factor != 1.0));
    }

    #[test]
    fn every_fault_of_a_rotation_is_planted() {
        assert!(planted_rotations().map(|(fault, _)| fault).eq(RotationFault::ALL));
    }
}
