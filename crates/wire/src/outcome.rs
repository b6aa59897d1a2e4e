//! How a query ends at a node, as frames say it.

use crate::codec;
use crate::frame::{Encoded, TooLarge};
use crate::seam::{Body, FromNode, QueryFrame};
use modelless_types::{QueryKey, Refusal};

/// What takes the place of an answer that no gateway would accept, or that has no room to wait for a slow one.
pub(crate) fn instead(frame: FromNode, refusal: Refusal) -> Result<Encoded, TooLarge> {
    let body = key_of(&frame.body).map_or(Body::Report, |key| Body::Refused { key, refusal });
    codec::from_node(&FromNode { body, report: frame.report })
}

/// Of a query that the node never heard of: another may have it, if there is one.
pub(crate) fn unstarted(query: &QueryFrame, why: Refusal) -> Body {
    let key = query.key;
    if query.returnable { Body::HandedBack { key, why } } else { Body::Refused { key, refusal: why } }
}

/// Which query it is the end of, if of one.
pub(crate) fn key_of(body: &Body) -> Option<QueryKey> {
    match body {
        Body::Answer { key, .. }
        | Body::Refused { key, .. }
        | Body::BadInput { key, .. }
        | Body::HandedBack { key, why: _ } => Some(*key),
        // What was only announced ends elsewhere.
        Body::Declined { .. } | Body::Claim { .. } | Body::Report => None,
    }
}

/// The same of a query that is called otherwise.
pub(crate) fn renamed(body: Body, key: QueryKey) -> Body {
    match body {
        Body::Answer { key: _, answer } => Body::Answer { key, answer },
        Body::Refused { key: _, refusal } => Body::Refused { key, refusal },
        Body::BadInput { key: _, fault, why } => Body::BadInput { key, fault, why },
        Body::HandedBack { key: _, why } => Body::HandedBack { key, why },
        Body::Declined { key: _, why } => Body::Declined { key, why },
        other @ (Body::Claim { .. } | Body::Report) => other,
    }
}
