//! What the compilers' figures are held to.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::row::{ChipReport, Row};

/// Instructions and cycles may grow by this much: a new release of Mesa is to be noticed, not to be in the way.
const SLACK_PERCENT: u64 = 5;

/// The bounds of all chips.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Bounds {
    chips: BTreeMap<String, BTreeMap<String, Bound>>,
}

/// The bounds of a kernel. A figure that is not here has none, but for spills and scratch: these are 0.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    #[serde(default)]
    spills: u64,
    #[serde(default)]
    scratch: u64,
    #[serde(default)]
    instructions: Option<u64>,
    #[serde(default)]
    cycles: Option<u64>,
    #[serde(default)]
    main_loop: Option<u64>,
    /// At least.
    #[serde(default)]
    waves: Option<u64>,
}

impl Bound {
    /// The closest that leaves the slack.
    fn of(row: &Row) -> Self {
        let roomy = |figure: Option<u64>| figure.map(|figure| (figure * (100 + SLACK_PERCENT)).div_ceil(100));
        Self {
            spills: row.spills.unwrap_or(0),
            scratch: row.scratch.unwrap_or(0),
            instructions: roomy(row.instructions),
            cycles: roomy(row.cycles),
            main_loop: roomy(row.main_loop.as_ref().map(|main_loop| main_loop.instructions)),
            waves: row.waves,
        }
    }

    /// Figures beyond their bounds, in words.
    fn broken(&self, row: &Row) -> Vec<String> {
        let main_loop = row.main_loop.as_ref().map(|main_loop| main_loop.instructions);
        let most = [
            ("spills", row.spills, Some(self.spills)),
            ("bytes of scratch", row.scratch, Some(self.scratch)),
            ("instructions", row.instructions, self.instructions),
            ("cycles", row.cycles, self.cycles),
            ("instructions in the main loop", main_loop, self.main_loop),
        ];
        let mut broken = Vec::new();
        for (figure, found, bound) in most {
            match (found, bound) {
                (Some(found), Some(bound)) if found > bound => {
                    broken.push(format!("{found} {figure}; the bound is {bound}"));
                }
                // A main loop that is gone; what a compiler once told, it tells always: see Row::new.
                (None, Some(bound)) if bound > 0 => broken.push(format!("no {figure}; the bound is {bound}")),
                _ => {}
            }
        }
        if let (Some(found), Some(bound)) = (row.waves, self.waves)
            && found < bound
        {
            broken.push(format!("{found} waves; at least {bound} are wanted"));
        }
        broken
    }

    fn to_text(&self) -> String {
        let figures = [
            ("spills", Some(self.spills).filter(|&spills| spills > 0)),
            ("scratch", Some(self.scratch).filter(|&scratch| scratch > 0)),
            ("instructions", self.instructions),
            ("cycles", self.cycles),
            ("main_loop", self.main_loop),
            ("waves", self.waves),
        ];
        let figures = figures.iter().filter_map(|(name, figure)| figure.map(|figure| format!("{name} = {figure}")));
        format!("{{ {} }}", figures.collect::<Vec<_>>().join(", "))
    }
}

impl Bounds {
    pub fn read(text: &str) -> anyhow::Result<Self> {
        Ok(toml::from_str(text)?)
    }

    /// What of a chip's kernels is beyond its bounds, a line for each.
    pub fn broken(&self, report: &ChipReport) -> Vec<String> {
        let known = self.chips.get(&report.chip);
        let bound_of = |kernel: &str| known.and_then(|known| known.get(kernel));
        let mut broken = Vec::new();
        for row in &report.rows {
            let place = format!("{}: {}", report.chip, row.kernel);
            let bound = bound_of(&row.kernel);
            if row.is_watched && bound.is_none() {
                broken.push(format!("{place}: has no bounds"));
            }
            let lines = bound.cloned().unwrap_or_default().broken(row);
            broken.extend(lines.into_iter().map(|line| format!("{place}: {line}")));
        }
        let is_compiled = |kernel: &str| report.rows.iter().any(|row| row.kernel == kernel);
        for (kernel, bound) in known.into_iter().flatten() {
            // Spills alone are those of shapes that not every run compiles.
            if bound.instructions.is_some() && !is_compiled(kernel) {
                broken.push(format!("{}: {kernel}: has bounds, but no such kernel was compiled", report.chip));
            }
        }
        broken
    }

    /// The bounds with those of these chips made anew.
    pub fn updated(mut self, reports: &[ChipReport]) -> Self {
        for report in reports {
            let mut kernels = BTreeMap::new();
            for row in &report.rows {
                let bound = Bound::of(row);
                if row.is_watched {
                    kernels.insert(row.kernel.clone(), bound);
                } else if bound.spills + bound.scratch > 0 {
                    let (spills, scratch) = (bound.spills, bound.scratch);
                    kernels.insert(row.kernel.clone(), Bound { spills, scratch, ..Bound::default() });
                }
            }
            self.chips.insert(report.chip.clone(), kernels);
        }
        self
    }

    pub fn to_text(&self) -> String {
        let mut text = String::from(
            "# What `make gpu-compilers` holds the figures of docs/GPU-COMPILERS.md to: at most these, of waves at least.\n\
             # A kernel that is not here may not spill. Written by `make gpu-compilers ARGS=--write-bounds`.\n",
        );
        for (chip, kernels) in &self.chips {
            let _ = write!(text, "\n[{chip}]\n");
            for (kernel, bound) in kernels {
                let _ = writeln!(text, "\"{kernel}\" = {}", bound.to_text());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::chips::Compiler;
    use crate::linux::listing::MainLoop;

    fn row(kernel: &str) -> Row {
        Row {
            kernel: kernel.to_owned(),
            is_watched: kernel.starts_with("paged_attention"),
            spills: Some(0),
            instructions: Some(1000),
            main_loop: Some(MainLoop { instructions: 500, ..MainLoop::default() }),
            waves: Some(8),
            ..Row::default()
        }
    }

    fn report(rows: Vec<Row>) -> ChipReport {
        ChipReport {
            chip: "navi31".to_owned(),
            compiler: Compiler::Aco,
            device: String::new(),
            driver: String::new(),
            subgroups: (32, 64),
            form: String::new(),
            tile_rows: 8,
            rows,
        }
    }

    /// The bounds of a good day, after a round through their file.
    fn bounds() -> Bounds {
        let good = report(vec![row("paged_attention t1"), row("kv_append")]);
        let bounds = Bounds::default().updated(&[good]);
        assert_eq!(Bounds::read(&bounds.to_text()).unwrap(), bounds);
        bounds
    }

    #[test]
    fn what_was_measured_holds_and_so_does_a_little_more() {
        let slow = Row { instructions: Some(1050), ..row("paged_attention t1") };
        assert_eq!(bounds().broken(&report(vec![slow, row("kv_append")])), [""; 0]);
    }

    #[test]
    fn every_figure_beyond_its_bound_is_named() {
        let faults = [
            ("1 spills", Row { spills: Some(1), ..row("paged_attention t1") }),
            ("64 bytes of scratch", Row { scratch: Some(64), ..row("paged_attention t1") }),
            ("1051 instructions", Row { instructions: Some(1051), ..row("paged_attention t1") }),
            (
                "526 instructions in the main loop",
                Row {
                    main_loop: Some(MainLoop { instructions: 526, ..MainLoop::default() }),
                    ..row("paged_attention t1")
                },
            ),
            ("no instructions in the main loop", Row { main_loop: None, ..row("paged_attention t1") }),
            ("7 waves", Row { waves: Some(7), ..row("paged_attention t1") }),
        ];
        for (words, fault) in faults {
            let broken = bounds().broken(&report(vec![fault]));
            assert!(matches!(&broken[..], [line] if line.contains(words)), "{words}: {broken:?}");
        }
    }

    #[test]
    fn a_kernel_without_bounds_may_not_spill() {
        let spilling = Row { spills: Some(3), ..row("kv_append") };
        let broken = bounds().broken(&report(vec![row("paged_attention t1"), spilling]));
        assert!(matches!(&broken[..], [line] if line.contains("kv_append: 3 spills; the bound is 0")), "{broken:?}");
    }

    #[test]
    fn another_form_is_a_kernel_without_bounds_and_bounds_without_a_kernel() {
        let broken = bounds().broken(&report(vec![row("paged_attention other")]));
        assert!(broken[0].contains("other: has no bounds"), "{broken:?}");
        assert!(broken[1].contains("no such kernel was compiled"), "{broken:?}");
    }

    #[test]
    fn a_misspelt_figure_in_the_file_is_refused() {
        assert!(Bounds::read("[navi31]\n\"x\" = { spill = 0 }").is_err());
    }
}
