//! Randomness: one seeded generator per purpose, so that changing one part of a scenario leaves the draws of the
//! others as they were. Logarithms and roots come from `libm`, so the draws are the same on every machine.

use modelless_decision::Moments;
use modelless_types::Micros;

/// SplitMix64. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed and what it is for.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let folded = purpose.bytes().fold(seed ^ 0x517c_c1b7_2722_0a95, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        });
        let mut rng = Self(folded);
        rng.next_u64();
        rng
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `(0, 1]`, so that its logarithm is finite.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit exactly")]
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// In `0..n`; 0 for none.
    pub fn below(&mut self, n: usize) -> usize {
        let n = u64::try_from(n.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next_u64() % n).unwrap_or(0)
    }

    /// True with a probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() <= probability
    }

    /// Exponentially distributed with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(self.unit())
    }

    fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.unit()));
        radius * libm::cos(core::f64::consts::TAU * self.unit())
    }

    /// A time with given mean and variance: never negative, skewed to the right as run times are.
    pub fn duration(&mut self, moments: Moments) -> Micros {
        Moments { mean: self.gamma(moments), var: 0.0 }.mean()
    }

    /// Gamma-distributed with given mean and variance (Marsaglia and Tsang's method).
    pub fn gamma(&mut self, moments: Moments) -> f64 {
        if moments.mean <= 0.0 {
            return 0.0;
        }
        if moments.var <= 0.0 {
            return moments.mean;
        }
        let shape = moments.mean * moments.mean / moments.var;
        let scale = moments.var / moments.mean;
        // Below 1 the method needs a boost: a larger shape times a power of a uniform draw.
        let boost = if shape < 1.0 { libm::pow(self.unit(), 1.0 / shape) } else { 1.0 };
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let v = 1.0 + c * x;
            if v <= 0.0 {
                continue;
            }
            let v = v * v * v;
            if libm::log(self.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v * boost * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_durations_have_the_moments_asked_for() {
        for (mean, var) in [(1_000.0, 10_000.0), (1_000.0, 4_000_000.0), (500.0, 0.0)] {
            let mut rng = Rng::new(3, "test");
            let draws: Vec<f64> =
                (0..20_000).map(|_| Moments::exactly(rng.duration(Moments { mean, var })).mean).collect();
            let n = 20_000.0;
            let seen = draws.iter().sum::<f64>() / n;
            let spread = draws.iter().map(|x| (x - seen) * (x - seen)).sum::<f64>() / n;
            assert!((seen - mean).abs() < 0.05 * mean, "mean {seen} for {mean}");
            assert!((spread - var).abs() <= 0.1 * var + 1.0, "variance {spread} for {var}");
        }
    }

    #[test]
    fn one_purpose_does_not_disturb_another() {
        assert_eq!(Rng::new(1, "runs").next_u64(), Rng::new(1, "runs").next_u64());
        assert_ne!(Rng::new(1, "runs").next_u64(), Rng::new(1, "arrivals").next_u64());
        assert_ne!(Rng::new(1, "runs").next_u64(), Rng::new(2, "runs").next_u64());
    }
}
