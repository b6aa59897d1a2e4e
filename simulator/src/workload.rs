//! When the queries of a stream come: an endless process cut off at the scenario's end.

use crate::rng::Rng;
use crate::scenario::{Arrivals, Gap, Scenario, Span, Step};
use modelless_decision::Moments;
use modelless_types::Micros;

/// The arrival process of one stream.
pub(crate) struct Source {
    arrivals: Arrivals,
    rng: Rng,
    /// The last arrival, in microseconds since the start; a float, so that rates up to a million a second keep their
    /// mean.
    at: f64,
    served: usize,
    bursting: bool,
    /// When the present rate of a bursty process ends.
    until: f64,
}

impl Source {
    pub(crate) fn new(arrivals: Arrivals, seed: u64, name: &str) -> Self {
        let rng = Rng::new(seed, &format!("arrivals of {name}"));
        Self { arrivals, rng, at: 0.0, served: 0, bursting: true, until: 0.0 }
    }

    /// The sources of a scenario's streams.
    pub(crate) fn of(scenario: &Scenario, seed: u64) -> Vec<Self> {
        let streams = scenario.streams.iter().enumerate();
        streams.map(|(at, s)| Self::new(s.arrivals.clone(), seed, &format!("{at} {}", s.name))).collect()
    }

    /// All that comes while a scenario lasts, by stream.
    pub(crate) fn all(scenario: &Scenario, seed: u64) -> Vec<Vec<Micros>> {
        let within = |mut source: Self| {
            std::iter::from_fn(move || source.next()).take_while(|at| *at < scenario.duration).collect()
        };
        Self::of(scenario, seed).into_iter().map(within).collect()
    }

    /// The next arrival; `None` when there is none any more.
    pub(crate) fn next(&mut self) -> Option<Micros> {
        if let Arrivals::At(times) = &self.arrivals {
            let at = times.get(self.served).copied();
            self.served += 1;
            return at;
        }
        if let Arrivals::Renewal { rate, cv } = self.arrivals {
            if rate <= 0.0 {
                return None;
            }
            let mean = 1e6 / rate;
            self.at += self.rng.gamma(Moments { mean, var: cv * cv * mean * mean });
            return Some(whole(self.at));
        }
        // A gap's worth of work is used up at the present rate, through as many changes of it as it takes.
        let mut work = self.gap();
        for _ in 0..100_000 {
            let (rate, until) = self.rate();
            let per_us = rate / 1e6;
            let room = (until - self.at) * per_us;
            if per_us > 0.0 && work <= room {
                self.at += work / per_us;
                return Some(whole(self.at));
            }
            if until.is_infinite() {
                return None;
            }
            work -= room.max(0.0);
            self.at = until;
        }
        None
    }

    /// A gap of mean 1, by the law that holds where it begins.
    fn gap(&mut self) -> f64 {
        let Arrivals::Modulated(spans) = &self.arrivals else { return self.rng.exponential() };
        let gap = current(spans, self.at, |s| s.from).0.map_or(Gap::Gamma(1.0), |s| s.gap);
        match gap {
            Gap::Gamma(cv) => self.rng.gamma(Moments { mean: 1.0, var: cv * cv }),
            Gap::Weibull(shape) => {
                libm::pow(self.rng.exponential(), 1.0 / shape) / libm::tgamma(1.0 + 1.0 / shape)
            }
        }
    }

    /// The present rate and until when it holds.
    fn rate(&mut self) -> (f64, f64) {
        match &self.arrivals {
            Arrivals::Poisson { rate } => (*rate, f64::INFINITY),
            Arrivals::Steps(steps) => {
                let (step, until) = current(steps, self.at, |s: &Step| s.from);
                (step.map_or(0.0, |s| s.rate), until)
            }
            Arrivals::Modulated(spans) => {
                let (span, until) = current(spans, self.at, |s: &Span| s.from);
                (span.map_or(0.0, |s| s.rate), until)
            }
            Arrivals::Bursty { calm, burst, calm_for, burst_for } => {
                if self.at >= self.until {
                    self.bursting = !self.bursting;
                    let mean = float(if self.bursting { *burst_for } else { *calm_for });
                    self.until = self.at + mean * self.rng.exponential();
                }
                (if self.bursting { *burst } else { *calm }, self.until)
            }
            Arrivals::Renewal { .. } | Arrivals::At(_) => (0.0, f64::INFINITY),
        }
    }
}

/// What holds at a time, of what follows each other, and until when.
fn current<T: Copy>(all: &[T], at: f64, from: impl Fn(&T) -> Micros) -> (Option<T>, f64) {
    let next = all.partition_point(|one| float(from(one)) <= at);
    let until = all.get(next).map_or(f64::INFINITY, |one| float(from(one)));
    (next.checked_sub(1).map(|now| all[now]), until)
}

#[expect(clippy::cast_precision_loss, reason = "2^53 us is 285 years")]
fn float(time: Micros) -> f64 {
    time.0 as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates, as wanted"
)]
fn whole(us: f64) -> Micros {
    Micros(us as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(arrivals: Arrivals, from: Micros, to: Micros) -> usize {
        let mut source = Source::new(arrivals, 7, "test");
        let all = std::iter::from_fn(|| source.next()).take_while(|at| *at < to);
        all.filter(|at| *at >= from).count()
    }

    #[test]
    fn rates_are_kept() {
        let s = Micros::from_secs;
        let seen = count(Arrivals::Poisson { rate: 1_000.0 }, s(0), s(20));
        assert!((19_300..20_700).contains(&seen), "{seen}");
        let steps = |from, rate| Step { from, rate };
        let steps = Arrivals::Steps(vec![steps(s(0), 100.0), steps(s(5), 0.0), steps(s(6), 2_000.0)]);
        assert_eq!(count(steps.clone(), s(5), s(6)), 0);
        let seen = count(steps, s(6), s(16));
        assert!((19_000..21_000).contains(&seen), "{seen}");
        let renewal = Arrivals::Renewal { rate: 5_000.0, cv: 4.0 };
        let seen = count(renewal, s(0), s(20));
        assert!((90_000..110_000).contains(&seen), "{seen}");
        let bursty = Arrivals::Bursty {
            calm: 100.0,
            burst: 900.0,
            calm_for: Micros::from_millis(100),
            burst_for: Micros::from_millis(100),
        };
        let seen = count(bursty, s(0), s(100));
        assert!((40_000..60_000).contains(&seen), "{seen}");
    }
}
