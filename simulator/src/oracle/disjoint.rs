//! Of stretches of time that overlap, those that do not and tell the most.

/// From when until when, and what it tells.
pub(super) type Stretch = (u64, u64, f64);

/// Those that tell the most together of which no two overlap, in their order.
pub(super) fn most(mut stretches: Vec<Stretch>) -> Vec<Stretch> {
    stretches.sort_by_key(|(_, to, _)| *to);
    // What the first so many tell at best, and before which the last of them are, if the last of all is one of them.
    let mut best: Vec<(f64, Option<usize>)> = vec![(0.0, None)];
    for (at, (from, _, tells)) in stretches.iter().enumerate() {
        let before = stretches[..at].partition_point(|(_, to, _)| to <= from);
        let with = best[before].0 + tells;
        let without = best[at].0;
        best.push(if with > without { (with, Some(before)) } else { (without, None) });
    }
    let mut chosen = Vec::new();
    let mut at = stretches.len();
    while at > 0 {
        match best[at].1 {
            Some(before) => {
                chosen.push(stretches[at - 1]);
                at = before;
            }
            None => at -= 1,
        }
    }
    chosen.reverse();
    chosen
}

/// The same with ends moved, some joined and some parted, while that tells more. Ends are moved by so much and by ever less down to `least`, and lie
/// between the beginning and `all`.
pub(super) fn better(
    mut stretches: Vec<Stretch>,
    (most, least): (u64, u64),
    all: u64,
    tells: &impl Fn(u64, u64) -> f64,
) -> Vec<Stretch> {
    let sum = |stretches: &[Stretch]| stretches.iter().map(|(.., tells)| tells).sum::<f64>();
    for _ in 0..ROUNDS {
        let known = sum(&stretches);
        stretches = parted(joined(moved(stretches, (most, least), all, tells), tells), tells);
        if sum(&stretches) <= known {
            break;
        }
    }
    stretches
}

fn moved(
    mut stretches: Vec<Stretch>,
    (most, least): (u64, u64),
    all: u64,
    tells: &impl Fn(u64, u64) -> f64,
) -> Vec<Stretch> {
    let mut by = most;
    while by >= least.max(1) {
        for at in 0..stretches.len() {
            let first = at.checked_sub(1).map_or(0, |before| stretches[before].1);
            let last = stretches.get(at + 1).map_or(all, |next| next.0);
            for _ in 0..MOVES {
                let (from, to, known) = stretches[at];
                let ends = [
                    (from.saturating_sub(by).max(first), to),
                    (from + by, to),
                    (from, to.saturating_sub(by)),
                    (from, (to + by).min(last)),
                ];
                let open = ends.into_iter().filter(|ends| ends.0 < ends.1 && *ends != (from, to));
                let told = open.map(|(from, to)| (from, to, tells(from, to)));
                match told.max_by(|a, b| a.2.total_cmp(&b.2)).filter(|better| better.2 > known) {
                    Some(better) => stretches[at] = better,
                    None => break,
                }
            }
        }
        by /= 2;
    }
    stretches
}

/// Two that follow each other are one where that tells more.
fn joined(stretches: Vec<Stretch>, tells: &impl Fn(u64, u64) -> f64) -> Vec<Stretch> {
    let mut joined: Vec<Stretch> = Vec::new();
    for stretch in stretches {
        let one = joined.last().map(|last| (last.0, stretch.1, tells(last.0, stretch.1)));
        match (one, joined.last_mut()) {
            (Some(one), Some(last)) if one.2 > last.2 + stretch.2 => *last = one,
            (Some(_) | None, Some(_) | None) => joined.push(stretch),
        }
    }
    joined
}

/// One is two, with a lull between them, where that tells more.
fn parted(stretches: Vec<Stretch>, tells: &impl Fn(u64, u64) -> f64) -> Vec<Stretch> {
    let mut parted = Vec::new();
    for (from, to, known) in stretches {
        let places: Vec<u64> = (1..PARTS).map(|part| from + (to - from) * part / PARTS).collect();
        let told = |from: u64, to: u64| if from < to { (from, to, tells(from, to)) } else { (from, to, 0.0) };
        // The best that ends by each place, and what begins there.
        let before = places.iter().map(|place| told(from, *place)).scan(told(from, from), |best, one| {
            *best = if one.2 > best.2 { one } else { *best };
            Some(*best)
        });
        let before: Vec<Stretch> = before.collect();
        let after = places.iter().map(|place| told(*place, to));
        let two = before.into_iter().zip(after).max_by(|a, b| (a.0.2 + a.1.2).total_cmp(&(b.0.2 + b.1.2)));
        match two.filter(|(first, second)| first.2 + second.2 > known) {
            Some((first, second)) => {
                parted.extend([first, second].into_iter().filter(|one| one.2 > 0.0));
            }
            None => parted.push((from, to, known)),
        }
    }
    parted
}

/// So often at most all are looked at.
const ROUNDS: u32 = 16;
/// One is parted at one of so many places.
const PARTS: u64 = 64;
/// One is moved so often by the same at most.
const MOVES: u32 = 16;

#[cfg(test)]
mod tests {
    use super::super::float;
    use super::*;

    #[test]
    fn those_that_do_not_overlap_count_together() {
        for (expected, stretches) in [
            (0.0, &[][..]),
            (2.0, &[(0, 10, 1.0), (5, 15, 1.5), (10, 20, 1.0)]),
            (2.5, &[(10, 20, 1.0), (5, 15, 2.5), (0, 10, 1.0)]),
            (4.0, &[(0, 100, 3.0), (0, 10, 1.0), (20, 30, 1.0), (40, 50, 2.0)]),
        ] {
            let told: f64 = most(stretches.to_vec()).iter().map(|(.., tells)| tells).sum();
            assert!((told - expected).abs() < 1e-12, "{stretches:?}");
        }
    }

    #[test]
    fn ends_are_moved_to_where_they_tell_the_most_and_never_into_another() {
        // Each end is right at one place.
        let tells = |from: u64, to: u64| 1_000.0 - float(from.abs_diff(137) + to.abs_diff(411));
        let moved = |stretches: &[Stretch], all| moved(stretches.to_vec(), (64, 1), all, &tells);
        assert_eq!(moved(&[(0, 500, 0.0)], 1_000), [(137, 411, 1_000.0)]);
        assert_eq!(moved(&[(0, 300, 0.0)], 400), [(137, 400, 989.0)]);
        let beside = moved(&[(100, 200, 0.0), (200, 500, 0.0)], 1_000);
        assert!(beside[0].1 <= beside[1].0, "{beside:?}");
    }

    #[test]
    fn two_crowds_are_told_as_two_where_a_lull_lies_between_them_and_as_one_where_none_does() {
        // Two come each moment of a crowd, one is served in each and in ten more.
        let tells = |crowds: [(u64, u64); 2]| {
            move |from: u64, to: u64| {
                let within = |(begins, ends): (u64, u64)| ends.min(to).saturating_sub(begins.max(from));
                let came: u64 = crowds.into_iter().map(within).sum();
                float((2 * came).saturating_sub(to - from + 10))
            }
        };
        let told = |crowds: [(u64, u64); 2], stretches: &[Stretch]| {
            let found = better(stretches.to_vec(), (64, 1), 1_000, &tells(crowds));
            (found.len(), found.iter().map(|(.., tells)| tells).sum::<f64>())
        };
        let (apart, together) = ([(100, 300), (400, 700)], [(100, 300), (305, 700)]);
        assert_eq!(told(apart, &[(0, 1_000, 0.0)]), (2, 190.0 + 290.0));
        assert_eq!(told(together, &[(90, 290, 0.0), (310, 690, 0.0)]), (1, 2.0 * 595.0 - 610.0));
    }
}
