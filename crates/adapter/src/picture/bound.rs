//! The adapter of a model that takes a picture: bound once, then one row after the other.

use super::fit::fit;
use super::write::{Patch, Tables};
use super::{Picture, Scratch};
use crate::matching::{classes, find, fixed, names, words};
use crate::spec::{Channels, ImageSpec, Layout};
use crate::{PrepareError, SpecError};
use modelless_types::{Task, TensorSpec};

#[derive(Clone, Debug)]
pub(crate) struct BoundImage {
    pub(crate) spec: ImageSpec,
    tables: Tables,
    pub(crate) row_bytes: usize,
    /// Position of the class output among the model's.
    pub(crate) output: usize,
}

impl BoundImage {
    pub(crate) fn new(
        spec: &ImageSpec,
        task: &Task,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Result<Self, SpecError> {
        let [_] = inputs else {
            return Err(SpecError::NoTensor {
                wanted: "a model for pictures has to have exactly one input".to_owned(),
                present: names(inputs),
            });
        };
        let input = &inputs[find("input", spec.input.as_deref(), inputs)?];
        let output_index = find("output", spec.output.as_deref(), outputs)?;
        let output = &outputs[output_index];
        fixed("output", outputs)?;

        let (w, h) = (spec.width, spec.height);
        let channels: u32 = if spec.channels == Channels::Grey { 1 } else { 3 };
        let shape = match spec.layout {
            Layout::Nchw => vec![channels, h, w],
            Layout::Nhwc => vec![h, w, channels],
        };
        let flat = vec![channels * w * h];
        let plain = vec![h, w];
        let fits = input.shape == shape
            || input.shape == flat
            || (spec.channels == Channels::Grey && input.shape == plain);
        if !fits || input.dtype != spec.dtype.dtype() {
            return Err(SpecError::Tensor {
                side: "input",
                name: input.name.clone(),
                found: words(input),
                expected: format!(
                    "{} {shape:?}, which is what the adapter writes",
                    spec.dtype.dtype().name()
                ),
            });
        }
        classes(task, output)?;
        let row_bytes = input.item_bytes().unwrap_or(0);
        Ok(Self { spec: spec.clone(), tables: Tables::new(spec), row_bytes, output: output_index })
    }

    pub(crate) fn prepare(
        &self,
        picture: &Picture,
        row: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), PrepareError> {
        let (width, height) = (picture.width(), picture.height());
        let fit = fit(width, height, &self.spec);
        if fit.copies(width, height) {
            let patch = Patch { pixels: picture.pixels(), size: fit.size, at: fit.at };
            self.tables.write(&self.spec, patch, row);
            return Ok(());
        }
        let pixels = scratch.resize(picture, &fit, self.spec.resize.filter)?;
        self.tables.write(&self.spec, Patch { pixels, size: fit.size, at: fit.at }, row);
        scratch.trim();
        Ok(())
    }
}
