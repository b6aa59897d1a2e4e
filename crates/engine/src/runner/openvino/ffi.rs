//! The part of OpenVINO's C interface that is needed, bound when the library is opened.
//!
//! A crate for it exists, but its tensors cannot lie in memory that is already there, and shared memory without a copy
//! is the point; see the ADR on engines.
#![expect(unsafe_code, reason = "a C interface")]

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

/// An object of the library.
pub(super) type Object = *mut c_void;

/// Extents with a count before them.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) rank: i64,
    pub(super) dims: *mut i64,
}

/// The least and the most an extent may be; the most is -1 where there is no bound.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Dimension {
    pub(super) min: i64,
    pub(super) max: i64,
}

/// Extents of which some may be open.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PartialShape {
    pub(super) rank: Dimension,
    pub(super) dims: *mut Dimension,
}

/// Texts of the library's own.
#[repr(C)]
pub(super) struct Version {
    number: *const c_char,
    description: *const c_char,
}

macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),* $(; $rest:tt)?) $(-> $result:ty)?;)*) => {
        /// The functions, for as long as the library is mapped.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),* $(, $rest)?) $(-> $result)?,)*
        }

        impl Functions {
            fn bind(library: &Library) -> Result<Self, String> {
                // SAFETY: the types are those of the header of this version.
                unsafe {
                    Ok(Self {
                        $($name: *library.get($symbol.as_bytes()).map_err(|error| error.to_string())?,)*
                    })
                }
            }
        }
    };
}

functions! {
    version: "ov_get_openvino_version", fn(*mut Version) -> c_int;
    version_free: "ov_version_free", fn(*mut Version);
    error_text: "ov_get_error_info", fn(c_int) -> *const c_char;
    last_error: "ov_get_last_err_msg", fn() -> *const c_char;
    text_free: "ov_free", fn(*const c_char);
    core_create: "ov_core_create", fn(*mut Object) -> c_int;
    core_free: "ov_core_free", fn(Object);
    core_property: "ov_core_get_property", fn(Object, *const c_char, *const c_char, *mut *mut c_char) -> c_int;
    core_read: "ov_core_read_model_from_memory_buffer", fn(Object, *const c_char, usize, Object, *mut Object) -> c_int;
    core_compile: "ov_core_compile_model", fn(Object, Object, *const c_char, usize, *mut Object; ...) -> c_int;
    model_free: "ov_model_free", fn(Object);
    model_inputs: "ov_model_inputs_size", fn(Object, *mut usize) -> c_int;
    model_outputs: "ov_model_outputs_size", fn(Object, *mut usize) -> c_int;
    model_input: "ov_model_const_input_by_index", fn(Object, usize, *mut Object) -> c_int;
    model_output: "ov_model_const_output_by_index", fn(Object, usize, *mut Object) -> c_int;
    port_name: "ov_port_get_any_name", fn(Object, *mut *mut c_char) -> c_int;
    port_type: "ov_port_get_element_type", fn(Object, *mut c_int) -> c_int;
    port_shape: "ov_port_get_partial_shape", fn(Object, *mut PartialShape) -> c_int;
    port_free: "ov_output_const_port_free", fn(Object);
    partial_shape_free: "ov_partial_shape_free", fn(*mut PartialShape);
    compiled_free: "ov_compiled_model_free", fn(Object);
    request_create: "ov_compiled_model_create_infer_request", fn(Object, *mut Object) -> c_int;
    request_free: "ov_infer_request_free", fn(Object);
    request_input: "ov_infer_request_set_input_tensor_by_index", fn(Object, usize, Object) -> c_int;
    request_output: "ov_infer_request_get_output_tensor_by_index", fn(Object, usize, *mut Object) -> c_int;
    request_infer: "ov_infer_request_infer", fn(Object) -> c_int;
    tensor_over: "ov_tensor_create_from_host_ptr", fn(c_int, Shape, *mut c_void, *mut Object) -> c_int;
    tensor_free: "ov_tensor_free", fn(Object);
    tensor_shape: "ov_tensor_get_shape", fn(Object, *mut Shape) -> c_int;
    tensor_type: "ov_tensor_get_element_type", fn(Object, *mut c_int) -> c_int;
    tensor_bytes: "ov_tensor_get_byte_size", fn(Object, *mut usize) -> c_int;
    tensor_data: "ov_tensor_data", fn(Object, *mut *mut c_void) -> c_int;
    shape_free: "ov_shape_free", fn(*mut Shape) -> c_int;
}

/// Maps the library and binds its functions. It stays mapped for good.
pub(super) fn open(path: &Path) -> Result<Functions, String> {
    // SAFETY: mapping a library runs its initialisers; it is the one that was installed or named by the user.
    let library = unsafe { Library::new(path) }.map_err(|error| failed(path, &error))?;
    let functions = Functions::bind(&library)?;
    std::mem::forget(library);
    Ok(functions)
}

/// Maps a library that OpenVINO will ask for by this very path later, when no file may be opened any more.
pub(super) fn hold(path: &Path) -> Result<(), String> {
    // SAFETY: as in `open`.
    let library = unsafe { Library::new(path) }.map_err(|error| failed(path, &error))?;
    std::mem::forget(library);
    Ok(())
}

fn failed(path: &Path, error: &libloading::Error) -> String {
    let why = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    format!("{} cannot be opened: {why}", path.display())
}

impl Functions {
    /// The error of a call that did not succeed, in the library's words.
    pub(super) fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library's own texts, copied before it makes others.
        unsafe {
            let last = (self.last_error)();
            let said = text(last);
            if !last.is_null() {
                (self.text_free)(last);
            }
            if said.is_empty() { Err(text((self.error_text)(status))) } else { Err(said) }
        }
    }

    /// An object made by a call that writes it.
    pub(super) fn made(&self, make: impl FnOnce(*mut Object) -> c_int) -> Result<Object, String> {
        let mut object = ptr::null_mut();
        self.check(make(&raw mut object))?;
        if object.is_null() { Err("OpenVINO made nothing".to_owned()) } else { Ok(object) }
    }

    /// The version of the library, without the name of its build.
    pub(super) fn number(&self) -> Result<String, String> {
        let mut version = Version { number: ptr::null(), description: ptr::null() };
        // SAFETY: written by the library, and given back to it once copied.
        unsafe {
            self.check((self.version)(&raw mut version))?;
            let number = text(version.number);
            (self.version_free)(&raw mut version);
            Ok(number.split('-').next().unwrap_or_default().to_owned())
        }
    }

    /// What a device says of itself. Asking loads it, and has it look at the machine.
    pub(super) fn property(&self, core: Object, device: &CStr, key: &CStr) -> Result<String, String> {
        let mut value = ptr::null_mut();
        // SAFETY: written by the library, and given back to it once copied.
        unsafe {
            self.check((self.core_property)(core, device.as_ptr(), key.as_ptr(), &raw mut value))?;
            let copy = text(value);
            (self.text_free)(value);
            Ok(copy)
        }
    }

    /// The name of a port, and nothing where it has none.
    pub(super) fn name(&self, port: Object) -> Result<String, String> {
        let mut name = ptr::null_mut();
        // SAFETY: written by the library, and given back to it once copied.
        unsafe {
            self.check((self.port_name)(port, &raw mut name))?;
            let copy = text(name);
            (self.text_free)(name);
            Ok(copy)
        }
    }
}

/// # Safety
/// Null, or a C string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
}

/// A C string of our own words.
pub(super) fn c(text: impl Into<Vec<u8>>) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}
