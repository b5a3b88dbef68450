//! The profile that a command's caches have: the device's own, or one from a file that `tune` wrote.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use wgpu_paged_attention::gpu::{DeviceProfile, TunedProfile};
use wgpu_paged_attention::testkit::Gpu;

use super::{Failure, Status};

/// Of a file with a profile; one takes some hundred.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Take the profile that `tune` saved in this file; refused on another adapter or driver.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

/// A profile, and in words where it comes from and how it differs from the device's own.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenProfile {
    pub profile: DeviceProfile,
    pub source: String,
}

impl ProfileArgs {
    /// The profile of the file; without one, what ships for this device, or its own.
    pub fn choose(&self, gpu: &Gpu) -> Result<ChosenProfile, Failure> {
        let Some(path) = &self.profile else { return Ok(ChosenProfile::of(gpu)) };
        let limits = gpu.device.limits();
        let profile = read_profile(path)?
            .for_device(&gpu.info, gpu.device.features(), &limits)
            .map_err(|error| refused(path, &error.to_string()))?;
        Ok(ChosenProfile::new(gpu, profile, &path.display().to_string()))
    }
}

impl ChosenProfile {
    pub fn of(gpu: &Gpu) -> Self {
        match DeviceProfile::shipped(&gpu.info, gpu.device.features(), &gpu.device.limits()) {
            Some(profile) => Self::new(gpu, profile, "shipped"),
            None => Self { profile: DeviceProfile::of(&gpu.device), source: "default".to_owned() },
        }
    }

    pub fn new(gpu: &Gpu, profile: DeviceProfile, from: &str) -> Self {
        let source = described(from, &profile, &DeviceProfile::of(&gpu.device));
        Self { profile, source }
    }
}

/// Where a profile comes from, and in which settings it differs from the device's own.
pub fn described(from: &str, profile: &DeviceProfile, own: &DeviceProfile) -> String {
    match &*profile.differences(own).join(", ") {
        "" => format!("{from}, as the default"),
        differences => format!("{from}: {differences}"),
    }
}

/// What a file says, whatever device it is for.
pub fn read_profile(path: &Path) -> Result<TunedProfile, Failure> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    let bytes = read.map_err(|error| refused(path, &format!("cannot be read: {error}")))? as u64;
    if bytes > MAX_BYTES {
        return Err(refused(path, &format!("has more than {MAX_BYTES} bytes; give a file that `tune` wrote")));
    }
    TunedProfile::from_toml(&text).map_err(|error| refused(path, &error.to_string()))
}

fn refused(path: &Path, why: &str) -> Failure {
    Failure::new(Status::Usage, format!("--profile {}: {why}", path.display()))
}
