//! The smallest ONNX file: one node, such as an `Identity` for tests in which every answer must be its own question.
//!
//! Written by hand as protobuf (field numbers are those of `onnx.proto`), so that no test needs Python.

/// A model that gives its `f32` input `x[n, width]` back as output `y[n, width]`, for any `n`.
pub fn identity(width: u64) -> Vec<u8> {
    unary("Identity", width, 13)
}

/// The same with another operator of one input, such as `Sqrt`, and of another version of the operators.
pub fn unary(operator: &str, width: u64, opset: u64) -> Vec<u8> {
    chain(operator, width, opset, 1)
}

/// The same with so many nodes one after the other: a model that takes its time, and has no weights.
pub fn chain(operator: &str, width: u64, opset: u64, nodes: u32) -> Vec<u8> {
    let name = |at: u32| match at {
        0 => "x".to_owned(),
        last if last == nodes => "y".to_owned(),
        between => format!("v{between}"),
    };
    let node = |at: u32| field(1, &message(&[text(1, &name(at)), text(2, &name(at + 1)), text(4, operator)]));
    let graph = message(&[
        (0..nodes).flat_map(node).collect(),
        text(2, "one"),
        field(11, &value_info("x", width)),
        field(12, &value_info("y", width)),
    ]);
    let opset = message(&[number(2, opset)]);
    message(&[number(1, 8), field(7, &graph), field(8, &opset)])
}

fn value_info(name: &str, width: u64) -> Vec<u8> {
    let any = message(&[text(2, "n")]);
    let fixed = message(&[number(1, width)]);
    let shape = message(&[field(1, &any), field(1, &fixed)]);
    let tensor = message(&[number(1, 1), field(2, &shape)]); // element type 1: FLOAT
    message(&[text(1, name), field(2, &field(1, &tensor))])
}

fn message(fields: &[Vec<u8>]) -> Vec<u8> {
    fields.concat()
}

/// A varint field.
fn number(tag: u8, value: u64) -> Vec<u8> {
    [vec![tag << 3], varint(value)].concat()
}

/// A length-delimited field.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![tag << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn text(tag: u8, value: &str) -> Vec<u8> {
    field(tag, value.as_bytes())
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let low = u8::try_from(value & 0x7f).unwrap_or(0);
        value >>= 7;
        if value == 0 {
            out.push(low);
            return out;
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_seven_bits_at_a_time() {
        assert_eq!(varint(1), [1]);
        assert_eq!(varint(300), [0xac, 0x02]);
    }

    #[test]
    fn the_file_starts_with_its_version_and_names_its_node() {
        let file = identity(16);
        assert_eq!(file[..2], [0x08, 8]);
        assert!(file.windows(8).any(|window| window == b"Identity"));
    }

    #[test]
    fn a_chain_is_as_long_as_it_was_asked_for() {
        let file = chain("Sin", 16, 13, 3);
        assert_eq!(file.windows(3).filter(|window| *window == b"Sin").count(), 3);
        let between = file.windows(2).filter(|window| *window == b"v1" || *window == b"v2").count();
        assert_eq!(between, 4, "what is between two nodes is the output of one and the input of the other");
    }
}
