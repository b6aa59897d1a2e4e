//! What this machine is, read from what the kernel says. Nothing here fails: what cannot be read is left open, and
//! whoever knows better says so in the node's settings.

use modelless_types::Bytes;
use modelless_wire::{Gpu, Hardware};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Instruction sets that decide how fast inference is, as the kernel names them.
const ISA: [&str; 16] = [
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
];
/// A driver that is not well may keep its tool waiting for ever.
const TOOL_WITHIN: Duration = Duration::from_secs(5);

/// What this process may use of this machine.
pub fn hardware() -> Hardware {
    let root = Path::new("/");
    let info = read(root, "proc/cpuinfo");
    // Knows affinity and the quotas of both kinds of control groups.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Hardware {
        cpu: cpu(&info),
        arch: std::env::consts::ARCH.to_owned(),
        isa: isa(&info),
        cores: u16::try_from(cores).unwrap_or(u16::MAX),
        memory: memory(root),
        gpus: gpus(root, nvidia_smi),
    }
}

/// What hardware that behaves alike is called, so that figures of one are not taken for another's:
/// `cpu:<model>:<cores>`, the processor's name without trade marks and clock, and after another colon the GPUs, since a
/// variant may run on one: `cpu:<model>:<cores>:<gpu>+<gpu>`. Hypervisors give many processors one name, so what lacks
/// the instructions that are usual today says which it has: it is slower, and in integers it may answer otherwise.
pub fn device_class(hardware: &Hardware) -> String {
    let model = Some(slug(&hardware.cpu)).filter(|slug| !slug.is_empty());
    let model = model.unwrap_or_else(|| slug(&hardware.arch));
    let class = format!("cpu:{model}{}:{}", lacking(hardware), hardware.cores);
    let gpus: Vec<String> = hardware.gpus.iter().map(|gpu| slug(&gpu.name)).collect();
    if gpus.is_empty() { class } else { format!("{class}:{}", gpus.join("+")) }
}

/// How the class of a processor of this kind without VNNI ends.
pub(super) const LACKING: [&str; 3] = ["-avx512", "-avx2", "-sse"];

fn lacking(hardware: &Hardware) -> &'static str {
    let has = |wanted: &str| hardware.isa.iter().any(|name| name == wanted);
    let [avx512, avx2, sse] = LACKING;
    let is_unknown = hardware.isa.is_empty() && hardware.cpu.is_empty();
    if hardware.arch != "x86_64" || is_unknown || has("avx512_vnni") || has("avx_vnni") {
        ""
    } else if has("avx512f") {
        avx512
    } else if has("avx2") {
        avx2
    } else {
        sse
    }
}

/// A product's name as lower-case words joined by `-`.
pub fn slug(name: &str) -> String {
    // What follows is the nominal clock, which says little about the real one.
    let name = name.split_once('@').map_or(name, |(before, _)| before).to_lowercase();
    let name = name.replace("(r)", " ").replace("(tm)", " ");
    let words = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let words: Vec<&str> =
        words.filter(|word| !word.is_empty() && !matches!(*word, "cpu" | "processor")).collect();
    words.join("-")
}

pub(super) fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_default()
}

fn field<'a>(text: &'a str, wanted: &str) -> Option<&'a str> {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = fields.filter(|(name, _)| name.trim() == wanted).map(|(_, value)| value.trim());
    values.find(|value| !value.is_empty())
}

fn cpu(info: &str) -> String {
    let name = field(info, "model name").or_else(|| field(info, "Model")).or_else(|| field(info, "Hardware"));
    name.unwrap_or_default().to_owned()
}

fn isa(info: &str) -> Vec<String> {
    let flags = field(info, "flags").or_else(|| field(info, "Features")).unwrap_or_default();
    let has = |wanted: &&&str| flags.split_whitespace().any(|flag| flag == **wanted);
    ISA.iter().filter(has).map(|name| (*name).to_owned()).collect()
}

/// The machine's memory, or the least that a control group above this process leaves of it.
fn memory(root: &Path) -> Bytes {
    let total = total_memory(&read(root, "proc/meminfo"));
    let limits = limits(root);
    Bytes(total.into_iter().chain(limits).min().unwrap_or(0))
}

fn total_memory(meminfo: &str) -> Option<u64> {
    memory_field(meminfo, "MemTotal")
}

pub(super) fn memory_field(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Of this process's control group and of every one that it lies in. `max` and the like are no numbers.
fn limits(root: &Path) -> Vec<u64> {
    let limit = |group: &MemoryGroup| number(&group.folder.join(group.files().limit));
    memory_groups(root).iter().filter_map(limit).collect()
}

/// A folder of a control group that may bound memory.
pub(super) struct MemoryGroup {
    pub(super) folder: PathBuf,
    unified: bool,
}

/// What is told there, and under which names that is counted in `memory.stat` which is only kept while there is room.
pub(super) struct MemoryFiles {
    pub(super) limit: &'static str,
    pub(super) used: &'static str,
    pub(super) given_back: &'static [&'static str],
}

impl MemoryGroup {
    pub(super) fn files(&self) -> MemoryFiles {
        if self.unified {
            let given_back = &["inactive_file", "active_file", "slab_reclaimable"];
            MemoryFiles { limit: "memory.max", used: "memory.current", given_back }
        } else {
            let (limit, used) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
            MemoryFiles { limit, used, given_back: &["total_inactive_file", "total_active_file"] }
        }
    }
}

pub(super) fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Those of this process's control group and of every one that it lies in.
pub(super) fn memory_groups(root: &Path) -> Vec<MemoryGroup> {
    let mut found = Vec::new();
    for line in read(root, "proc/self/cgroup").lines() {
        // `0::PATH` is the unified hierarchy, `N:memory:PATH` the older one.
        let mut parts = line.splitn(3, ':').skip(1);
        let (folder, unified) = match parts.next() {
            Some("") => ("sys/fs/cgroup", true),
            Some(kinds) if kinds.split(',').any(|kind| kind == "memory") => ("sys/fs/cgroup/memory", false),
            Some(_) | None => continue,
        };
        // In a container the path may be that of the machine outside; its root is what is here then.
        let own = parts.next().unwrap_or_default().trim_start_matches('/');
        let folders = Path::new(own).ancestors().map(|path| root.join(folder).join(path));
        found.extend(folders.map(|folder| MemoryGroup { folder, unified }));
    }
    found
}

/// Graphics processors by what their driver says; `tool` knows their memory too.
fn gpus(root: &Path, tool: impl Fn() -> Option<String>) -> Vec<Gpu> {
    let Ok(entries) = fs::read_dir(root.join("proc/driver/nvidia/gpus")) else { return Vec::new() };
    let told: Vec<Gpu> = tool().iter().flat_map(|text| text.lines()).filter_map(gpu_line).collect();
    if !told.is_empty() {
        return told;
    }
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join("information")).collect();
    files.sort_unstable();
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let gpu = |text: String| Some(Gpu { name: field(&text, "Model")?.to_owned(), memory: None });
    texts.filter_map(gpu).collect()
}

/// `NAME, MEBIBYTES`.
fn gpu_line(line: &str) -> Option<Gpu> {
    let (name, memory) = line.rsplit_once(',')?;
    let memory = memory.trim().parse().ok().map(Bytes::from_mib);
    Some(Gpu { name: name.trim().to_owned(), memory }).filter(|gpu| !gpu.name.is_empty())
}

fn nvidia_smi() -> Option<String> {
    let mut child = Command::new("nvidia-smi")
        .args(["--query-gpu=name,memory.total", "--format=csv,noheader,nounits"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdout = child.stdout.take()?;
    let (sender, said) = std::sync::mpsc::sync_channel(1);
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.read_to_string(&mut text);
        // Nobody listens any more when it took too long.
        let _ = sender.send(read.ok().map(|_| text));
    });
    let text = said.recv_timeout(TOOL_WITHIN).ok().flatten();
    // Ends one that hangs, and so its pipe and the reader.
    let _ = child.kill();
    let _ = child.wait();
    let _ = reader.join();
    text
}

#[cfg(test)]
mod tests {
    use super::super::tree::put;
    use super::*;

    #[test]
    fn names_processors_without_marks_and_clocks() {
        for (model, expected) in [
            ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "cpu:intel-xeon-platinum-8481c:2"),
            ("AMD EPYC 7B13", "cpu:amd-epyc-7b13:2"),
            ("Intel(R) Xeon(R) Processor @ 2.1GHz", "cpu:intel-xeon:2"),
            ("", "cpu:x86-64:2"),
        ] {
            let info = format!(
                "processor\t: 0\nmodel\t\t: 143\nmodel name\t: {model}\nflags\t\t: fpu avx2 avx512_vnni amx_int8 x\n"
            );
            let hardware = Hardware {
                cpu: cpu(&info),
                arch: "x86_64".into(),
                isa: isa(&info),
                cores: 2,
                ..Hardware::default()
            };
            assert_eq!(device_class(&hardware), expected, "{model}");
            assert_eq!(isa(&info), ["avx2", "avx512_vnni", "amx_int8"]);
        }
    }

    #[test]
    fn processors_of_one_name_with_other_instructions_are_of_other_classes() {
        let class = |arch: &str, isa: &[&str]| {
            device_class(&Hardware {
                cpu: "AMD EPYC-7R13".into(),
                arch: arch.into(),
                isa: isa.iter().map(|&name| name.to_owned()).collect(),
                cores: 2,
                ..Hardware::default()
            })
        };
        assert_eq!(class("x86_64", &["avx2", "avx_vnni"]), "cpu:amd-epyc-7r13:2");
        assert_eq!(class("x86_64", &["avx2", "avx512f"]), "cpu:amd-epyc-7r13-avx512:2");
        assert_eq!(class("x86_64", &["avx2"]), "cpu:amd-epyc-7r13-avx2:2");
        assert_eq!(class("x86_64", &[]), "cpu:amd-epyc-7r13-sse:2");
        assert_eq!(class("aarch64", &["asimd"]), "cpu:amd-epyc-7r13:2");
        let unread = Hardware { arch: "x86_64".into(), cores: 2, ..Hardware::default() };
        assert_eq!(device_class(&unread), "cpu:x86-64:2", "what cannot be read is left open");
        for isa in [&["avx2"][..], &["avx2", "avx512f"], &[]] {
            assert!(crate::node::prices::listed(&class("x86_64", isa)).is_some(), "it costs the same");
        }
    }

    #[test]
    fn a_machine_with_gpus_is_not_of_the_class_of_one_without() {
        let gpu = |name: &str| Gpu { name: name.to_owned(), memory: None };
        let gpus = vec![gpu("NVIDIA L4"), gpu("NVIDIA L4")];
        let hardware = Hardware { cpu: "AMD EPYC 9R14".into(), cores: 8, gpus, ..Hardware::default() };
        assert_eq!(device_class(&hardware), "cpu:amd-epyc-9r14:8:nvidia-l4+nvidia-l4");
        assert!(
            crate::node::prices::listed(&device_class(&hardware)).is_some(),
            "its cores have a price still"
        );
    }

    #[test]
    fn a_container_has_the_memory_of_the_tightest_group_around_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        assert_eq!(memory(root), Bytes(0), "nothing is known");
        put(root, "proc/meminfo", "MemTotal:       24000000 kB\nMemFree: 1 kB\n");
        assert_eq!(memory(root), Bytes(24_000_000 << 10));
        put(root, "proc/self/cgroup", "4:memory:/outer/inner\n1:cpu:/\n0::/a/b\n");
        put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        put(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(memory(root), Bytes(24_000_000 << 10), "no limit is a limit");
        put(root, "sys/fs/cgroup/a/memory.max", "5000000000\n");
        assert_eq!(memory(root), Bytes(5_000_000_000), "that of the group above counts");
        put(root, "sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "4000000000\n");
        assert_eq!(memory(root), Bytes(4_000_000_000), "and that of the older hierarchy");
    }

    #[test]
    fn graphics_processors_are_told_by_their_driver_and_its_tool() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let never = || -> Option<String> { panic!("without a driver its tool is not asked") };
        assert!(gpus(root, never).is_empty());
        put(
            root,
            "proc/driver/nvidia/gpus/0000:00:04.0/information",
            "Model: \t\t NVIDIA L4\nIRQ:   \t\t 30\n",
        );
        assert_eq!(gpus(root, || None), [Gpu { name: "NVIDIA L4".into(), memory: None }]);
        let told = gpus(root, || Some("NVIDIA H100 80GB HBM3, 81559\nNVIDIA L4, [N/A]\n".into()));
        assert_eq!(
            told,
            [
                Gpu { name: "NVIDIA H100 80GB HBM3".into(), memory: Some(Bytes::from_mib(81_559)) },
                Gpu { name: "NVIDIA L4".into(), memory: None },
            ]
        );
    }

    #[test]
    fn this_machine_is_one() {
        let hardware = hardware();
        assert!(hardware.cores >= 1 && hardware.memory > Bytes(0), "{hardware:?}");
        assert!(device_class(&hardware).starts_with("cpu:"));
    }
}
