//! Microsoft's DXC, from the library `libdxcompiler.so` that `DXCOMPILER` names, through the few calls that compiling takes.

use std::ffi::c_void;
use std::path::Path;
use std::ptr;

use anyhow::{Context as _, bail};
use libloading::Library;

/// As wgpu-hal compiles, without a device feature.
const ARGUMENTS: [&str; 8] = ["-E", "main", "-T", "cs_6_0", "-HV", "2018", "-no-warnings", "-Ges"];
const UTF8: u32 = 65_001;

/// A name of the Component Object Model.
#[repr(C)]
struct Guid(u32, u16, u16, [u8; 8]);

const DXC_COMPILER: Guid = Guid(0x73e2_2d93, 0xe6ce, 0x47f3, [0xb5, 0xbf, 0xf0, 0x66, 0x4f, 0x39, 0xc1, 0xb0]);
const I_COMPILER_3: Guid = Guid(0x228b_4687, 0x5a6a, 0x4730, [0x90, 0x0c, 0x97, 0x02, 0xb2, 0x20, 0x3f, 0x54]);
const I_OPERATION_RESULT: Guid = Guid(0xcedb_484a, 0xd4e9, 0x445a, [0xb9, 0x91, 0xca, 0x21, 0xca, 0x15, 0x7d, 0xc2]);

/// An object whose first word points to its methods.
#[repr(C)]
struct Object<M> {
    methods: *const M,
}

#[repr(C)]
struct Unknown {
    query_interface: *const c_void,
    add_ref: *const c_void,
    release: unsafe extern "C" fn(*mut c_void) -> u32,
}

#[repr(C)]
struct Buffer {
    start: *const c_void,
    bytes: usize,
    encoding: u32,
}

#[repr(C)]
struct Compiler3 {
    unknown: Unknown,
    compile: unsafe extern "C" fn(
        *mut Object<Compiler3>,
        *const Buffer,
        *const *const u32,
        u32,
        *mut c_void,
        *const Guid,
        *mut *mut Object<OperationResult>,
    ) -> i32,
}

#[repr(C)]
struct OperationResult {
    unknown: Unknown,
    status: unsafe extern "C" fn(*mut Object<OperationResult>, *mut i32) -> i32,
    result: *const c_void,
    errors: unsafe extern "C" fn(*mut Object<OperationResult>, *mut *mut Object<Blob>) -> i32,
}

#[repr(C)]
struct Blob {
    unknown: Unknown,
    start: unsafe extern "C" fn(*mut Object<Blob>) -> *const u8,
    bytes: unsafe extern "C" fn(*mut Object<Blob>) -> usize,
}

type CreateInstance = unsafe extern "C" fn(*const Guid, *const Guid, *mut *mut Object<Compiler3>) -> i32;

/// The compiler; it lives as long as the process.
pub struct Dxc {
    compiler: *mut Object<Compiler3>,
    _library: Library,
}

impl Dxc {
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let mut compiler = ptr::null_mut();
        // SAFETY: the library is DXC's, whose first function has this signature and fills `compiler`.
        let (library, status) = unsafe {
            let library = Library::new(path).with_context(|| format!("{} cannot be loaded", path.display()))?;
            let create: libloading::Symbol<'_, CreateInstance> = library.get(b"DxcCreateInstance")?;
            let status = create(&DXC_COMPILER, &I_COMPILER_3, &mut compiler);
            (library, status)
        };
        if status < 0 || compiler.is_null() {
            bail!("{} gives no compiler: {status:#x}", path.display());
        }
        Ok(Self { compiler, _library: library })
    }

    /// Compiles a text in HLSL.
    pub fn compile(&self, hlsl: &str) -> anyhow::Result<()> {
        // A character of this interface has 4 bytes on Linux.
        let wide = |text: &&str| text.chars().map(u32::from).chain([0]).collect::<Vec<_>>();
        let arguments: Vec<_> = ARGUMENTS.iter().map(wide).collect();
        let arguments: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
        let source = Buffer { start: hlsl.as_ptr().cast(), bytes: hlsl.len(), encoding: UTF8 };
        let mut result = ptr::null_mut();
        // SAFETY: `compiler` is an IDxcCompiler3, the rest lives until the call is over, and `result` is released below.
        unsafe {
            let compile = (*(*self.compiler).methods).compile;
            let count = arguments.len() as u32;
            let no_includes = ptr::null_mut();
            let wanted = &I_OPERATION_RESULT;
            let called = compile(self.compiler, &source, arguments.as_ptr(), count, no_includes, wanted, &mut result);
            if called < 0 || result.is_null() {
                bail!("DXC cannot be called: {called:#x}");
            }
            let said = judge(result);
            ((*(*result).methods).unknown.release)(result.cast());
            said
        }
    }
}

/// # Safety
/// `result` is an `IDxcOperationResult`.
unsafe fn judge(result: *mut Object<OperationResult>) -> anyhow::Result<()> {
    let (mut status, mut errors) = (0, ptr::null_mut());
    // SAFETY: `result` is what it should be, so `errors` is an IDxcBlob or null; it is released after it was read.
    unsafe {
        let methods = &*(*result).methods;
        (methods.status)(result, &mut status);
        if status >= 0 {
            return Ok(());
        }
        (methods.errors)(result, &mut errors);
        if errors.is_null() {
            bail!("refused without a word: {status:#x}");
        }
        let blob = &*(*errors).methods;
        let text = std::slice::from_raw_parts((blob.start)(errors), (blob.bytes)(errors));
        let text = String::from_utf8_lossy(text).trim_end_matches('\0').to_owned();
        (blob.unknown.release)(errors.cast());
        bail!("{text}")
    }
}
