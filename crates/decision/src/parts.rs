//! How a batch of items of different lengths is cut into parts that run one after another.
//!
//! A batch is as long as its longest item, and what is filled up is computed like the rest. In parts of like length less is
//! filled up, and each part begins anew: what beginning costs decides how many are worth it.

use crate::estimate::RunModel;
use alloc::vec::Vec;

/// Lengths are told apart in at most so many steps, so that deciding takes no time to speak of.
const STEPS: u32 = 64;

/// Some items of one length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// How many they are.
    pub items: u32,
    /// As long as the longest of them.
    pub length: u32,
}

/// What another part costs besides its items, in items as they were timed: how much a batch of one takes above what one more takes
/// in a large batch. That is too much rather than too little, since a few items are computed less well than many.
pub fn another(run: &RunModel, max_batch: u32) -> f64 {
    let largest = run.largest_measured().min(max_batch);
    if largest < 2 {
        return f64::INFINITY;
    }
    let (one, all) = (run.uncorrected(1).mean, run.uncorrected(largest).mean);
    let more = (all - one) / f64::from(largest - 1);
    // Larger batches that take no longer leave nothing to gain by making them smaller.
    if more > 0.0 { ((one - more) / more).max(0.0) } else { f64::INFINITY }
}

/// The cheapest parts, `most` of them at most, of items in the order of their lengths, the shortest first. Each part but the first costs
/// as much as `another` of the unit that lengths are in.
pub fn into_parts(lengths: &[u32], another: f64, most: usize) -> Vec<Part> {
    let groups = groups(lengths);
    let Some(last) = groups.len().checked_sub(1) else { return Vec::new() };
    let filled = f64::from(groups[last].length) * f64::from(size(lengths.len()));
    let saved = filled - lengths.iter().map(|length| f64::from(*length)).sum::<f64>();
    // Nothing can be saved but what is filled up.
    if last == 0 || most < 2 || saved <= another || another.is_nan() {
        return Vec::from([whole(&groups)]);
    }
    // How many items come before each group.
    let mut before = Vec::with_capacity(groups.len() + 1);
    before.push(0_u32);
    before.extend(groups.iter().scan(0_u32, |sum, group| {
        *sum += group.items;
        Some(*sum)
    }));
    let cost = |from: usize, to: usize| {
        another + f64::from(before[to + 1] - before[from]) * f64::from(groups[to].length)
    };
    // For each number of parts, and for the groups up to each: the least cost, and where the last of the parts begins.
    let mut tables = Vec::from([(0..=last).map(|to| (cost(0, to), 0)).collect::<Vec<_>>()]);
    for parts in 1..most.min(groups.len()) {
        let fewer = &tables[parts - 1];
        let best = |to: usize| {
            let ways = (parts..=to).map(|from| (fewer[from - 1].0 + cost(from, to), from));
            ways.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
        };
        let table = (0..=last).map(best).collect();
        tables.push(table);
    }
    // Of ways that cost the same the one with fewer parts.
    let of = |table: &usize| tables[*table][last].0;
    let count = (0..tables.len()).min_by(|a, b| of(a).total_cmp(&of(b))).unwrap_or(0);
    let (mut parts, mut to) = (Vec::new(), last);
    for table in tables[..=count].iter().rev() {
        let from = table[to].1;
        parts.push(whole(&groups[from..=to]));
        to = from.saturating_sub(1);
    }
    parts.reverse();
    parts
}

fn size(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Items of about one length each.
fn groups(lengths: &[u32]) -> Vec<Part> {
    let (shortest, longest) = (lengths.first().copied().unwrap_or(0), lengths.last().copied().unwrap_or(0));
    let step = longest.saturating_sub(shortest).div_ceil(STEPS).max(1);
    let mut groups: Vec<Part> = Vec::new();
    let mut until = 0;
    for length in lengths {
        match groups.last_mut() {
            Some(last) if *length < until => *last = Part { items: last.items + 1, length: *length },
            Some(_) | None => {
                until = length.saturating_add(step);
                groups.push(Part { items: 1, length: *length });
            }
        }
    }
    groups
}

fn whole(groups: &[Part]) -> Part {
    let longest = groups.iter().map(|group| group.length).max().unwrap_or(0);
    Part { items: groups.iter().map(|group| group.items).sum(), length: longest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Moments;
    use alloc::vec;
    use modelless_types::BatchPoint;
    use proptest::prelude::*;

    fn parts(all: &[(u32, u32)]) -> Vec<Part> {
        all.iter().map(|(items, length)| Part { items: *items, length: *length }).collect()
    }

    #[test]
    fn what_is_as_long_stays_together() {
        assert_eq!(into_parts(&[8, 8, 8], 0.0, 4), parts(&[(3, 8)]));
        assert_eq!(into_parts(&[], 0.0, 4), parts(&[]));
        assert_eq!(into_parts(&[8, 8, 64], 0.0, 4), parts(&[(2, 8), (1, 64)]));
    }

    #[test]
    fn another_part_has_to_be_worth_it() {
        // Apart they save 2 x 56.
        assert_eq!(into_parts(&[8, 8, 64], 111.0, 4), parts(&[(2, 8), (1, 64)]));
        assert_eq!(into_parts(&[8, 8, 64], 112.0, 4), parts(&[(3, 64)]));
        assert_eq!(into_parts(&[8, 8, 64], f64::INFINITY, 4), parts(&[(3, 64)]));
        assert_eq!(into_parts(&[8, 8, 64], f64::NAN, 4), parts(&[(3, 64)]));
        assert_eq!(into_parts(&[8, 8, 64], 0.0, 1), parts(&[(3, 64)]));
    }

    #[test]
    fn of_too_many_lengths_those_nearest_share_a_part() {
        assert_eq!(into_parts(&[8, 16, 64, 72, 128], 0.0, 3), parts(&[(2, 16), (2, 72), (1, 128)]));
        assert_eq!(into_parts(&[8, 16, 64, 72, 128], 0.0, 2), parts(&[(2, 16), (3, 128)]));
    }

    #[test]
    fn another_part_costs_what_a_batch_of_one_takes_above_one_more() {
        let run = |points: &[(u32, f64)]| {
            let point = |(batch, mean_us): &(u32, f64)| BatchPoint {
                batch: *batch,
                mean_us: *mean_us,
                var_us2: 0.0,
                p99_us: *mean_us,
                samples: 9,
            };
            RunModel::from_points(&points.iter().map(point).collect::<Vec<_>>(), Moments::ZERO).unwrap()
        };
        assert!((another(&run(&[(1, 30.0), (11, 130.0)]), 32) - 2.0).abs() < 1e-9);
        assert!((another(&run(&[(1, 10.0), (11, 210.0)]), 32)).abs() < 1e-9);
        assert!(another(&run(&[(1, 30.0)]), 32).is_infinite());
        assert!(another(&run(&[(1, 30.0), (8, 30.0)]), 32).is_infinite());
        assert!(another(&run(&[(1, 30.0), (8, 90.0)]), 1).is_infinite());
    }

    proptest! {
        #[test]
        fn nothing_is_lost_cut_off_or_dearer_than_whole(
            mut lengths in prop::collection::vec((1_u32..17).prop_map(|n| n * 8), 1..40),
            another in 0.0_f64..400.0,
            most in 1_usize..5,
        ) {
            lengths.sort_unstable();
            let parts = into_parts(&lengths, another, most);
            prop_assert!(!parts.is_empty() && parts.len() <= most);
            let mut rest = lengths.as_slice();
            let mut tokens = 0;
            for part in &parts {
                let (here, after) = rest.split_at(part.items as usize);
                prop_assert_eq!(here.last(), Some(&part.length));
                (rest, tokens) = (after, tokens + part.items * part.length);
            }
            prop_assert!(rest.is_empty());
            let (count, longest) = (size(lengths.len()), lengths[lengths.len() - 1]);
            let all = |tokens: u32, parts: usize| f64::from(tokens) + another * f64::from(size(parts));
            prop_assert!(all(tokens, parts.len()) <= all(count * longest, 1) + 1e-6);
            if most == 2 {
                let two = |at: usize| all(size(at) * lengths[at - 1] + (count - size(at)) * longest, 2);
                let best = (1..lengths.len()).map(two).fold(f64::INFINITY, f64::min);
                prop_assert!(all(tokens, parts.len()) <= best + 1e-6);
            }
        }
    }

    #[test]
    fn many_lengths_are_no_trouble() {
        let lengths: Vec<u32> = (1..=1_024).map(|n| n * 32).collect();
        let cut = into_parts(&lengths, 0.1, 4);
        assert_eq!((cut.len(), cut.iter().map(|part| part.items).sum::<u32>()), (4, 1_024));
        assert!(groups(&lengths).len() <= STEPS as usize + 1);
        let odd: Vec<u32> = (1..=128).collect();
        assert!(groups(&odd).len() <= STEPS as usize + 1, "{}", groups(&odd).len());
        assert_eq!(into_parts(&vec![8; 1_000], 0.1, 4), parts(&[(1_000, 8)]));
    }
}
