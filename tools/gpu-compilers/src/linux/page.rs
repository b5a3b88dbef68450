//! `docs/GPU-COMPILERS.md`, and the same tables for a terminal.

use std::fmt::Write as _;

use super::row::{ChipReport, Row};

const HEAD: &str = "\
# The kernels under the GPU makers' compilers

Mesa has compilers for the GPUs of five makers, and they work without a GPU. `make gpu-compilers` compiles every kernel that
the library chooses by default for the nine devices below, writes this page, and compares the figures with
`tools/gpu-compilers/bounds.toml`; `ARGS=--write-bounds` writes those. It takes Debian and root, and a few minutes.

The compilers get what wgpu gives to the drivers: the library's text for the device's profile, translated by naga with the
checks that wgpu asks for. Nothing was run on these GPUs, and the makers' own drivers may do better or worse.

* **registers**: of a lane. Apple counts halves of 16 bits, Intel those of a whole subgroup that are in use at a time.
* **spills**: values of lanes that went to memory for want of registers. AMD's **scalar spills** are values of a whole
  subgroup that went to a register of its lanes.
* **scratch**: memory of its own that a lane, or with Intel a subgroup, takes: for spills, and for arrays that did not get
  registers; bytes.
* **waves**: subgroups that a core holds at a time: AMD per SIMD, NVIDIA per SM, Qualcomm per core; Apple: threads per core.
* **cycles**: the compiler's own estimate of the whole text. Only ratios mean something.
* **main loop**: instructions of the loop with most of them, without those of loops inside it; **its loads**: number and
  width in bytes of its loads from buffers by lanes, those of loops inside included.
* **ms**: to compile, on the machine that wrote this page, which did other work meanwhile.
";

/// The whole page.
pub fn page(reports: &[ChipReport], readers: &[String]) -> String {
    let mut text = HEAD.to_owned();
    let modules: usize = reports.iter().map(|report| report.rows.len()).sum();
    let _ = writeln!(text, "\nspirv-val finds no fault in any of the {modules} modules. {}", readers.join(" "));
    text.push_str("\n| device | compiler | subgroups | attention kernel | rows | kernels | that spill |\n");
    text.push_str("|---|---|---|---|---|---|---|\n");
    for report in reports {
        let spilling = report.rows.iter().filter(|row| row.spills.is_some_and(|spills| spills > 0)).count();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {spilling} |",
            report.chip,
            report.compiler.title(),
            subgroups(report),
            report.form,
            report.tile_rows,
            report.rows.len(),
        );
    }
    for report in reports {
        text.push('\n');
        chip(report, &mut text);
    }
    text
}

/// The part of one chip.
pub fn chip(report: &ChipReport, text: &mut String) {
    let _ = writeln!(text, "## {}\n", report.chip);
    let _ = writeln!(
        text,
        "{}; {}; subgroups {}; {}, {} rows.\n",
        report.device.trim(),
        report.driver,
        subgroups(report),
        report.form,
        report.tile_rows
    );
    let columns: Vec<_> =
        COLUMNS.iter().filter(|(_, cell)| report.rows.iter().any(|row| cell(row).is_some())).collect();
    let heads: Vec<_> = columns.iter().map(|(head, _)| *head).collect();
    let _ = writeln!(text, "| kernel | {} |", heads.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(heads.len()));
    for row in &report.rows {
        let cells: Vec<_> = columns.iter().map(|(_, cell)| cell(row).unwrap_or_default()).collect();
        let _ = writeln!(text, "| {} | {} |", row.kernel, cells.join(" | "));
    }
}

type Cell = fn(&Row) -> Option<String>;

const COLUMNS: [(&str, Cell); 11] = [
    ("subgroup", |row| Some(row.subgroup).filter(|&lanes| lanes > 0).map(|lanes| lanes.to_string())),
    ("registers", |row| number(row.registers)),
    ("spills", |row| number(row.spills)),
    ("scalar spills", |row| number(row.scalar_spills)),
    ("scratch", |row| number(row.scratch)),
    ("waves", |row| number(row.waves)),
    ("instructions", |row| number(row.instructions)),
    ("cycles", |row| number(row.cycles)),
    ("main loop", |row| number(row.main_loop.as_ref().map(|main_loop| main_loop.instructions))),
    ("its loads", |row| {
        let loads = &row.main_loop.as_ref()?.loads;
        Some(loads.iter().map(|(width, count)| format!("{count} × {width}")).collect::<Vec<_>>().join(", "))
    }),
    ("ms", |row| Some(format!("{:.0}", row.compile_ms))),
];

fn number(figure: Option<u64>) -> Option<String> {
    figure.map(|figure| figure.to_string())
}

fn subgroups(report: &ChipReport) -> String {
    match report.subgroups {
        (min, max) if min == max => format!("of {min}"),
        (min, max) => format!("of {min} to {max}"),
    }
}
