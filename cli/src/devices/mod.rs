//! `paged-attention devices`: what there is to compute on, and what the kernels would make of it.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use wgpu_paged_attention::gpu::{
    DeviceProfile, TunedProfile, matrix_features, recommended_features, recommended_limits,
};
use wgpu_paged_attention::testkit::{
    AdapterChoice, OpenError, adapters, choose_adapter, describe_driver, is_software, shader_compiler,
};
use wgpu_paged_attention::wgpu;

use crate::common::{Backend, Failure, Report, Status, TableArgs, described, read_profile};
use crate::html::{Page, Section};
use crate::report::fmt::count;
use crate::report::{SCHEMA, Table, records_csv};

/// Of an adapter in the table.
const LINES: usize = 18;

#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Only adapters of this backend.
    #[arg(long)]
    pub backend: Option<Backend>,
    /// Say on which adapters this file's profile holds, which `tune` saved.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    #[command(flatten)]
    pub tables: TableArgs,
}

#[derive(Debug, Serialize, Deserialize)]
struct Devices {
    schema: u32,
    adapters: Vec<Device>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Device {
    /// What `--adapter` takes.
    number: usize,
    name: String,
    device_type: String,
    software: bool,
    backend: String,
    driver: String,
    kernel: String,
    /// Where the numbers of the kernels come from: the maker's table, or measurements.
    #[serde(default)]
    profile: String,
    #[serde(default)]
    shader_compiler: String,
    limits: Limits,
    features: Features,
}

#[derive(Debug, Serialize, Deserialize)]
struct Limits {
    storage_binding_bytes: u64,
    buffer_bytes: u64,
    workgroup_memory_bytes: u32,
    workgroup_invocations: u32,
    storage_offset_alignment: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Features {
    subgroups: bool,
    subgroup_min_size: u32,
    subgroup_max_size: u32,
    shader_f16: bool,
    /// Matrix units of the size that the kernels know.
    #[serde(default)]
    matrix_units: bool,
    timestamps: bool,
}

impl Device {
    fn of(number: usize, adapter: &wgpu::Adapter, file: Option<&TunedProfile>) -> Self {
        let (info, offered, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let (profile, source) = profile(adapter, file);
        Self {
            number,
            software: is_software(&info),
            device_type: format!("{:?}", info.device_type),
            backend: info.backend.to_string(),
            driver: describe_driver(&info),
            kernel: profile.lane_comm.to_string(),
            profile: source,
            shader_compiler: shader_compiler(info.backend, features).to_owned(),
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
                matrix_units: !matrix_features(adapter).is_empty(),
                timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            },
            name: info.name,
        }
    }

    fn lines(&self, count: fn(u64) -> String) -> [(&'static str, String); LINES] {
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
            ("storage binding", format!("{} MiB", count(limits.storage_binding_bytes >> 20))),
            ("buffer", format!("{} MiB", count(limits.buffer_bytes >> 20))),
            ("workgroup memory", format!("{} bytes", count(limits.workgroup_memory_bytes.into()))),
            ("workgroup size", format!("{} invocations", count(limits.workgroup_invocations.into()))),
            ("offset alignment", format!("{} bytes", limits.storage_offset_alignment)),
            ("subgroups", subgroups),
            ("f16 in shaders", yes(features.shader_f16)),
            ("matrix units", yes(features.matrix_units)),
            ("timestamps", yes(features.timestamps)),
            ("decode kernel", self.kernel.clone()),
            ("profile", self.profile.clone()),
            ("shader compiler", self.shader_compiler.clone()),
        ]
    }
}

/// The profile that a device of this adapter has, and in words where it comes from.
fn profile(adapter: &wgpu::Adapter, file: Option<&TunedProfile>) -> (DeviceProfile, String) {
    let features = recommended_features(adapter) | matrix_features(adapter);
    let (info, limits) = (adapter.get_info(), recommended_limits(adapter));
    let own = DeviceProfile::new(&info, features, &limits);
    let (profile, source) = match file.map(|file| file.for_device(&info, features, &limits)) {
        Some(Ok(profile)) => (profile, "the file's"),
        Some(Err(error)) => return (own, format!("default; not the file's: {error}")),
        None => match DeviceProfile::shipped(&info, features, &limits) {
            Some(profile) => (profile, "shipped"),
            None => return (own, "default".to_owned()),
        },
    };
    let source = described(source, &profile, &own);
    (profile, source)
}

pub fn run(args: &DevicesArgs) -> Result<Status, Failure> {
    let files = args.tables.prepare(&[&args.profile])?;
    let file = args.profile.as_deref().map(read_profile).transpose()?;
    let choice = AdapterChoice { backend: args.backend.map(wgpu::Backend::from), ..AdapterChoice::default() };
    // Their numbers are those that `--adapter` takes beside the same `--backend`.
    let device = |(number, adapter)| Device::of(number, adapter, file.as_ref());
    let mut adapters: Vec<_> = adapters(choice.backend)?.iter().enumerate().map(device).collect();
    adapters.retain(|device| choice.backend.is_none_or(|backend| device.backend == backend.to_str()));
    let devices = Devices { schema: SCHEMA, adapters };
    if devices.adapters.is_empty() {
        files.write(&devices)?;
        return Err(choose_adapter(&choice).err().unwrap_or(OpenError::NoAdapter).into());
    }
    files.deliver(&devices)?;
    Ok(Status::Ok)
}

impl Report for Devices {
    const KIND: &'static str = "devices";

    fn to_csv(&self) -> Result<String, csv::Error> {
        let lines = self.adapters.iter().map(|device| device.lines(|number| number.to_string()));
        let header = lines.clone().take(1).map(|lines| lines.map(|(name, _)| name.to_owned()));
        records_csv(header.chain(lines.map(|lines| lines.map(|(_, cell)| cell))))
    }

    /// A column for each adapter: their lines are many and long, they themselves are few.
    fn page(&self) -> Page {
        let lines: Vec<_> = self.adapters.iter().map(|device| device.lines(count)).collect();
        let row = |line: usize| -> Vec<String> {
            let cells = lines.iter().map(|device| device[line].1.clone());
            lines.first().map(|device| device[line].0.to_owned()).into_iter().chain(cells).collect()
        };
        let mut rows = (0..LINES).map(row);
        let table = Table {
            header: rows.next().unwrap_or_default(),
            rows: rows.collect(),
            words: 1 + lines.len(),
            ..Table::default()
        };
        Page { sections: vec![Section::table("", table)], ..Page::default() }
    }
}
