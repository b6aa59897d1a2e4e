//! Which axis of a model's tensors is the batch, and what one item looks like.
//!
//! The first axis of every input is the batch: open on all of them, or fixed to one number on all of them. Other
//! open axes are filled from what the caller expects, or, for outputs, from a warm-up run.

use super::backend::Seen;
use crate::seam::Io;
use crate::slot::{Layout, Stretch};
use modelless_types::{Bytes, DType, TensorSpec};

/// A tensor as a model declares it, batch axis included. `None` is an open axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declared {
    /// The name the model gives it.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, the batch first.
    pub axes: Vec<Option<u32>>,
}

impl Declared {
    /// What is expected, as a model with an open batch would declare it: for formats that say nothing themselves.
    pub fn open(spec: &TensorSpec) -> Self {
        let axes = std::iter::once(None).chain(spec.shape.iter().copied().map(Some)).collect();
        Self { name: spec.name.clone(), dtype: spec.dtype, axes }
    }
}

/// Where the inputs of a first run lie, before anything is known of the outputs.
pub(super) fn inputs_only(inputs: &[TensorSpec], rows: u32, strings: Bytes) -> Result<Layout, String> {
    if inputs.is_empty() {
        return Err("it has no inputs".to_owned());
    }
    Layout::new(inputs, &inputs[..1], rows, strings, u64::MAX)
}

/// The outputs of a model that does not declare them, as a run showed them. They get the names that are expected, in
/// that order; else their own; else `output`, or `output_0` and so on where there are several.
pub(super) fn from_run(seen: &[Seen], expect: Option<&Io>) -> Result<Vec<Declared>, String> {
    let expected = expect.map(|io| io.outputs.as_slice()).filter(|outputs| !outputs.is_empty());
    if let Some(expected) = expected
        && expected.len() != seen.len()
    {
        return Err(format!("it has {} outputs, but {} were expected", seen.len(), expected.len()));
    }
    let alone = seen.len() == 1;
    let named = seen.iter().enumerate().map(|(ix, seen)| {
        let name = match (&seen.name, expected) {
            (Some(name), _) => name.clone(),
            (None, Some(expected)) => expected[ix].name.clone(),
            (None, None) if alone => "output".to_owned(),
            (None, None) => format!("output_{ix}"),
        };
        Declared { name, dtype: seen.dtype, axes: seen.axes.iter().map(|_| None).collect() }
    });
    Ok(named.collect())
}

/// The inputs of one item, and the batch if the model fixes it.
pub(super) fn inputs(
    declared: &[Declared],
    expect: Option<&Io>,
) -> Result<(Vec<TensorSpec>, Option<u32>), String> {
    let mut batch: Option<(&str, Option<u32>)> = None;
    for tensor in declared {
        let first = *tensor.axes.first().ok_or_else(|| {
            format!("input `{}` has no axes, but the first axis must be the batch", tensor.name)
        })?;
        match batch {
            Some((other, known)) if known != first => {
                return Err(format!(
                    "the first axis of every input must be the batch, but it is {} on `{other}` and {} on `{}`",
                    show(known),
                    show(first),
                    tensor.name
                ));
            }
            _ => batch = Some((&tensor.name, first)),
        }
    }
    let expected = expect.map(|io| io.inputs.as_slice());
    same_names("input", declared, expected)?;
    let items = declared.iter().map(|tensor| item(tensor, None, expected)).collect::<Result<_, _>>()?;
    Ok((items, batch.and_then(|(_, first)| first)))
}

/// The outputs of one item. `seen` are the outputs of a run of `rows` items, or why there was none.
pub(super) fn outputs(
    declared: &[Declared],
    seen: &Result<Vec<Vec<u32>>, String>,
    rows: u32,
    expect: Option<&Io>,
) -> Result<Vec<TensorSpec>, String> {
    // Whoever expects no outputs does not know them.
    let expected = expect.map(|io| io.outputs.as_slice()).filter(|outputs| !outputs.is_empty());
    same_names("output", declared, expected)?;
    let mut items = Vec::new();
    for (ix, tensor) in declared.iter().enumerate() {
        let seen = seen.as_ref().map(|all| all[ix].as_slice());
        let first = seen.ok().map_or(tensor.axes.first().copied().flatten(), |seen| seen.first().copied());
        let no_axes = seen.map_or(tensor.axes.is_empty(), <[u32]>::is_empty);
        if no_axes || first.is_some_and(|first| first != rows) {
            return Err(format!(
                "the first axis of output `{}` must be the batch, but for {rows} items it has shape {:?}",
                tensor.name,
                seen.map_or_else(|_| tensor.axes.clone(), |seen| seen.iter().copied().map(Some).collect()),
            ));
        }
        items.push(item(tensor, seen.ok(), expected).map_err(|why| match seen {
            Ok(_) => why,
            Err(error) => format!("{why} (a warm-up run with zeros did not tell it: {error})"),
        })?);
    }
    Ok(items)
}

/// How the items of such a model stretch, if whoever loads it asked for that: every input leaves its first axis open,
/// and those outputs follow that leave theirs open and were as long as the longest input.
pub(super) fn stretch(
    (inputs, outputs): (&[Declared], &[Declared]),
    items: &[TensorSpec],
    expect: Option<&Io>,
) -> Option<Stretch> {
    let longest = expect?.longest?;
    let open = |tensor: &Declared| tensor.axes.get(1) == Some(&None);
    if !inputs.iter().all(open) {
        return None;
    }
    let follows =
        |(tensor, item): (&Declared, &TensorSpec)| open(tensor) && item.shape.first() == Some(&longest);
    Some(Stretch { longest, outputs: outputs.iter().zip(items).map(follows).collect() })
}

fn item(
    tensor: &Declared,
    seen: Option<&[u32]>,
    expected: Option<&[TensorSpec]>,
) -> Result<TensorSpec, String> {
    let Declared { name, dtype, axes } = tensor;
    let expected = expected.and_then(|all| all.iter().find(|spec| spec.name == *name));
    if let Some(spec) = expected
        && spec.dtype != *dtype
    {
        return Err(format!("`{name}` is {}, but {} was expected", dtype.name(), spec.dtype.name()));
    }
    let axes: Vec<Option<u32>> = match seen {
        Some(seen) => seen[1..].iter().copied().map(Some).collect(),
        None => axes[1..].to_vec(),
    };
    if let Some(spec) = expected
        && spec.shape.len() != axes.len()
    {
        return Err(format!("`{name}` has items of shape {axes:?}, but {:?} was expected", spec.shape));
    }
    let mut shape = Vec::new();
    for (at, axis) in axes.iter().copied().enumerate() {
        match (axis, expected.map(|spec| spec.shape[at])) {
            (Some(found), Some(wanted)) if found != wanted => {
                return Err(format!("axis {} of `{name}` is {found}, but {wanted} was expected", at + 1));
            }
            (Some(extent), _) | (None, Some(extent)) => shape.push(extent),
            (None, None) => {
                return Err(format!("axis {} of `{name}` is open; declare its extent", at + 1));
            }
        }
    }
    Ok(TensorSpec { name: name.clone(), dtype: *dtype, shape })
}

fn same_names(what: &str, declared: &[Declared], expected: Option<&[TensorSpec]>) -> Result<(), String> {
    let Some(expected) = expected else { return Ok(()) };
    let mut found: Vec<&str> = declared.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut wanted: Vec<&str> = expected.iter().map(|spec| spec.name.as_str()).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    if found == wanted {
        Ok(())
    } else {
        Err(format!("it has {what}s {found:?}, but {wanted:?} were expected"))
    }
}

fn show(axis: Option<u32>) -> String {
    axis.map_or_else(|| "open".to_owned(), |extent| extent.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, axes: &[Option<u32>]) -> Declared {
        Declared { name: name.into(), dtype: DType::Fp32, axes: axes.into() }
    }

    fn spec(name: &str, shape: &[u32]) -> TensorSpec {
        TensorSpec { name: name.into(), dtype: DType::Fp32, shape: shape.into() }
    }

    #[test]
    fn the_first_axis_is_the_batch() {
        let open = [tensor("a", &[None, Some(3)]), tensor("b", &[None])];
        assert_eq!(inputs(&open, None), Ok((vec![spec("a", &[3]), spec("b", &[])], None)));
        let fixed = [tensor("a", &[Some(4), Some(3)]), tensor("b", &[Some(4)])];
        assert_eq!(inputs(&fixed, None), Ok((vec![spec("a", &[3]), spec("b", &[])], Some(4))));
        for mixed in
            [[tensor("a", &[None]), tensor("b", &[Some(4)])], [tensor("a", &[None]), tensor("b", &[])]]
        {
            assert!(inputs(&mixed, None).is_err(), "{mixed:?}");
        }
    }

    #[test]
    fn open_axes_are_filled_from_what_is_expected() {
        let open = [tensor("a", &[None, Some(3), None])];
        assert!(inputs(&open, None).unwrap_err().contains("axis 2 of `a` is open"));
        let io = |shape: &[u32]| Io { inputs: vec![spec("a", shape)], ..Io::default() };
        assert_eq!(inputs(&open, Some(&io(&[3, 5]))), Ok((vec![spec("a", &[3, 5])], None)));
        assert!(inputs(&open, Some(&io(&[4, 5]))).is_err());
        assert!(inputs(&open, Some(&io(&[3]))).is_err());
        let other = Io { inputs: vec![spec("x", &[3, 5])], ..Io::default() };
        assert!(inputs(&open, Some(&other)).unwrap_err().contains("were expected"));
    }

    #[test]
    fn items_stretch_where_that_is_asked_for_and_the_model_leaves_it_open() {
        let open = [tensor("a", &[None, None])];
        let io = Io { inputs: vec![spec("a", &[16])], longest: Some(16), ..Io::default() };
        let outputs = [tensor("y", &[None, None, Some(4)]), tensor("z", &[None, Some(4)])];
        let items = [spec("y", &[16, 4]), spec("z", &[4])];
        let found = stretch((&open, &outputs), &items, Some(&io));
        assert_eq!(found, Some(Stretch { longest: 16, outputs: vec![true, false] }));
        let fixed = [tensor("a", &[None, Some(16)])];
        assert_eq!(stretch((&fixed, &outputs), &items, Some(&io)), None);
        let unasked = Io { longest: None, ..io };
        assert_eq!(stretch((&open, &outputs), &items, Some(&unasked)), None);
    }

    #[test]
    fn outputs_are_what_a_run_showed() {
        let declared = [tensor("y", &[None, None])];
        assert_eq!(outputs(&declared, &Ok(vec![vec![2, 10]]), 2, None), Ok(vec![spec("y", &[10])]));
        assert!(outputs(&declared, &Ok(vec![vec![1, 10]]), 2, None).is_err());
        assert!(outputs(&declared, &Ok(vec![vec![]]), 2, None).is_err());
        let failed = Err("no zeros please".to_owned());
        assert!(outputs(&declared, &failed, 2, None).unwrap_err().contains("no zeros please"));
        assert_eq!(outputs(&[tensor("y", &[None, Some(4)])], &failed, 2, None), Ok(vec![spec("y", &[4])]));
        assert!(outputs(&[tensor("y", &[Some(7), Some(4)])], &failed, 2, None).is_err());
    }
}
