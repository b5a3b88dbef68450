//! Choosing an adapter: by name, number and backend, or as wgpu's environment variables say.

use std::env::consts::OS;
use std::sync::{Mutex, PoisonError};

use super::recorder;

/// Those that the kernels run on.
const BACKENDS: wgpu::Backends = wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

/// Whether this program holds DXC; wgpu links it there only.
const STATIC_DXC: bool = cfg!(all(feature = "static-dxc", windows, target_env = "msvc", not(target_arch = "aarch64")));

/// Which adapter to open. An option that is given beats wgpu's environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// Part of the adapter's name, in any case, or, if it is all digits, its number in the list of [`adapters`]; `None` takes
    /// the first.
    pub name: Option<String>,
    /// The backend: Windows lists a GPU once for Vulkan and once for DX12.
    pub backend: Option<wgpu::Backend>,
    /// Refuse adapters that compute on a CPU.
    pub require_gpu: bool,
}

/// No device could be opened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No driver, or no device behind it.
    #[error("no GPU adapter found; {}", no_adapter_remedy(OS))]
    NoAdapter,
    /// No adapter has that name or number.
    #[error("no adapter is called or numbered {wanted}; there are: {known}")]
    NoSuchAdapter {
        /// What was asked for, and by which variable.
        wanted: String,
        /// The adapters that exist.
        known: String,
    },
    /// No adapter has that backend.
    #[error("no adapter has the backend {backend}, which --backend or WGPU_BACKEND asks for; found: {known}")]
    NoSuchBackend {
        /// What was asked for.
        backend: String,
        /// The adapters that exist.
        known: String,
    },
    /// An environment variable holds what has no meaning here.
    #[error("{name} is `{value}`; it must be {rule}")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        rule: &'static str,
    },
    /// Only software adapters, and they were refused.
    #[error("a GPU is required, but `{name}` computes on the CPU; {}, or drop --require-gpu", driver_remedy(OS))]
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

fn no_adapter_remedy(os: &str) -> &'static str {
    match os {
        "linux" => {
            "install a driver (on Debian and Ubuntu, `apt-get install mesa-vulkan-drivers` gives a software one), or run \
             `make setup`"
        }
        _ => driver_remedy(os),
    }
}

fn driver_remedy(os: &str) -> &'static str {
    match os {
        "windows" => "install the driver of the GPU's maker",
        "macos" | "ios" => "use a machine whose GPU supports Metal",
        _ => "install the GPU's Vulkan driver",
    }
}

/// What wgpu's environment variables say of the choice; wgpu itself reads the others.
#[derive(Debug, PartialEq, Eq)]
struct Environment {
    backends: wgpu::Backends,
    name: Option<String>,
    power: wgpu::PowerPreference,
}

impl Environment {
    fn of_process() -> Result<Self, OpenError> {
        Self::read(&|name| std::env::var(name).ok())
    }

    /// Refuses what wgpu would only log, and the compiler that ends the program where it is not linked.
    fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, OpenError> {
        let given =
            |name: &'static str| variable(name).map(|value| value.trim().to_lowercase()).filter(|v| !v.is_empty());
        let refused = |name, value, rule| Err(OpenError::Environment { name, value, rule });
        let mut backends = BACKENDS;
        if let Some(list) = given("WGPU_BACKEND") {
            backends = wgpu::Backends::from_comma_list(&list);
            if list.split(',').any(|name| !BACKENDS.intersects(wgpu::Backends::from_comma_list(name))) {
                return refused("WGPU_BACKEND", list, "a list of vulkan, dx12 and metal");
            }
        }
        let power = match given("WGPU_POWER_PREF").as_deref() {
            None | Some("none") => wgpu::PowerPreference::None,
            Some("low") => wgpu::PowerPreference::LowPower,
            Some("high") => wgpu::PowerPreference::HighPerformance,
            Some(other) => return refused("WGPU_POWER_PREF", other.to_owned(), "low, high or none"),
        };
        if let Some(compiler) = given("WGPU_DX12_COMPILER") {
            match compiler.parse() {
                Ok(wgpu::Dx12Compiler::StaticDxc) if !STATIC_DXC => {
                    let rule = "dxc, fxc or auto: this program was built without the feature static-dxc";
                    return refused("WGPU_DX12_COMPILER", compiler, rule);
                }
                Ok(_) => {}
                Err(_) => return refused("WGPU_DX12_COMPILER", compiler, "dxc, staticdxc, fxc or auto"),
            }
        }
        Ok(Self { backends, name: given("WGPU_ADAPTER_NAME"), power })
    }

    /// What the instance offers: the variable's backends, or if it leaves out the one that an option asks for, that alone.
    fn offered(&self, asked: Option<wgpu::Backend>) -> wgpu::Backends {
        asked.map(wgpu::Backends::from).filter(|&asked| !self.backends.contains(asked)).unwrap_or(self.backends)
    }
}

/// The one instance of the process for these backends: Mesa's drivers do not stand several.
pub(super) fn instance(backends: wgpu::Backends) -> wgpu::Instance {
    static INSTANCES: Mutex<Vec<(wgpu::Backends, wgpu::Instance)>> = Mutex::new(Vec::new());
    let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, instance)) = instances.iter().find(|(of, _)| *of == backends) {
        return instance.clone();
    }
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.flags = wgpu::InstanceFlags::empty();
    descriptor = descriptor.with_env();
    descriptor.backends = backends;
    // Those of a recorder, the one adapter that this backend has.
    descriptor.backend_options.noop = wgpu::NoopBackendOptions {
        subgroup_min_size: Some(recorder::LANES),
        subgroup_max_size: Some(recorder::LANES),
        ..wgpu::NoopBackendOptions::enabled()
    };
    let instance = wgpu::Instance::new(descriptor);
    instances.push((backends, instance.clone()));
    instance
}

/// Sorts real GPUs before software, and Vulkan before DX12, which has no subgroups unless DXC is there.
fn rank(info: &wgpu::AdapterInfo, power: wgpu::PowerPreference) -> (bool, u8, bool) {
    let frugal = power == wgpu::PowerPreference::LowPower;
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => u8::from(frugal),
        wgpu::DeviceType::IntegratedGpu => u8::from(!frugal),
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    (is_software(info), kind, info.backend == wgpu::Backend::Dx12)
}

fn listed(environment: &Environment, asked: Option<wgpu::Backend>) -> Vec<wgpu::Adapter> {
    let backends = environment.offered(asked);
    let mut adapters = pollster::block_on(instance(backends).enumerate_adapters(backends));
    adapters.sort_by_key(|adapter| rank(&adapter.get_info(), environment.power));
    adapters
}

/// All adapters, real GPUs first, as far as `WGPU_BACKEND` lets; if it leaves `asked` out, those of `asked` alone.
///
/// # Errors
/// [`OpenError::Environment`].
pub fn adapters(asked: Option<wgpu::Backend>) -> Result<Vec<wgpu::Adapter>, OpenError> {
    Ok(listed(&Environment::of_process()?, asked))
}

/// Whether an adapter computes on a CPU, by its type or its name.
pub fn is_software(info: &wgpu::AdapterInfo) -> bool {
    crate::gpu::is_software(info)
}

/// Who compiles the kernels, and the remedy where that is slow. wgpu does not say which compiler of DX12 it loaded, but all
/// of these features need DXC.
pub fn shader_compiler(backend: wgpu::Backend, features: wgpu::Features) -> &'static str {
    const OF_DXC: wgpu::Features =
        wgpu::Features::SUBGROUP.union(wgpu::Features::SHADER_INT64).union(wgpu::Features::SHADER_F16);
    match backend {
        wgpu::Backend::Dx12 if features.intersects(OF_DXC) => "DXC",
        wgpu::Backend::Dx12 => "FXC, without subgroups: put dxcompiler.dll 1.8.2502 or newer beside the program",
        _ => "the driver's",
    }
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

/// The adapter of that name or number and backend, without opening a device on it.
///
/// # Errors
/// [`OpenError`], with the remedy.
pub fn choose_adapter(choice: &AdapterChoice) -> Result<wgpu::Adapter, OpenError> {
    let environment = Environment::of_process()?;
    let mut adapters = listed(&environment, choice.backend);
    let infos: Vec<_> = adapters.iter().map(wgpu::Adapter::get_info).collect();
    Ok(adapters.swap_remove(chosen(&infos, choice, &environment)?))
}

/// The place in the sorted list of what was chosen.
fn chosen(infos: &[wgpu::AdapterInfo], choice: &AdapterChoice, environment: &Environment) -> Result<usize, OpenError> {
    let fits = |place: &usize| choice.backend.is_none_or(|backend| infos[*place].backend == backend);
    let places: Vec<usize> = (0..infos.len()).filter(fits).collect();
    let described = |place: &usize| format!("{place} {} ({})", infos[*place].name, infos[*place].backend);
    let known = |places: &[usize]| match places {
        [] => "none".to_owned(),
        _ => places.iter().map(described).collect::<Vec<_>>().join(", "),
    };
    let Some(&first) = places.first() else {
        let offered = environment.offered(choice.backend);
        if choice.backend.is_none() && offered == BACKENDS {
            return Err(OpenError::NoAdapter);
        }
        let names = |backends: wgpu::Backends| {
            let all = [wgpu::Backend::Vulkan, wgpu::Backend::Dx12, wgpu::Backend::Metal];
            all.into_iter().filter(|&one| backends.contains(one.into())).map(wgpu::Backend::to_str).collect::<Vec<_>>()
        };
        let backend = choice.backend.map_or_else(|| names(offered).join(" or "), |backend| backend.to_string());
        return Err(OpenError::NoSuchBackend { backend, known: known(&(0..infos.len()).collect::<Vec<_>>()) });
    };
    let called = |name: &str| {
        let name = name.to_lowercase();
        places.iter().copied().find(|&place| infos[place].name.to_lowercase().contains(&name))
    };
    let found = match (choice.name.as_deref().map(str::trim), &environment.name) {
        (None, None) => Ok(first),
        // Part of a name may be empty or a number, too, but that is not what is meant.
        (Some(number), _) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            number.parse().ok().filter(|number| places.contains(number)).ok_or(format!("`{number}`"))
        }
        (Some(name), _) => called(name).ok_or(format!("`{name}`")),
        (None, Some(name)) => called(name).ok_or(format!("`{name}`, as WGPU_ADAPTER_NAME asks")),
    };
    let place = found.map_err(|wanted| OpenError::NoSuchAdapter { wanted, known: known(&places) })?;
    match choice.require_gpu && is_software(&infos[place]) {
        true => Err(OpenError::OnlySoftware { name: infos[place].name.clone() }),
        false => Ok(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::{Backend, DeviceType};

    fn info(name: &str, device_type: DeviceType, backend: Backend) -> wgpu::AdapterInfo {
        wgpu::AdapterInfo { name: name.to_owned(), ..wgpu::AdapterInfo::new(device_type, backend) }
    }

    fn environment(variables: &[(&str, &str)]) -> Result<Environment, OpenError> {
        let value = |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
        Environment::read(&value)
    }

    /// As Windows lists them: every GPU twice, and Microsoft's software.
    fn windows(power: wgpu::PowerPreference) -> Vec<wgpu::AdapterInfo> {
        let mut infos = vec![
            info("Microsoft Basic Render Driver", DeviceType::IntegratedGpu, Backend::Dx12),
            info("llvmpipe (LLVM 19)", DeviceType::Cpu, Backend::Vulkan),
            info("Iris", DeviceType::IntegratedGpu, Backend::Dx12),
            info("RTX", DeviceType::DiscreteGpu, Backend::Dx12),
            info("Iris", DeviceType::IntegratedGpu, Backend::Vulkan),
            info("RTX", DeviceType::DiscreteGpu, Backend::Vulkan),
        ];
        infos.sort_by_key(|info| rank(info, power));
        infos
    }

    fn choice(name: Option<&str>, backend: Option<Backend>) -> AdapterChoice {
        AdapterChoice { name: name.map(str::to_owned), backend, require_gpu: false }
    }

    #[test]
    fn gpus_come_before_software_and_vulkan_before_dx12() {
        let names = |power| windows(power).iter().map(|i| format!("{} {}", i.name, i.backend)).collect::<Vec<_>>();
        let software = ["Microsoft Basic Render Driver dx12", "llvmpipe (LLVM 19) vulkan"];
        let (big, small) = (["RTX vulkan", "RTX dx12"], ["Iris vulkan", "Iris dx12"]);
        assert_eq!(names(wgpu::PowerPreference::None), [big, small, software].concat());
        assert_eq!(names(wgpu::PowerPreference::HighPerformance), [big, small, software].concat());
        assert_eq!(names(wgpu::PowerPreference::LowPower), [small, big, software].concat());
    }

    #[test]
    fn software_is_known_by_its_name_too() {
        let no_flag = |name| is_software(&info(name, DeviceType::IntegratedGpu, Backend::Dx12));
        assert!(no_flag("llvmpipe (LLVM 15.0.6, 256 bits)") && no_flag("SwiftShader Device (Subzero)"));
        assert!(no_flag("Microsoft Basic Render Driver") && !no_flag("NVIDIA GeForce RTX 4090"));
        assert!(is_software(&info("anything", DeviceType::Cpu, Backend::Vulkan)));
        let only = [info("llvmpipe", DeviceType::IntegratedGpu, Backend::Dx12)];
        let strict = AdapterChoice { require_gpu: true, ..AdapterChoice::default() };
        let refused = chosen(&only, &strict, &environment(&[]).unwrap()).unwrap_err();
        assert!(matches!(refused, OpenError::OnlySoftware { .. }), "{refused}");
    }

    #[test]
    fn a_backend_tells_apart_what_is_listed_twice() {
        let (infos, none) = (windows(wgpu::PowerPreference::None), environment(&[]).unwrap());
        let place = |name, backend| chosen(&infos, &choice(name, backend), &none);
        assert_eq!(place(None, None), Ok(0));
        assert_eq!(place(None, Some(Backend::Dx12)), Ok(1));
        assert_eq!(place(Some("iris"), None), Ok(2));
        assert_eq!(place(Some("iris"), Some(Backend::Dx12)), Ok(3));
        // A number is that of the whole list, whatever the backend.
        assert_eq!(place(Some("3"), Some(Backend::Dx12)), Ok(3));
        let wrong = place(Some("2"), Some(Backend::Dx12)).unwrap_err().to_string();
        assert!(wrong.contains("numbered `2`; there are: 1 RTX (dx12), 3 Iris (dx12)"), "{wrong}");
        let absent = place(None, Some(Backend::Metal)).unwrap_err().to_string();
        assert!(absent.contains("backend metal") && absent.contains("0 RTX (vulkan)"), "{absent}");
    }

    #[test]
    fn options_beat_the_environment() {
        let infos = windows(wgpu::PowerPreference::None);
        let iris = environment(&[("WGPU_ADAPTER_NAME", "Iris"), ("WGPU_BACKEND", "Vulkan, d3d12")]).unwrap();
        assert_eq!(chosen(&infos, &choice(None, None), &iris), Ok(2));
        assert_eq!(chosen(&infos, &choice(Some("rtx"), None), &iris), Ok(0));
        let vulkan = environment(&[("WGPU_BACKEND", "vk"), ("WGPU_ADAPTER_NAME", "none such")]).unwrap();
        assert_eq!(vulkan.offered(None), wgpu::Backends::VULKAN);
        assert_eq!(vulkan.offered(Some(Backend::Vulkan)), wgpu::Backends::VULKAN);
        assert_eq!(vulkan.offered(Some(Backend::Dx12)), wgpu::Backends::DX12);
        let text = chosen(&infos, &choice(None, None), &vulkan).unwrap_err().to_string();
        assert!(text.contains("`none such`, as WGPU_ADAPTER_NAME asks; there are: 0 RTX"), "{text}");
        let text = chosen(&[], &choice(None, None), &vulkan).unwrap_err().to_string();
        assert!(text.contains("backend vulkan, which --backend or WGPU_BACKEND asks for; found: none"), "{text}");
        assert_eq!(chosen(&[], &choice(None, None), &environment(&[]).unwrap()), Err(OpenError::NoAdapter));
    }

    #[test]
    fn values_that_wgpu_would_only_log_are_refused() {
        for (name, value, rule) in [
            ("WGPU_BACKEND", "gl", "vulkan, dx12 and metal"),
            ("WGPU_BACKEND", "vulkan,voodoo", "vulkan, dx12 and metal"),
            ("WGPU_POWER_PREF", "medium", "low, high or none"),
            ("WGPU_DX12_COMPILER", "gcc", "dxc, staticdxc, fxc or auto"),
        ] {
            let text = environment(&[(name, value)]).unwrap_err().to_string();
            assert!(text.starts_with(&format!("{name} is `{value}`; it must be ")) && text.contains(rule), "{text}");
        }
        let linked = environment(&[("WGPU_DX12_COMPILER", "StaticDxc")]);
        assert_eq!(linked.is_ok(), STATIC_DXC, "wgpu ends the program where DXC is not linked");
        let nothing = [("WGPU_BACKEND", ""), ("WGPU_POWER_PREF", "none"), ("WGPU_DX12_COMPILER", "Fxc")];
        assert_eq!(environment(&nothing).unwrap(), environment(&[]).unwrap());
        assert_eq!(environment(&[("WGPU_POWER_PREF", "low")]).unwrap().power, wgpu::PowerPreference::LowPower);
    }

    #[test]
    fn the_remedy_is_one_of_the_system() {
        assert!(no_adapter_remedy("linux").contains("apt-get") && no_adapter_remedy("linux").contains("make setup"));
        for os in ["windows", "macos", "freebsd"] {
            assert!(!no_adapter_remedy(os).contains("apt-get"), "{os}");
        }
        assert!(!driver_remedy("windows").contains("Vulkan") && driver_remedy("macos").contains("Metal"));
    }

    #[test]
    fn the_compiler_of_dx12_is_known_by_the_features_that_need_it() {
        assert_eq!(shader_compiler(Backend::Dx12, wgpu::Features::SUBGROUP | wgpu::Features::TIMESTAMP_QUERY), "DXC");
        assert!(shader_compiler(Backend::Dx12, wgpu::Features::TIMESTAMP_QUERY).contains("dxcompiler.dll"));
        assert_eq!(shader_compiler(Backend::Vulkan, wgpu::Features::empty()), "the driver's");
    }
}
