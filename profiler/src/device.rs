//! What this machine is called, so that figures of one are not taken for another's.

use std::fs;

/// `cpu:<model>:<cores>`: the processor's name without trade marks and clock, and the cores this process may use.
pub fn class() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    class_of(&info, std::env::consts::ARCH, cores)
}

fn class_of(cpuinfo: &str, arch: &str, cores: usize) -> String {
    let field = |wanted: &str| {
        cpuinfo
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == wanted)
            .map(|(_, value)| slug(value))
            .filter(|slug| !slug.is_empty())
    };
    let model = field("model name").or_else(|| field("Model")).or_else(|| field("Hardware"));
    format!("cpu:{}:{cores}", model.unwrap_or_else(|| slug(arch)))
}

/// Lower-case words joined by `-`.
fn slug(name: &str) -> String {
    // What follows is the nominal clock, which says little about the real one.
    let name = name.split_once('@').map_or(name, |(before, _)| before).to_lowercase();
    let name = name.replace("(r)", " ").replace("(tm)", " ");
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let words: Vec<&str> =
        words.filter(|word| !word.is_empty() && !matches!(*word, "cpu" | "processor")).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_processors_without_marks_and_clocks() {
        for (model, expected) in [
            ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "cpu:intel-xeon-platinum-8481c:2"),
            ("AMD EPYC 7B13", "cpu:amd-epyc-7b13:2"),
            ("Intel(R) Xeon(R) Processor @ 2.1GHz", "cpu:intel-xeon:2"),
            ("", "cpu:x86-64:2"),
        ] {
            let info = format!("processor\t: 0\nmodel\t\t: 143\nmodel name\t: {model}\n");
            assert_eq!(class_of(&info, "x86_64", 2), expected, "{model}");
        }
        assert_eq!(class_of("", "aarch64", 4), "cpu:aarch64:4");
    }
}
