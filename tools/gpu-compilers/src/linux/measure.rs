//! Inside the folder with the drivers: one chip, all its kernels.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use wgpu_paged_attention::gpu::{DeviceProfile, recommended_features, recommended_limits};
use wgpu_paged_attention::testkit::{KernelText, adapters, describe_driver};

use super::chips::Chip;
use super::grid;
use super::plant::Plant;
use super::row::{ChipReport, Row};
use super::texts::{self, has_matrices};
use super::translate::parse;
use super::vulkan::Device;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Task {
    pub chip: &'static Chip,
    pub quick: bool,
    pub plants: Vec<Plant>,
    /// Where texts go.
    pub texts: PathBuf,
    /// Whether everything else that is known goes there too.
    pub dump: bool,
}

/// Compiles the kernels that the library chooses for the adapter found here.
pub fn measure(task: &Task) -> anyhow::Result<ChipReport> {
    let adapters = adapters(None)?;
    let [adapter] = &adapters[..] else { bail!("{} adapters instead of one", adapters.len()) };
    let info = adapter.get_info();
    let mut profile = DeviceProfile::new(&info, recommended_features(adapter), &recommended_limits(adapter));
    let mut bound_loops = None;
    for plant in &task.plants {
        plant.change(&mut profile, &mut bound_loops);
    }
    let device = Device::open(adapter)?;
    let mut texts = grid::kernels(&grid::shapes(task.quick), &profile)?;
    if let Some(bound) = bound_loops {
        texts.iter_mut().for_each(|text| text.checks.force_loop_bounding = bound);
    }
    let quick = grid::kernels(&grid::shapes(true), &profile)?;
    let mut rows = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        let mut row = compile(task, &device, text).with_context(|| text.label.clone())?;
        row.is_watched = text.tile_tokens.is_some() && quick.iter().any(|quick| quick.label == text.label);
        eprintln!("{} {}/{} {} {:.0} ms", task.chip.name, at + 1, texts.len(), text.label, row.compile_ms);
        rows.push(row);
    }
    Ok(ChipReport {
        chip: task.chip.name.to_owned(),
        compiler: task.chip.compiler,
        driver: describe_driver(&info),
        subgroups: (info.subgroup_min_size, info.subgroup_max_size),
        form: profile.lane_comm.to_string(),
        tile_rows: profile.tile_rows,
        device: info.name,
        rows,
    })
}

fn compile(task: &Task, device: &Device, text: &KernelText) -> anyhow::Result<Row> {
    let parsed = parse(&text.wgsl)?;
    let spirv = parsed.spirv(device.target(), text.checks)?;
    let path = |ending: &str| task.texts.join(format!("{}.{ending}", text.label.replace(' ', "_")));
    fs::write(path("wgsl"), &text.wgsl)?;
    if !has_matrices(&text.wgsl) {
        fs::write(path("hlsl"), parsed.hlsl(text.checks)?)?;
    }
    fs::write(path("spv"), spirv.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())?;
    texts::validate(&path("spv"))?;
    let compiled = device.compile(&spirv, &parsed.bindings())?;
    if task.dump {
        let statistics = compiled.statistics.iter().map(|(name, value)| format!("{name}: {value}\n"));
        fs::write(path("statistics.txt"), statistics.collect::<String>())?;
        for (at, (title, listing)) in compiled.listings.iter().enumerate() {
            let title: String = title.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            fs::write(path(&format!("{at}.{title}.txt")), listing)?;
        }
    }
    Row::new(text.label.clone(), task.chip.compiler, &compiled)
}
