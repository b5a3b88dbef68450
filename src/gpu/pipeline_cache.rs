//! Compiled kernels that outlive the program: a driver's cache of pipelines, in a file.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::compat;
use super::error::DeviceError;
use super::make::{check_alive, scoped};
use crate::host::AtomicFile;

/// Bytes of a file, at most: some hundred times what the kernels of one model take.
pub const MAX_PIPELINE_CACHE_BYTES: u64 = 256 << 20;

/// How every file begins. The length of the whole file and a checksum of all but itself follow, and then the body.
const MAGIC: [u8; 8] = *b"pagedpc\n";
const CHECKSUM_BYTES: usize = 32;
const PREFIX_BYTES: usize = MAGIC.len() + 8 + CHECKSUM_BYTES;

/// The body begins with it: another release compiles other kernels, and may write another body.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why a pipeline cache was not saved or loaded. Nothing was changed, and no byte of a refused file has reached wgpu.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineCacheError {
    /// The device has no pipeline caches: wgpu offers them on Vulkan, to devices that ask.
    #[error(
        "the device was made without Features::PIPELINE_CACHE; ask for recommended_features when it is made, or go without \
         a pipeline cache where the adapter does not offer it"
    )]
    Unsupported,
    /// wgpu gives no data for this cache.
    #[error("wgpu gives no data of this pipeline cache; save one that load_pipeline_cache made for this device")]
    NoData,
    /// The file could not be read or written.
    #[error("cannot {action} the pipeline cache: {message}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Its kind.
        kind: io::ErrorKind,
        /// The system's words.
        message: String,
    },
    /// It has more bytes than a file may have.
    #[error("the pipeline cache has {bytes} bytes or more, but {limit} are allowed; delete the file and compile anew")]
    TooLarge {
        /// Bytes that were seen.
        bytes: u64,
        /// [`MAX_PIPELINE_CACHE_BYTES`].
        limit: u64,
    },
    /// It does not begin like a pipeline cache of this crate.
    #[error("this is no pipeline cache: it begins with {found:02x?}, not with {expected:02x?}; give another file")]
    NotAPipelineCache {
        /// Its first bytes.
        found: Vec<u8>,
        /// Those of a pipeline cache.
        expected: [u8; 8],
    },
    /// It ends too early.
    #[error("the pipeline cache ends after {given} of {needed} bytes; delete the file and compile anew")]
    Truncated {
        /// Bytes that it should have, as far as it tells.
        needed: u64,
        /// Bytes that are there.
        given: u64,
    },
    /// Something follows past its end.
    #[error("the pipeline cache has {given} bytes instead of {needed}; delete the file and compile anew")]
    Trailing {
        /// Bytes that it says it has.
        needed: u64,
        /// Bytes that are there.
        given: u64,
    },
    /// Its bytes are not those that were written.
    #[error("the pipeline cache is damaged: its checksum does not fit; delete the file and compile anew")]
    Checksum,
    /// Another version of this crate wrote it.
    #[error(
        "the pipeline cache was saved by version {saved}, but this is {expected}; delete the file and compile anew"
    )]
    Version {
        /// The version that saved it.
        saved: String,
        /// This version.
        expected: &'static str,
    },
    /// The body is none, though its checksum fits.
    #[error("the pipeline cache cannot be decoded: {message}; delete the file and compile anew")]
    Body {
        /// The decoder's words.
        message: String,
    },
    /// It was saved for another adapter.
    #[error(
        "the pipeline cache is for an adapter whose {field} is {saved}, not {expected}; give each adapter a file of its own"
    )]
    Adapter {
        /// What differs: name, vendor, device or backend.
        field: &'static str,
        /// The file's.
        saved: String,
        /// The device's.
        expected: String,
    },
    /// It was saved under another driver.
    #[error(
        "the pipeline cache is of another driver: {field} is {saved}, not {expected}; delete the file and compile anew"
    )]
    Driver {
        /// What differs: driver or driver_info.
        field: &'static str,
        /// The file's.
        saved: String,
        /// The device's.
        expected: String,
    },
    /// The device is lost, or wgpu refused the data.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The adapter and the driver for which the data holds.
#[derive(Serialize, Deserialize)]
struct Origin<'a> {
    name: &'a str,
    vendor: u32,
    device: u32,
    backend: &'a str,
    driver: &'a str,
    driver_info: &'a str,
}

/// Loads what [`save_pipeline_cache`] wrote for this adapter and driver, for
/// [`KvCache::set_pipeline_cache`](super::KvCache::set_pipeline_cache) and the engine's own pipelines. Without a file there
/// the cache is empty.
///
/// A damaged file, a cut one, or one of another adapter, driver or version is refused by name before any of it reaches
/// wgpu. But a checksum catches damage, not malice: a driver runs what it is given. **The file must lie where only the
/// user of the program can write.**
///
/// ```no_run
/// use wgpu_paged_attention::gpu::{AttentionSpec, KvCache, load_pipeline_cache, save_pipeline_cache};
/// # use std::path::Path;
/// # fn start(device: &wgpu::Device, mut cache: KvCache, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
///
/// let pipelines = load_pipeline_cache(device, path)?;
/// cache.set_pipeline_cache(pipelines.clone());
/// let attention = cache.attention(AttentionSpec::new(32))?;
/// attention.warm_up(&cache, 16)?;
/// save_pipeline_cache(&pipelines, device, path)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// All of [`PipelineCacheError`] but [`NoData`](PipelineCacheError::NoData).
pub fn load_pipeline_cache(device: &wgpu::Device, path: &Path) -> Result<wgpu::PipelineCache, PipelineCacheError> {
    // A lost device would refuse without a word.
    check_alive(device)?;
    check_feature(device)?;
    let file = read(path)?;
    let info = compat::adapter_info(device);
    let data = file.as_deref().map(|bytes| decode(bytes, &info)).transpose()?;
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("paged.pipelines"), data, fallback: true };
    let create = || {
        // SAFETY: the data must have come from `PipelineCache::get_data`. It has: `save_pipeline_cache` wraps nothing else,
        // and `decode` has unwrapped it, so the bytes are the ones that were wrapped, for this adapter and this driver. A
        // program cannot tell a file that another user wrote with a checksum that fits; the documentation asks for a place
        // where only the user of the program can write.
        unsafe { device.create_pipeline_cache(&descriptor) }
    };
    Ok(scoped(device, "the pipeline cache", data.map_or(0, |data| data.len() as u64), create)?)
}

/// Saves what a cache holds by now, for [`load_pipeline_cache`] at the next start; `device` is the one that it was made on.
/// An older file stays until the new one is complete. It holds kernels for one adapter and one driver, and grows with
/// every kernel that is compiled: some hundred kilobytes each.
///
/// # Errors
/// [`PipelineCacheError::Unsupported`], [`NoData`](PipelineCacheError::NoData), [`TooLarge`](PipelineCacheError::TooLarge) or
/// [`Io`](PipelineCacheError::Io); an older file is then as before.
pub fn save_pipeline_cache(
    cache: &wgpu::PipelineCache,
    device: &wgpu::Device,
    path: &Path,
) -> Result<(), PipelineCacheError> {
    check_feature(device)?;
    let data = cache.get_data().ok_or(PipelineCacheError::NoData)?;
    let bytes = encode(&data, &compat::adapter_info(device))?;
    let mut file = AtomicFile::create(path).map_err(failed("create"))?;
    file.write_all(&bytes).map_err(failed("write"))?;
    file.commit().map_err(failed("write"))
}

fn check_feature(device: &wgpu::Device) -> Result<(), PipelineCacheError> {
    if device.features().contains(wgpu::Features::PIPELINE_CACHE) {
        Ok(())
    } else {
        Err(PipelineCacheError::Unsupported)
    }
}

fn failed(action: &'static str) -> impl Fn(io::Error) -> PipelineCacheError {
    move |error| PipelineCacheError::Io { action, kind: error.kind(), message: error.to_string() }
}

/// The file; `None` if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, PipelineCacheError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed("open"))?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_PIPELINE_CACHE_BYTES + 1).read_to_end(&mut bytes).map_err(failed("read"))?;
    check_size(bytes.len())?;
    Ok(Some(bytes))
}

fn check_size(bytes: usize) -> Result<(), PipelineCacheError> {
    let (bytes, limit) = (bytes as u64, MAX_PIPELINE_CACHE_BYTES);
    if bytes > limit { Err(PipelineCacheError::TooLarge { bytes, limit }) } else { Ok(()) }
}

fn encode(data: &[u8], info: &wgpu::AdapterInfo) -> Result<Vec<u8>, PipelineCacheError> {
    let origin = Origin {
        name: &info.name,
        vendor: info.vendor,
        device: info.device,
        backend: info.backend.to_str(),
        driver: &info.driver,
        driver_info: &info.driver_info,
    };
    let body = postcard::to_allocvec(&(VERSION, origin, data))
        .map_err(|error| PipelineCacheError::Body { message: error.to_string() })?;
    let bytes = PREFIX_BYTES + body.len();
    check_size(bytes)?;
    let length = (bytes as u64).to_le_bytes();
    Ok([&MAGIC[..], &length, &checksum(&length, &body), &body].concat())
}

fn checksum(length: &[u8], body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    Sha256::new().chain_update(length).chain_update(body).finalize().into()
}

/// The data of a file, if this adapter and driver made it.
fn decode<'a>(bytes: &'a [u8], info: &wgpu::AdapterInfo) -> Result<&'a [u8], PipelineCacheError> {
    let given = bytes.len() as u64;
    let found = &bytes[..bytes.len().min(MAGIC.len())];
    if found != &MAGIC[..found.len()] {
        return Err(PipelineCacheError::NotAPipelineCache { found: found.to_vec(), expected: MAGIC });
    }
    let parts = bytes[found.len()..].split_first_chunk::<8>();
    let Some((length, (sum, body))) =
        parts.and_then(|(length, rest)| Some((length, rest.split_first_chunk::<CHECKSUM_BYTES>()?)))
    else {
        return Err(PipelineCacheError::Truncated { needed: PREFIX_BYTES as u64, given });
    };
    let needed = u64::from_le_bytes(*length);
    if given < needed {
        return Err(PipelineCacheError::Truncated { needed, given });
    }
    if given > needed {
        return Err(PipelineCacheError::Trailing { needed, given });
    }
    if checksum(length, body) != *sum {
        return Err(PipelineCacheError::Checksum);
    }
    let broken = |error: postcard::Error| PipelineCacheError::Body { message: error.to_string() };
    let (version, rest) = postcard::take_from_bytes::<&str>(body).map_err(broken)?;
    if version != VERSION {
        return Err(PipelineCacheError::Version { saved: version.to_owned(), expected: VERSION });
    }
    let ((origin, data), rest) = postcard::take_from_bytes::<(Origin<'_>, &[u8])>(rest).map_err(broken)?;
    if !rest.is_empty() {
        return Err(PipelineCacheError::Body { message: format!("{} bytes too many", rest.len()) });
    }
    origin.check(info)?;
    Ok(data)
}

impl Origin<'_> {
    fn check(&self, info: &wgpu::AdapterInfo) -> Result<(), PipelineCacheError> {
        let number = |number: u32| format!("{number:#06x}");
        for (field, saved, expected) in [
            ("name", self.name.to_owned(), info.name.clone()),
            ("vendor", number(self.vendor), number(info.vendor)),
            ("device", number(self.device), number(info.device)),
            ("backend", self.backend.to_owned(), info.backend.to_string()),
        ] {
            if saved != expected {
                return Err(PipelineCacheError::Adapter { field, saved, expected });
            }
        }
        for (field, saved, expected) in
            [("driver", self.driver, &info.driver), ("driver_info", self.driver_info, &info.driver_info)]
        {
            if saved != expected {
                let (saved, expected) = (saved.to_owned(), expected.clone());
                return Err(PipelineCacheError::Driver { field, saved, expected });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
