//! What hardware costs to rent, for who gives no price of his own.
//!
//! A short list of processors whose name says which machines they are rented in, not a survey: a device that is not
//! in it keeps the stated default, and whoever pays another price says so in the node's settings.

use modelless_types::PricePerHour;
use modelless_wire::PriceOrigin;

/// What a lane of a device without a price is taken to cost: about a core-hour of a cloud's ordinary machines.
pub const ASSUMED: PricePerHour = PricePerHour(50_000);

/// What a GPU that is not in the list is taken to cost, with the machine around it: about a small one of a cloud's.
pub const ASSUMED_GPU: PricePerHour = PricePerHour(1_000_000);

/// Where and when the prices below were read: on demand, Linux, without any discount.
const LIST: &str = "EC2 on demand, us-east-1, as of 2026-01-19";

/// A processor's or graphics processor's name as [`super::slug`] makes it, the machine that it is rented in, and that
/// machine's price in micro-dollars an hour, shared by so many.
struct Listed(&'static str, &'static str, u64, u64);

/// A lane is a core, which clouds rent as one vCPU.
#[rustfmt::skip]
const CORES: &[Listed] = &[
    Listed("amd-epyc-7571", "m5a.large", 86_000, 2),
    Listed("amd-epyc-7r13", "m6a.large", 86_400, 2),
    Listed("amd-epyc-9r14", "m7a.large", 115_920, 2),
    Listed("amd-epyc-9r45", "m8a.large", 121_720, 2),
    Listed("intel-xeon-platinum-8175m", "m5.large", 96_000, 2),
    Listed("intel-xeon-platinum-8259cl", "m5.large", 96_000, 2),
    Listed("intel-xeon-platinum-8375c", "m6i.large", 96_000, 2),
    Listed("intel-xeon-platinum-8488c", "m7i.large", 100_800, 2),
    Listed("intel-xeon-6975p-c", "m8i.large", 105_840, 2),
];

/// With the smallest machine that holds one, cores and memory included.
#[rustfmt::skip]
const GPUS: &[Listed] = &[
    Listed("tesla-t4", "g4dn.xlarge", 526_000, 1),
    Listed("nvidia-a10g", "g5.xlarge", 1_006_000, 1),
    Listed("nvidia-l4", "g6.xlarge", 804_800, 1),
    Listed("nvidia-l40s", "g6e.xlarge", 1_861_000, 1),
    Listed("tesla-v100-sxm2-16gb", "p3.2xlarge", 3_060_000, 1),
    Listed("nvidia-a100-sxm4-40gb", "p4d.24xlarge", 21_957_642, 8),
    Listed("nvidia-a100-sxm4-80gb", "p4de.24xlarge", 27_447_050, 8),
    Listed("nvidia-h100-80gb-hbm3", "p5.4xlarge", 6_880_000, 1),
    Listed("nvidia-h200", "p5en.48xlarge", 63_296_000, 8),
    Listed("nvidia-b200", "p6-b200.48xlarge", 113_932_800, 8),
];

/// What a lane costs: what was declared, else what the list says of the device class, else [`ASSUMED`].
pub fn lane_price(device_class: &str, declared: Option<PricePerHour>) -> (PricePerHour, PriceOrigin) {
    if let Some(price) = declared {
        return (price, PriceOrigin::Declared);
    }
    match listed(device_class) {
        Some((price, source)) => (price, PriceOrigin::Listed { source }),
        None => (ASSUMED, PriceOrigin::Assumed),
    }
}

/// What an hour of a graphics processor costs, by its product name: cores and memory that feed it included.
pub fn gpu_price(name: &str) -> PricePerHour {
    listed(&format!("cuda:{}", super::slug(name))).map_or(ASSUMED_GPU, |(price, _)| price)
}

/// The price of one core, or of one graphics processor, of a device class, and where it comes from.
pub fn listed(device_class: &str) -> Option<(PricePerHour, String)> {
    let mut parts = device_class.split(':');
    let list = match parts.next()? {
        "cpu" => CORES,
        "cuda" => GPUS,
        _ => return None,
    };
    let model = parts.next()?;
    let model = super::LACKING.iter().find_map(|ending| model.strip_suffix(ending)).unwrap_or(model);
    let Listed(_, machine, price, shared_by) = list.iter().find(|Listed(name, ..)| *name == model)?;
    let source = match shared_by {
        1 => format!("{LIST}: {machine}"),
        _ => format!("{LIST}: {machine} shared by {shared_by}"),
    };
    Some((PricePerHour(price.div_ceil(*shared_by)), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_says_where_it_comes_from() {
        let given = PricePerHour(7);
        assert_eq!(lane_price("cpu:amd-epyc-9r14:8", Some(given)), (given, PriceOrigin::Declared));
        let (price, PriceOrigin::Listed { source }) = lane_price("cpu:amd-epyc-9r14:8", None) else {
            panic!("not listed")
        };
        assert_eq!(price, PricePerHour(57_960));
        assert!(source.contains("m7a.large") && source.contains("2026"), "{source}");
        // A processor that names no machine, and another device that happens to share its name.
        for unknown in ["cpu:amd-epyc:2", "cuda:amd-epyc-9r14:8", "tpu:v5", ""] {
            assert_eq!(lane_price(unknown, None), (ASSUMED, PriceOrigin::Assumed), "{unknown}");
        }
        assert_eq!(listed("cuda:nvidia-a100-sxm4-40gb").map(|(price, _)| price.0), Some(2_744_706));
    }

    #[test]
    fn the_list_names_what_detection_finds() {
        for name in ["Intel(R) Xeon(R) Platinum 8488C", "AMD EPYC 9R14", "INTEL(R) XEON(R) 6975P-C"] {
            let class = format!("cpu:{}:2", crate::node::slug(name));
            assert!(listed(&class).is_some(), "{class}");
        }
        for name in ["NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA A100-SXM4-80GB"] {
            assert_ne!(gpu_price(name), ASSUMED_GPU, "{name}");
        }
        assert_eq!(gpu_price("NVIDIA H100 80GB HBM3"), PricePerHour(6_880_000));
        assert_eq!(gpu_price("NVIDIA nobody rents"), ASSUMED_GPU);
    }
}
