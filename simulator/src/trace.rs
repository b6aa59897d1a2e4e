//! Recorded traffic for those who ask a real cluster: the very arrivals that a scenario of the same trace and seed has.

use crate::scenario::{Arrivals, servegen_clients};
use crate::workload::Source;
use modelless_types::Micros;

/// When each client of a ServeGen file asks in a time. A window of the file (600 s) lasts `window_s`, and rates are those of the
/// file times one factor, so that all clients together ask `per_second` on average.
///
/// # Errors
///
/// The file is none, or nothing is asked in that time.
pub fn servegen(
    text: &str,
    window_s: f64,
    duration: Micros,
    per_second: f64,
    seed: u64,
) -> Result<Vec<Vec<Micros>>, String> {
    if !(window_s > 0.0 && per_second > 0.0) {
        return Err("a window and a rate must be above 0".into());
    }
    let written = servegen_clients(text, window_s, 1.0)?;
    let mean: f64 = written.iter().map(|client| mean_rate(client, duration)).sum();
    if mean <= 0.0 {
        return Err("nothing is asked in that time".into());
    }
    let clients = servegen_clients(text, window_s, per_second / mean)?;
    let times = clients.into_iter().enumerate().map(|(number, client)| {
        let mut source = Source::new(client, seed, &format!("client {number}"));
        std::iter::from_fn(|| source.next()).take_while(|at| *at < duration).collect()
    });
    Ok(times.collect())
}

/// Queries a second of a client, over all of the time.
fn mean_rate(client: &Arrivals, duration: Micros) -> f64 {
    let Arrivals::Modulated(spans) = client else { return 0.0 };
    let ends = spans.iter().skip(1).map(|span| span.from).chain([duration]);
    let lasts =
        |from: Micros, end: Micros| Micros(end.min(duration).0.saturating_sub(from.0)).as_millis_f64();
    let asked: f64 = spans.iter().zip(ends).map(|(span, end)| span.rate * lasts(span.from, end)).sum();
    asked / duration.as_millis_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "window_start_s,client,rate_rps,cv,dist,p1,p2\n\
                        0,5,30.0,1.0,Gamma,1.0,0.03\n600,5,10.0,1.0,Gamma,1.0,0.1\n0,7,20.0,1.0,Gamma,1.0,0.05\n600,7,20.0,1.0,Gamma,1.0,0.05\n";

    #[test]
    fn all_clients_together_ask_what_is_wanted_and_each_follows_its_windows() {
        let day = Micros::from_secs(200);
        let clients = servegen(FILE, 100.0, day, 80.0, 7).unwrap();
        let all: usize = clients.iter().map(Vec::len).sum();
        assert!((15_000..17_000).contains(&all), "{all}");
        let early = clients[0].iter().filter(|at| **at < Micros::from_secs(100)).count();
        let three_quarters = clients[0].len() * 3 / 4;
        assert!(early.abs_diff(three_quarters) < clients[0].len() / 30, "{early}, not {three_quarters}");
        assert_eq!(clients, servegen(FILE, 100.0, day, 80.0, 7).unwrap());
        assert!(servegen("", 100.0, day, 80.0, 7).is_err() && servegen(FILE, 100.0, day, 0.0, 7).is_err());
    }
}
