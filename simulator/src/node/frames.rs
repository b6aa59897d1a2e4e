//! What gateways and nodes say to each other.

use modelless_decision::Query;
use modelless_types::{Micros, QueryKey, Refusal, TaskId, VariantId};

/// From a gateway.
pub(crate) enum ToNode {
    Query {
        query: Query,
        deadline_in: Micros,
        expires_in: Micros,
        spent: Micros,
        waiting: u32,
        among: u32,
        first_in: Option<Micros>,
    },
    Announce {
        query: Query,
        deadline_in: Micros,
        expires_in: Micros,
        spent: Micros,
        part_ppm: u32,
        quickest: Micros,
    },
    Withdraw {
        key: QueryKey,
    },
    MayReturn {
        key: QueryKey,
    },
    Cancel {
        key: QueryKey,
    },
    Wake {
        task: TaskId,
        ordinal: u8,
    },
}

/// To a gateway.
pub(crate) enum FromNode {
    Answer { key: QueryKey, variant: VariantId },
    Refused { key: QueryKey, refusal: Refusal },
    HandedBack { key: QueryKey, why: Refusal },
    Declined { key: QueryKey, why: Refusal },
    Claim { queries: Vec<QueryKey>, lanes: u16 },
    Report,
}
