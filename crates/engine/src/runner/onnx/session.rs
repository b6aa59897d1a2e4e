//! One session that several lanes run at the same time.
//!
//! ONNX Runtime documents `Run` as safe to be called from several threads on one session; the binding's authors doubt it,
//! and lend a session to one thread at a time. So it is called here past the binding, for sessions on the CPU without
//! threads of their own only, and the suite holds what several lanes answer at once against what one answers alone (ADR
//! 0070). What is gained: a model's weights are in memory once and read once, however many lanes there are.
#![expect(unsafe_code, reason = "calling ONNX Runtime's C interface past its binding")]

use ort::AsPointer;
use ort::session::{Session, SessionInputValue};
use ort::value::DynValue;
use std::ffi::{CString, c_char};
use std::ptr::{self, NonNull};

/// A session, with the names of its tensors as its `Run` wants them.
pub(super) struct Shared {
    session: Session,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

impl Shared {
    pub(super) fn new(session: Session) -> Result<Self, String> {
        let name = |name: &str| CString::new(name).map_err(|_| format!("`{name}` is no name of a tensor"));
        let inputs = session.inputs().iter().map(|outlet| name(outlet.name())).collect::<Result<_, _>>()?;
        let outputs = session.outputs().iter().map(|outlet| name(outlet.name())).collect::<Result<_, _>>()?;
        Ok(Self { session, inputs, outputs })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// All outputs, in the model's order. `inputs` are in that order, too.
    pub(super) fn run(&self, inputs: &[SessionInputValue<'_>]) -> Result<Vec<DynValue>, String> {
        if inputs.len() != self.inputs.len() {
            return Err(format!("{} inputs for a model of {}", inputs.len(), self.inputs.len()));
        }
        let pointers =
            |names: &[CString]| names.iter().map(|name| name.as_ptr()).collect::<Vec<*const c_char>>();
        let (input_names, output_names) = (pointers(&self.inputs), pointers(&self.outputs));
        let inputs: Vec<_> = inputs.iter().map(|input| input.ptr()).collect();
        let mut outputs = vec![ptr::null_mut(); output_names.len()];
        // SAFETY: the session lives. Each list has as many entries as is said, names end with a NUL, and inputs are values
        // that live until this returns. Outputs are null, so the library makes them. That several threads may be in
        // here with one session is the library's word.
        let ran = unsafe {
            let status = (ort::api().Run)(
                self.session.ptr().cast_mut(),
                ptr::null(),
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                output_names.len(),
                outputs.as_mut_ptr(),
            );
            ort::Error::result_from_status(status)
        };
        let values: Vec<Option<DynValue>> = outputs
            .into_iter()
            .map(|output| {
                let output = NonNull::new(output)?;
                // SAFETY: made by the library just now, owned by nobody else, and dropped before the session.
                Some(unsafe { DynValue::from_ptr(output, Some(self.session.allocator())) })
            })
            .collect();
        ran.map_err(|error| error.message().to_owned())?;
        values.into_iter().collect::<Option<_>>().ok_or_else(|| "it gave back too few outputs".to_owned())
    }
}
