//! Finding an adapter, opening a device on it, and reading back.

use std::sync::OnceLock;

use bytemuck::{NoUninit, Pod};
use wgpu::util::DeviceExt;

use crate::gpu::{check_alive, recommended_features, recommended_limits};

/// The one instance of the process: Mesa's drivers do not stand several.
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::PRIMARY;
        descriptor.flags = wgpu::InstanceFlags::empty();
        wgpu::Instance::new(descriptor)
    })
}

/// All adapters, real GPUs first.
pub fn adapters() -> Vec<wgpu::Adapter> {
    let mut adapters = pollster::block_on(instance().enumerate_adapters(wgpu::Backends::PRIMARY));
    adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    adapters
}

/// Driver and version, as one text.
pub fn describe_driver(info: &wgpu::AdapterInfo) -> String {
    match (info.driver.is_empty(), info.driver_info.is_empty()) {
        (true, true) => "unknown".to_owned(),
        (false, true) => info.driver.clone(),
        (true, false) => info.driver_info.clone(),
        (false, false) => format!("{} {}", info.driver, info.driver_info),
    }
}

/// Which adapter to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// Part of the adapter's name, in any case, or, if it is all digits, its number in the list of [`adapters`]; `None` takes
    /// the first.
    pub name: Option<String>,
    /// Refuse adapters that compute on a CPU.
    pub require_gpu: bool,
}

/// How to open a device.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// The adapter.
    pub adapter: AdapterChoice,
    /// Features wanted where the adapter has them; `None` takes [`recommended_features`].
    pub features: Option<wgpu::Features>,
    /// WebGPU's default limits instead of [`recommended_limits`].
    pub default_limits: bool,
}

/// No device could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No driver, or no device behind it.
    #[error(
        "no GPU adapter found; install a driver (on Debian and Ubuntu, `apt-get install mesa-vulkan-drivers` gives a \
         software one), or run `make setup`"
    )]
    NoAdapter,
    /// No adapter has that name or number.
    #[error("no adapter is called or numbered `{wanted}`; there are: {known}")]
    NoSuchAdapter {
        /// What was asked for.
        wanted: String,
        /// The adapters that exist.
        known: String,
    },
    /// Only software adapters, and they were refused.
    #[error(
        "a GPU is required, but `{name}` computes on the CPU; install the GPU's Vulkan driver, or drop --require-gpu"
    )]
    OnlySoftware {
        /// The adapter found.
        name: String,
    },
    /// The driver refused.
    #[error("`{name}` gives no device: {message}")]
    NoDevice {
        /// The adapter.
        name: String,
        /// The driver's words.
        message: String,
    },
}

/// A device with its queue.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// The adapter, as it describes itself.
    pub info: wgpu::AdapterInfo,
    /// The device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
}

impl Gpu {
    /// Opens a device.
    ///
    /// # Errors
    /// [`OpenError`], with the remedy.
    pub fn open(options: &GpuOptions) -> Result<Self, OpenError> {
        let adapter = choose_adapter(&options.adapter)?;
        let info = adapter.get_info();
        let limits = if options.default_limits { wgpu::Limits::default() } else { recommended_limits(&adapter) };
        let features =
            options.features.map_or_else(|| recommended_features(&adapter), |wanted| wanted & adapter.features());
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("paged-attention"),
            required_features: features,
            required_limits: limits,
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|error| OpenError::NoDevice { name: info.name.clone(), message: error.to_string() })?;
        Ok(Self { info, device, queue })
    }

    /// Whether the adapter computes on a CPU.
    pub fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// A storage buffer with these contents.
    pub fn storage<T: NoUninit>(&self, label: &str, contents: &[T]) -> wgpu::Buffer {
        self.device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: Some(label),
            contents: bytemuck::cast_slice(contents),
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        })
    }

    /// Submits an encoder and waits until the device is done, or lost.
    ///
    /// # Panics
    /// If wgpu finds the commands invalid on a device that is not lost.
    pub fn submit(&self, encoder: wgpu::CommandEncoder) {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        self.queue.submit([encoder.finish()]);
        // Fails only if the device is lost, and then reading back says so.
        let _ = self.device.poll(wgpu::PollType::wait_indefinitely());
        if let Some(error) = pollster::block_on(scope.pop()) {
            assert!(check_alive(&self.device).is_err(), "{error}");
        }
    }

    /// The contents of a buffer; `None` if the device is lost.
    pub fn read<T: Pod>(&self, buffer: &wgpu::Buffer) -> Option<Vec<T>> {
        check_alive(&self.device).ok()?;
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("readback"),
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        let (sender, receiver) = std::sync::mpsc::channel();
        encoder.map_buffer_on_submit(&staging, wgpu::MapMode::Read, .., move |result| {
            // The receiver outlives the wait below.
            let _ = sender.send(result);
        });
        self.submit(encoder);
        // Another thread that polls may have taken the callback along and be about to run it.
        receiver.recv().ok()?.ok()?;
        let bytes = staging.get_mapped_range(..).ok()?;
        Some(bytemuck::pod_collect_to_vec(&bytes[..]))
    }
}

/// The adapter of that name or number, without opening a device on it.
///
/// # Errors
/// [`OpenError`], with the remedy.
pub fn choose_adapter(choice: &AdapterChoice) -> Result<wgpu::Adapter, OpenError> {
    let mut adapters = adapters();
    let index = match &choice.name {
        None => 0,
        Some(wanted) => {
            let wanted = wanted.trim();
            let lower = wanted.to_lowercase();
            let named = |adapter: &wgpu::Adapter| adapter.get_info().name.to_lowercase().contains(&lower);
            let found = match wanted.bytes().all(|byte| byte.is_ascii_digit()) {
                // Part of a name may be empty or a number, too, but that is not what is meant.
                true => wanted.parse().ok().filter(|&number: &usize| number < adapters.len()),
                false => adapters.iter().position(named),
            };
            found.ok_or_else(|| OpenError::NoSuchAdapter {
                wanted: wanted.to_owned(),
                known: adapters.iter().map(|adapter| adapter.get_info().name).collect::<Vec<_>>().join(", "),
            })?
        }
    };
    if index >= adapters.len() {
        return Err(OpenError::NoAdapter);
    }
    let adapter = adapters.swap_remove(index);
    let info = adapter.get_info();
    if choice.require_gpu && info.device_type == wgpu::DeviceType::Cpu {
        return Err(OpenError::OnlySoftware { name: info.name });
    }
    Ok(adapter)
}
