//! How much memory could be taken now without anything having to give way: by the machine's own count, and in each control group above
//! this process that bounds it.

use super::detect::{MemoryGroup, memory_field, memory_groups, number, read};
use modelless_types::Bytes;
use std::fs;
use std::path::Path;

/// `None` where nothing tells.
pub fn free_memory() -> Option<Bytes> {
    free(Path::new("/"))
}

fn free(root: &Path) -> Option<Bytes> {
    let machine = memory_field(&read(root, "proc/meminfo"), "MemAvailable");
    let groups = memory_groups(root);
    machine.into_iter().chain(groups.iter().filter_map(left)).min().map(Bytes)
}

/// What a group is bound to, less what it holds but for what is only kept while there is room.
fn left(group: &MemoryGroup) -> Option<u64> {
    let files = group.files();
    let limit = number(&group.folder.join(files.limit))?;
    let used = number(&group.folder.join(files.used))?;
    let stat = fs::read_to_string(group.folder.join("memory.stat")).unwrap_or_default();
    let counted = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        files.given_back.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
    };
    let kept: u64 = stat.lines().filter_map(counted).sum();
    Some(limit.saturating_sub(used.saturating_sub(kept)))
}

#[cfg(test)]
mod tests {
    use super::super::tree::put;
    use super::*;

    #[test]
    fn what_is_free_is_the_least_that_the_machine_and_the_groups_around_have_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        assert_eq!(free(root), None);
        put(root, "proc/meminfo", "MemTotal:       24000000 kB\nMemAvailable:   9000000 kB\n");
        assert_eq!(free(root), Some(Bytes(9_000_000 << 10)));
        put(root, "proc/self/cgroup", "4:memory:/outer\n0::/a/b\n");
        put(root, "sys/fs/cgroup/a/b/memory.max", "max\n");
        put(root, "sys/fs/cgroup/a/memory.max", "5000\n");
        assert_eq!(free(root), Some(Bytes(9_000_000 << 10)), "nobody knows what it holds");
        put(root, "sys/fs/cgroup/a/memory.current", "4000\n");
        put(root, "sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 500\nactive_file 700\n");
        assert_eq!(free(root), Some(Bytes(2_200)));
        put(root, "sys/fs/cgroup/memory/outer/memory.limit_in_bytes", "3000\n");
        put(root, "sys/fs/cgroup/memory/outer/memory.usage_in_bytes", "3100\n");
        put(root, "sys/fs/cgroup/memory/outer/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n");
        assert_eq!(free(root), Some(Bytes(200)), "that of the older hierarchy");
    }

    #[test]
    fn this_machine_has_some() {
        assert!(free_memory().is_some_and(|free| free > Bytes(0)));
    }
}
