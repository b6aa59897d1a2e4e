//! One session that several lanes run at the same time.
//!
//! ONNX Runtime documents `Run` as safe to be called from several threads on one session; the binding's authors doubt it,
//! and lend a session to one thread at a time. So it is called here past the binding. On the CPU a session without threads
//! of its own is that of all lanes, and one with threads is one lane's; on a GPU lanes take turns over two. The suite holds
//! what several lanes answer at once against what one answers alone (ADR 0070). What is gained: a model's weights are in
//! memory once and read once on the CPU, and twice on a GPU, however many lanes there are.
#![expect(unsafe_code, reason = "calling ONNX Runtime's C interface past its binding")]

use crate::seam::says_memory;
use ort::AsPointer;
use ort::session::{RunOptions, Session, SessionInputValue};
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
        let ran = self.run_with(ptr::null(), inputs);
        if ran.as_ref().is_err_and(|error| says_memory(error.message())) {
            self.let_go(inputs);
        }
        let values = ran.map_err(|error| error.message().to_owned())?;
        values.into_iter().collect::<Option<_>>().ok_or_else(|| "it gave back too few outputs".to_owned())
    }

    /// Has the library give back what it holds for later runs. Where it was asked for more than there is, the next time it
    /// would reserve twice as much for a small request, or all that is left: nothing beside it would find any then (seen with the model `eats` of `hostile`).
    /// It gives it back at the end of a run; one that is ended before it begins will do.
    fn let_go(&self, inputs: &[SessionInputValue<'_>]) {
        let options = || -> ort::Result<RunOptions> {
            let mut options = RunOptions::new()?;
            options.set("memory.enable_memory_arena_shrinkage", "cpu:0")?;
            options.terminate()?;
            Ok(options)
        };
        // It fails in any case, for it was ended.
        let _ = options().map(|options| self.run_with(options.ptr(), inputs).map(drop));
    }

    fn run_with(
        &self,
        options: *const ort::sys::OrtRunOptions,
        inputs: &[SessionInputValue<'_>],
    ) -> ort::Result<Vec<Option<DynValue>>> {
        let pointers =
            |names: &[CString]| names.iter().map(|name| name.as_ptr()).collect::<Vec<*const c_char>>();
        let (input_names, output_names) = (pointers(&self.inputs), pointers(&self.outputs));
        let inputs: Vec<_> = inputs.iter().map(|input| input.ptr()).collect();
        let mut outputs = vec![ptr::null_mut(); output_names.len()];
        // SAFETY: the session lives, and so do the options, if there are any. Each list has as many entries as is said, names end with a NUL, and
        // inputs are values that live until this returns. Outputs are null, so the library makes them. That several threads may be in
        // here with one session is the library's word.
        let ran = unsafe {
            let status = (ort::api().Run)(
                self.session.ptr().cast_mut(),
                options,
                input_names.as_ptr(),
                inputs.as_ptr(),
                inputs.len(),
                output_names.as_ptr(),
                output_names.len(),
                outputs.as_mut_ptr(),
            );
            ort::Error::result_from_status(status)
        };
        let values = outputs
            .into_iter()
            .map(|output| {
                let output = NonNull::new(output)?;
                // SAFETY: made by the library just now, owned by nobody else, and dropped before the session.
                Some(unsafe { DynValue::from_ptr(output, Some(self.session.allocator())) })
            })
            .collect();
        ran.map(|()| values)
    }
}
