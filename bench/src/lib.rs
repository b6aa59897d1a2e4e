//! What the load generators here share; in [`node`] an executor in this process.
#![allow(clippy::disallowed_methods, reason = "a benchmark times real work")]

pub mod balancer;
pub mod bare;
pub mod cluster;
pub mod node;
pub mod open;
pub mod sender;
pub mod timing;

use modelless_testkit::Rng as Bytewise;
use modelless_types::{DType, TensorSpec};

/// Random tensors as a task takes them, one after the other: numbers between 0 and 1; token numbers, and masks that hide
/// nothing.
pub fn random(tensors: &[TensorSpec], rng: &mut Bytewise) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    for tensor in tensors {
        let mask = tensor.name.contains("mask");
        for _ in 0..tensor.shape.iter().product::<u32>() {
            match tensor.dtype {
                DType::Fp32 => out.extend_from_slice(&rng.unit_f32().to_le_bytes()),
                DType::Int64 if mask => out.extend_from_slice(&1_i64.to_le_bytes()),
                DType::Int64 => out.extend_from_slice(&(1_996 + rng.next_u64() % 10_000).to_le_bytes()),
                DType::Bool
                | DType::Uint8
                | DType::Int8
                | DType::Int32
                | DType::Fp16
                | DType::Fp64
                | DType::Bytes => anyhow::bail!("no random numbers of {} are made here", tensor.dtype.name()),
            }
        }
    }
    Ok(out)
}
