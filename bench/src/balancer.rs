//! What a usual balancer in front of gateways knows and does: it asks each every 100 ms whether it is ready, sends a client to its
//! own gateway while that is, to another one otherwise, and to another one too where no connection comes about. It never sends a
//! query twice.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;

use modelless_testkit::{Connection, Request};

/// Slower than some balancers look would only tell of them; `gateway.leave_ms` is there for those.
const LOOK: Duration = Duration::from_millis(100);

/// What it knows of each address.
#[derive(Debug)]
pub struct Balancer {
    addresses: Vec<SocketAddr>,
    ready: Vec<AtomicBool>,
    ended: AtomicBool,
}

/// Ends the watch when it goes.
#[derive(Debug)]
pub struct Watched<'a>(&'a Balancer);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

impl Balancer {
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        let ready = addresses.iter().map(|_| AtomicBool::new(true)).collect();
        Self { addresses, ready, ended: AtomicBool::new(false) }
    }

    /// Looks until what this gives goes.
    pub fn watch<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Watched<'scope> {
        scope.spawn(|| {
            while !self.ended.load(Ordering::Relaxed) {
                for (address, ready) in self.addresses.iter().zip(&self.ready) {
                    ready.store(is_ready(*address), Ordering::Relaxed);
                }
                std::thread::sleep(LOOK);
            }
        });
        Watched(self)
    }

    /// Where to ask, best first: those that are ready before those that are not, each from `home` on.
    pub fn order(&self, home: usize) -> Vec<usize> {
        let count = self.addresses.len();
        let mut all: Vec<usize> = (0..count).map(|step| (home + step) % count).collect();
        all.sort_by_key(|at| !self.ready[*at].load(Ordering::Relaxed));
        all
    }
}

fn is_ready(address: SocketAddr) -> bool {
    let asked =
        Connection::open(address).and_then(|mut open| open.exchange(&Request::get("/v2/health/ready")));
    asked.is_ok_and(|response| response.status == 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_goes_home_while_that_is_ready_and_to_the_next_that_is_otherwise() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let balancer = Balancer::new(vec![address; 3]);
        assert_eq!(balancer.order(4), [1, 2, 0]);
        balancer.ready[1].store(false, Ordering::Relaxed);
        assert_eq!(balancer.order(4), [2, 0, 1]);
        balancer.ready[2].store(false, Ordering::Relaxed);
        assert_eq!(balancer.order(4), [0, 1, 2], "the last resort is its own");
        balancer.ready[0].store(false, Ordering::Relaxed);
        assert_eq!(balancer.order(4), [1, 2, 0]);
    }

    #[test]
    fn who_does_not_listen_is_not_ready() {
        assert!(!is_ready(SocketAddr::from(([127, 0, 0, 1], modelless_testkit::free_port().unwrap()))));
    }
}
