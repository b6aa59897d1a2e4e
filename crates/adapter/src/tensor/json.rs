//! The JSON around arrays: names, and the long form with shape and datatype.

use super::{Tensors, numbers};
use crate::{InputError, TensorFault};
use modelless_types::TensorSpec;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::fmt;

/// The value of `inputs`. `serde_json` checks the syntax and cuts it up; only arrays are read by our own hand.
pub(crate) fn from_json(value: &[u8], inputs: &[TensorSpec], limit: usize) -> Result<Tensors, InputError> {
    let syntax = |error: serde_json::Error| InputError::BadJson { why: error.to_string() };
    let mut data = Vec::new();
    if value.trim_ascii_start().first() == Some(&b'{') {
        let Entries(entries) = serde_json::from_slice(value).map_err(syntax)?;
        let named = by_name(&entries, inputs)?;
        for (input, text) in inputs.iter().zip(named) {
            one(text, input, &mut data, limit)?;
        }
    } else {
        let text: &RawValue = serde_json::from_slice(value).map_err(syntax)?;
        let [input] = inputs else {
            return Err(InputError::Names {
                what: "an array without a name was sent".to_owned(),
                expected: inputs.iter().map(|input| input.name.clone()).collect(),
            });
        };
        one(text, input, &mut data, limit)?;
    }
    Tensors::new(data.into(), inputs)
        .ok_or_else(|| InputError::BadJson { why: "its inputs are larger than can be counted".to_owned() })
}

struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an array for each input")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The entries in the task's order; every input exactly once and nothing else.
fn by_name<'a>(
    entries: &[(String, &'a RawValue)],
    inputs: &[TensorSpec],
) -> Result<Vec<&'a RawValue>, InputError> {
    let wrong = |what: String| InputError::Names {
        what,
        expected: inputs.iter().map(|input| input.name.clone()).collect(),
    };
    let mut found: Vec<Option<&RawValue>> = vec![None; inputs.len()];
    for (name, value) in entries {
        let Some(index) = inputs.iter().position(|input| input.name == *name) else {
            return Err(wrong(format!("there is no input `{}`", numbers::short(name.as_bytes()))));
        };
        if found[index].replace(value).is_some() {
            return Err(wrong(format!("the input `{name}` is given twice")));
        }
    }
    let missing = |input: &TensorSpec| wrong(format!("the input `{}` is missing", input.name));
    inputs.iter().zip(found).map(|(input, value)| value.ok_or_else(|| missing(input))).collect()
}

/// The long form of a tensor.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Long<'a> {
    #[serde(default)]
    shape: Option<Vec<u64>>,
    #[serde(default)]
    datatype: Option<String>,
    #[serde(borrow)]
    data: &'a RawValue,
}

fn one(text: &RawValue, input: &TensorSpec, data: &mut Vec<u8>, limit: usize) -> Result<(), InputError> {
    let wrong = |fault| InputError::Tensor { name: input.name.clone(), fault };
    if !text.get().starts_with('{') {
        return numbers::read(text.get(), input, data, limit).map_err(wrong);
    }
    let long: Long<'_> = serde_json::from_str(text.get())
        .map_err(|error| wrong(TensorFault::Form { why: error.to_string() }))?;
    if let Some(got) = long.datatype
        && got != input.dtype.name()
    {
        let got = numbers::short(got.as_bytes());
        return Err(wrong(TensorFault::Datatype { got, expected: input.dtype }));
    }
    if let Some(mut got) = long.shape
        && !numbers::same_shape(&got, &input.shape)
    {
        got.truncate(16);
        return Err(wrong(TensorFault::Shape { got, expected: input.shape.clone() }));
    }
    numbers::read(long.data.get(), input, data, limit).map_err(wrong)
}
