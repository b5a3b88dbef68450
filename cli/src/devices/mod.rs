//! `paged-attention devices`: what there is to compute on, and what the kernels would make of it.

use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use wgpu_paged_attention::gpu::{DeviceProfile, recommended_features, recommended_limits};
use wgpu_paged_attention::testkit::{OpenError, adapters, describe_driver};
use wgpu_paged_attention::wgpu;

use crate::common::files::TableArgs;
use crate::common::output::print;
use crate::common::status::{Failure, Status};

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    #[command(flatten)]
    pub tables: TableArgs,
}

/// Version of the JSON's form.
const SCHEMA: u32 = 1;

/// All adapters.
#[derive(Debug, Serialize)]
struct Devices {
    schema: u32,
    adapters: Vec<Device>,
}

/// One adapter.
#[derive(Debug, Serialize)]
struct Device {
    /// What `--adapter` takes.
    number: usize,
    name: String,
    device_type: String,
    software: bool,
    backend: String,
    driver: String,
    /// The form of the decode kernel that would be chosen.
    kernel: String,
    limits: Limits,
    features: Features,
}

/// What the adapter offers, of what matters here.
#[derive(Debug, Serialize)]
struct Limits {
    storage_binding_bytes: u64,
    buffer_bytes: u64,
    workgroup_memory_bytes: u32,
    workgroup_invocations: u32,
    storage_offset_alignment: u32,
}

#[derive(Debug, Serialize)]
struct Features {
    subgroups: bool,
    subgroup_min_size: u32,
    subgroup_max_size: u32,
    shader_f16: bool,
    timestamps: bool,
}

impl Device {
    fn of(number: usize, adapter: &wgpu::Adapter) -> Self {
        let (info, offered, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let profile = DeviceProfile::new(&info, recommended_features(adapter), &recommended_limits(adapter));
        Self {
            number,
            software: info.device_type == wgpu::DeviceType::Cpu,
            device_type: format!("{:?}", info.device_type),
            backend: info.backend.to_string(),
            driver: describe_driver(&info),
            kernel: profile.lane_comm.to_string(),
            limits: Limits {
                storage_binding_bytes: offered.max_storage_buffer_binding_size,
                buffer_bytes: offered.max_buffer_size,
                workgroup_memory_bytes: offered.max_compute_workgroup_storage_size,
                workgroup_invocations: offered.max_compute_invocations_per_workgroup,
                storage_offset_alignment: offered.min_storage_buffer_offset_alignment,
            },
            features: Features {
                subgroups: features.contains(wgpu::Features::SUBGROUP),
                subgroup_min_size: info.subgroup_min_size,
                subgroup_max_size: info.subgroup_max_size,
                shader_f16: features.contains(wgpu::Features::SHADER_F16),
                timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            },
            name: info.name,
        }
    }

    /// Lines of the table, with their names.
    fn lines(&self) -> [(&'static str, String); 15] {
        let Self { limits, features, .. } = self;
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let subgroups = match (features.subgroups, features.subgroup_min_size, features.subgroup_max_size) {
            (false, ..) => "no".to_owned(),
            (true, min, max) if min == max => format!("of {min}"),
            (true, min, max) => format!("of {min} to {max}"),
        };
        [
            ("number", self.number.to_string()),
            ("name", self.name.clone()),
            ("type", self.device_type.clone()),
            ("software", if self.software { "YES, computes on the CPU".to_owned() } else { "no".to_owned() }),
            ("backend", self.backend.clone()),
            ("driver", self.driver.clone()),
            ("storage binding", format!("{} MiB", limits.storage_binding_bytes >> 20)),
            ("buffer", format!("{} MiB", limits.buffer_bytes >> 20)),
            ("workgroup memory", format!("{} bytes", limits.workgroup_memory_bytes)),
            ("workgroup size", format!("{} invocations", limits.workgroup_invocations)),
            ("offset alignment", format!("{} bytes", limits.storage_offset_alignment)),
            ("subgroups", subgroups),
            ("f16 in shaders", yes(features.shader_f16)),
            ("timestamps", yes(features.timestamps)),
            ("decode kernel", self.kernel.clone()),
        ]
    }
}

/// Runs the command.
pub fn run(args: &DevicesArgs) -> Result<Status, Failure> {
    let files = args.tables.prepare()?;
    let adapters: Vec<_> = adapters().iter().enumerate().map(|(number, adapter)| Device::of(number, adapter)).collect();
    let devices = Devices { schema: SCHEMA, adapters };
    files.write_json(|| serde_json::to_string_pretty(&devices).map(|text| text + "\n"))?;
    files.write_csv(|| csv(&devices.adapters))?;
    if devices.adapters.is_empty() {
        return Err(Failure::new(Status::NoAdapter, OpenError::NoAdapter.to_string()));
    }
    print(&render(&devices.adapters))?;
    Ok(Status::Ok)
}

/// One row per adapter.
fn csv(devices: &[Device]) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    if let Some(first) = devices.first() {
        writer.write_record(first.lines().map(|(name, _)| name))?;
    }
    for device in devices {
        writer.write_record(device.lines().map(|(_, cell)| cell))?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// One column per adapter: their lines are many and long, they themselves are few.
fn render(devices: &[Device]) -> String {
    let columns: Vec<_> = devices.iter().map(Device::lines).collect();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    for line in 0..columns[0].len() {
        let mut cells = vec![columns[0][line].0.to_owned()];
        cells.extend(columns.iter().map(|column| column[line].1.clone()));
        if line == 0 {
            table.set_header(cells);
        } else {
            table.add_row(cells);
        }
    }
    table.to_string()
}
