//! The other format of a model: ONNX for TorchScript, TorchScript for ONNX.
//!
//! Both are made in the box, from the file alone and without PyTorch. What came of it is compared with its parent here, by the
//! engines that serve either: libtorch has to be installed for that. A change of format changes no figure, so the numbers
//! themselves have to be the same, to rounding.

use super::run::{Outcome, Piece};
use super::{Base, Request, at, spread};
use crate::error::Error;
use crate::profile::{Profiler, Report, Subject};
use modelless_adapter::AdapterSpec;
use modelless_engine::Availability;
use modelless_types::{Engine, VariantSettings};
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;

/// ONNX, made of TorchScript.
pub(super) const ONNX: &str = "onnx";
/// TorchScript, made of ONNX.
pub(super) const TORCHSCRIPT: &str = "torchscript";

/// How far a number may be off, as a share of the largest one that the parent gives.
const ROUNDING: f64 = 1e-3;

/// What runs a piece of a recipe.
pub(super) fn engine_of(recipe: &str) -> Engine {
    if recipe == TORCHSCRIPT { Engine::Torch } else { Engine::Onnx }
}

/// How a file of an engine ends.
pub(super) fn end_of(engine: Engine) -> &'static str {
    if engine == Engine::Torch { "pt" } else { "onnx" }
}

/// Why nothing that libtorch is needed for can be checked here; `None` where it can.
pub(super) async fn missing(profiler: Option<&Profiler>) -> Option<String> {
    let engines = match profiler {
        Some(profiler) => profiler.engine.engines().await,
        None => Vec::new(),
    };
    match engines.into_iter().find(|(engine, _)| *engine == Engine::Torch) {
        Some((_, Availability::Ready { .. })) => None,
        Some((_, Availability::Unavailable { reason })) => Some(format!(
            "it takes libtorch to compare it with its parent, and that is not here ({reason}); `modelless engine install torch` \
             brings it"
        )),
        None => {
            Some("nothing here runs TorchScript, so that it could be compared with its parent".to_owned())
        }
    }
}

impl Request {
    /// Compares what is of another format with the parent, and says what came of it. Everything else that was made of a
    /// parent in TorchScript was made of the ONNX that it became, and falls with it.
    pub(super) async fn compare_formats(
        &self,
        bases: &[Base],
        pieces: &mut [Piece],
        profiler: &Profiler,
        report: Report<'_>,
    ) -> Result<(), Error> {
        let mut parents = None;
        let mut unlike = None;
        for piece in pieces.iter_mut() {
            let converted = [ONNX, TORCHSCRIPT].contains(&piece.recipe.as_str());
            let (true, Outcome::Made, Some(file)) = (converted, piece.outcome, &piece.file) else { continue };
            let adapter = &bases[0].adapter;
            if parents.is_none() {
                let parent = &self.model.variants[self.parent];
                let subject = (parent.name.as_str(), parent.file.as_path());
                let found =
                    self.answers(subject, adapter, &parent.settings(), profiler, &mut *report).await?;
                parents = Some(found);
            }
            let settings = VariantSettings { engine: engine_of(&piece.recipe), ..self.settings() };
            let path = self.work().join("made").join(file);
            let own = self.answers((&piece.name, &path), adapter, &settings, profiler, &mut *report).await;
            let compared = match own {
                Ok(own) => alike(&own, parents.as_deref().unwrap_or_default()),
                Err(
                    error @ (Error::Engine { .. }
                    | Error::Batch { .. }
                    | Error::Adapter { .. }
                    | Error::Output { .. }
                    | Error::Prepare { .. }
                    | Error::TooMuch { .. }),
                ) => Err(error.to_string()),
                Err(error) => return Err(error),
            };
            match compared {
                Ok(check) => piece.check = Some(check),
                Err(why) => {
                    if piece.recipe == ONNX {
                        unlike = Some(why.clone());
                    }
                    piece.refuse(why);
                }
            }
        }
        if let Some(why) = unlike {
            for piece in pieces.iter_mut().filter(|piece| piece.outcome == Outcome::Made) {
                piece.refuse(format!("the ONNX that it was made of is not what its parent is: {why}"));
            }
        }
        Ok(())
    }

    /// Of the parent, for the processor: the other format is made for nothing else.
    pub(super) fn settings(&self) -> VariantSettings {
        self.model.variants[self.parent].settings()
    }

    async fn answers(
        &self,
        (name, file): (&str, &Path),
        adapter: &AdapterSpec,
        settings: &VariantSettings,
        profiler: &Profiler,
        report: Report<'_>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let subject = Subject {
            name,
            task: &self.task,
            adapter,
            settings,
            artefact: File::open(file).map_err(at(file))?,
            tokenizer: self.model.tokenizer()?,
            declared: None,
        };
        profiler.answers(subject, &spread(&self.sets.accuracy), report).await
    }
}

/// What the comparison shows, in the words of the program in the box; or why it is not the same model.
fn alike(own: &[Vec<f32>], parents: &[Vec<f32>]) -> Result<Value, String> {
    let width = |rows: &[Vec<f32>]| rows.first().map_or(0, Vec::len);
    if own.len() != parents.len() || own.iter().zip(parents).any(|(own, parent)| own.len() != parent.len()) {
        return Err(format!(
            "its output has {} numbers an item, its parent's {}",
            width(own),
            width(parents)
        ));
    }
    let (mut largest, mut scale, mut same) = (0.0_f64, 0.0_f64, 0_u32);
    let (mut cosines, mut worst) = (0.0, 1.0_f64);
    for (own, parent) in own.iter().zip(parents) {
        if own.is_empty() || own.iter().any(|value| !value.is_finite()) {
            return Err("its answers are not all finite numbers".to_owned());
        }
        let pairs = || own.iter().zip(parent).map(|(a, b)| (f64::from(*a), f64::from(*b)));
        largest = pairs().map(|(a, b)| (a - b).abs()).fold(largest, f64::max);
        scale = pairs().map(|(_, b)| b.abs()).fold(scale, f64::max);
        same += u32::from(first_label(own) == first_label(parent));
        let [both, one, other] =
            pairs().fold([0.0; 3], |[both, one, other], (a, b)| [both + a * b, one + a * a, other + b * b]);
        let cosine = if one * other > 0.0 { both / (one * other).sqrt() } else { 1.0 };
        cosines += cosine;
        worst = worst.min(cosine);
    }
    if largest > ROUNDING * scale.max(1.0) {
        return Err(format!(
            "it should give the same numbers, but differs by up to {largest:.2e}; {:.2e} would be rounding",
            ROUNDING * scale.max(1.0)
        ));
    }
    let items = u32::try_from(own.len()).unwrap_or(u32::MAX);
    let mut check = json!({
        "items": items, "cosine_mean": cosines / f64::from(items.max(1)), "cosine_worst": worst, "largest_difference": largest,
    });
    if width(own) > 1 {
        check["top1"] = json!(f64::from(same) / f64::from(items.max(1)));
    }
    Ok(check)
}

fn first_label(row: &[f32]) -> usize {
    row.iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (at, &value)| if value > best.1 { (at, value) } else { best })
        .0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_numbers_to_rounding_are_alike_and_others_are_not() {
        let parents = vec![vec![1.0, 20.0, -3.0], vec![4.0, 0.5, 0.0]];
        let mut near = parents.clone();
        near[0][1] += 0.01;
        let check = alike(&near, &parents).unwrap();
        assert!(check["items"] == 2 && check["top1"] == 1.0, "{check}");
        assert!((check["largest_difference"].as_f64().unwrap() - 0.01).abs() < 1e-5, "{check}");
        near[0][1] += 0.1;
        assert!(alike(&near, &parents).unwrap_err().contains("rounding"));
        near[0][1] = f32::NAN;
        assert!(alike(&near, &parents).unwrap_err().contains("finite"));
        near[0].pop();
        assert!(alike(&near, &parents).unwrap_err().contains("2 numbers"));
    }
}
