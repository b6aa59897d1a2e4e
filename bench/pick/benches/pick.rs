//! How long routing one query takes, by the size of the fleet and what the query prefers.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use modelless_bench_pick::{Fleet, NOW, SIZES};
use modelless_decision::route::pick;
use modelless_types::Prefer;
use std::hint::black_box;

fn picks(criterion: &mut Criterion) {
    for (name, prefer) in Prefer::NAMES {
        let mut group = criterion.benchmark_group(format!("pick/{name}"));
        for replicas in SIZES {
            let fleet = Fleet::new(replicas, 1_024, prefer, 1);
            let mut next = 0_usize;
            group.bench_function(BenchmarkId::from_parameter(replicas), |bencher| {
                bencher.iter(|| {
                    next = (next + 1) % fleet.queries.len();
                    let (class, query) = &fleet.queries[next];
                    black_box(pick(&fleet.snapshot, &fleet.load, *class, black_box(query), NOW, next as u64))
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, picks);
criterion_main!(benches);
