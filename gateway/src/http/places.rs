//! Who has how many connections: no address gets all the places there are.
//!
//! An IPv6 client has a network of its own to choose addresses from, so there the first 64 bits count as one. What comes from this machine
//! is not counted by address: a balancer that stands there connects for everybody.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// How many connections each address has. One for each port that is served.
#[derive(Debug)]
pub(crate) struct Places {
    /// For each address.
    most: usize,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// One of them, given back when it goes.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    of: Option<IpAddr>,
}

impl Places {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// `None` if this address has as many as it gets.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let place = |of| Some(Place { places: Arc::clone(self), of });
        let address = counted_as(address);
        if address.is_loopback() {
            return place(None);
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        place(Some(address))
    }
}

fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address @ (IpAddr::V4(_) | IpAddr::V6(_)) => address,
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(of) = self.of else { return };
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&of) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&of); // so that the table is no larger than there are connections
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Arc<Places>, address: &str) -> Option<Place> {
        places.take(address.parse().unwrap())
    }

    #[test]
    fn an_address_gets_so_many_and_others_are_not_kept_out_by_it() {
        let places = Places::new(2);
        let first = take(&places, "192.0.2.1").unwrap();
        let _second = take(&places, "::ffff:192.0.2.1").unwrap();
        assert!(take(&places, "192.0.2.1").is_none(), "however it is written");
        let _other = take(&places, "192.0.2.2").unwrap();
        drop(first);
        assert!(take(&places, "192.0.2.1").is_some());
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_and_this_machine_as_nobody() {
        let places = Places::new(1);
        let _one = take(&places, "2001:db8:1:2::1").unwrap();
        assert!(take(&places, "2001:db8:1:2:3::9").is_none());
        let _other = take(&places, "2001:db8:1:3::1").unwrap();
        let here: Vec<_> = (0..5).map(|_| take(&places, "127.0.0.1").unwrap()).collect();
        assert!(take(&places, "::1").is_some());
        drop(here);
        assert_eq!(places.taken.lock().unwrap().len(), 2);
    }

    #[test]
    fn what_was_given_back_leaves_nothing_behind() {
        let places = Places::new(5);
        for last in 0..200 {
            drop(take(&places, &format!("192.0.2.{last}")));
        }
        assert!(places.taken.lock().unwrap().is_empty());
    }
}
