//! Who asks when: from what a scenario says to arrival processes, and from a mix to its applications.

use super::build::Files;
use super::file::{Arrivals as Written, Mix};
use super::{Arrivals, Gap, Span};
use crate::rng::Rng;
use modelless_types::Micros;

/// So many times a day a rate that follows a sine changes; and a crowd while it comes and goes.
const STEPS: u32 = 96;
const SLOPES: u32 = 20;
/// More arrivals than this a recording does not give, however often it begins again.
const MOST: usize = 50_000_000;

/// Of all that a process brings, a part: which, and how much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Part {
    /// Counts the parts of a mix.
    pub(crate) number: usize,
    /// How much of it.
    pub(crate) share: f64,
    /// The scenario's load.
    pub(crate) load: f64,
}

impl Part {
    /// All of it.
    pub(crate) const fn whole(load: f64) -> Self {
        Self { number: 0, share: 1.0, load }
    }
}

pub(crate) fn micros(seconds: f64) -> Result<Micros, String> {
    // To the nearest microsecond: what was worked out is seldom a decimal of a few digits.
    Micros::from_millis_f64((seconds * 1e6).round() / 1e3)
        .ok_or_else(|| format!("{seconds} s is no time: it must be a number that is not negative"))
}

/// A part of a process.
pub(crate) fn arrivals(written: &Written, part: Part, files: &Files<'_>) -> Result<Arrivals, String> {
    let much = part.share * part.load;
    let span = |from_s: f64, rate: f64, cv: f64| -> Result<Span, String> {
        Ok(Span { from: micros(from_s)?, rate: rate * much, gap: Gap::Gamma(cv) })
    };
    Ok(match written {
        Written::Poisson { rate } => Arrivals::Poisson { rate: rate * much },
        Written::Gamma { rate, cv } => Arrivals::Renewal { rate: rate * much, cv: *cv },
        Written::Mmpp { calm, burst, calm_s, burst_s } => Arrivals::Bursty {
            calm: calm * much,
            burst: burst * much,
            calm_for: micros(*calm_s)?,
            burst_for: micros(*burst_s)?,
        },
        Written::Steps { steps, cv } => Arrivals::Modulated(
            steps.iter().map(|(from, rate)| span(*from, *rate, *cv)).collect::<Result<_, _>>()?,
        ),
        Written::Diurnal { rate, swing, period_s, peak_at_s, cv } => {
            if !(0.0..=1.0).contains(swing) || *period_s <= 0.0 {
                return Err("a day needs a `swing` from 0 to 1 and a `period_s` above 0".into());
            }
            let days = (files.duration_s / period_s).ceil().clamp(1.0, 1_000.0);
            let mut spans = Vec::new();
            for step in 0.. {
                let from = f64::from(step) * period_s / f64::from(STEPS);
                if from >= days * period_s {
                    break;
                }
                // The middle of a step stands for it.
                let angle = (from - peak_at_s) / period_s + 0.5 / f64::from(STEPS);
                let wave = libm::cos(core::f64::consts::TAU * angle);
                spans.push(span(from, rate * (1.0 + swing * wave), *cv)?);
            }
            Arrivals::Modulated(spans)
        }
        Written::Flash { rate, peak, at_s, rise_s, hold_s, fall_s, cv } => {
            let mut spans = vec![span(0.0, *rate, *cv)?];
            let mut slope = |begin: f64, length: f64, from: f64, to: f64| {
                for step in 0..SLOPES {
                    let part = f64::from(step) / f64::from(SLOPES);
                    let middle = part + 0.5 / f64::from(SLOPES);
                    spans.push(span(begin + part * length, from + middle * (to - from), *cv)?);
                }
                Ok::<(), String>(())
            };
            slope(*at_s, *rise_s, *rate, *peak)?;
            let falls = at_s + rise_s + hold_s;
            slope(falls, *fall_s, *peak, *rate)?;
            spans.insert(1 + SLOPES as usize, span(at_s + rise_s, *peak, *cv)?);
            spans.push(span(falls + fall_s, *rate, *cv)?);
            Arrivals::Modulated(spans)
        }
        Written::Recorded { file, from_s, speed } => {
            recorded(&files.read(file)?, (*from_s, speed * part.load), files.duration_s, part)
                .map_err(|why| format!("{file}: {why}"))?
        }
        Written::Servegen { file, client, from_s, window_s, factor } => {
            let which = client.map_or(part.number, |client| client.saturating_sub(1));
            // Each part of a mix is a client of its own, with its own rate.
            servegen(&files.read(file)?, which, *from_s, *window_s, factor * part.load)
                .map_err(|why| format!("{file}: {why}"))?
        }
        Written::At { times_ms } => {
            let mut times: Vec<Micros> =
                times_ms.iter().map(|ms| micros(ms / 1e3)).collect::<Result<_, _>>()?;
            times.sort_unstable();
            Arrivals::At(times)
        }
    })
}

/// Recorded arrivals, as many of them as the part has: which, is drawn once and for all.
fn recorded(
    text: &str,
    (from_s, speed): (f64, f64),
    duration_s: f64,
    part: Part,
) -> Result<Arrivals, String> {
    if speed <= 0.0 || !speed.is_finite() {
        return Err("`speed` and `load` must be above 0".into());
    }
    let mut seconds = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let ms: f64 =
            line.trim().parse().map_err(|_| format!("line {} is no time in milliseconds", number + 1))?;
        if ms >= from_s * 1e3 {
            seconds.push(ms / 1e3 - from_s);
        }
    }
    seconds.sort_by(f64::total_cmp);
    let Some(last) = seconds.last().copied() else { return Err("there is no arrival in it".into()) };
    // When it is over it begins again, a mean gap later.
    let gaps = f64::from(u32::try_from(seconds.len() - 1).unwrap_or(u32::MAX)).max(1.0);
    let whole = (last + last / gaps).max(1e-3);
    let mut drawn = Rng::new(part.number as u64, "parts of a recording");
    let mut times = Vec::new();
    let mut begins = 0.0;
    while begins < duration_s * speed && times.len() < MOST {
        for at in &seconds {
            let at = (begins + at) / speed;
            if at < duration_s && (part.share >= 1.0 || drawn.chance(part.share)) {
                times.push(micros(at)?);
            }
        }
        begins += whole;
    }
    Ok(Arrivals::At(times))
}

/// A client of a ServeGen file.
fn servegen(text: &str, which: usize, from_s: f64, window_s: f64, factor: f64) -> Result<Arrivals, String> {
    let mut clients = servegen_clients_from(text, from_s, window_s, factor)?;
    let which = which % clients.len();
    Ok(clients.swap_remove(which))
}

/// Every client of a ServeGen file, in the order in which the file names them.
pub(crate) fn servegen_clients(text: &str, window_s: f64, factor: f64) -> Result<Vec<Arrivals>, String> {
    servegen_clients_from(text, 0.0, window_s, factor)
}

/// The same from some time of the file on: `window_start_s,client,rate_rps,cv,dist,p1,p2`.
fn servegen_clients_from(
    text: &str,
    from_s: f64,
    window_s: f64,
    factor: f64,
) -> Result<Vec<Arrivals>, String> {
    let mut clients: Vec<&str> = Vec::new();
    let mut spans: Vec<Vec<Span>> = Vec::new();
    for (number, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.trim().split(',').collect();
        let bad = || format!("line {} is no window of a client", number + 1);
        let [start, client, rate, cv, law, shape, ..] = cells[..] else { return Err(bad()) };
        let value = |text: &str| text.parse::<f64>().map_err(|_| bad());
        let place = clients.iter().position(|known| *known == client).unwrap_or_else(|| {
            clients.push(client);
            spans.push(Vec::new());
            clients.len() - 1
        });
        let since = value(start)? - from_s;
        if since < 0.0 {
            continue;
        }
        let gap = match law {
            "Weibull" => Gap::Weibull(value(shape)?),
            "Gamma" => Gap::Gamma(1.0 / value(shape)?.sqrt()),
            _ => Gap::Gamma(value(cv)?),
        };
        let from = micros(since / 600.0 * window_s)?;
        spans[place].push(Span { from, rate: value(rate)? * factor, gap });
    }
    if clients.is_empty() {
        return Err("there is no client in it".into());
    }
    for spans in &mut spans {
        spans.sort_by_key(|span| span.from);
    }
    Ok(spans.into_iter().map(Arrivals::Modulated).collect())
}

/// An application of a mix: what it asks for, and how much of all.
pub(crate) struct Asker {
    pub(crate) task: String,
    pub(crate) floor: Option<f64>,
    pub(crate) bound_ms: Option<f64>,
    pub(crate) share: f64,
}

/// The parts of a mix: of which task, with which floor and bound, how much.
pub(crate) fn parts(mix: &Mix, tasks: &[String]) -> Result<Vec<Asker>, String> {
    let tasks = if mix.tasks.is_empty() { tasks } else { &mix.tasks };
    let popular = (1..=u32::try_from(tasks.len()).unwrap_or(u32::MAX)).map(|k| f64::from(k).powf(-mix.zipf));
    let popular = shares(&popular.collect::<Vec<_>>())?;
    let floors: Vec<(Option<f64>, f64)> = mix.floors.iter().map(|f| (Some(f.accuracy), f.share)).collect();
    let bounds: Vec<(Option<f64>, f64)> = mix.bounds.iter().map(|b| (Some(b.latency_ms), b.share)).collect();
    let or_none = |all: Vec<(Option<f64>, f64)>| if all.is_empty() { vec![(None, 1.0)] } else { all };
    let (floors, bounds) = (or_none(floors), or_none(bounds));
    let of_floors = shares(&floors.iter().map(|(_, share)| *share).collect::<Vec<_>>())?;
    let of_bounds = shares(&bounds.iter().map(|(_, share)| *share).collect::<Vec<_>>())?;
    let mut parts = Vec::new();
    for (task, popular) in tasks.iter().zip(&popular) {
        for ((floor, _), of_floor) in floors.iter().zip(&of_floors) {
            for ((bound, _), of_bound) in bounds.iter().zip(&of_bounds) {
                let share = popular * of_floor * of_bound;
                parts.push(Asker { task: task.clone(), floor: *floor, bound_ms: *bound, share });
            }
        }
    }
    Ok(parts)
}

/// Each over the sum of all.
fn shares(weights: &[f64]) -> Result<Vec<f64>, String> {
    let sum: f64 = weights.iter().sum();
    let sound = weights.iter().all(|w| w.is_finite() && *w >= 0.0) && sum > 0.0;
    if sound {
        Ok(weights.iter().map(|w| w / sum).collect())
    } else {
        Err(format!("{weights:?} are no shares"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Source;
    use proptest::prelude::*;

    fn files(text: &str, duration_s: f64, take: impl FnOnce(&Files<'_>)) {
        take(&Files::new(&|_| Ok(text.to_owned()), duration_s));
    }

    fn built(written: &Written, part: Part) -> Arrivals {
        let mut built = None;
        files("", 1_000.0, |files| built = Some(arrivals(written, part, files)));
        built.expect("was called").expect("is sound")
    }

    /// So many arrivals, in seconds.
    fn some(arrivals: Arrivals, seed: u64, n: usize) -> Vec<f64> {
        let mut source = Source::new(arrivals, seed, "test");
        std::iter::from_fn(|| source.next()).take(n).map(|at| at.as_millis_f64() / 1e3).collect()
    }

    /// All until a second.
    fn until(arrivals: Arrivals, seed: u64, end_s: f64) -> Vec<f64> {
        let mut source = Source::new(arrivals, seed, "test");
        let times = std::iter::from_fn(|| source.next()).map(|at| at.as_millis_f64() / 1e3);
        times.take_while(|at| *at < end_s).collect()
    }

    /// Mean rate, and standard deviation of gaps over their mean.
    fn seen(times: &[f64]) -> (f64, f64) {
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let n = f64::from(u32::try_from(gaps.len()).expect("few"));
        let mean = gaps.iter().sum::<f64>() / n;
        let var = gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / n;
        (1.0 / mean, var.sqrt() / mean)
    }

    fn within(times: &[f64], from: f64, to: f64) -> f64 {
        f64::from(u32::try_from(times.iter().filter(|at| (from..to).contains(*at)).count()).expect("few"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn gaps_have_the_mean_and_the_scatter_that_are_asked_for(
            rate in 1.0..2_000.0_f64, cv in 0.1..3.0_f64, seed in 0..1_000_u64,
        ) {
            let gamma = Written::Gamma { rate, cv };
            let steps = Written::Steps { steps: vec![(0.0, rate)], cv };
            for (written, cv) in [(Written::Poisson { rate }, 1.0), (gamma, cv), (steps, cv)] {
                let (mean, scatter) = seen(&some(built(&written, Part::whole(1.0)), seed, 20_000));
                // The mean of 20,000 gaps strays by cv / 141, their scatter by more where they are burstier.
                prop_assert!((mean / rate - 1.0).abs() < 0.035 * cv.max(0.3), "{written:?}: rate {mean}");
                prop_assert!((scatter / cv - 1.0).abs() < 0.15, "{written:?}: cv {scatter}");
            }
        }

        #[test]
        fn a_share_of_a_load_has_that_share_of_its_rate(
            rate in 100.0..1_000.0_f64, share in 0.05..1.0_f64, load in 0.3..1.5_f64,
        ) {
            let part = Part { number: 3, share, load };
            let written = Written::Mmpp { calm: rate, burst: rate, calm_s: 1.0, burst_s: 1.0 };
            let (mean, _) = seen(&some(built(&written, part), 5, 20_000));
            prop_assert!((mean / (rate * share * load) - 1.0).abs() < 0.035, "{mean}");
        }

        #[test]
        fn a_process_of_two_rates_has_their_mean_and_is_burstier_than_either(
            calm in 20.0..100.0_f64, times in 4.0..10.0_f64, seed in 0..1_000_u64,
        ) {
            let written = Written::Mmpp { calm, burst: calm * times, calm_s: 2.0, burst_s: 1.0 };
            let (mean, scatter) = seen(&some(built(&written, Part::whole(1.0)), seed, 120_000));
            let expected = (2.0 * calm + calm * times) / 3.0;
            prop_assert!((mean / expected - 1.0).abs() < 0.2, "{mean} for {expected}");
            prop_assert!(scatter > 1.15, "{scatter}");
        }

        #[test]
        fn a_day_has_its_mean_and_its_swing(rate in 200.0..1_000.0_f64, swing in 0.2..0.9_f64) {
            let written = Written::Diurnal { rate, swing, period_s: 20.0, peak_at_s: 5.0, cv: 1.0 };
            let times = until(built(&written, Part::whole(1.0)), 9, 40.0);
            let day = within(&times, 20.0, 40.0) / 20.0;
            prop_assert!((day / rate - 1.0).abs() < 0.07, "{day} for {rate}");
            // Over the tenth around the peak a cosine is 0.98 of its height, and as low around the trough.
            let (high, low) = (within(&times, 24.0, 26.0) / 2.0, within(&times, 34.0, 36.0) / 2.0);
            prop_assert!((high / (rate * (1.0 + 0.98 * swing)) - 1.0).abs() < 0.15, "{high}");
            prop_assert!((low - rate * (1.0 - 0.98 * swing)).abs() < 0.2 * rate, "{low}");
        }

        #[test]
        fn a_crowd_comes_stays_and_goes(rate in 50.0..200.0_f64, times in 3.0..20.0_f64) {
            let peak = rate * times;
            let written =
                Written::Flash { rate, peak, at_s: 10.0, rise_s: 2.0, hold_s: 4.0, fall_s: 2.0, cv: 1.0 };
            let seen = until(built(&written, Part::whole(1.0)), 4, 28.0);
            let near = |count: f64, mean: f64| (count - mean).abs() < 5.0 * mean.sqrt();
            prop_assert!(near(within(&seen, 0.0, 10.0), 10.0 * rate));
            prop_assert!(near(within(&seen, 10.0, 12.0), 2.0 * f64::midpoint(rate, peak)));
            prop_assert!(near(within(&seen, 12.0, 16.0), 4.0 * peak));
            prop_assert!(near(within(&seen, 18.0, 28.0), 10.0 * rate));
        }

        #[test]
        fn a_client_has_the_rate_of_each_window_whatever_its_law(
            first in 50.0..500.0_f64, second in 50.0..500.0_f64, shape in 0.6..2.0_f64,
        ) {
            for law in ["Weibull", "Gamma"] {
                let text = format!("head\n0,7,{first},1,{law},{shape},0\n600,7,{second},1,{law},{shape},0\n");
                let mut arrivals = None;
                files(&text, 60.0, |files| {
                    let (file, client) = ("f".to_owned(), Some(1));
                    let written = Written::Servegen { file, client, from_s: 0.0, window_s: 40.0, factor: 1.0 };
                    arrivals = Some(super::arrivals(&written, Part::whole(1.0), files));
                });
                let times = some(arrivals.expect("was called").expect("is sound"), 2, 60_000);
                for (from, rate) in [(0.0, first), (40.0, second)] {
                    let mean = within(&times, from, from + 40.0) / 40.0;
                    prop_assert!((mean / rate - 1.0).abs() < 0.15, "{law} {shape}: {mean} for {rate}");
                }
                let (_, scatter) = seen(&times[..times.partition_point(|at| *at < 40.0)]);
                let gamma = |x: f64| libm::tgamma(1.0 + x / shape);
                let weibull = (gamma(2.0) / (gamma(1.0) * gamma(1.0)) - 1.0).sqrt();
                let expected = if law == "Weibull" { weibull } else { 1.0 / shape.sqrt() };
                prop_assert!((scatter / expected - 1.0).abs() < 0.2, "{law} {shape}: {scatter} for {expected}");
            }
        }

        #[test]
        fn popularity_falls_by_the_power_that_is_asked_for(zipf in 0.0..2.0_f64, tasks in 2..12_usize) {
            let names: Vec<String> = (0..tasks).map(|n| n.to_string()).collect();
            let mix = Mix {
                name: "m".into(), tasks: Vec::new(), zipf, floors: Vec::new(), bounds: Vec::new(),
                prefer: None, priority: 0, kib: 1, arrivals: Written::Poisson { rate: 1.0 },
            };
            let parts = parts(&mix, &names).expect("sound");
            prop_assert!((parts.iter().map(|p| p.share).sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!((parts[0].share / parts[1].share - 2.0_f64.powf(zipf)).abs() < 1e-9);
            prop_assert_eq!(parts.len(), tasks);
        }
    }

    #[test]
    fn a_recording_keeps_its_times_and_parts_of_it_make_it_whole_again() {
        let recording = (0..4_000).map(|n| (n * 3).to_string()).collect::<Vec<_>>().join("\n");
        let part = |share, number, load| {
            let mut times = None;
            files(&recording, 8.999, |files| {
                let written = Written::Recorded { file: "f".into(), from_s: 3.0, speed: 1.0 };
                times = Some(super::arrivals(&written, Part { number, share, load }, files));
            });
            let Arrivals::At(times) = times.expect("was called").expect("sound") else { panic!("times") };
            times
        };
        let all = part(1.0, 0, 1.0);
        assert_eq!((all.len(), all[0], all[1]), (3_000, Micros(0), Micros(3_000)));
        assert_eq!(part(1.0, 0, 2.0)[2], Micros(3_000), "twice as fast");
        let half = part(0.5, 1, 1.0);
        let again = part(1.0, 0, 0.5).len();
        assert_eq!((again, part(1.0, 0, 2.0).len()), (1_500, 6_000), "as long as the scenario lasts");
        assert!((1_350..1_650).contains(&half.len()), "{}", half.len());
        assert_ne!(half, part(0.5, 2, 1.0), "others");
    }
}
