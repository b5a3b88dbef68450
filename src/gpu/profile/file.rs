//! A profile in a file: what was measured on one device, with one driver and one version of this crate.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::DeviceProfile;
use crate::gpu::compat;
use crate::gpu::error::SpecError;
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::shape::{LaneComm, Scoring};

/// Of a line or a value in a message.
const MOST_SHOWN: usize = 80;

/// Profiles that were measured and ship with this crate; none was measured on a GPU yet.
const SHIPPED: &[&str] = &[];

/// Writes the settings of a profile: the fields that tuning chooses. A field that stands here is in every file, and
/// [`check`](DeviceProfile::check) knows its limits; what is not here is a limit of the device.
macro_rules! settings {
    ($($field:ident: $kind:ty,)*) => {
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Settings {
            $($field: $kind,)*
        }

        impl Settings {
            fn of(profile: &DeviceProfile) -> Self {
                Self { $($field: profile.$field,)* }
            }

            fn set(&self, profile: &mut DeviceProfile) {
                $(profile.$field = self.$field;)*
            }
        }
    };
}

settings! {
    lane_comm: LaneComm,
    scoring: Scoring,
    unrolled: bool,
    loads: u32,
    wide_loads: bool,
    subgroups: u32,
    tile_rows: u32,
    tile_tokens: u32,
    split_tokens: u32,
    chunk_form: ChunkForm,
    chunk_queries: u32,
    chunk_split_tokens: u32,
}

/// A profile that was measured, with the device, the driver and the version that it was measured on: the contents of a
/// file. `paged-attention tune --save FILE` writes one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TunedProfile {
    /// Version of this crate.
    pub version: String,
    /// The adapter's name.
    pub adapter: String,
    /// Its backend, in wgpu's words: `vulkan`, `metal` or `dx12`.
    pub backend: String,
    /// The driver's name.
    pub driver: String,
    /// The driver's version, in its own words.
    pub driver_info: String,
    /// The cache that was measured: its shape and storage, for readers.
    pub tuned_for: String,
    settings: Settings,
    /// What was measured, one for each operation.
    pub measured: Vec<Measured>,
}

/// Times of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The operation and its size.
    pub operation: String,
    /// Microseconds with the profile that the device has without tuning.
    pub default_us: f64,
    /// Microseconds with this profile.
    pub tuned_us: f64,
}

/// A profile that cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Not a profile: no TOML, or a key that is unknown, missing or of another type.
    #[error("line {line}, `{text}`: {problem}")]
    Text {
        /// Number of the line.
        line: usize,
        /// What it says.
        text: String,
        /// What is wrong with it, the key included.
        problem: String,
    },
    /// Measured on another adapter or driver, or with another version of this crate.
    #[error("{key} is `{found}` in the profile, but `{here}` here; tune on this device, or do without the profile")]
    Elsewhere {
        /// The key.
        key: &'static str,
        /// Its value in the profile.
        found: String,
        /// The value on this device.
        here: String,
    },
    /// A time that is no time.
    #[error("{key} of `{operation}` is {value}; it must be a number of microseconds above 0")]
    Time {
        /// The key.
        key: &'static str,
        /// The operation.
        operation: String,
        /// Its value.
        value: String,
    },
    /// A form that the device cannot run.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl ProfileError {
    fn of_text(text: &str, error: &toml::de::Error) -> Self {
        let start = error.span().map_or(0, |span| span.start).min(text.len());
        let before = text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count();
        let line = clip(text.lines().nth(before).unwrap_or_default().trim());
        // Some problems have several lines: the rest says where it is, once more.
        let problem = clip_to(error.message().lines().next().unwrap_or_default(), 4 * MOST_SHOWN);
        Self::Text { line: before + 1, text: line, problem }
    }
}

impl TunedProfile {
    /// What was measured on a device: `profile` was found the fastest for `tuned_for`.
    pub fn new(
        info: &wgpu::AdapterInfo,
        profile: &DeviceProfile,
        tuned_for: impl Into<String>,
        measured: Vec<Measured>,
    ) -> Self {
        let [(_, version), (_, adapter), (_, backend), (_, driver), (_, driver_info)] = identity(info);
        let (tuned_for, settings) = (tuned_for.into(), Settings::of(profile));
        Self { version, adapter, backend, driver, driver_info, tuned_for, settings, measured }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`ProfileError::Elsewhere`] for one of another version of this crate, whose keys may be others;
    /// [`ProfileError::Text`] for a key that is unknown, missing or of another type; [`ProfileError::Time`].
    pub fn from_toml(text: &str) -> Result<Self, ProfileError> {
        #[derive(Deserialize)]
        struct Version {
            version: String,
        }
        let of_text = |error: toml::de::Error| ProfileError::of_text(text, &error);
        let Version { version } = toml::from_str(text).map_err(of_text)?;
        if version != crate_version() {
            return Err(elsewhere("version", &version, crate_version()));
        }
        let profile: Self = toml::from_str(text).map_err(of_text)?;
        for Measured { operation, default_us, tuned_us } in &profile.measured {
            for (key, us) in [("default_us", *default_us), ("tuned_us", *tuned_us)] {
                if !(us.is_finite() && us > 0.0) {
                    return Err(ProfileError::Time { key, operation: clip(operation), value: us.to_string() });
                }
            }
        }
        Ok(profile)
    }

    /// The text of a file, which [`from_toml`](Self::from_toml) reads.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("texts, numbers and tables are TOML")
    }

    /// The profile of a device with these features and limits: its own limits, and the settings of this one.
    ///
    /// # Errors
    /// [`ProfileError::Elsewhere`] on another adapter, backend or driver, [`ProfileError::Spec`] for settings that are out of
    /// range or that the device cannot run.
    pub fn for_device(
        &self,
        info: &wgpu::AdapterInfo,
        features: wgpu::Features,
        limits: &wgpu::Limits,
    ) -> Result<DeviceProfile, ProfileError> {
        let own = [&self.version, &self.adapter, &self.backend, &self.driver, &self.driver_info];
        for ((key, here), found) in identity(info).iter().zip(own) {
            if found != here {
                return Err(elsewhere(key, found, here));
            }
        }
        let mut profile = DeviceProfile::new(info, features, limits);
        self.settings.set(&mut profile);
        profile.check_for(info, features, limits)?;
        Ok(profile)
    }
}

impl DeviceProfile {
    /// The profile of a device from the text of a file, which was measured on such a device; see [`TunedProfile`].
    ///
    /// # Errors
    /// Those of [`TunedProfile::from_toml`] and [`TunedProfile::for_device`].
    pub fn from_toml(text: &str, device: &wgpu::Device) -> Result<Self, ProfileError> {
        TunedProfile::from_toml(text)?.for_device(&compat::adapter_info(device), device.features(), &device.limits())
    }

    /// The profile that was measured on such a device and ships with this crate, if there is one: for this adapter and this
    /// driver, to the letter. [`of`](Self::of) gives the form that the maker's compiler takes best.
    pub fn shipped(info: &wgpu::AdapterInfo, features: wgpu::Features, limits: &wgpu::Limits) -> Option<Self> {
        first_for(SHIPPED, info, features, limits)
    }

    /// The settings in which this profile differs from another one, as a file has them: `loads = 4`.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let lines = |profile| toml::to_string(&Settings::of(profile)).expect("numbers and texts are TOML");
        let (own, others) = (lines(self), lines(other));
        let others: HashSet<&str> = others.lines().collect();
        own.lines().filter(|line| !others.contains(line)).map(str::to_owned).collect()
    }
}

/// What a profile holds for; each under its key.
fn identity(info: &wgpu::AdapterInfo) -> [(&'static str, String); 5] {
    [
        ("version", crate_version().to_owned()),
        ("adapter", info.name.clone()),
        ("backend", info.backend.to_string()),
        ("driver", info.driver.clone()),
        ("driver_info", info.driver_info.clone()),
    ]
}

fn crate_version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

fn first_for(
    texts: &[&str],
    info: &wgpu::AdapterInfo,
    features: wgpu::Features,
    limits: &wgpu::Limits,
) -> Option<DeviceProfile> {
    texts.iter().find_map(|text| TunedProfile::from_toml(text).ok()?.for_device(info, features, limits).ok())
}

fn elsewhere(key: &'static str, found: &str, here: &str) -> ProfileError {
    ProfileError::Elsewhere { key, found: clip(found), here: here.to_owned() }
}

fn clip(text: &str) -> String {
    clip_to(text, MOST_SHOWN)
}

fn clip_to(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests;
