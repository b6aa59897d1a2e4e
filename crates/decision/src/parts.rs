//! How a batch of items of different lengths is cut into parts that run one after another.
//!
//! A batch is as long as its longest item, and what is filled up is computed like the rest. In parts of like length less is
//! filled up, and each part begins anew: what beginning costs decides how many are worth it.

use crate::estimate::RunModel;
use alloc::vec::Vec;

/// The most parts that anybody asks for.
const MOST: usize = 8;

/// Some items of one length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// How many they are.
    pub items: u32,
    /// As long as the longest of them.
    pub length: u32,
}

/// What another run costs besides its items, in items: how much a batch of one takes above what one more takes in a large
/// batch. That is too much rather than too little, since a few items are computed less well than many.
pub fn beginning(run: &RunModel, max_batch: u32) -> f64 {
    let largest = run.largest_measured().min(max_batch);
    if largest < 2 {
        return f64::INFINITY;
    }
    let (one, all) = (run.uncorrected(1).mean, run.uncorrected(largest).mean);
    let another = (all - one) / f64::from(largest - 1);
    // Larger batches that take no longer leave nothing to gain by making them smaller.
    if another > 0.0 { ((one - another) / another).max(0.0) } else { f64::INFINITY }
}

/// The cheapest parts, `most` of them at most, of items in the order of their lengths, the shortest first. `beginning` is what
/// [`beginning`] says; it counts as so many items of the mean length.
pub fn into_parts(lengths: &[u32], beginning: f64, most: usize) -> Vec<Part> {
    let groups = groups(lengths);
    let sum: f64 = lengths.iter().map(|length| f64::from(*length)).sum();
    let begin = beginning * sum / f64::from(u32::try_from(lengths.len()).unwrap_or(u32::MAX)).max(1.0);
    let Some(last) = groups.len().checked_sub(1) else { return Vec::new() };
    if last == 0 || most < 2 || !begin.is_finite() {
        return Vec::from([whole(&groups)]);
    }
    // `best[to]`: the least cost of the groups up to `to` in so many parts, and where the last of these begins.
    let cost = |from: usize, to: usize| {
        let items: u32 = groups[from..=to].iter().map(|group| group.items).sum();
        begin + f64::from(items) * f64::from(groups[to].length)
    };
    let mut tables = Vec::from([(0..=last).map(|to| (cost(0, to), 0)).collect::<Vec<_>>()]);
    for parts in 1..most.min(MOST).min(groups.len()) {
        let before = &tables[parts - 1];
        let best = |to: usize| {
            let ways = (parts..=to).map(|from| (before[from - 1].0 + cost(from, to), from));
            ways.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
        };
        let table = (0..=last).map(best).collect();
        tables.push(table);
    }
    // Of ways that cost the same the one with fewer parts.
    let count =
        (0..tables.len()).min_by(|a, b| tables[*a][last].0.total_cmp(&tables[*b][last].0)).unwrap_or(0);
    let (mut parts, mut to) = (Vec::new(), last);
    for table in tables[..=count].iter().rev() {
        let from = table[to].1;
        parts.push(whole(&groups[from..=to]));
        to = from.saturating_sub(1);
    }
    parts.reverse();
    parts
}

/// Items of one length each.
fn groups(lengths: &[u32]) -> Vec<Part> {
    let mut groups: Vec<Part> = Vec::new();
    for length in lengths {
        match groups.last_mut() {
            Some(last) if last.length >= *length => last.items += 1,
            Some(_) | None => groups.push(Part { items: 1, length: *length }),
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
    fn a_part_has_to_be_worth_its_beginning() {
        // Apart they save 2 x 56 of 192; the mean length is 27.
        assert_eq!(into_parts(&[8, 8, 64], 4.0, 4), parts(&[(2, 8), (1, 64)]));
        assert_eq!(into_parts(&[8, 8, 64], 4.5, 4), parts(&[(3, 64)]));
        assert_eq!(into_parts(&[8, 8, 64], f64::INFINITY, 4), parts(&[(3, 64)]));
        assert_eq!(into_parts(&[8, 8, 64], 0.0, 1), parts(&[(3, 64)]));
    }

    #[test]
    fn of_too_many_lengths_those_nearest_share_a_part() {
        assert_eq!(into_parts(&[8, 16, 64, 72, 128], 0.0, 3), parts(&[(2, 16), (2, 72), (1, 128)]));
        assert_eq!(into_parts(&[8, 16, 64, 72, 128], 0.0, 2), parts(&[(2, 16), (3, 128)]));
    }

    #[test]
    fn beginning_is_what_a_batch_of_one_takes_above_one_more() {
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
        assert!((beginning(&run(&[(1, 30.0), (11, 130.0)]), 32) - 2.0).abs() < 1e-9);
        assert!((beginning(&run(&[(1, 10.0), (11, 210.0)]), 32)).abs() < 1e-9);
        assert!(beginning(&run(&[(1, 30.0)]), 32).is_infinite());
        assert!(beginning(&run(&[(1, 30.0), (8, 30.0)]), 32).is_infinite());
        assert!(beginning(&run(&[(1, 30.0), (8, 90.0)]), 1).is_infinite());
    }

    proptest! {
        #[test]
        fn nothing_is_lost_cut_off_or_dearer_than_whole(
            mut lengths in prop::collection::vec((1_u32..17).prop_map(|n| n * 8), 1..40),
            begin in 0.0_f64..6.0,
            most in 1_usize..5,
        ) {
            lengths.sort_unstable();
            let parts = into_parts(&lengths, begin, most);
            prop_assert!(!parts.is_empty() && parts.len() <= most);
            let mut rest = lengths.as_slice();
            let mut tokens = 0;
            for part in &parts {
                let (here, after) = rest.split_at(part.items as usize);
                prop_assert_eq!(here.last(), Some(&part.length));
                (rest, tokens) = (after, tokens + part.items * part.length);
            }
            prop_assert!(rest.is_empty());
            let count = u32::try_from(lengths.len()).unwrap();
            let mean = f64::from(lengths.iter().sum::<u32>()) / f64::from(count);
            let all = |tokens: u32, parts: usize| f64::from(tokens) + begin * mean * f64::from(u32::try_from(parts).unwrap());
            prop_assert!(all(tokens, parts.len()) <= all(count * lengths[lengths.len() - 1], 1) + 1e-6);
            if most == 2 {
                let two = |at: usize| {
                    let short = u32::try_from(at).unwrap() * lengths[at - 1];
                    all(short + (count - u32::try_from(at).unwrap()) * lengths[lengths.len() - 1], 2)
                };
                let best = (1..lengths.len()).map(two).fold(f64::INFINITY, f64::min);
                prop_assert!(all(tokens, parts.len()) <= best + 1e-6);
            }
        }
    }

    #[test]
    fn many_lengths_are_no_trouble() {
        let lengths: Vec<u32> = (1..=64).map(|n| n * 8).collect();
        assert_eq!(into_parts(&lengths, 0.1, 4).len(), 4);
        assert_eq!(into_parts(&vec![8; 1_000], 0.1, 4), parts(&[(1_000, 8)]));
    }
}
